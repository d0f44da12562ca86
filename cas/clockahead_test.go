package cas

import (
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"weir/counters"
	"weir/counters/limitertest"
	"weir/counters/memory"
)

// An instance whose clock was a minute ahead has served a client, and is gone. What it
// has admitted is in use for as long as it would be by the clock of who comes next.
func (by way) TestAClockThatWasFarAhead(t *testing.T) {
	t.Parallel()
	for name, newLimiter := range by.makers() {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			store := memory.New(nil)
			var ahead []time.Duration
			cfg := testConfig(10)
			cfg.Ahead = func(by time.Duration) { ahead = append(ahead, by) }
			l, err := newLimiter(store, cfg)
			require.NoError(t, err)
			fast, err := newLimiter(store, testConfig(10))
			require.NoError(t, err)
			now := time.Now()
			take := func(by func() time.Time, cost int64) counters.Decision {
				who := l
				if by().After(now) {
					who = fast
				}
				d, err := who.Take(unhurried, counters.Request{Client: "c", Cost: cost, Limit: 10, Now: by()})
				require.NoError(t, err)
				return d
			}
			onTime := func() time.Time { return now }
			require.True(t, take(onTime, 4).Allowed)
			now = now.Add(5 * time.Second)
			require.True(t, take(func() time.Time { return now.Add(time.Minute) }, 6).Allowed)

			now = now.Add(5 * time.Second)
			d := take(onTime, 10)
			require.False(t, d.Allowed)
			assert.LessOrEqual(t, d.RetryAfter, time.Minute)
			assert.Equal(t, []time.Duration{55 * time.Second}, ahead)
			now = now.Add(d.RetryAfter - time.Second)
			require.False(t, take(onTime, 10).Allowed)
			now = now.Add(time.Second)
			assert.True(t, take(onTime, 10).Allowed)
			assert.Len(t, ahead, 1, "it is written as of now")
		})
	}
}

// An instance was an hour ahead while it couldn't ask the store, and isn't any more.
func (by way) TestAClockThatWasAheadInAnOutage(t *testing.T) {
	t.Parallel()
	for name, newLimiter := range by.makers() {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				l, err := newLimiter(memory.New(nil), testConfig(10))
				require.NoError(t, err)
				now := time.Now()
				request := func(at time.Time) counters.Request {
					return counters.Request{Client: "c", Cost: 10, Limit: 10, Now: at}
				}
				d, err := l.TakeLocal(request(now.Add(time.Hour)), limitertest.ErrUnsent)
				require.NoError(t, err)
				require.True(t, d.Allowed)
				d, err = l.TakeLocal(request(now), limitertest.ErrUnsent)
				require.NoError(t, err)
				require.False(t, d.Allowed)
				assert.LessOrEqual(t, d.RetryAfter, time.Minute)
				d, err = l.Take(unhurried, request(now))
				require.NoError(t, err)
				require.False(t, d.Allowed)
				assert.LessOrEqual(t, d.RetryAfter, time.Minute)
				d, err = l.Take(unhurried, request(now.Add(time.Minute)))
				require.NoError(t, err)
				assert.True(t, d.Allowed)
			})
		})
	}
}

// What others are thought to have still to tell, by a clock that was an hour ahead, isn't
// expected any more when that is right again.
func (by way) TestAClockThatWasAheadExpectsNothing(t *testing.T) {
	by.scripts(t, func(t *testing.T, s *script) {
		for range 20 {
			for _, l := range []counters.Limiter{s.l, s.see} {
				taken, err := l.Take(unhurried, s.request(1))
				require.NoError(t, err)
				require.True(t, taken.Allowed)
			}
		}
		s.now = s.now.Add(time.Hour)
		for range 10 {
			require.True(t, s.alone(s.request(1), counters.ErrNotSent).Allowed)
		}
		s.takes(1)
		s.flush() // else what is told meanwhile, by the clock that was ahead, may be decided with the next
		s.now = s.now.Add(-59 * time.Minute)
		_, d, err := s.take(85)
		require.NoError(t, err)
		assert.True(t, d.Allowed, "11 of 100 are in use")
	})
}
