package cas

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"weir/counters"
	"weir/counters/limitertest"
	"weir/counters/memory"
)

// A hookedStore has something happen while the answer to a Load is on its way.
type hookedStore struct {
	limitertest.Store
	meanwhile func()
}

func (s *hookedStore) Load(ctx context.Context, key string) (counters.State, error) {
	state, err := s.Store.Load(ctx, key)
	if f := s.meanwhile; f != nil {
		s.meanwhile = nil
		f()
	}
	return state, err
}

// What is read while the client is reset is from before that, and isn't put back.
func (by way) TestAResetWhileTheClientIsLookedAt(t *testing.T) {
	for name, newLimiter := range by.makers() {
		t.Run(name, func(t *testing.T) {
			store := &hookedStore{Store: memory.New(nil)}
			cfg := testConfig(10)
			l, err := newLimiter(store, cfg)
			require.NoError(t, err)
			now := clock(t, "12:00:01.5")
			r := counters.Request{Client: "c", Cost: 10, Limit: 10, Now: now}
			d, err := l.Take(unhurried, r)
			require.NoError(t, err)
			require.True(t, d.Allowed)
			r.Cost = 1
			store.meanwhile = func() { // the client is reset while somebody looks at it
				require.NoError(t, l.Reset(t.Context(), "c", now))
			}
			_, err = l.Peek(unhurried, r)
			require.NoError(t, err)
			r.Now = now.Add(2 * time.Second)
			d, err = l.Take(unhurried, r)
			require.NoError(t, err)
			assert.True(t, d.Allowed, "2 s after the reset nothing is in use")
		})
	}
}

// A racedStore has something happen before each Swap and Put, at most so often.
type racedStore struct {
	limitertest.Store
	meanwhile func()
	races     int
}

func (s *racedStore) race() {
	if s.races > 0 {
		s.races--
		s.meanwhile()
	}
}

func (s *racedStore) Swap(ctx context.Context, key string, old counters.State, value []byte, ttl time.Duration) (counters.State, bool, error) {
	s.race()
	return s.Store.Swap(ctx, key, old, value, ttl)
}

func (s *racedStore) Put(ctx context.Context, key string, value []byte, ttl time.Duration) error {
	s.race()
	return s.Store.Put(ctx, key, value, ttl)
}

// A reset that loses one race after the other, to an instance that admits and gives back,
// ends what that had last, be it by writing over it: what that has of the client isn't taken
// for lost.
func (by way) TestAResetThatLosesRaces(t *testing.T) {
	for name, newLimiter := range by.makers() {
		t.Run(name, func(t *testing.T) {
			inner := memory.New(nil)
			store := &racedStore{Store: inner, races: resetAttempts}
			l, err := newLimiter(store, testConfig(10))
			require.NoError(t, err)
			other, err := newLimiter(inner, testConfig(10))
			require.NoError(t, err)
			now := clock(t, "12:00:01.5")
			asks := func(cost int64) counters.Decision {
				now = now.Add(time.Microsecond)
				d, err := other.Take(unhurried, counters.Request{Client: "c", Cost: cost, Limit: 100, Now: now})
				require.NoError(t, err)
				return d
			}
			store.meanwhile = func() {
				if d := asks(1); d.Allowed {
					d = asks(1)
					require.NoError(t, other.Refund(unhurried, counters.Request{Client: "c", Cost: 1, Limit: 100, Now: now}, d))
				}
			}
			require.NoError(t, l.Reset(t.Context(), "c", now))
			now = now.Add(time.Second) // and the clock skew is over
			assert.True(t, asks(100).Allowed, "all of it is there again")
		})
	}
}

