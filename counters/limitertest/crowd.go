package limitertest

import (
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"weir/counters"
)

// Crowd tests that what is admitted alone is counted when the store answers again, be
// there many more clients than are remembered: of as many as that at least. The
// limiters remember 64 clients.
func Crowd(t *testing.T, now time.Time, newStore func() Store, newLimiter func(t *testing.T, s Store) counters.Limiter) {
	const remembered, clients, limit = 64, 300, 100
	store := &BrokenStore{Store: newStore()}
	l := newLimiter(t, store)
	queue := l.(interface {
		Flush()
		Owing() int
	})
	request := func(i int) counters.Request {
		return counters.Request{Client: fmt.Sprint("c", i), Cost: 10, Limit: limit, Now: now}
	}
	store.Fail(ErrUnsent)
	for i := range clients {
		_, err := l.Take(t.Context(), request(i))
		require.ErrorIs(t, err, counters.ErrNotSent)
		d, err := l.TakeLocal(request(i), err)
		require.NoError(t, err)
		require.True(t, d.Allowed)
	}
	require.GreaterOrEqual(t, queue.Owing(), remembered)
	store.Fail(nil)
	queue.Flush()
	require.Zero(t, queue.Owing())
	counted, other := 0, newLimiter(t, store.Store)
	for i := range clients {
		d, err := other.Peek(t.Context(), request(i))
		require.NoError(t, err)
		if d.Remaining == limit-10 {
			counted++
		}
	}
	require.GreaterOrEqual(t, counted, remembered)
}
