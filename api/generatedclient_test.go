package api

import (
	"fmt"
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
	s := newService(newPolicy("api", fixed("per-minute", 1, time.Minute)))
	server := httptest.NewServer(s.handler)
	defer server.Close()
	dir := t.TempDir()
	document, generated, overlay := filepath.Join(dir, "openapi.yaml"), filepath.Join(dir, "weir.go"), filepath.Join(dir, "overlay.json")
	require.NoError(t, os.WriteFile(document, []byte(s.do(t, http.MethodGet, "/openapi.yaml", "").Body), 0o644))
	const module = "testdata/oapi-codegen" // stays where it is: so go builds only what has changed
	place, err := filepath.Abs(filepath.Join(module, "weir", "weir.go"))
	require.NoError(t, err)
	require.NoError(t, os.WriteFile(overlay, fmt.Appendf(nil, `{"Replace":{%q:%q}}`, place, generated), 0o644))

	for _, args := range [][]string{
		{"tool", "oapi-codegen", "-generate", "types,client", "-package", "weir", "-o", generated, document},
		{"run", "-overlay", overlay, ".", server.URL},
	} {
		command := exec.CommandContext(t.Context(), "go", args...)
		command.Dir = module
		out, err := command.CombinedOutput()
		require.NoErrorf(t, err, "go %v: %s", args, out)
	}
}
