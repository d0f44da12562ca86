package e2e

import (
	"encoding/json"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"weir/cmd/server/servertest"
)

// execBinary runs the server to its end.
func execBinary(t *testing.T, args ...string) (stdout, stderr string, code int) {
	t.Helper()
	cmd := exec.Command(binary(t), args...)
	cmd.Env = append(os.Environ(), noRaceSleep)
	out, err := cmd.Output()
	if err != nil {
		var exit *exec.ExitError
		require.ErrorAs(t, err, &exit)
		stderr = string(exit.Stderr)
	}
	return string(out), stderr, cmd.ProcessState.ExitCode()
}

func TestBinaryVersion(t *testing.T) {
	t.Parallel()
	stdout, _, code := execBinary(t, "-version")
	assert.Zero(t, code)
	assert.Regexp(t, `^weir \S+\n$`, stdout)
}

func TestBinaryHelp(t *testing.T) {
	t.Parallel()
	stdout, _, code := execBinary(t, "-help")
	assert.Zero(t, code)
	assert.Contains(t, stdout, "WEIR_STORE_TIMEOUT")
}

func TestBinaryValidate(t *testing.T) {
	t.Parallel()
	want, err := os.ReadFile("../../../api/policyfile/testdata/policies.txt")
	require.NoError(t, err)
	for _, args := range [][]string{{"-validate", "../../../api/policyfile/testdata/policies.yaml"}, {"-validate", "-config", "../../../api/policyfile/testdata/policies.yaml"}} {
		stdout, _, code := execBinary(t, args...)
		assert.Zero(t, code)
		assert.Equal(t, string(want), stdout)
	}

	file := servertest.WriteFile(t, "p.yaml", "policies: {}\nlimits: {}\n")
	stdout, stderr, code := execBinary(t, "-validate", "-config", file)
	assert.Equal(t, 1, code)
	assert.Empty(t, stdout)
	assert.Equal(t, file+":1: policies is empty; it needs at least one policy\n"+
		file+":2: the file has no key \"limits\", but a policy has: check the indentation; it may have policies\n", stderr)
}

// Gateways of Envoy start /bin/ratelimit, without flags.
func TestBinaryThatIsCalledRatelimitTakesItsVariables(t *testing.T) {
	t.Parallel()
	name := filepath.Join(t.TempDir(), "ratelimit")
	require.NoError(t, os.Symlink(binary(t), name))
	cmd := exec.Command(name, "-validate")
	cmd.Env = []string{"CONFIG_TYPE=GRPC_XDS_SOTW", "MEMCACHE_HOST_PORT=mc:11211", "PORT=1"}
	out, err := cmd.CombinedOutput()
	require.NoError(t, err, "%s", out)
	assert.Contains(t, string(out), "  -listen=0.0.0.0:1\n  -grpc-listen=0.0.0.0:8081\n  -envoy-xds=localhost:18000\n  -memcached=mc:11211\n")
}

// Whatever reads the log as JSON can read why weir didn't start, wherever the
// format is given.
func TestBinaryRefusesToStartInJSON(t *testing.T) {
	t.Parallel()
	empty := servertest.WriteFile(t, "empty.yaml", "")
	for _, test := range []struct {
		args string
		want []string
	}{
		{"-store-timeout soon -nonsense x -log-format json", []string{
			`invalid value "soon" for flag -store-timeout: must be a duration such as 50ms or 10s`, "flag provided but not defined: -nonsense; -help lists the flags",
		}},
		{"-log-format=json -store-timeout 0s -shutdown-grace -1s", []string{
			"-store-timeout 0s must be more than 0 and at most 5s", "-shutdown-grace -1s must not be negative",
		}},
		{"-log-format json -config " + empty, []string{empty + ": the file is empty; it needs the key policies"}},
		{"-log-format json -memcached a", []string{`-memcached: "a" is not a Memcached server; give host:port or /path/to.sock`}},
	} {
		stdout, stderr, code := execBinary(t, strings.Fields(test.args)...)
		assert.Equal(t, 1, code)
		assert.Empty(t, stdout)
		var got []string
		for line := range strings.Lines(stderr) {
			var entry struct{ Time, Level, Msg, Error string }
			require.NoError(t, json.Unmarshal([]byte(line), &entry), line)
			assert.Equal(t, "ERROR", entry.Level)
			assert.Equal(t, "weir ends", entry.Msg)
			got = append(got, entry.Error)
		}
		assert.Equal(t, test.want, got)
	}
}

func TestBinaryRefusesToStart(t *testing.T) {
	t.Parallel()
	stdout, stderr, code := execBinary(t, "-store-timeout", "soon")
	assert.Equal(t, 1, code)
	assert.Empty(t, stdout)
	assert.Equal(t, "invalid value \"soon\" for flag -store-timeout: must be a duration such as 50ms or 10s\n", stderr)
}
