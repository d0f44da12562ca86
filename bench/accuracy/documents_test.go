package accuracy

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"weir/bench/internal/algorithms"
)

// What the documents say of the committed results, but for spaces and lines.
func TestDocumentsSayWhatWasMeasured(t *testing.T) {
	t.Parallel()
	var r Report
	var hard, like ScaleReport
	for file, into := range map[string]any{"accuracy": &r, "accuracy-scale": &hard, "accuracy-scale-cloudflare": &like} {
		encoded, err := os.ReadFile(filepath.Join("..", "results", file+".json"))
		require.NoError(t, err)
		require.NoError(t, json.Unmarshal(encoded, into))
	}
	ofLog := func(traffic, algorithm string) float64 {
		row, ok := r.find(traffic, 2, algorithm)
		require.True(t, ok, algorithm)
		return row.ofLog()
	}
	means := func(traffic, format string) string {
		var all []any
		for _, name := range []string{algorithms.Sliding1, algorithms.Sliding10, algorithms.Sliding60} {
			row, ok := r.find(traffic, 1, name)
			require.True(t, ok, name)
			all = append(all, 100*row.All.Relative())
		}
		return fmt.Sprintf(format, all...)
	}
	row := func(s ScaleReport, algorithm string) PopulationRow {
		for _, row := range s.Rows {
			if row.Algorithm == algorithm {
				return row
			}
		}
		require.Fail(t, algorithm)
		return PopulationRow{}
	}
	wrong := func(d Difference) float64 { return 100 * ratio(d.Wrong(), d.Requests) }
	millions := func(n int64) float64 { return float64(n) / 1e6 }
	one, sixty := row(hard, algorithms.Sliding1), row(hard, algorithms.Sliding60)
	likeOne, likeTen, likeSixty := row(like, algorithms.Sliding1), row(like, algorithms.Sliding10), row(like, algorithms.Sliding60)
	said := map[string][]string{
		"../../docs/PROMISES.md": {
			fmt.Sprintf("%.0f million requests of 270,000 clients", millions(hard.Requests)),
			fmt.Sprintf("%.1f times fewer wrong decisions than `N=1`: %.1f%% of requests instead of %.1f%%",
				wrong(one.Feedback)/wrong(sixty.Feedback), wrong(sixty.Feedback), wrong(one.Feedback)),
			fmt.Sprintf("it would make %.0f times fewer", wrong(one.All)/wrong(sixty.All)),
			fmt.Sprintf("capped admits %.1f%% of what an exact log does, weighted %.1f%%", ofLog(FrontLoaded, algorithms.Capped10), ofLog(FrontLoaded, algorithms.Sliding10)),
			fmt.Sprintf("it admits %.1f%%; on bunched ones %.1f%%", ofLog(Poisson, algorithms.Strict60), ofLog(FrontLoaded, algorithms.Strict60)),
			fmt.Sprintf("`N=1` is wrong in %.3f%% of the decisions and `N=60` in %.3f%%", wrong(likeOne.Feedback), wrong(likeSixty.Feedback)),
		},
		"../README.md": {
			fmt.Sprintf("it admits %.1f%% of what an exact log does on independent arrivals, and %.1f%% when 90%%", ofLog(Poisson, algorithms.Strict60), ofLog(FrontLoaded, algorithms.Strict60)),
			means(Poisson, "is off by %.1f%% of the true count with N=1, %.1f%% with N=10 and %.1f%% with N=60"),
			means(Bursty, "on bursts of 7 seconds by %.0f%%, %.1f%% and %.1f%%"),
			fmt.Sprintf("%.0f million requests of 270,000 clients", millions(hard.Requests)),
			fmt.Sprintf("N=1 is wrong in %.0f million decisions and N=60 in %.1f million, %.1f times fewer: %.2f%% and %.2f%%",
				millions(one.Feedback.Wrong()), millions(sixty.Feedback.Wrong()), wrong(one.Feedback)/wrong(sixty.Feedback), wrong(one.Feedback), wrong(sixty.Feedback)),
			fmt.Sprintf("N=1 is wrong in %.1f million and N=60 in %.2f million, %.0f times fewer. The mean differences are %.1f%% and %.2f%%",
				millions(one.All.Wrong()), millions(sixty.All.Wrong()), wrong(one.All)/wrong(sixty.All), 100*one.All.Relative(), 100*sixty.All.Relative()),
			fmt.Sprintf("| `accuracy -scale` | the same for 400 million requests of 270,000 clients, many of them near their limit | %.0f min of processor time |", hard.Worked.Minutes()),
			fmt.Sprintf("| `accuracy -scale -like cloudflare` | the same for as many that are like those that Cloudflare measured | %.0f min of processor time |", like.Worked.Minutes()),
			fmt.Sprintf("in %.4f%% of the decisions of the population with a limit of %d, and %.4f%% of those of the other", wrong(row(like, algorithms.Counting64).Feedback), like.Limit,
				wrong(row(hard, algorithms.Counting64).Feedback)),
			fmt.Sprintf("never were above the limit. N=1 limited %d of them, N=60", one.BelowLimited),
			fmt.Sprintf("N=1, N=10 and N=60 are wrong in %.4f%%, %.4f%% and %.4f%% of the decisions", wrong(likeOne.Feedback), wrong(likeTen.Feedback), wrong(likeSixty.Feedback)),
			fmt.Sprintf("N=1 is wrong in %.4f%% of %.0f million requests, with a mean difference of %.1f%%, and limits %d clients that never were above the limit",
				wrong(likeOne.All), millions(like.Requests), 100*likeOne.All.Relative(), likeOne.BelowLimited),
			fmt.Sprintf("N=10 is wrong in %.4f%% (%.1f%%) and N=60 in %.4f%% (%.1f%%)",
				wrong(likeTen.All), 100*likeTen.All.Relative(), wrong(likeSixty.All), 100*likeSixty.All.Relative()),
		},
	}
	for _, name := range []string{
		algorithms.Sliding10, algorithms.Sliding60, algorithms.Capped10, algorithms.Capped60, algorithms.Strict60,
		algorithms.Counting64, algorithms.Counting32, algorithms.Log,
	} {
		line := fmt.Sprintf("| %s | %.2f |", name, r.fullest(name))
		for _, large := range r.Large {
			if large.Algorithm == name {
				line += fmt.Sprintf(" %s |", large.OfLog.around("%.1f", large.ofLog()))
			}
		}
		said["../README.md"] = append(said["../README.md"], line+fmt.Sprintf(" %d |", r.cost(name).Bytes))
	}
	for file, texts := range said {
		content, err := os.ReadFile(file)
		require.NoError(t, err)
		document := strings.Join(strings.Fields(string(content)), " ")
		for _, text := range texts {
			assert.Contains(t, document, text, file)
		}
	}
}
