package cas

import (
	"context"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"weir/counters"
	"weir/counters/memcachedtest"
)

// A check that still waits when its silent connection is given up, and is then admitted alone,
// is counted once, though the store has refused its swap: another process was faster.
func TestACheckThatWaitsWhenItsConnectionIsGivenUpIsCountedOnce(t *testing.T) {
	t.Parallel()
	for name, newLimiter := range everyAlgorithm {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			server := memcachedtest.Start(t)
			limiters := make([]limiter, 3)
			for i := range limiters {
				cfg := testConfig(10)
				cfg.Background = new(counters.Goroutines)
				t.Cleanup(cfg.Background.Wait)
				var err error
				limiters[i], err = newLimiter(openMemcached(t, 0, server.Addr), 10, cfg)
				require.NoError(t, err)
			}
			ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
			defer cancel()
			request := func(cost int64) counters.Request {
				return counters.Request{Client: "c", Cost: cost, Limit: 10, Now: time.Now()}
			}
			p, q, third := limiters[0], limiters[1], limiters[2]
			_, err := q.Take(ctx, request(0))
			require.NoError(t, err)
			d, err := p.Take(ctx, request(3))
			require.NoError(t, err)
			require.True(t, d.Allowed)

			server.Pause()
			r := request(1)
			_, err = q.Take(ctx, r)
			require.ErrorIs(t, err, counters.ErrUnavailable)
			d, err = q.TakeLocal(r, err)
			require.NoError(t, err)
			require.True(t, d.Allowed)
			server.Resume()
			require.Eventually(t, func() bool {
				_, _ = q.Take(ctx, request(0))
				var seen error
				d, seen = third.Take(ctx, request(0))
				return seen == nil && d.Remaining == 6
			}, time.Minute, time.Millisecond, "%s: %+v", name, &d)
		})
	}
}
