package main

import (
	"bytes"
	"flag"
	"os"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"
)

// TestMain makes the test binary one of the bench's own processes when it is
// started as one.
func TestMain(m *testing.M) {
	if len(os.Args) > 1 && (os.Args[1] == noopCommand || os.Args[1] == shareCommand) {
		main()
		return
	}
	goleak.VerifyTestMain(m)
}

func TestCommandsAreListed(t *testing.T) {
	var out bytes.Buffer
	require.NoError(t, execute(t.Context(), nil, &out))
	assert.Contains(t, out.String(), "throughput ")
	assert.Contains(t, out.String(), "memory ")
	assert.Contains(t, out.String(), "contention ")
	assert.Contains(t, out.String(), "architectures ")
	assert.Contains(t, out.String(), "report ")
	assert.Contains(t, out.String(), "load ")
	assert.Contains(t, out.String(), "compare ")
	assert.Contains(t, out.String(), "accuracy ")
	assert.NotContains(t, out.String(), noopCommand)
	assert.NotContains(t, out.String(), shareCommand)
}

func TestHelpListsFlags(t *testing.T) {
	var out bytes.Buffer
	assert.ErrorIs(t, execute(t.Context(), []string{"throughput", "-help"}, &out), flag.ErrHelp)
	assert.Contains(t, out.String(), "-connections")
}

func TestBadCommandLines(t *testing.T) {
	for _, args := range [][]string{
		{"no-such-command"},
		{"throughput", "more"},
		{"throughput", "-rows", "("},
		{"throughput", "-connections", "0"},
		{"throughput", "-duration", "0s"},
		{"throughput", "-rows", "no row is called this"},
		{"contention", "-duration", "0s"},
		{"contention", "-exact", "0s"},
		{"contention", "-rows", "no row is called this"},
		{"architectures", "-seed", "-1"},
		{"report", "everything"},
		{"load", "-arrivals", "late"},
		{"load", "-format", "grpc"},
		{"load", "-format", "ratelimit"},
		{"load", "-memcached", "127.0.0.1:1"},
		{"load", "-target", "https://127.0.0.1:1"},
		{"load", "-target", "127.0.0.1:1", "-rate", "1"},
		{"load", "-policies", ""},
		{"load", "-policies", "fixed,token,fixed"},
		{"load", "-rate", "-1"},
		{"load", "-rate", "NaN"},
		{"load", "-rate", "1e9"},
		{"load", "-ramp", "1000"},
		{"load", "-ramp", "many:more"},
		{"load", "-ramp", "0:0"},
		{"load", "-ramp", "1:2", "-rate", "3"},
		{"load", "-duration", "0s"},
		{"load", "-p99", "0s"},
		{"load", "-connections", "0"},
		{"load", "-clients", "0"},
		{"load", "-clients", "10000001"},
		{"load", "-zipf", "-1"},
		{"compare"},
		{"compare", "one.json"},
		{"compare", "no-such.json", "no-such.json"},
		{"accuracy", "-requests", "-1"},
		{"accuracy", "-requests", "40000001"},
		{"accuracy", "-scale", "-requests", "400000001"},
		{"accuracy", "-seed", "one"},
		{"memory", "-clients", "0"},
		{"memory", "-clients", "100000001"},
	} {
		assert.Error(t, execute(t.Context(), args, &bytes.Buffer{}), args)
	}
}
