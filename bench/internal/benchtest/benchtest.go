// Package benchtest has what the tests of several experiments need.
package benchtest

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	"weir/bench/internal/report"
	"weir/bench/internal/testbed"
)

// What is tested doesn't depend on the machine's speed, so weir may take as
// long as it ever does.
func init() { _ = os.Setenv("WEIR_STORE_TIMEOUT", "5s") }

// Main runs a package's tests; but a test binary that is started as one of the
// bench's own processes is that command.
func Main(m *testing.M, name string, command report.Command) {
	if len(os.Args) < 2 || os.Args[1] != name {
		goleak.VerifyTestMain(m)
		return
	}
	if err := command(context.Background(), os.Args[2:], os.Stdout); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

// Memcached starts a memcached for a test.
func Memcached(t *testing.T) *testbed.Memcached {
	t.Helper()
	m, err := testbed.StartMemcached(t.Context(), 64)
	require.NoError(t, err)
	t.Cleanup(m.Stop)
	return m
}

// Build builds weir for a test and its subtests.
func Build(t *testing.T, policies string) *testbed.Build {
	t.Helper()
	b, err := testbed.BuildWeir(t.Context(), policies, "")
	require.NoError(t, err)
	t.Cleanup(b.Remove)
	return b
}

// Run runs a command that writes name.json to a directory. It returns the
// directory, what the command printed, and its error, and reads the file.
func Run(t *testing.T, command report.Command, name string, into any, args ...string) (dir, printed string, err error) {
	t.Helper()
	dir = filepath.Join(t.TempDir(), "results")
	var out bytes.Buffer
	err = command(t.Context(), append(args, "-out", dir), &out)
	encoded, readErr := os.ReadFile(filepath.Join(dir, name+".json"))
	require.NoError(t, readErr, "%v", err)
	require.NoError(t, json.Unmarshal(encoded, into))
	return dir, out.String(), err
}
