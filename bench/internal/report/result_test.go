package report

import (
	"bytes"
	"io"
	"os"
	"path/filepath"
	"regexp"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// rates is an empty result.
type rates struct{}

func (rates) Print(out io.Writer) { _, _ = io.WriteString(out, "rates\n") }

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
		"some rows":          {[]string{"-rows", "hot"}, false, ""},
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
			flags.Rows(new(*regexp.Regexp))
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
