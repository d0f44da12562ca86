package testbed

import (
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"weir/bench/internal/loadgen"
)

// sides returns what Pair.measure takes: two sides whose slices admit so many in turn.
func sides(admitted ...int64) func(int, time.Duration) (loadgen.Tally, error) {
	return func(int, time.Duration) (loadgen.Tally, error) {
		if len(admitted) == 0 {
			return loadgen.Tally{}, assert.AnError
		}
		t := loadgen.Tally{Admitted: admitted[0], Elapsed: time.Second, Latency: loadgen.NewHistogram()}
		admitted = admitted[1:]
		return t, nil
	}
}

func TestPairComparesNeighbours(t *testing.T) {
	t.Parallel()
	p := new(Pair)
	require.NoError(t, p.measure(time.Second, sides(100, 50, 300, 300, 200, 175)))
	c := p.Comparison()
	assert.InDelta(t, 175, c.Rate, 1e-9)
	assert.InDelta(t, 200, c.Other, 1e-9)
	assert.InDelta(t, 0.875, c.Ratio, 1e-9)
	assert.InDelta(t, 0.5, c.RatioMin, 1e-9)
	assert.InDelta(t, 1.0, c.RatioMax, 1e-9)

	assert.ErrorIs(t, p.measure(1, sides()), assert.AnError)
	assert.ErrorIs(t, p.measure(1, sides(1)), assert.AnError)
}

// Each server's time is divided by what it answered itself.
func TestProcessorTimesPerCheck(t *testing.T) {
	t.Parallel()
	used := CPUTimes{Weir: 12 * time.Millisecond, Memcached: 600 * time.Microsecond, Other: 24 * time.Millisecond, OtherMemcached: 6 * time.Millisecond}
	each := used.perCheck(loadgen.Tally{Admitted: 150, Denied: 450}, loadgen.Tally{Admitted: 1200})
	assert.Equal(t, CPUTimes{Weir: 20 * time.Microsecond, Memcached: time.Microsecond, Other: 20 * time.Microsecond, OtherMemcached: 5 * time.Microsecond}, each)
}
