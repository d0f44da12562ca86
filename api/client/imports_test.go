package client_test

import (
	"os/exec"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// Who uses the client builds nothing of weir's that it doesn't need: no
// gomemcache, no metrics, and echo only with weirecho.
func TestTheClientBringsNoLibraries(t *testing.T) {
	t.Parallel()
	assert.Equal(t, []string{"weir/api/client"}, dependencies(t, "weir/api/client"))
	for _, path := range dependencies(t, "weir/api/client/weirecho") {
		assert.NotRegexp(t, "gomemcache|prometheus|otter|yaml|^weir/(api|counters|subwindow|cas)$", path)
	}
}

// dependencies returns a package and all that it needs, but for the standard
// library.
func dependencies(t *testing.T, path string) []string {
	t.Helper()
	out, err := exec.Command("go", "list", "-deps", "-f", "{{if not .Standard}}{{.ImportPath}}{{end}}", path).Output()
	require.NoError(t, err)
	return strings.Fields(string(out))
}
