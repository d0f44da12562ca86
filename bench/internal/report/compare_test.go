package report

import (
	"bytes"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// rates is a result of rates by the names of rows.
type rates map[string]float64

func (rates) Print(out io.Writer) { _, _ = io.WriteString(out, "rates\n") }

func (rates) Draw(dir string) ([]Picture, error) {
	return nil, os.MkdirAll(dir, 0o755)
}

func (rates) Setting() map[string]any { return nil }

func (r rates) Figures() (f Figures) {
	for _, row := range []string{"fixed", "fixed, search", "fixed at 500/s", "fixed-2", "n=1", "token", "token, search"} {
		if value, ok := r[row]; ok {
			f.Row("%s", row)
			f.Speed("rate", value)
		}
	}
	return f
}

// compared returns the lines of a comparison that are about a row.
func compared(t *testing.T, before, after rates, as ...string) []string {
	t.Helper()
	pairs, err := pair(as, before.Figures(), after.Figures())
	require.NoError(t, err)
	var out bytes.Buffer
	PrintComparison(&out, before, after, pairs)
	table, _, _ := strings.Cut(out.String(), "\nnoise")
	var lines []string
	for line := range strings.Lines(table) {
		if words := strings.Join(strings.Fields(line), " "); words != "" && !strings.HasPrefix(words, "row ") {
			lines = append(lines, words)
		}
	}
	return lines
}

func TestCompareRowsOfDifferentNames(t *testing.T) {
	t.Parallel()
	before := rates{"fixed": 100, "fixed, search": 10, "fixed at 500/s": 1, "fixed-2": 7, "n=1": 3}
	after := rates{"token": 200, "token, search": 20, "fixed-2": 7}
	assert.Equal(t, []string{
		"fixed = token rate 100 ~ 200 ~ 2.000 higher",
		"fixed, search = token, search rate 10 ~ 20 ~ 2.000 higher",
		"fixed-2 rate 7 ~ 7 ~ 1.000 within noise",
		"only in the old result: fixed at 500/s, rate",
		"only in the old result: n=1, rate",
	}, compared(t, before, after, "fixed=token"))
	assert.Contains(t, compared(t, before, after, "n=1=token"), "n=1 = token rate 3 ~ 200 ~ 66.667 higher")

	// Two rows of one result. What is compared already isn't again.
	both := rates{"fixed": 100, "token": 50}
	assert.Equal(t, []string{
		"fixed = token rate 100 ~ 50 ~ 0.500 lower",
		"only in the old result: token, rate",
		"only in the new result: fixed, rate",
	}, compared(t, both, both, "fixed=token"))

	for _, as := range []string{"", "fixed", "fixed=", "=token", "fixed=log", "log=token", "fix=token"} {
		_, err := pair([]string{as}, before.Figures(), after.Figures())
		assert.ErrorContains(t, err, `the old one has "fixed", "fixed, search", "fixed at 500/s", "fixed-2", "n=1", the new one "fixed-2", "token", "token, search"`, as)
	}
}

// Results are replaced by what is to be published only, unless somebody says
// where to write.
func TestPublish(t *testing.T) {
	for name, tt := range map[string]struct {
		args  []string
		guest bool
		want  string // the file that is written
	}{
		"as usual":           {nil, false, filepath.Join(defaultDir, "rates.json")},
		"quick":              {[]string{"-quick"}, false, ""},
		"a guest":            {nil, true, ""},
		"profiled":           {[]string{"-profiles", "there"}, false, ""},
		"elsewhere":          {[]string{"-out", "mine"}, false, "mine/rates.json"},
		"quick, elsewhere":   {[]string{"-quick", "-out", "mine"}, false, "mine/rates.json"},
		"a guest, elsewhere": {[]string{"-out", "mine"}, true, "mine/rates.json"},
		"quick, there":       {[]string{"-quick", "-out", defaultDir}, false, filepath.Join(defaultDir, "rates.json")},
	} {
		t.Run(name, func(t *testing.T) {
			t.Chdir(t.TempDir())
			flags := NewFlags("rates")
			flags.Quick("less")
			flags.Profiles(new(string))
			if tt.guest {
				flags.Guest()
			}
			var out bytes.Buffer
			require.NoError(t, flags.Parse(tt.args, &out))
			require.NoError(t, flags.Publish(&out, "rates", rates{}, nil))
			if tt.want != "" {
				assert.FileExists(t, tt.want)
				assert.Equal(t, "rates\n", out.String())
				return
			}
			files, err := os.ReadDir(".")
			require.NoError(t, err)
			assert.Empty(t, files)
			assert.Equal(t, "rates\n\nNothing is written: -out names a directory for the figures and pictures.\n", out.String())
		})
	}
}
