package main

import (
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"weir/counters/racetest"
)

func read(t *testing.T, file string) string {
	t.Helper()
	data, err := os.ReadFile(file)
	require.NoError(t, err)
	return string(data)
}

// documents returns the text of each Markdown file by its path from here.
func documents(t *testing.T) map[string]string {
	t.Helper()
	texts := make(map[string]string)
	require.NoError(t, filepath.WalkDir("../..", func(path string, entry fs.DirEntry, err error) error {
		if err == nil && entry.IsDir() && entry.Name() == "testdata" {
			return filepath.SkipDir
		}
		if err == nil && filepath.Ext(path) == ".md" {
			texts[path] = read(t, path)
		}
		return err
	}))
	require.Contains(t, texts, "../../README.md")
	return texts
}

var (
	markdownLink = regexp.MustCompile(`\]\(([^)\s]+)\)`)
	heading      = regexp.MustCompile(`(?m)^#+ (.*)$`)
	notInAnchor  = regexp.MustCompile(`[^\p{L}\p{N}_ -]`)
	fenced       = regexp.MustCompile("(?ms)^```(\\w*)\n(.*?)^```")
)

// anchors returns the names that links give to the headings of a document.
func anchors(text string) (names []string) {
	for _, found := range heading.FindAllStringSubmatch(fenced.ReplaceAllString(text, ""), -1) {
		names = append(names, strings.ReplaceAll(notInAnchor.ReplaceAllString(strings.ToLower(found[1]), ""), " ", "-"))
	}
	return names
}

// What documents link to is there: files, folders and headings.
func TestDocumentsLinkToWhatIsThere(t *testing.T) {
	racetest.Sequential(t)
	t.Parallel()
	texts := documents(t)
	for path, text := range texts {
		for _, link := range markdownLink.FindAllStringSubmatch(text, -1) {
			file, anchor, _ := strings.Cut(link[1], "#")
			if strings.Contains(file, "://") {
				continue
			}
			to := path
			if file != "" {
				to = filepath.Join(filepath.Dir(path), file)
			}
			_, err := os.Stat(to)
			assert.NoError(t, err, "%s links to %s", path, link[1])
			assert.True(t, anchor == "" || slices.Contains(anchors(texts[to]), anchor), "%s links to %s", path, link[1])
		}
	}
}

var (
	makeTarget  = regexp.MustCompile("(?:^|[`$] ?)make ([a-z-]+)")
	weirCommand = regexp.MustCompile(`(?m)^(?:\$ )?(?:\./weir|weir|go run \./cmd/server) (-[^&|#\n]*)`)
	goPackage   = regexp.MustCompile(`\bgo (?:run|build|test)\b[^\n]*? (\./[\w/]+)`)
)

// The commands of documents name targets of the Makefile, packages, and flags of weir
// that there are.
func TestDocumentsNameCommandsThatWork(t *testing.T) {
	racetest.Sequential(t)
	t.Parallel()
	makefile := read(t, "../../Makefile")
	found := make(map[string]bool)
	for path, text := range documents(t) {
		for _, target := range makeTarget.FindAllStringSubmatch(text, -1) {
			found["make"] = true
			assert.Regexp(t, `(?m)^`+target[1]+`:`, makefile, "%s: make %s", path, target[1])
		}
		for _, name := range goPackage.FindAllStringSubmatch(text, -1) {
			found["go"] = true
			assert.DirExists(t, filepath.Join("../..", name[1]), "%s: %s", path, name[0])
		}
		for _, block := range fenced.FindAllStringSubmatch(text, -1) {
			if block[1] != "sh" && block[1] != "console" {
				continue
			}
			for _, command := range weirCommand.FindAllStringSubmatch(block[2], -1) {
				found["weir"] = true
				_, err := parseConfig(strings.Fields(command[1]), nil, io.Discard)
				if err != nil {
					assert.NotContains(t, err.Error(), "flag provided but not defined", "%s: %s", path, command[0])
				}
			}
		}
	}
	assert.Len(t, found, 3)
}

var unitVariable = regexp.MustCompile(`(?m)^Environment=(.*)$`)

// The unit of systemd has weir reload, gives it time to end, sets flags that it has, and lets
// it write where documents put its log of decisions and its socket.
func TestUnitSetsFlagsOfWeir(t *testing.T) {
	t.Parallel()
	unit := read(t, "../../deploy/weir.service")
	var variables []string
	for _, found := range unitVariable.FindAllStringSubmatch(unit, -1) {
		variables = append(variables, found[1])
	}
	cfg, err := parseConfig(nil, variables, io.Discard)
	require.NoError(t, err)
	assert.Equal(t, "/etc/weir/policies.yaml", cfg.policyFile)
	assert.Contains(t, unit, "\nExecReload=/bin/kill -HUP $MAINPID\n")
	assert.Contains(t, unit, "\nTimeoutStopSec=30\n")
	manual := read(t, "../../deploy/README.md")
	assert.Contains(t, manual, "-decision-log /var/log/weir/")
	assert.Contains(t, unit, "\nLogsDirectory=weir\n")
	assert.Contains(t, manual, "unix:/run/weir/")
	assert.Contains(t, unit, "\nRuntimeDirectory=weir\n")
	assert.Less(t, cfg.shutdownGrace.Seconds()+10, 30.0)
}
