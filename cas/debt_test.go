package cas

import (
	"math/rand/v2"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"weir/counters"
	"weir/counters/limitertest"
	"weir/counters/memory"
	"weir/counters/racetest"
)

// What a client is admitted alone takes little memory however long that goes on, be it
// by different limits in turn.
func TestFewDebtsAreRemembered(t *testing.T) {
	t.Parallel()
	l, err := NewTokenBucket(memory.New(nil), time.Second, 0, testConfig(10))
	require.NoError(t, err)
	now := clock(t, "12:00:01.5")
	for i := range int64(5000) {
		now = now.Add(time.Millisecond)
		d, err := l.TakeLocal(counters.Request{Client: "c", Cost: 1, Limit: 1000 + i%2, Now: now}, counters.ErrTimeout)
		require.NoError(t, err)
		require.True(t, d.Allowed)
	}
	l.limiter.(*limiterOf[bucketState]).Change("c", func(a *account[bucketState]) { assert.Less(t, len(a.due), 2*mostDebts) })
}

// A client asks evenly for 90% of what drains, in an outage that is longer than a bucket
// takes to drain. What is in use when the store is told is what the process believed.
func TestEvenTrafficInAnOutage(t *testing.T) {
	t.Parallel()
	for _, test := range []struct{ limit, cost int64 }{{100, 1}, {1000, 1}, {1000, 9}, {10_000, 100}} {
		l, err := NewTokenBucket(memory.New(nil), time.Minute, 0, testConfig(10))
		require.NoError(t, err)
		now := clock(t, "12:00:01.5")
		r := counters.Request{Client: "c", Cost: test.limit / 2, Limit: test.limit}
		gap := time.Minute * 10 / time.Duration(9*test.limit/test.cost)
		var last counters.Decision
		for end := now.Add(3 * time.Minute); now.Before(end); now = now.Add(gap) {
			r.Now = now
			last, err = l.TakeLocal(r, counters.ErrTimeout)
			require.NoError(t, err)
			require.True(t, last.Allowed)
			r.Cost = test.cost
		}
		r.Now = now
		d, err := l.Take(unhurried, r)
		require.NoError(t, err)
		assert.InDelta(t, last.Remaining, d.Remaining, float64(test.limit)/50+float64(test.cost), "%+v", test)
	}
}

// A client asks for more than drains in a long outage: it has all of the limit. When the
// store is told, the client waits for no longer than it was told to alone.
func TestABusyClientInALongOutage(t *testing.T) {
	racetest.Sequential(t)
	t.Parallel()
	for _, burst := range []int64{0, 500, 20} {
		for _, gap := range []time.Duration{70 * time.Millisecond, 130 * time.Millisecond, 370 * time.Millisecond} {
			l, err := NewTokenBucket(memory.New(nil), time.Minute, burst, testConfig(10))
			require.NoError(t, err)
			now := clock(t, "12:00:01.5")
			r := counters.Request{Client: "c", Cost: 1, Limit: 100}
			var last counters.Decision
			for end := now.Add(20 * time.Minute); now.Before(end); now = now.Add(gap) {
				r.Now = now
				last, err = l.TakeLocal(r, counters.ErrTimeout)
				require.NoError(t, err)
			}
			r.Now = now
			d, err := l.Take(unhurried, r)
			require.NoError(t, err)
			assert.LessOrEqual(t, d.RetryAfter, last.RetryAfter+2*time.Second, "burst %d, every %v", burst, gap)
			assert.InDelta(t, last.ResetAfter, d.ResetAfter, float64(2*time.Second), "burst %d, every %v", burst, gap)
		}
	}
}

