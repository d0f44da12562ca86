package cas

import (
	"context"
	"fmt"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"weir/counters"
	"weir/counters/limitertest"
	"weir/counters/memory"
)

// A slowStore takes a while to swap. While late is set, that is what it answers
// instead, having swapped or not.
type slowStore struct {
	limitertest.Store
	late  error
	swaps bool
	takes time.Duration
}

func (s *slowStore) Swap(ctx context.Context, key string, old counters.State, value []byte, ttl time.Duration) (now counters.State, swapped bool, err error) {
	time.Sleep(s.takes)
	if s.late == nil || s.swaps {
		now, swapped, err = s.Store.Swap(ctx, key, old, value, ttl)
	}
	if s.late != nil {
		return counters.State{}, false, s.late
	}
	return now, swapped, err
}

// What is written, or not, although nobody got an answer is settled when the
// store tells.
func TestLateAnswers(t *testing.T) {
	t.Parallel()
	for name, newLimiter := range makers {
		for _, test := range []struct {
			written, refunds    bool
			told                error
			alone, othersBefore bool
			used, failed        int64
		}{
			{written: true, refunds: true, used: 1},
			{told: counters.ErrNotSent, refunds: true, used: 1},
			{written: true, told: counters.ErrUnavailable, refunds: true, used: 4, failed: 1},
			{written: true, used: 4},
			{written: true, used: 4, alone: true},
			{written: true, used: 6, alone: true, othersBefore: true},
			{told: counters.ErrNotSent, used: 4, alone: true},
			{told: counters.ErrNotSent, used: 6, alone: true, othersBefore: true},
		} {
			t.Run(fmt.Sprintf("%s %+v", name, test), func(t *testing.T) {
				inner := memory.New(nil)
				store := &slowStore{Store: inner, swaps: test.written}
				var failed atomic.Int64
				cfg := testConfig(10)
				cfg.StoreTimeout, cfg.RefundUnanswered, cfg.RefundFailed = time.Second, test.refunds, func() { failed.Add(1) }
				l, err := newLimiter(store, cfg)
				require.NoError(t, err)
				there, err := newLimiter(inner, testConfig(10))
				require.NoError(t, err)
				now := clock(t, "12:00:01.5")
				take := func(l limitertest.Limiter, cost int64) {
					t.Helper()
					d, err := l.Take(t.Context(), counters.Request{Client: "c", Cost: cost, Limit: 10, Now: now})
					require.NoError(t, err)
					require.True(t, d.Allowed)
				}
				take(l, 1)
				var tell func(error)
				store.late = &counters.Unanswered{Err: counters.ErrTimeout, Later: func(f func(error)) { tell = f }}
				r := counters.Request{Client: "c", Cost: 3, Limit: 10, Now: now}
				_, err = l.Take(t.Context(), r)
				require.ErrorIs(t, err, counters.ErrTimeout)
				if test.alone {
					d, err := l.TakeLocal(r, err)
					require.NoError(t, err)
					require.True(t, d.Allowed)
				}
				store.late = nil
				if test.othersBefore {
					take(there, 2)
				}
				tell(test.told)
				take(l, 1)
				d, err := there.Peek(t.Context(), counters.Request{Client: "c", Limit: 10, Now: now})
				require.NoError(t, err)
				assert.Equal(t, 10-test.used-1, d.Remaining)
				assert.Equal(t, test.failed, failed.Load())
			})
		}
	}
}

// A caller that leaves before its leader has the answer is refused or contended,
// and is refunded.
func TestWhoLeavesIsRefunded(t *testing.T) {
	t.Parallel()
	for name, newLimiter := range makers {
		for _, refunds := range []bool{true, false} {
			t.Run(fmt.Sprint(name, refunds), func(t *testing.T) {
				synctest.Test(t, func(t *testing.T) {
					store := &slowStore{Store: memory.New(nil), takes: 50 * time.Millisecond}
					cfg := testConfig(10)
					cfg.StoreTimeout, cfg.RefundUnanswered = time.Second, refunds
					l, err := newLimiter(store, cfg)
					require.NoError(t, err)
					r := counters.Request{Client: "c", Cost: 1, Limit: 10, Now: time.Now()}
					var callers sync.WaitGroup
					for _, timeout := range []time.Duration{time.Second, 60 * time.Millisecond, time.Second} {
						callers.Go(func() {
							d, err := l.Take(&counters.Deadline{At: time.Now().Add(timeout)}, r)
							assert.Equal(t, timeout == time.Second, err == nil && d.Allowed)
						})
						synctest.Wait() // the first leads alone, then the last both
					}
					callers.Wait()
					time.Sleep(time.Second)
					r.Cost = 0
					d, err := l.Take(t.Context(), r)
					require.NoError(t, err)
					want := int64(7)
					if refunds {
						want++
					}
					assert.Equal(t, want, d.Remaining)
				})
			})
		}
	}
}
