package cas

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"weir/counters/limitertest"
	"weir/counters/memory"
)

// makers make a limiter of ten a minute by each algorithm.
var makers = map[string]func(limitertest.Store, Config) (limitertest.Limiter, error){
	"token bucket": func(s limitertest.Store, cfg Config) (limitertest.Limiter, error) {
		return NewTokenBucket(s, time.Minute, 0, cfg)
	},
	"leaky bucket": func(s limitertest.Store, cfg Config) (limitertest.Limiter, error) {
		return NewLeakyBucket(s, time.Minute, 0, cfg)
	},
	"sliding log": func(s limitertest.Store, cfg Config) (limitertest.Limiter, error) {
		return NewSlidingLog(s, time.Minute, 10, cfg)
	},
}

func TestLosses(t *testing.T) {
	t.Parallel()
	for name, newLimiter := range makers {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			limitertest.Loss(t, clock(t, "12:00:01.5"), func() limitertest.Store { return memory.New(nil) },
				func(t *testing.T, store limitertest.Store, reseeded func(int)) limitertest.Limiter {
					cfg := testConfig(10)
					cfg.Reseeded = reseeded
					l, err := newLimiter(store, cfg)
					require.NoError(t, err)
					return l
				})
		})
	}
}

func TestOutages(t *testing.T) {
	t.Parallel()
	for name, newLimiter := range makers {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			limitertest.Outage(t, clock(t, "12:00:01.5"), func() limitertest.Store { return memory.New(nil) },
				func(t *testing.T, store limitertest.Store) limitertest.Limiter {
					l, err := newLimiter(store, testConfig(10))
					require.NoError(t, err)
					return l
				})
		})
	}
}
