package main

import (
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime/debug"
	"slices"
	"strings"
	"testing"
	"time"
	"unsafe"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"
)

// binary is the server, built with the race detector if the tests are.
var binary string

// noRaceSleep keeps the race detector from making each exit take a second.
const noRaceSleep = "GORACE=atexit_sleep_ms=0"

// clockOffset names the environment variable that makes this test binary the
// server, with a clock that is off by its value.
const clockOffset = "TEST_CLOCK_OFFSET"

// shifted returns t on a clock whose time of day is off. As on a real one, that
// is nothing to timers: the monotonic reading stays.
func shifted(t time.Time, offset time.Duration) time.Time {
	// The fields of a time.Time that has a monotonic reading; Add moves both.
	type fields struct {
		wall      uint64
		monotonic int64
		location  *time.Location
	}
	moved := t.Add(offset)
	(*fields)(unsafe.Pointer(&moved)).monotonic = (*fields)(unsafe.Pointer(&t)).monotonic
	return moved
}

func TestShiftedClock(t *testing.T) {
	t.Parallel()
	for _, offset := range []time.Duration{0, time.Millisecond, -1500 * time.Millisecond, time.Hour} {
		at := time.Now()
		moved := shifted(at, offset)
		assert.Equal(t, at.UnixNano()+int64(offset), moved.UnixNano())
		assert.Zero(t, moved.Sub(at), "by the monotonic clock")
	}
}

func TestMain(m *testing.M) {
	if value := os.Getenv(clockOffset); value != "" {
		offset, err := time.ParseDuration(value)
		if err != nil {
			panic(err)
		}
		now = func() time.Time { return shifted(time.Now(), offset) }
		main()
		os.Exit(0)
	}
	dir, err := os.MkdirTemp("", "weir")
	if err != nil {
		panic(err)
	}
	binary = filepath.Join(dir, "server")
	if err := buildServer(binary); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	goleak.VerifyTestMain(m, goleak.Cleanup(func(code int) {
		os.RemoveAll(dir)
		os.Exit(code)
	}))
}

// buildServer builds the server into a file, with further flags.
func buildServer(file string, flags ...string) error {
	args := append([]string{"build", "-o", file}, flags...)
	if info, ok := debug.ReadBuildInfo(); ok && slices.Contains(info.Settings, debug.BuildSetting{Key: "-race", Value: "true"}) {
		args = append(args, "-race")
	}
	if out, err := exec.Command("go", append(args, ".")...).CombinedOutput(); err != nil {
		return fmt.Errorf("%w\n%s", err, out)
	}
	return nil
}

// execBinary runs the server to its end.
func execBinary(t *testing.T, args ...string) (stdout, stderr string, code int) {
	t.Helper()
	cmd := exec.Command(binary, args...)
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
	want, err := os.ReadFile("../../api/policyfile/testdata/policies.txt")
	require.NoError(t, err)
	for _, args := range [][]string{{"-validate", "../../api/policyfile/testdata/policies.yaml"}, {"-validate", "-config", "../../api/policyfile/testdata/policies.yaml"}} {
		stdout, _, code := execBinary(t, args...)
		assert.Zero(t, code)
		assert.Equal(t, string(want), stdout)
	}

	file := write(t, "p.yaml", "policies: {}\nlimits: {}\n")
	stdout, stderr, code := execBinary(t, "-validate", "-config", file)
	assert.Equal(t, 1, code)
	assert.Empty(t, stdout)
	assert.Equal(t, file+":1: policies is empty; it needs at least one policy\n"+
		file+":2: the file has no key \"limits\", but a policy has: check the indentation; it may have policies\n", stderr)
}

// Whatever reads the log as JSON can read why weir didn't start, wherever the
// format is given.
func TestBinaryRefusesToStartInJSON(t *testing.T) {
	t.Parallel()
	empty := write(t, "empty.yaml", "")
	for _, test := range []struct {
		args string
		want []string
	}{
		{"-store-timeout soon -nonsense x -log-format json", []string{
			`invalid value "soon" for flag -store-timeout: must be a duration such as 50ms or 10s`, "flag provided but not defined: -nonsense",
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
