package api

import (
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"weir/counters/memcachedtest"
	"weir/counters/racetest"
)

// oapi-codegen makes a client of the document, and the client works. It lives
// in a module of its own, so that weir's has no need of what it needs.
func TestAGeneratedClientWorks(t *testing.T) {
	racetest.Sequential(t)
	t.Parallel()
	memcachedtest.NeedsProcess(t)
	module := t.TempDir()
	require.NoError(t, os.CopyFS(module, os.DirFS("testdata/oapi-codegen")))
	require.NoError(t, os.Mkdir(filepath.Join(module, "weir"), 0o755))
	s := newService(newPolicy("api", fixed("per-minute", 1, time.Minute)))
	server := httptest.NewServer(s.handler)
	defer server.Close()
	require.NoError(t, os.WriteFile(filepath.Join(module, "openapi.yaml"), []byte(s.do(t, http.MethodGet, "/openapi.yaml", "").Body), 0o644))

	for _, args := range [][]string{
		{"tool", "oapi-codegen", "-generate", "types,client", "-package", "weir", "-o", "weir/weir.go", "openapi.yaml"},
		{"run", ".", server.URL},
	} {
		command := exec.CommandContext(t.Context(), "go", args...)
		command.Dir = module
		out, err := command.CombinedOutput()
		require.NoErrorf(t, err, "go %v: %s", args, out)
	}
}
