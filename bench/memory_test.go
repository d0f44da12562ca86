package main

import (
	"bytes"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

func TestMemoryOfAFewClients(t *testing.T) {
	var out bytes.Buffer
	require.NoError(t, execute(t.Context(), []string{"memory", "-clients", "500", "-out", t.TempDir()}, &out))
	assert.Regexp(t, `(?m)^ +500 clients: VmRSS +\d+ MB, VmHWM +\d+ MB$`, out.String())
	assert.Contains(t, out.String(), "target: at most 300 MB")
}

func TestParseMemory(t *testing.T) {
	resident, peak, err := parseMemory(strings.NewReader("Name:\tweir\nVmHWM:\t  300000 kB\nVmRSS:\t  100 kB\nThreads:\t9\n"))
	require.NoError(t, err)
	assert.Equal(t, int64(100<<10), resident)
	assert.Equal(t, int64(300000<<10), peak)

	for _, status := range []string{"", "VmRSS: 1 kB\n", "VmHWM: 1 kB\n", "VmRSS: many kB\nVmHWM: 1 kB\n"} {
		_, _, err := parseMemory(strings.NewReader(status))
		assert.Error(t, err, status)
	}
}
