package main

import (
	"bytes"
	"io"
	"os"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"weir/cmd/server/servertest"
)

// limit is a policy file with one limit, {fields}, on line 4.
func limit(fields string) string {
	return "policies:\n  p:\n    limits:\n      - {" + fields + "}\n"
}

func TestValidatePrintsWhatTheFileMeans(t *testing.T) {
	t.Parallel()
	for file, golden := range map[string]string{
		"../../api/policyfile/testdata/policies.yaml": "../../api/policyfile/testdata/policies.txt",
		"": "../../api/policyfile/testdata/builtin.txt",
	} {
		want, err := os.ReadFile(golden)
		require.NoError(t, err)
		var out bytes.Buffer
		require.NoError(t, validate(&config{policyFile: file}, &out))
		assert.Equal(t, string(want), out.String())
	}
}

func TestValidateRefuses(t *testing.T) {
	t.Parallel()
	var out bytes.Buffer
	file := servertest.WriteFile(t, "p.yaml", limit("algorithm: fixed_window, limit: 0, window: 0"))
	assert.EqualError(t, validate(&config{policyFile: file}, &out), file+`:4: limit "0" must be a whole number from 1 to 1000000000000`+"\n"+
		file+`:4: window "0" must be a duration such as 500ms, 1m, 24h or 7d`)
	assert.EqualError(t, validate(&config{policyFile: "/nowhere/p.yaml"}, &out), "policy file: open /nowhere/p.yaml: no such file or directory")
	assert.Empty(t, out.String())
}

// Whether a limit has room for clocks that differ depends on the flags.
func TestValidateRefusesWhatTheServerRefuses(t *testing.T) {
	t.Parallel()
	file := servertest.WriteFile(t, "p.yaml", limit("algorithm: sliding_window, limit: 10, window: 1s, sub_windows: 100"))
	args := []string{"-config", file, "-clock-skew", "1m", "-validate"}
	embedded, err := parseConfig(args, env(nil), io.Discard)
	require.NoError(t, err)
	shared, err := parseConfig(append(args, "-memcached", "127.0.0.1:1"), env(nil), io.Discard)
	require.NoError(t, err)

	var out bytes.Buffer
	require.NoError(t, validate(embedded, &out))
	out.Reset()
	_, refused := newProgram(shared, io.Discard)
	require.ErrorContains(t, refused, "it may read 4096")
	assert.EqualError(t, validate(shared, &out), refused.Error())
	assert.Empty(t, out.String())
}

// A number from another policy file doesn't pass for this one's, whatever the
// flags are: without -memcached the words are about the Memcached there will be.
func TestValidateTellsOfMemcachedWithoutIt(t *testing.T) {
	t.Parallel()
	said := func(args ...string) string {
		var out strings.Builder
		cfg, err := parseConfig(append([]string{"-validate", servertest.WriteFile(t, "p.yaml", limit("algorithm: sliding_window, limit: 100, window: 1m, sub_windows: 60, estimate: strict"))}, args...), env(nil), io.Discard)
		require.NoError(t, err)
		require.NoError(t, validate(cfg, &out))
		return out.String()
	}
	const words = "  sliding-window: at most 100 in any 60 s, counted in 60 slots of 1 s, about 64 Memcached keys, 7.7 kB per active client; " +
		"after a pause a check reads a key for each slot that has passed, about 1 us of processor time each\n"
	assert.Contains(t, said(), words)
	assert.Contains(t, said("-memcached", "127.0.0.1:1"), words)
	assert.Contains(t, said("-clock-skew", "10s"), ", about 84 Memcached keys, 10.1 kB per active client;")
}

// The limits of Envoy's files are named by the clients that they count.
func TestValidateNamesEnvoysLimits(t *testing.T) {
	t.Parallel()
	var out strings.Builder
	cfg, err := parseConfig([]string{"-validate", "-envoy-config", "../../deploy/envoy/limits.yaml"}, env(nil), io.Discard)
	require.NoError(t, err)
	require.NoError(t, validate(cfg, &out))
	assert.Contains(t, out.String(), "envoy: 3 limits in 1 domain of ../../deploy/envoy/limits.yaml\n"+
		"  edge|path=/login*|remote_address=*: at most 5 in each calendar window of 1 h,")
	assert.Contains(t, out.String(), "  edge|remote_address=203.0.113.9: denies all\n")
}