// What is told of a bucket is no more than the process believed: a client that was denied
// alone is admitted by the store when it was told to come back.
func TestRetryAfterOfABucketHoldsWhenTheStoreAnswers(t *testing.T) {
	t.Parallel()
	for seed := range uint64(200) {
		random := rand.New(rand.NewPCG(seed, 0))
		cfg := testConfig(10)
		cfg.CountDenied = seed%2 == 0
		l, err := NewTokenBucket(memory.New(nil), 10*time.Second, 6, cfg)
		require.NoError(t, err)
		r := counters.Request{Client: "c", Cost: 1, Limit: 10, Now: clock(t, "12:00:01.5")}
		for range 10 + random.IntN(20) {
			r.Now = r.Now.Add(time.Duration(random.Int64N(int64(time.Second))))
			_, err = l.TakeLocal(r, counters.ErrTimeout)
			require.NoError(t, err)
		}
		told := counters.Decision{Allowed: true}
		for told.Allowed {
			told, err = l.TakeLocal(r, counters.ErrTimeout)
			require.NoError(t, err)
		}
		r.Now = r.Now.Add(told.RetryAfter)
		d, err := l.Take(unhurried, r)
		require.NoError(t, err)
		assert.True(t, d.Allowed, "seed %d: told %v, and then %v", seed, told.RetryAfter, d.RetryAfter)
	}
}

// Some checks are part of exchanges that never reach the store, and are then admitted alone
// behind others: however they follow each other, a bucket admits no more than it may.
func TestABucketOfWhatNeverReachesTheStore(t *testing.T) {
	racetest.Sequential(t)
	t.Parallel()
	const burst, limit, window = 6, 6, 5 * time.Second
	for seed := range uint64(400) {
		random := rand.New(rand.NewPCG(seed, 0))
		store := &limitertest.BrokenStore{Store: memory.New(nil)}
		l, err := NewLeakyBucket(store, window, burst, testConfig(10))
		require.NoError(t, err)
		r := counters.Request{Client: "c", Limit: limit, Now: clock(t, "12:00:01.5")}
		level := time.Duration(0) // of which each cost is a window
		for range 60 {
			passed := time.Duration(random.Int64N(int64(time.Second)))
			r.Now, level = r.Now.Add(passed), max(0, level-limit*passed)
			admit := func(r counters.Request, d counters.Decision) {
				if d.Allowed {
					level += time.Duration(r.Cost) * window
				}
			}
			one, other := r, r
			one.Cost, other.Cost = 1+random.Int64N(3), 1+random.Int64N(3)
			if random.IntN(3) > 0 {
				store.Fail(limitertest.ErrUnheard)
			}
			d, failed := l.Take(unhurried, one)
			admit(one, d)
			if failed != nil {
				alone := []func(){
					func() { d, _ := l.TakeLocal(one, failed); admit(one, d) },
					func() { d, _ := l.TakeLocal(other, counters.ErrTimeout); admit(other, d) },
				}
				first := random.IntN(2)
				alone[first]()
				alone[1-first]()
			}
			store.Fail(nil)
			require.LessOrEqual(t, level, burst*window, "seed %d", seed)
		}
	}
}

// A bucket of 6, of which 1 drains in a second. Of four checks of 1 that are admitted alone the
// first is given back, of which 0.05 hadn't drained at the third: no more than that isn't in
// front of the third any more. Of that 0.8 haven't drained by the fourth, at 2.1 s.
func TestWhatIsInFrontOfADebtAfterARefund(t *testing.T) {
	t.Parallel()
	l, err := NewTokenBucket(memory.New(nil), 10*time.Second, 6, testConfig(10))
	require.NoError(t, err)
	start := clock(t, "12:00:01")
	r := counters.Request{Client: "c", Cost: 1, Limit: 10, Now: start}
	first, err := l.TakeLocal(r, counters.ErrTimeout)
	require.NoError(t, err)
	refunded := r
	for _, after := range []time.Duration{900, 950, 2100} {
		r.Now = start.Add(after * time.Millisecond)
		d, err := l.TakeLocal(r, counters.ErrTimeout)
		require.NoError(t, err)
		require.True(t, d.Allowed)
	}
	require.NoError(t, l.Refund(unhurried, refunded, first))
	d, err := l.Take(unhurried, r) // 2.8 are in use then, and 0.7 at 4.2 s
	require.NoError(t, err)
	require.True(t, d.Allowed)
	r.Now, r.Cost = start.Add(4200*time.Millisecond), 0
	d, err = l.Take(unhurried, r)
	require.NoError(t, err)
	assert.Equal(t, int64(5), d.Remaining)
}