// What was admitted alone is refunded while the next swap, of which it is part, is
// under way.
func (by way) TestARefundWhileTheNextSwapIsUnderWay(t *testing.T) {
	t.Parallel()
	for name, newLimiter := range by.makers() {
		t.Run(name, func(t *testing.T) {
			inner := memory.New(nil)
			slow := &slowStore{Store: inner}
			store := &busyStore{Store: slow}
			l, err := newLimiter(store, testConfig(10))
			require.NoError(t, err)
			there, err := newLimiter(inner, testConfig(10))
			require.NoError(t, err)
			now := clock(t, "12:00:01.5")
			request := func(cost int64) counters.Request {
				now = now.Add(1)
				return counters.Request{Client: "c", Cost: cost, Limit: 100, Now: now}
			}
			_, err = l.Take(unhurried, request(1))
			require.NoError(t, err)
			var tell func(error)
			slow.late.Store(&counters.Unanswered{Err: counters.ErrTimeout, Await: func(f func(error)) { tell = f }})
			r := request(50)
			_, err = l.Take(unhurried, r)
			taken, err := l.TakeLocal(r, err)
			require.NoError(t, err)
			require.True(t, taken.Allowed)
			slow.late.Store(nil)
			store.meanwhile = func() { assert.NoError(t, l.Refund(unhurried, r, taken)) }
			_, err = l.Take(unhurried, request(1))
			require.NoError(t, err)
			tell(counters.ErrNotSent)
			l.(interface{ Flush() }).Flush()
			d, err := there.Peek(unhurried, request(1))
			require.NoError(t, err)
			assert.EqualValues(t, 100-2, d.Remaining)
		})
	}
}

// An instance remembers a debt for as long as it takes to drain, and doesn't put it back
// after a reset, be that long ago.
func TestAResetForgivesADebt(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		store := memory.New(nil)
		cfg := testConfig(10)
		cfg.CountDenied = true
		l, err := NewTokenBucket(store, time.Minute, 0, cfg)
		require.NoError(t, err)
		other, err := NewTokenBucket(store, time.Minute, 0, cfg)
		require.NoError(t, err)
		request := func(cost int64) counters.Request {
			return counters.Request{Client: "c", Cost: cost, Limit: 1000, Now: time.Now()}
		}
		d, err := other.Take(unhurried, request(100_000))
		require.NoError(t, err)
		require.False(t, d.Allowed)
		require.NoError(t, l.Reset(t.Context(), "c", time.Now()))
		time.Sleep(20 * time.Minute)
		d, err = other.Take(unhurried, request(1))
		require.NoError(t, err)
		assert.True(t, d.Allowed, "retry after %v", d.RetryAfter)
	})
}

// What was charged may drain for longer than any bucket lasts, and so may what is remembered
// since some of it was given back. A reset comes after it all the same, also if it is lost, and
// what was before it is put back.
func TestAResetOfWhatIsRememberedForLongerThanItLasts(t *testing.T) {
	t.Parallel()
	for _, loss := range []bool{false, true} {
		store := memory.New(nil)
		start := func() *Limiter {
			l, err := NewTokenBucket(store, time.Minute, 0, testConfig(10))
			require.NoError(t, err)
			return l
		}
		knows, resets := start(), start()
		now := clock(t, "12:00:01.5")
		r := counters.Request{Client: "c", Cost: 10, Limit: 10, Now: now}
		taken, err := knows.Take(unhurried, r)
		require.NoError(t, err)
		charge := counters.Request{Client: "c", Cost: 50, Limit: 10, Now: now}
		require.NoError(t, knows.Charge(unhurried, charge))
		r.Cost = 1
		require.NoError(t, knows.Refund(unhurried, r, taken))
		lose := func() { require.NoError(t, store.Delete(t.Context(), []string{testKeys.StateKey("c")})) }
		lose()
		require.NoError(t, resets.Reset(t.Context(), "c", now.Add(time.Second)))
		r.Now = now.Add(2 * time.Second)
		by := knows
		if loss {
			lose()
			charge.Cost, charge.Now = 1, r.Now
			require.NoError(t, knows.Charge(unhurried, charge))
			by = resets
		}
		d, err := by.Take(unhurried, r)
		require.NoError(t, err)
		assert.True(t, d.Allowed)
		assert.EqualValues(t, 9, d.Remaining)
	}
}
