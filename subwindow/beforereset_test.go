package subwindow_test

import (
	"context"
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"weir/counters"
	"weir/counters/memory"
)

// A noSubtract can't subtract while it is down.
type noSubtract struct {
	counters.Store
	down bool
}

func (s *noSubtract) Subtract(ctx context.Context, key string, n int64) error {
	if s.down {
		return fmt.Errorf("%w: %w", counters.ErrUnavailable, counters.ErrNotSent)
	}
	return s.Store.Subtract(ctx, key, n)
}

// What couldn't be given back isn't after a reset by another process: it would be
// from what was counted since.
func (by way) TestARefundFromBeforeAResetIsNotDoneAfterIt(t *testing.T) {
	for _, what := range []string{"refunded", "denied"} {
		t.Run(what, func(t *testing.T) {
			inner := memory.New(nil)
			store := &noSubtract{Store: inner}
			w := newWindow(t, time.Minute, 10, false)
			o := counters.Options{Clients: 10, StoreTimeout: time.Second}
			l, other := by.newLimiterWith(t, store, w, o), by.newLimiterWith(t, inner, w, o)
			now := time.Now()
			d, err := l.Limiter.Take(t.Context(), request(now, 5, 10))
			require.NoError(t, err)
			store.down = true
			if what == "refunded" {
				require.Error(t, l.Refund(t.Context(), request(now, 5, 10), d))
			} else {
				d, err = other.Limiter.Take(t.Context(), request(now, 3, 10))
				require.NoError(t, err)
				require.True(t, d.Allowed)
				d, err = l.Limiter.Take(t.Context(), request(now, 5, 10)) // it knows of 5 of 8
				require.NoError(t, err)
				require.False(t, d.Allowed)
			}
			l.Flush() // it can't be done now either
			time.Sleep(10 * time.Millisecond)
			require.NoError(t, other.Reset(t.Context(), "c", time.Now()))
			time.Sleep(200 * time.Millisecond) // longer than skew
			d, err = other.Limiter.Take(t.Context(), request(time.Now(), 10, 10))
			require.NoError(t, err)
			require.True(t, d.Allowed)

			store.down = false
			l.Flush()
			d, err = l.Limiter.Take(t.Context(), request(time.Now(), 5, 10))
			require.NoError(t, err)
			assert.False(t, d.Allowed, "15 of 10 after the reset")
		})
	}
}

// A noAdd can't add while it is down.
type noAdd struct {
	counters.Store
	down bool
}

func (s *noAdd) Add(ctx context.Context, a counters.Addition) (int64, error) {
	if s.down {
		return 0, fmt.Errorf("%w: %w", counters.ErrUnavailable, counters.ErrNotSent)
	}
	return s.Store.Add(ctx, a)
}

// What was admitted alone before a reset isn't counted after it, also if the store
// has answered a look before the reset, and no addition.
func (by way) TestWhatWasAdmittedAloneBeforeAResetIsNotCounted(t *testing.T) {
	inner := memory.New(nil)
	store := &noAdd{Store: inner, down: true}
	w := newWindow(t, time.Minute, 10, false)
	o := counters.Options{Clients: 10, StoreTimeout: time.Second}
	l, other := by.newLimiterWith(t, store, w, o), by.newLimiterWith(t, inner, w, o)
	r := request(time.Now(), 10, 10)
	_, err := l.Limiter.Take(t.Context(), r)
	require.Error(t, err)
	d, err := l.TakeLocal(r, err)
	require.NoError(t, err)
	require.True(t, d.Allowed)
	l.Flush() // a look is answered, the addition isn't sent
	time.Sleep(10 * time.Millisecond)
	require.NoError(t, other.Reset(t.Context(), "c", time.Now()))
	store.down = false
	l.Flush()
	d, err = other.Limiter.Take(t.Context(), request(time.Now().Add(time.Second), 1, 10))
	require.NoError(t, err)
	assert.True(t, d.Allowed, "%+v", d)
}
