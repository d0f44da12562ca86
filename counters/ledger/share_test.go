package ledger

import (
	"sync"
	"testing"

	"github.com/stretchr/testify/assert"

	"weir/counters"
	"weir/counters/racetest"
)

func TestWhatACostStandsFor(t *testing.T) {
	t.Parallel()
	assert.EqualValues(t, 1, StandsFor(1, 1))
	assert.EqualValues(t, 4, StandsFor(1, 0.25))
	assert.EqualValues(t, 4, StandsFor(1, 0.3), "rounded up")
	assert.EqualValues(t, counters.MaxLimit, StandsFor(counters.MaxCost, 1e-12), "no more than any limit")
}

// A process that has counted everything has all of it, however many of its clients are
// noted at a time.
func TestTheShareOfAProcessThatIsAlone(t *testing.T) {
	racetest.Sequential(t)
	t.Parallel()
	var s Share
	var noting sync.WaitGroup
	for range 8 {
		noting.Go(func() {
			var client Share
			for range 2_000_000 {
				s.Note(&client, 1, 1)
				var unknown Share
				if of := s.Of(&unknown, 1); of != 1 {
					t.Errorf("a share of %v", of)
					return
				}
			}
		})
	}
	noting.Wait()
}

func TestTheShareOfMuchAtOnce(t *testing.T) {
	t.Parallel()
	var s, client Share
	for range 100 {
		s.Note(&client, counters.MaxLimit/4, counters.MaxLimit)
	}
	assert.InDelta(t, 0.25, s.Of(&client, 1), 1e-4)
	var unknown Share
	assert.InDelta(t, 0.25, s.Of(&unknown, 1), 1e-4)
}