// Each check of a client takes 100 of 1,000, of which 95 are given back three seconds
// later, while the store is away: none is in the way of those that come after.
func TestSettledCostsInAnOutage(t *testing.T) {
	t.Parallel()
	synctest.Test(t, testSettledCostsInAnOutage)
}

func testSettledCostsInAnOutage(t *testing.T) {
	l, err := NewTokenBucket(memory.New(nil), time.Minute, 0, testConfig(10))
	require.NoError(t, err)
	now := clock(t, "12:00:01.5")
	type taken struct {
		counters.Request
		counters.Decision
	}
	var open []taken
	for range 900 {
		now = now.Add(400 * time.Millisecond)
		for len(open) > 0 && now.Sub(open[0].Now) > 2900*time.Millisecond {
			open[0].Cost = 95
			require.NoError(t, l.Refund(unhurried, open[0].Request, open[0].Decision))
			open = open[1:]
		}
		r := counters.Request{Client: "c", Cost: 100, Limit: 1000, Now: now}
		d, err := l.TakeLocal(r, counters.ErrTimeout)
		require.NoError(t, err)
		require.True(t, d.Allowed)
		open = append(open, taken{r, d})
	}
}

// What a process has admitted alone is in a log once, beside what another has been
// admitted at each moment in between.
func TestDebtsAreToldOfALogThatOthersHaveWritten(t *testing.T) {
	t.Parallel()
	store := memory.New(nil)
	open := func() *Limiter {
		l, err := NewSlidingLog(store, time.Minute, MaxLogLimit, testConfig(10))
		require.NoError(t, err)
		return l
	}
	a, b := open(), open()
	now := clock(t, "12:00:01.5")
	r := counters.Request{Client: "c", Cost: 1, Limit: MaxLogLimit}
	take := func(l *Limiter) counters.Decision {
		now = now.Add(time.Millisecond)
		r.Now = now
		d, err := l.Take(unhurried, r)
		require.NoError(t, err)
		return d
	}
	take(a)
	for range 100 {
		now = now.Add(time.Millisecond)
		r.Now = now
		_, err := a.TakeLocal(r, counters.ErrTimeout)
		require.NoError(t, err)
		take(b)
	}
	assert.EqualValues(t, MaxLogLimit-202, take(a).Remaining)
}

// What is charged while the store is gone is owed in full when it is back, however often that
// was, and not only as much as a client would wait for that has asked in vain.
func TestAllThatIsChargedInAnOutageIsOwed(t *testing.T) {
	t.Parallel()
	p := limitertest.NewProcesses(t, 2, memory.New(nil), func(s limitertest.Store) (counters.Limiter, error) {
		return NewTokenBucket(s, time.Minute, 0, testConfig(10))
	})
	r := counters.Request{Client: "c", Cost: 1, Limit: 60, Now: clock(t, "12:00:01.5")}
	require.True(t, p.Take(0, r).Allowed)
	p.Fail(limitertest.ErrUnsent)
	r.Cost = 500
	for range 3 * mostDebts {
		require.Error(t, p.Limiters[0].Charge(unhurried, r))
	}
	p.Fail(nil)
	r.Cost = 60
	require.NoError(t, p.Limiters[0].Charge(unhurried, r)) // which has the store told of the rest, too
	d, err := p.Limiters[1].Take(unhurried, r)
	require.NoError(t, err)
	assert.Equal(t, time.Duration(1+3*mostDebts*500+60)*time.Second, d.RetryAfter)
}
