package memory

import (
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"weir/bench/internal/benchtest"
)

func TestMemoryOfAFewClients(t *testing.T) {
	t.Parallel()
	_, printed, err := benchtest.Run(t, Run, "memory", new(Report), "-clients", "500")
	require.NoError(t, err)
	assert.Regexp(t, `(?m)^ +500 clients: VmRSS +\d+ MB, VmHWM +\d+ MB$`, printed)
	assert.Contains(t, printed, "target: at most 300 MB")
	assert.Regexp(t, `(?m)^ +sliding N=60 +50 +\d+ +\d+ +\d+$`, printed)
}

func TestParseMemory(t *testing.T) {
	t.Parallel()
	resident, peak, err := parseMemory("Name:\tweir\nVmHWM:\t  300000 kB\nVmRSS:\t  100 kB\nThreads:\t9\n")
	require.NoError(t, err)
	assert.Equal(t, int64(100<<10), resident)
	assert.Equal(t, int64(300000<<10), peak)

	for _, status := range []string{"", "VmRSS: 1 kB\n", "VmHWM: 1 kB\n", "VmRSS: many kB\nVmHWM: 1 kB\n"} {
		_, _, err := parseMemory(status)
		assert.Error(t, err, status)
	}
}
