package simulate

import (
	"errors"
	"flag"
	"testing"

	"github.com/stretchr/testify/assert"

	"weir/counters"
)

// All bugs that the tests know are seen in the first 2,000 worlds, or by a plot.
var seeds = flag.Uint64("seeds", 2_000, "how many worlds to look at")

// Nothing that the docs promise is violated in any of these seeds.
func TestWorlds(t *testing.T) {
	t.Parallel()
	seed := search(t.Context(), 1, *seeds, violatesAny)
	if seed != 0 {
		t.Errorf("seed %d: %v", seed, replay(seed, mutation{}, t.Output()))
	}
}

// What is told late is true, and is told of all that was given up: at once or
// later, in the order in which it was sent or not.
func TestLateAnswersAreTrue(t *testing.T) {
	t.Parallel()
	const few = 1000
	told, late := make(map[string]int), 0
	for seed := range uint64(few) {
		var w *world
		simulate(seed, mutation{limiter: func(l limiter, of *world, _ *process) limiter {
			w = of
			return l
		}}, nil)
		if w.faults.late {
			late++
		}
		last := make(map[*connection]*operation)
		for _, o := range w.writes {
			if o.late == nil {
				continue
			}
			done := !o.applied.IsZero() && !o.lost && (o.verb != swap || o.swapped)
			assert.False(t, o.late.told.Before(o.ended), "seed %d: %v", seed, o)
			switch err := o.late.outcome; {
			case err == nil:
				assert.True(t, done, "seed %d: %v", seed, o)
				told["a done "+o.verb]++
			case errors.Is(err, counters.ErrLost):
				assert.True(t, o.lost, "seed %d: %v", seed, o)
				told["a loss"]++
			case errors.Is(err, counters.ErrNotSent):
				assert.False(t, done, "seed %d: %v", seed, o)
				told["none of "+o.verb]++
				if !o.applied.IsZero() {
					told["a lost race"]++
				}
			default:
				told["nothing of "+o.verb]++
			}
			switch {
			case o.late.told.Equal(o.ended):
				told["at once"]++
			case o.late.told.Sub(o.ended) > w.timeout:
				told["much later"]++
			}
			if before := last[o.connection]; before != nil && o.late.told.Before(before.late.told) {
				told["before one that was sent earlier"]++
			}
			last[o.connection] = o
		}
	}
	assert.Greater(t, late, few/3)
	for _, what := range []string{
		"a done add", "a done swap", "none of add", "none of swap", "a lost race", "a loss", "nothing of add", "nothing of swap",
		"at once", "much later", "before one that was sent earlier",
	} {
		assert.Positive(t, told[what], what)
	}
	t.Log(late, told)
}
