package main

import (
	"bytes"
	"io/fs"
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// resultsDir returns a new directory with copies of the JSON files in from.
func resultsDir(t *testing.T, from string) string {
	dir := t.TempDir()
	files, err := filepath.Glob(filepath.Join(from, "*.json"))
	require.NoError(t, err)
	for _, file := range files {
		encoded, err := os.ReadFile(file)
		require.NoError(t, err)
		require.NoError(t, os.WriteFile(filepath.Join(dir, filepath.Base(file)), encoded, 0o600))
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

// The files have a store row, a simulation in which strict admitted too much,
// and no contention.
func TestReportOfTheFiles(t *testing.T) {
	const golden = "testdata/report"
	dir := resultsDir(t, golden)
	text, err := makeReport(t, dir)
	require.NoError(t, err)
	assert.Equal(t, readFile(t, filepath.Join(golden, "REPORT.md")), text)

	picture := readFile(t, filepath.Join(dir, "architectures.svg"))
	assert.Contains(t, picture, "chatty")
	assert.NotEmpty(t, readFile(t, filepath.Join(dir, "architectures.png")))
	again, err := makeReport(t, dir)
	require.NoError(t, err)
	assert.Equal(t, text, again)
	assert.Equal(t, picture, readFile(t, filepath.Join(dir, "architectures.svg")))
}

func TestReportOfNothing(t *testing.T) {
	text, err := makeReport(t, t.TempDir())
	require.NoError(t, err)
	for _, s := range sections() {
		assert.Contains(t, text, "\n## "+s.title+"\n\nNot run: there is no `"+s.file+"`, which `go run ./bench "+s.command+"` writes.\n")
	}
	_, err = makeReport(t, filepath.Join(t.TempDir(), "no such directory"))
	assert.Error(t, err)
}

func TestReportOfBrokenFiles(t *testing.T) {
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
		dir := resultsDir(t, "testdata/report")
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

func TestReportOfTheResults(t *testing.T) {
	_, err := makeReport(t, resultsDir(t, "results"))
	assert.NoError(t, err)
}

func TestMachine(t *testing.T) {
	assert.Equal(t, "2 cores, go1.26", machine{Cores: 2, Go: "go1.26"}.String())
	assert.Equal(t, "64 cores, EPYC 9004, linux/amd64, go1.26, memcached 1.6.38",
		machine{64, "EPYC 9004", "linux/amd64", "go1.26", "1.6.38"}.String())
	assert.Equal(t, "AMD EPYC: 3", cpuModel("processor\t: 0\nmodel\t\t: 17\nmodel name\t: AMD EPYC: 3\n\nmodel name\t: other\n"))
	assert.Empty(t, cpuModel("Features\t: fp\n"))
	assert.Positive(t, thisMachine("1.6.38").Cores)
}
