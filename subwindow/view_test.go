package subwindow_test

import (
	"context"
	"fmt"
	"runtime"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"weir/counters"
	"weir/counters/limitertest"
	"weir/counters/memory"
	"weir/counters/racetest"
	"weir/subwindow"
)

// countingStore counts the operations on a store.
type countingStore struct {
	counters.Store
	operations int
}

func (s *countingStore) Add(ctx context.Context, a counters.Addition) (int64, error) {
	s.operations++
	return s.Store.Add(ctx, a)
}

func (s *countingStore) Read(ctx context.Context, keys []string, counts []int64) error {
	s.operations++
	return s.Store.Read(ctx, keys, counts)
}

func (s *countingStore) Subtract(ctx context.Context, key string, delta int64) error {
	s.operations++
	return s.Store.Subtract(ctx, key, delta)
}

// A limiter that remembers decides as one does that asks the store for
// everything, on any traffic, clocks that jump back and forth and evictions in
// the middle of a window included.
func (by way) TestWhatIsRememberedChangesNoDecision(t *testing.T) {
	racetest.Sequential(t)
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		w := drawWindow(t)
		skew := drawSkew(t, 200)
		clock := &clock{now: at("07:10:00")}
		countDenied := rapid.Bool().Draw(t, "count denied")
		options := counters.Options{ClockSkew: skew, Clients: 32, CountDenied: countDenied} // one in each part of the cache, so that others evict "c"
		remembers := by.newLimiterWith(t, memory.New(clock.Now), w, options)
		store := memory.New(clock.Now)
		forgets := func() *limiter { return by.newLimiterWith(t, store, w, options) }
		limit := rapid.Int64Range(1, 40).Draw(t, "limit")
		for range rapid.IntRange(1, 120).Draw(t, "requests") {
			clock.now = clock.now.Add(time.Duration(rapid.Int64Range(-int64(w.Width)/8, int64(w.Width)).Draw(t, "wait")))
			r := counters.Request{
				Client: rapid.SampledFrom([]string{"c", "c", "c", "d", "e", "f", "g", "h"}).Draw(t, "client"),
				Cost:   rapid.Int64Range(1, limit).Draw(t, "cost"),
				Limit:  limit,
				Now:    clock.now,
			}
			remembering, err := remembers.Take(context.Background(), r)
			require.NoError(t, err)
			forgetful, err := forgets().Take(context.Background(), r)
			require.NoError(t, err)
			if remembering.Local {
				// It doesn't know what faster clocks have counted since, and
				// may send the client back too early.
				if forgetful.Allowed || remembering.RetryAfter > forgetful.RetryAfter {
					t.Fatalf("remembering %+v, forgetful %+v", remembering, forgetful)
				}
			} else if remembering != forgetful {
				t.Fatalf("remembering %+v, forgetful %+v", remembering, forgetful)
			}
			if remembering.Allowed && rapid.IntRange(0, 9).Draw(t, "give back") == 0 {
				for _, l := range []*limiter{remembers, forgets()} {
					require.NoError(t, l.Refund(context.Background(), r, counters.Decision{Allowed: true}))
				}
			}
		}
	})
}

func (by way) TestDenialsAreKnownAhead(t *testing.T) {
	t.Parallel()
	store := &countingStore{Store: memory.New(nil)}
	l := by.newLimiter(t, store, newWindow(t, time.Minute, 60, true), 50*time.Millisecond)
	for _, step := range []struct {
		at         string
		cost       int64
		allowed    bool
		operations int
		why        string
	}{
		{"12:00:00.5", 90, true, 1, "one operation counts and reads"},
		{"12:00:00.6", 50, false, 1, "it can't fit, but less could have been admitted elsewhere since"},
		{"12:00:00.7", 1, true, 1, "a denied cost of 50 says nothing about 1"},
		{"12:00:00.8", 9, true, 1, "and full"},
		{"12:00:00.9", 1, false, 0, "known"},
		{"12:00:01.4", 1, false, 0, "0.9 s after the first look"},
		{"12:00:01.41", 1, false, 1, "a look at the store, but no count to give back"},
		{"12:00:02.3", 1, false, 0, "known again"},
		{"12:00:59", 0, true, 1, "cost 0 looks at the store"},
	} {
		store.operations = 0
		assert.Equal(t, step.allowed, take(t, l, at(step.at), step.cost, 100).Allowed, "%s: %s", step.at, step.why)
		assert.Equal(t, step.operations, store.operations, "%s: %s", step.at, step.why)
	}
	d, err := l.Take(context.Background(), counters.Request{Client: "c", Cost: 1, Limit: 100, Now: at("12:00:59.5")})
	require.NoError(t, err)
	assert.Equal(t, counters.Decision{ResetAfter: 1550 * time.Millisecond, RetryAfter: 1550 * time.Millisecond, Local: true}, d)
}

