package main

import (
	"bytes"
	"encoding/json"
	"flag"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	"weir/bench/internal/testbed"
	"weir/bench/measure/contention"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func TestCommandsAreListed(t *testing.T) {
	t.Parallel()
	var out bytes.Buffer
	require.NoError(t, execute(t.Context(), nil, &out))
	for _, name := range []string{"throughput", "footprint", "contention", "accuracy", "load", "peers", "faults", "report"} {
		assert.Contains(t, out.String(), "\n  "+name+" ")
	}
	assert.NotContains(t, out.String(), testbed.NoopCommand+" ")
	assert.NotContains(t, out.String(), contention.ShareCommand)
}

func TestHelpListsFlags(t *testing.T) {
	t.Parallel()
	var out bytes.Buffer
	assert.ErrorIs(t, execute(t.Context(), []string{"throughput", "-help"}, &out), flag.ErrHelp)
	assert.Contains(t, out.String(), "-connections")
}

func TestBadCommandLines(t *testing.T) {
	t.Parallel()
	const none = "no row is called this"
	for command, lines := range map[string][]string{
		"no-such-command": {""},
		"throughput":      {"more", "-rows|(", "-connections|0", "-duration|0s", "-rows|" + none},
		"contention":      {"-rows|(", "-rows|" + none},
		"report":          {"everything"},
		"load": {
			"-target|https://127.0.0.1:1", "-target|127.0.0.1",
			"-policies|", "-policies|fixed,token,fixed", "-rate|0", "-rate|-1", "-rate|NaN", "-rate|1e9", "-duration|0s", "-connections|0",
		},
		"accuracy":  {"-requests|-1", "-requests|40000001", "-scale|-requests|400000001", "-seed|one", "-like|cloudflare", "-scale|-like|fastly"},
		"footprint": {"-clients|0", "-clients|100000001", "-busy|0", "-busy|100001"},
	} {
		for _, line := range lines {
			args := []string{command}
			if line != "" {
				args = append(args, strings.Split(line, "|")...)
			}
			assert.Error(t, execute(t.Context(), args, &bytes.Buffer{}), args)
		}
	}
}

// What is published was written by this version, or one with the same fields.
func TestTheResultsCanBeRead(t *testing.T) {
	t.Parallel()
	for _, s := range sections() {
		d := json.NewDecoder(strings.NewReader(readFile(t, filepath.Join("results", s.File))))
		d.DisallowUnknownFields()
		assert.NoError(t, d.Decode(s.Empty), s.File)
	}
}

// resultsDir returns a new directory with results of two experiments. They have a way in,
// a load with checks that were not answered, and no contention.
func resultsDir(t *testing.T) string {
	dir := t.TempDir()
	files, err := filepath.Glob("testdata/report/*.json")
	require.NoError(t, err)
	for _, file := range files {
		require.NoError(t, os.WriteFile(filepath.Join(dir, filepath.Base(file)), []byte(readFile(t, file)), 0o600))
	}
	return dir
}

func makeReport(t *testing.T, dir string) (string, error) {
	err := execute(t.Context(), []string{"report", "-results", dir}, &bytes.Buffer{})
	return readFile(t, filepath.Join(dir, "REPORT.md")), err
}

// readFile returns what is in a file, and nothing if there is none.
func readFile(t *testing.T, name string) string {
	content, err := os.ReadFile(name)
	if err != nil {
		require.ErrorIs(t, err, fs.ErrNotExist)
	}
	return string(content)
}

func TestReportOfTheFiles(t *testing.T) {
	t.Parallel()
	dir := resultsDir(t)
	text, err := makeReport(t, dir)
	require.NoError(t, err)
	for _, line := range []string{
		"**This run failed:**", "| fixed | 500 | 490 | 0.400 | 2.50 | 8.00 | 0.300 | 450 | 40 | 0 | 0.70 | 0.0 |",
		"| batches of 10 | 200000 | 2.00x | 1.50x | 2.25x | 0.128 | 4.34 | 23.0 | 0.064 | 2.10 | 10.0 | 2.0 | 20.0 | 50% | 100000 | 6.0 |",
	} {
		assert.Contains(t, text, "\n"+line+"\n")
	}
	assert.Contains(t, text, "fixed: not answered: 10")
	again, err := makeReport(t, dir)
	require.NoError(t, err)
	assert.Equal(t, text, again)
}

func TestReportOfNothing(t *testing.T) {
	t.Parallel()
	text, err := makeReport(t, t.TempDir())
	require.NoError(t, err)
	for _, s := range sections() {
		assert.Contains(t, text, "\n## "+s.Title+"\n\nNot run: there is no `"+s.File+"`, which `go run ./bench "+s.Command+"` writes.\n")
	}
	_, err = makeReport(t, filepath.Join(t.TempDir(), "no such directory"))
	assert.Error(t, err)
}

func TestReportOfBrokenFiles(t *testing.T) {
	t.Parallel()
	const machine = `{"machine": {"cores": 2, "go": "go1.26"}`
	for content, want := range map[string]string{
		``:                             "EOF",
		machine:                        "unexpected EOF",
		`[]`:                           "cannot unmarshal",
		machine + `, "speed": 3}`:      `unknown field "speed"`,
		machine + `, "rates": "high"}`: "cannot unmarshal",
		machine + `} {}`:               "there is more after the report",
		`{}`:                           "it doesn't say on what machine it was made",
	} {
		dir := resultsDir(t)
		require.NoError(t, os.WriteFile(filepath.Join(dir, "contention.json"), []byte(content), 0o600))
		text, err := makeReport(t, dir)
		require.ErrorContains(t, err, want, content)
		require.ErrorContains(t, err, "contention.json", content)
		assert.Empty(t, text, content)
		files, err := os.ReadDir(dir)
		require.NoError(t, err)
		assert.Len(t, files, 3, "%s: nothing is written", content)
	}
}
