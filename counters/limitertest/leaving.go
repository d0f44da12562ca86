package limitertest

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"weir/counters"
)

// Leaving tests what becomes of a request whose caller leaves a batch before its
// leader ends, and decides it alone: whatever the leader makes of it, it is
// counted once. For newStore and newLimiter see Outage; a check of the limiter
// lasts a second.
func Leaving(t *testing.T, now time.Time, newStore func() Store, newLimiter func(*testing.T, Store) Limiter) {
	const limit = 10
	for name, outcome := range map[string]error{
		"the leader counts it":        nil,
		"the store isn't asked":       ErrUnsent,
		"the store does, unanswered":  ErrUnanswered,
		"the store never hears of it": ErrUnheard,
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				shared := newStore()
				store := &BrokenStore{Store: shared, hold: make(chan struct{})}
				l := newLimiter(t, store)
				r := counters.Request{Client: "c", Cost: 1, Limit: limit, Now: now}
				ask := func(cost int64, within time.Duration) (admitted chan bool) {
					admitted = make(chan bool, 1)
					r := r
					r.Cost = cost
					go func() {
						ctx, cancel := context.WithTimeout(t.Context(), within)
						defer cancel()
						d, err := l.Take(ctx, r)
						if err != nil {
							d, err = l.TakeLocal(r, err)
							assert.NoError(t, err)
						}
						admitted <- d.Allowed
					}()
					synctest.Wait()
					return admitted
				}
				first := ask(1, time.Second)
				leader := ask(1, time.Second)
				follower := ask(2, 100*time.Millisecond)
				for len(first) == 0 {
					store.hold <- struct{}{}
					synctest.Wait()
				}
				store.Err = outcome
				require.True(t, <-follower, "its time is over")
				close(store.hold)
				require.True(t, <-leader)
				synctest.Wait()
				store.Err, store.hold = nil, nil
				require.True(t, <-ask(1, time.Second))
				d, err := newLimiter(t, shared).Peek(t.Context(), r)
				require.NoError(t, err)
				assert.EqualValues(t, limit-5, d.Remaining)
			})
		})
	}
}
