package e2e

import (
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// Whoever gives the module a path finds all packages, and all that their tests
// import, under it.
func TestModuleTakesAnotherPath(t *testing.T) {
	t.Parallel()
	const root, path = "../../..", "git.example.com/team/weir"
	dir := t.TempDir()
	require.NoError(t, filepath.WalkDir(root, func(file string, entry fs.DirEntry, err error) error {
		if err != nil || file == root {
			return err
		}
		name, _ := filepath.Rel(root, file)
		switch {
		case strings.HasPrefix(entry.Name(), ".") || name == filepath.Join("bench", "results"):
			if entry.IsDir() {
				return filepath.SkipDir
			}
			return nil
		case entry.IsDir():
			return os.Mkdir(filepath.Join(dir, name), 0o755)
		}
		data, err := os.ReadFile(file)
		require.NoError(t, err)
		info, err := entry.Info()
		require.NoError(t, err)
		return os.WriteFile(filepath.Join(dir, name), data, info.Mode())
	}))
	run := func(name string, args ...string) string {
		cmd := exec.Command(name, args...)
		cmd.Dir = dir
		out, err := cmd.CombinedOutput()
		require.NoError(t, err, "%s %v: %s", name, args, out)
		return string(out)
	}
	folders := func() []string { return strings.Fields(run("go", "list", "-test", "-deps", "-f", "{{.Dir}}", "./...")) }
	before := folders()
	run("./deploy/module", path)
	assert.ElementsMatch(t, before, folders())
	for name := range strings.FieldsSeq(run("go", "list", "./...")) {
		assert.True(t, strings.HasPrefix(name, path+"/"), name)
	}
	assert.Equal(t, path+"/deploy/manifests\n", run("go", "-C", "deploy/manifests", "list", "-m"))
	assert.Empty(t, run("gofmt", "-l", "."))
	out, err := exec.Command(filepath.Join(dir, "deploy", "module"), "weir").CombinedOutput()
	assert.Error(t, err)
	assert.Contains(t, string(out), "must begin with the name of a host")
}
