package ledger

import (
	"testing"

	"github.com/stretchr/testify/assert"

	"weir/counters"
)

func TestWhatACostStandsFor(t *testing.T) {
	t.Parallel()
	assert.EqualValues(t, 1, StandsFor(1, 1))
	assert.EqualValues(t, 4, StandsFor(1, 0.25))
	assert.EqualValues(t, 4, StandsFor(1, 0.3), "rounded up")
	assert.EqualValues(t, counters.MaxLimit, StandsFor(counters.MaxCost, 1e-12), "no more than any limit")
}
