package footprint

import (
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

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
