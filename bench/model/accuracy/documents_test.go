package accuracy

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"weir/bench/internal/algorithms"
	"weir/bench/internal/benchtest"
)

// The documents have the figures of the committed results, in whatever words.
func TestDocumentsHaveTheFiguresOfTheResults(t *testing.T) {
	t.Parallel()
	var r Report
	var hard, like ScaleReport
	for file, into := range map[string]any{"accuracy": &r, "accuracy-scale": &hard, "accuracy-scale-cloudflare": &like} {
		encoded, err := os.ReadFile(filepath.Join("..", "..", "results", file+".json"))
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
		"../../../docs/PROMISES.md": {
			fmt.Sprintf("%.0f, 270,000, %.1f, %.1f%%, %.1f%%, %.0f", millions(hard.Requests),
				wrong(one.Feedback)/wrong(sixty.Feedback), wrong(sixty.Feedback), wrong(one.Feedback), wrong(one.All)/wrong(sixty.All)),
			fmt.Sprintf("%.1f%%, %.1f%%", ofLog(FrontLoaded, algorithms.Capped10), ofLog(FrontLoaded, algorithms.Sliding10)),
			fmt.Sprintf("%.1f%%, %.1f%%", ofLog(Poisson, algorithms.Strict60), ofLog(FrontLoaded, algorithms.Strict60)),
			fmt.Sprintf("%.3f%%, %.3f%%", wrong(likeOne.Feedback), wrong(likeSixty.Feedback)),
		},
		"../../README.md": {
			fmt.Sprintf("%.1f%%, %.1f%%", ofLog(Poisson, algorithms.Strict60), ofLog(FrontLoaded, algorithms.Strict60)),
			means(Poisson, "%.1f%%, %.1f%%, %.1f%%"),
			means(Bursty, "%.0f%%, %.1f%%, %.1f%%"),
			fmt.Sprintf("%.0f, 270,000", millions(hard.Requests)),
			fmt.Sprintf("%.0f, %.1f, %.1f, %.2f%%, %.2f%%", millions(one.Feedback.Wrong()), millions(sixty.Feedback.Wrong()),
				wrong(one.Feedback)/wrong(sixty.Feedback), wrong(one.Feedback), wrong(sixty.Feedback)),
			fmt.Sprintf("%.1f, %.2f, %.0f, %.1f%%, %.2f%%", millions(one.All.Wrong()), millions(sixty.All.Wrong()),
				wrong(one.All)/wrong(sixty.All), 100*one.All.Relative(), 100*sixty.All.Relative()),
			fmt.Sprintf("%.4f%%, %d, %.4f%%", wrong(row(like, algorithms.Counting64).Feedback), like.Limit, wrong(row(hard, algorithms.Counting64).Feedback)),
			fmt.Sprintf("1, %d, 60", one.BelowLimited),
			fmt.Sprintf("%.4f%%, %.4f%%, %.4f%%", wrong(likeOne.Feedback), wrong(likeTen.Feedback), wrong(likeSixty.Feedback)),
			fmt.Sprintf("%.4f%%, %.0f, %.1f%%, %d, %.4f%%, %.1f%%, %.4f%%, %.1f%%", wrong(likeOne.All), millions(like.Requests), 100*likeOne.All.Relative(), likeOne.BelowLimited,
				wrong(likeTen.All), 100*likeTen.All.Relative(), wrong(likeSixty.All), 100*likeSixty.All.Relative()),
		},
	}
	readme, err := os.ReadFile("../../README.md")
	require.NoError(t, err)
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
		assert.Contains(t, string(readme), "\n"+line+fmt.Sprintf(" %d |\n", r.cost(name).Bytes))
	}
	for flags, worked := range map[string]time.Duration{"-scale": hard.Worked, "-scale -like cloudflare": like.Worked} {
		assert.Regexp(t, fmt.Sprintf("(?m)^\\| `accuracy %s` .* %.0f min ", flags, worked.Minutes()), string(readme))
	}
	for file, all := range said {
		content, err := os.ReadFile(file)
		require.NoError(t, err)
		paragraphs := strings.Split(string(content), "\n\n")
		for _, figures := range all {
			assert.True(t, slices.ContainsFunc(paragraphs, func(p string) bool {
				return inOrder(benchtest.Figures(p), benchtest.Figures(figures))
			}), "%s: no paragraph has %s", file, figures)
		}
	}
}

// inOrder reports whether wanted are among all, in this order.
func inOrder(all, wanted []string) bool {
	for _, figure := range all {
		if len(wanted) > 0 && figure == wanted[0] {
			wanted = wanted[1:]
		}
	}
	return len(wanted) == 0
}
