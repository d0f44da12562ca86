package limitertest

import (
	"context"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"weir/counters"
)

// Leaving tests what becomes of a request whose caller leaves a batch before its
// leader ends, and decides it alone: whatever the leader makes of it, it is
// counted once, or not at all if it is taken back. Where nobody can know that,
// failed is called. For newStore and newLimiter see Outage.
func Leaving(t *testing.T, now time.Time, newStore func() Store, newLimiter func(t *testing.T, store Store, failed func()) counters.Limiter) {
	const limit = 10
	for name, outcome := range map[string]error{
		"the leader counts it":        nil,
		"the store isn't asked":       ErrUnsent,
		"the store does, unanswered":  ErrUnanswered,
		"the store never hears of it": ErrUnheard,
	} {
		for _, back := range []string{"", ", taken back at once", ", taken back when the leader has ended"} {
			t.Run(name+back, func(t *testing.T) {
				synctest.Test(t, func(t *testing.T) {
					shared := newStore()
					store := &BrokenStore{Store: shared, hold: make(chan struct{})}
					failed := 0
					l := newLimiter(t, store, func() { failed++ })
					request := func(cost int64) counters.Request {
						return counters.Request{Client: "c", Cost: cost, Limit: limit, Now: now}
					}
					ask := func(cost int64, within time.Duration) (decided chan counters.Decision) {
						decided = make(chan counters.Decision, 1)
						go func() {
							ctx, cancel := context.WithTimeout(t.Context(), within)
							defer cancel()
							d, err := l.Take(ctx, request(cost))
							if err != nil {
								d, err = l.TakeLocal(request(cost), err)
								assert.NoError(t, err)
							}
							assert.True(t, d.Allowed)
							decided <- d
						}()
						synctest.Wait()
						return decided
					}
					first := ask(1, time.Second)
					leader := ask(1, time.Second)
					follower := ask(2, 100*time.Millisecond)
					for len(first) == 0 {
						store.hold <- struct{}{}
						synctest.Wait()
					}
					store.Fail(outcome)
					decided := <-follower // as its time is over
					used := int64(5)
					takeBack := func() {
						used -= 2
						go func() { _ = l.Refund(&counters.Deadline{At: time.Now().Add(time.Second)}, request(2), decided) }()
						synctest.Wait()
					}
					if back == ", taken back at once" {
						takeBack()
					}
					close(store.hold)
					<-leader
					synctest.Wait()
					store.change(func() { store.Err, store.hold = nil, nil })
					if back != "" && used == 5 {
						takeBack()
					}
					<-ask(1, time.Second)
					l.(interface{ Flush() }).Flush()
					d, err := newLimiter(t, shared, nil).Peek(t.Context(), request(1))
					require.NoError(t, err)
					if back != "" && (outcome == ErrUnanswered || outcome == ErrUnheard) {
						assert.LessOrEqual(t, limit-used-d.Remaining, int64(2*failed), "what stays in use is counted")
						assert.LessOrEqual(t, d.Remaining, limit-used)
						assert.LessOrEqual(t, failed, 1)
					} else {
						assert.EqualValues(t, limit-used, d.Remaining)
						assert.Zero(t, failed)
					}
				})
			})
		}
	}
}

// LeavingTogether tests that callers who leave the exchanges of several processes, as the
// store has fallen silent, are admitted no more than about the limit together: what a
// leader has begun to count is no more than its guess of what others leave. For
// newStore and newLimiter see Outage; the StoreTimeout is a second.
func LeavingTogether(t *testing.T, now time.Time, newStore func() Store, newLimiter func(t *testing.T, store Store) counters.Limiter) {
	const limit, processes, used, callers = 100, 4, 40, 60
	synctest.Test(t, func(t *testing.T) {
		p := NewProcesses(t, processes, newStore(), func(s Store) (counters.Limiter, error) { return newLimiter(t, s), nil })
		request := func() counters.Request {
			now = now.Add(time.Microsecond)
			return counters.Request{Client: "c", Cost: 1, Limit: limit, Now: now}
		}
		for i := range used {
			_, err := p.Limiters[i*7%11%processes].Take(t.Context(), request())
			require.NoError(t, err)
		}
		var admitted atomic.Int64
		var asking sync.WaitGroup
		for i, l := range p.Limiters {
			hold := make(chan struct{})
			p.Stores[i].change(func() { p.Stores[i].hold = hold })
			for range 1 + callers {
				r := request()
				asking.Go(func() {
					ctx, cancel := context.WithTimeout(t.Context(), time.Second)
					defer cancel()
					d, err := l.Take(ctx, r)
					if err != nil {
						d, err = l.TakeLocal(r, err)
						assert.NoError(t, err)
					}
					if d.Allowed {
						admitted.Add(1)
					}
				})
				synctest.Wait() // the first leads, and the others wait for the next leader
			}
			hold <- struct{}{}
			synctest.Wait() // now they are all under way
		}
		time.Sleep(time.Second)
		synctest.Wait()
		assert.LessOrEqual(t, admitted.Load(), int64(limit-used)*5/4)
		assert.GreaterOrEqual(t, admitted.Load(), int64(processes))
		for _, s := range p.Stores {
			s.Fail(ErrUnheard)
			close(s.hold)
		}
		asking.Wait()
	})
}