// Another instance's denied cost is in the counter for a moment. Whoever looks
// in that moment is over it within a second.
func (by way) TestAPassingOverCountIsForgottenWithinASecond(t *testing.T) {
	t.Parallel()
	ctx := context.Background()
	store := memory.New(nil)
	w := newWindow(t, time.Minute, 4, false)
	l := by.newLimiter(t, store, w, 50*time.Millisecond)
	key := key(w, at("12:00:00"))
	_, err := store.Add(ctx, counters.Addition{Key: key, Delta: 100, TTL: time.Minute})
	require.NoError(t, err)
	assert.False(t, take(t, l, at("12:00:01"), 1, 100).Allowed)
	require.NoError(t, store.Subtract(ctx, key, 100))
	assert.False(t, take(t, l, at("12:00:01.5"), 1, 100).Allowed, "it isn't known yet")
	assert.True(t, take(t, l, at("12:00:02"), 1, 100).Allowed)
}

func (by way) TestAResetReachesEveryInstanceWithinASecond(t *testing.T) {
	t.Parallel()
	ctx := context.Background()
	store := memory.New(nil)
	w := newWindow(t, time.Minute, 60, false)
	here, there := by.newLimiter(t, store, w, 50*time.Millisecond), by.newLimiter(t, store, w, 50*time.Millisecond)
	for _, moment := range []string{"12:00:00", "12:00:10", "12:00:20", "12:00:30"} {
		assert.True(t, take(t, there, at(moment), 20, 100).Allowed)
	}
	assert.Equal(t, int64(0), take(t, there, at("12:00:30.5"), 20, 100).Remaining)
	require.NoError(t, here.Reset(ctx, "c", at("12:00:31")))
	assert.Equal(t, int64(99), take(t, here, at("12:00:31"), 1, 100).Remaining, "at once where it was asked for")
	assert.Equal(t, int64(97), take(t, there, at("12:00:31.6"), 2, 100).Remaining, "slots remembered from before it are dropped")

	// A second reset, while the first's mark is still there.
	assert.Equal(t, int64(47), take(t, there, at("12:00:32"), 50, 100).Remaining)
	require.NoError(t, here.Reset(ctx, "c", at("12:00:33")))
	assert.Equal(t, int64(99), take(t, there, at("12:00:34"), 1, 100).Remaining)
}

// A denial that is known ahead allocates nothing, however many slots there are.
func TestKnownDenialAllocatesNothing(t *testing.T) {
	clock := &clock{now: at("07:10:00")}
	l := way{}.newLimiter(t, memory.New(clock.Now), newWindow(t, time.Minute, 60, true), 50*time.Millisecond)
	require.True(t, take(t, l, clock.now, 1, 1).Allowed)
	require.False(t, take(t, l, clock.now, 1, 1).Allowed)
	r := counters.Request{Client: "c", Cost: 1, Limit: 1, Now: clock.now}
	var d counters.Decision
	assert.Zero(t, testing.AllocsPerRun(100, func() { d, _ = l.Take(context.Background(), r) }))
	assert.True(t, d.Local)
}

func (by way) TestPeekLocal(t *testing.T) {
	t.Parallel()
	l := by.newLimiter(t, memory.New(nil), newWindow(t, time.Minute, 4, true), 50*time.Millisecond)
	r := counters.Request{Client: "c", Cost: 30, Limit: 100, Now: at("12:00:01")}
	_, ok := l.PeekLocal(r)
	assert.False(t, ok, "nothing is known of a new client")
	take(t, l, r.Now, 80, 100)

	r.Now = at("12:00:01.5")
	d, ok := l.PeekLocal(r)
	assert.True(t, ok)
	assert.Equal(t, counters.Decision{Remaining: 20, ResetAfter: 73550 * time.Millisecond, RetryAfter: 73550 * time.Millisecond, Local: true}, d)
	require.NoError(t, l.Refund(context.Background(), counters.Request{Client: "c", Cost: 80, Limit: 100, Now: at("12:00:01")}, counters.Decision{Allowed: true}))
	d, ok = l.PeekLocal(r)
	assert.True(t, ok)
	assert.Equal(t, counters.Decision{Allowed: true, Remaining: 100, Local: true}, d, "what was given back is known too")
	r.Now = at("12:00:02")
	_, ok = l.PeekLocal(r)
	assert.False(t, ok, "a second later it may have changed")
	r.Now = at("12:00:00.9")
	_, ok = l.PeekLocal(r)
	assert.False(t, ok, "before it was read")
}

// Clocks that step back count in a slot that had been settled; what others
// count there after that is read again.
func (by way) TestASlotThatClocksStepBackIntoIsReadAgain(t *testing.T) {
	t.Parallel()
	store := memory.New(nil)
	w := newWindow(t, time.Minute, 1, true)
	a, b := by.newLimiter(t, store, w, 50*time.Millisecond), by.newLimiter(t, store, w, 50*time.Millisecond)
	assert.Equal(t, int64(99), take(t, a, at("12:01:00.1"), 1, 100).Remaining)
	take(t, a, at("12:00:59.5"), 10, 100)
	take(t, b, at("12:00:59.6"), 50, 100)
	assert.Equal(t, int64(38), take(t, a, at("12:01:00.2"), 1, 100).Remaining, "1, 10, 50 and 1 are in use")
}

