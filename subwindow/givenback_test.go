package subwindow_test

import (
	"context"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"weir/counters"
	"weir/counters/limitertest"
	"weir/counters/memory"
)

// A dueStore does additions while it is late, answers them too late, and tells in the end.
type dueStore struct {
	counters.Store
	unsent, late atomic.Bool
	tell         []func(error)
}

func (s *dueStore) Add(ctx context.Context, a counters.Addition) (int64, error) {
	if s.unsent.Load() {
		return 0, limitertest.ErrUnsent
	}
	n, err := s.Store.Add(ctx, a)
	if !s.late.Load() || err != nil {
		return n, err
	}
	return 0, &counters.Unanswered{Err: limitertest.ErrUnheard, Await: func(f func(error)) { s.tell = append(s.tell, f) }}
}

// What was admitted alone is refunded while its settlement has no answer: it is
// given back once, and isn't taken for a loss when the settlement turns out to be done.
func (by way) TestWhatIsGivenBackIsNotTakenForALoss(t *testing.T) {
	for name, w := range minuteWindows(t) {
		inner := memory.New(nil)
		store := &dueStore{Store: inner}
		reseeded := 0
		l := by.newLimiterWith(t, store, w, counters.Options{ClockSkew: sameClock, Clients: 10, StoreTimeout: time.Second, Reseeded: func(n int) { reseeded += n }})
		now := at("12:00:01")
		store.unsent.Store(true)
		_, err := l.Take(t.Context(), request(now, 3, 10))
		require.Error(t, err)
		local, err := l.TakeLocal(request(now, 3, 10), err)
		require.NoError(t, err)
		require.True(t, local.Allowed)
		store.unsent.Store(false)
		store.late.Store(true)
		_, err = l.Take(t.Context(), request(now, 1, 10)) // settles the 3, unanswered
		require.Error(t, err)
		store.late.Store(false)
		require.NoError(t, l.Refund(t.Context(), request(now, 3, 10), local))
		require.True(t, take(t, l, now, 2, 10).Allowed)
		require.Len(t, store.tell, 1)
		store.tell[0](nil) // it was done
		l.Flush()
		require.Equal(t, int64(2), used(t, inner, w, now), name)
		require.True(t, take(t, l, now, 1, 10).Allowed)
		l.Flush()
		assert.Equal(t, int64(3), used(t, inner, w, now), "%s: 2 and 1 are admitted, nothing was lost", name)
		assert.Zero(t, reseeded, name)
	}
}
