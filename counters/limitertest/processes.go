package limitertest

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"weir/counters"
)

// Processes share a store, each by a limiter of its own, and may lose it.
type Processes struct {
	t        *testing.T
	Stores   []*BrokenStore
	Limiters []counters.Limiter
}

// NewProcesses returns n of them, whose store answers.
func NewProcesses(t *testing.T, n int, shared Store, newLimiter func(s Store) (counters.Limiter, error)) *Processes {
	t.Helper()
	p := &Processes{t: t}
	for range n {
		store := &BrokenStore{Store: shared}
		l, err := newLimiter(store)
		require.NoError(t, err)
		p.Stores, p.Limiters = append(p.Stores, store), append(p.Limiters, l)
	}
	return p
}

// Fail has the store of each fail with err from now on.
func (p *Processes) Fail(err error) {
	for _, s := range p.Stores {
		s.Fail(err)
	}
}

// Take asks one, which decides alone where its store fails.
func (p *Processes) Take(i int, r counters.Request) counters.Decision {
	return takeAnyway(p.t, p.Limiters[i], r)
}

// Unhurried is a deadline that no busy machine reaches. Without one a check that
// waits for the processor is contended, or alone.
var Unhurried = &counters.Deadline{At: time.Now().Add(24 * time.Hour)}

func takeAnyway(t *testing.T, l counters.Limiter, r counters.Request) counters.Decision {
	d, err := l.Take(Unhurried, r)
	if err != nil {
		d, err = l.TakeLocal(r, err)
		require.NoError(t, err)
	}
	return d
}