// gatedStore keeps each Add waiting until the gate is closed.
type gatedStore struct {
	counters.Store
	gate    chan struct{}
	waiting atomic.Int32
}

func (s *gatedStore) Add(ctx context.Context, a counters.Addition) (int64, error) {
	s.waiting.Add(1)
	<-s.gate
	s.waiting.Add(-1)
	return s.Store.Add(ctx, a)
}

// Checks that are decided together are each decided as of their own time.
func (by way) TestABatchIsDecidedByEachCallsOwnTime(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		inner := memory.New(nil)
		w := newWindow(t, time.Minute, 1, false)
		require.True(t, take(t, by.newLimiter(t, inner, w, sameClock), at("12:00:30"), 100, 100).Allowed)
		store := &gatedStore{Store: inner, gate: make(chan struct{})}
		l := by.newLimiter(t, store, w, sameClock)
		decisions := make([]counters.Decision, 3)
		for i, r := range []struct {
			at   string
			cost int64
		}{{"12:01:10", 1}, {"12:01:10", 20}, {"12:01:50", 20}} {
			go func() { decisions[i] = take(t, l, at(r.at), r.cost, 100) }()
			// The first is at the gate, the others wait for it together.
			synctest.Wait()
		}
		close(store.gate)
		synctest.Wait()
		assert.True(t, decisions[0].Allowed)
		assert.False(t, decisions[1].Allowed, "83 and 1 are in use at 12:01:10")
		assert.True(t, decisions[2].Allowed, "16 and 1 are in use at 12:01:50")
	})
}

// A reset by a fast clock reaches what slower clocks still have in their
// window.
func (by way) TestAResetReachesSlowClocks(t *testing.T) {
	t.Parallel()
	const skew = 5 * time.Second
	fixed, err := subwindow.NewFixedWindow(10 * time.Second)
	require.NoError(t, err)
	capped := newWindow(t, 10*time.Second, 10, false)
	capped.Capped = true
	for name, w := range map[string]subwindow.Window{
		"fixed": fixed, "weighted": newWindow(t, 10*time.Second, 10, false), "capped": capped, "strict": newWindow(t, 10*time.Second, 10, true),
	} {
		t.Run(name, func(t *testing.T) {
			store := memory.New(nil)
			fast, slow := by.newLimiter(t, store, w, skew), by.newLimiter(t, store, w, skew)
			require.True(t, take(t, slow, at("12:00:00.1"), 100, 100).Allowed)
			denied := take(t, slow, at("12:00:00.1"), 100, 100)
			require.False(t, denied.Allowed)
			// While the slow clock still denies for a while.
			reset := at("12:00:00.1").Add(denied.RetryAfter - 1500*time.Millisecond)
			require.NoError(t, fast.Reset(t.Context(), "c", reset.Add(skew)))
			assert.True(t, take(t, slow, reset.Add(time.Second), 100, 100).Allowed)
		})
	}
}

// Slots in which nothing is counted take no memory: a client of a window of an hour in
// 3,600 slots, of which 3,599 are empty, a few hundred bytes.
func (by way) TestEmptySlotsTakeNoMemory(t *testing.T) {
	racetest.Sequential(t)
	const clients = 1000
	l := by.newLimiter(t, memory.New(nil), newWindow(t, time.Hour, 3600, false), sameClock)
	heap := func() uint64 {
		runtime.GC()
		var m runtime.MemStats
		runtime.ReadMemStats(&m)
		return m.HeapAlloc
	}
	before := heap()
	for i := range clients {
		_, err := l.Take(t.Context(), counters.Request{Client: fmt.Sprint(i), Cost: 1, Limit: 1, Now: at("12:00:00")})
		require.NoError(t, err)
	}
	assert.Less(t, heap(), before+clients*2000)
	runtime.KeepAlive(l)
}

// Who asks how a client will stand later changes nothing: what was admitted without the
// store still counts now.
func (by way) TestLookingAheadForgetsNothing(t *testing.T) {
	t.Parallel()
	for name, w := range minuteWindows(t) {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			store := &limitertest.BrokenStore{Store: memory.New(nil)}
			store.Fail(limitertest.ErrUnsent)
			l := by.newLimiter(t, store, w, sameClock)
			now := at("12:00:01.5")
			d, err := l.TakeLocal(request(now, 5, 5), limitertest.ErrUnsent)
			require.NoError(t, err)
			require.True(t, d.Allowed)
			d, _ = l.Recall(request(now.Add(3*time.Minute), 5, 5))
			assert.True(t, d.Allowed, "in three minutes")
			d, err = l.TakeLocal(request(now, 5, 5), limitertest.ErrUnsent)
			require.NoError(t, err)
			assert.False(t, d.Allowed, "now")
		})
	}
}
