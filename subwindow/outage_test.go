package subwindow_test

import (
	"runtime"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"weir/counters"
	"weir/counters/limitertest"
	"weir/counters/memory"
	"weir/counters/racetest"
	"weir/subwindow"
)

// What is due of slots that have left every window is forgotten, however long the
// store fails.
func (by way) TestWhatIsDueIsBoundedInAnOutage(t *testing.T) {
	racetest.Sequential(t)
	w, err := subwindow.NewFixedWindow(time.Second)
	require.NoError(t, err)
	store := &limitertest.BrokenStore{Store: memory.New(nil)}
	l := by.newLimiterWith(t, store, w, counters.Options{ClockSkew: sameClock, Clients: 100, StoreTimeout: time.Second})
	now := at("12:00:00.5")
	store.Fail(limitertest.ErrUnsent)
	heap := func() uint64 {
		runtime.GC()
		runtime.GC()
		var m runtime.MemStats
		runtime.ReadMemStats(&m)
		return m.HeapAlloc
	}
	before := heap()
	check := func() {
		r := request(now, 1, 10)
		_, err := l.Limiter.Take(t.Context(), r)
		require.Error(t, err)
		d, err := l.TakeLocal(r, err)
		require.NoError(t, err)
		require.True(t, d.Allowed)
		now = now.Add(time.Second)
	}
	took := func() time.Duration {
		began := time.Now()
		for range 200 {
			check()
		}
		return time.Since(began) / 200
	}
	first := took()
	for range 4 * 3600 { // seconds of outage
		check()
	}
	last := took()
	t.Logf("one client, 1 s slots, 4 h: a check alone %v at first, %v in the end", first, last)
	// What others have left behind in the background goes within a moment.
	assert.Eventually(t, func() bool { return heap() < before+20_000 }, 10*time.Second, 10*time.Millisecond)
	runtime.KeepAlive(l)
}

// What a refused check has counted isn't in use when it is known to be due back.
func (by way) TestARefusedCheckIsNotInItsOwnWay(t *testing.T) {
	store := &lateStore{Store: memory.New(nil)}
	l := by.newLimiterWith(t, store, newWindow(t, time.Minute, 10, false), counters.Options{ClockSkew: sameClock, Clients: 10, StoreTimeout: time.Second})
	store.late.Store(true)
	r := request(at("12:00:01"), 10, 10)
	_, err := l.Take(t.Context(), r)
	require.ErrorIs(t, err, counters.ErrTimeout) // it was refused
	d, _ := l.Recall(r)
	require.True(t, d.Allowed)
	done(store.tell[0]) // it was counted, and is due back; the store is silent still
	d, known := l.Recall(r)
	assert.True(t, d.Allowed, "known %v: %+v", known, d)
	d, err = l.TakeLocal(r, err)
	require.NoError(t, err)
	assert.True(t, d.Allowed, "%+v", d)
}

// What was admitted alone and is counted late is told to those who have read its
// slot for good.
func (by way) TestOthersAreToldOfALateCount(t *testing.T) {
	for name, outcome := range map[string]func(func(bool, error)){"done": done, "undone": undone} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				inner := memory.New(nil)
				store := &lateStore{Store: inner}
				w := newWindow(t, time.Minute, 60, true)
				o := counters.Options{Clients: 10, StoreTimeout: 50 * time.Millisecond}
				l, other := by.newLimiterWith(t, store, w, o), by.newLimiterWith(t, inner, w, o)
				store.late.Store(true)
				r := request(time.Now(), 50, 100)
				_, err := l.Take(t.Context(), r)
				require.ErrorIs(t, err, counters.ErrTimeout)
				d, err := l.TakeLocal(r, err)
				require.NoError(t, err)
				require.True(t, d.Allowed)
				store.late.Store(false)
				time.Sleep(1500 * time.Millisecond)
				admitted := int64(50)
				take := func(cost int64) {
					d, err := other.Take(t.Context(), request(time.Now(), cost, 100))
					require.NoError(t, err)
					if d.Allowed {
						admitted += cost
					}
				}
				take(1)
				time.Sleep(100 * time.Millisecond)
				outcome(store.tell[0])
				synctest.Wait()
				l.Flush()
				time.Sleep(2 * time.Second) // longer than others rely on what they have read
				for range 20 {
					take(9)
					time.Sleep(time.Second)
				}
				assert.LessOrEqual(t, admitted, int64(100), "admitted in 25 s of a strict minute")
			})
		})
	}
}

// A check is lost on its way, its caller decides alone, and the store answers again.
// As long as nobody tells what became of the check, what it admitted stands for
// itself, when the others have had the time to tell theirs.
func (by way) TestWhatIsPendingStandsForItself(t *testing.T) {
	inner := memory.New(nil)
	store := &lateStore{Store: inner}
	w := newWindow(t, time.Minute, 1, false)
	o := counters.Options{Clients: 10, StoreTimeout: time.Second}
	l, other := by.newLimiterWith(t, store, w, o), by.newLimiterWith(t, inner, w, o)
	const limit = 1000
	for i := range 100 { // a quarter is l's
		now := at("12:00:01").Add(time.Duration(i) * time.Millisecond)
		for range 3 {
			require.True(t, take(t, other, now, 1, limit).Allowed)
		}
		require.True(t, take(t, l, now, 1, limit).Allowed)
	}
	store.late.Store(true)
	r := request(at("12:00:02"), 100, limit)
	_, err := l.Take(t.Context(), r)
	require.ErrorIs(t, err, counters.ErrTimeout)
	d, err := l.TakeLocal(r, err)
	require.NoError(t, err)
	require.True(t, d.Allowed)
	store.late.Store(false)
	assert.Less(t, take(t, l, at("12:00:03"), 0, limit).Remaining, int64(500), "the others are still to tell")
	for _, clock := range []string{"12:00:06", "12:00:20", "12:00:50"} {
		assert.Equal(t, int64(500), take(t, l, at(clock), 0, limit).Remaining, clock)
	}
	d = take(t, l, at("12:00:51"), 300, limit)
	assert.True(t, d.Allowed, "by a store that answers: %+v", d)
}

// The store is told of each client that is remembered, however few these are to be.
func (by way) TestFewClientsAreToldToo(t *testing.T) {
	store := memory.New(nil)
	w := newWindow(t, time.Minute, 60, true)
	l := by.newLimiterWith(t, store, w, counters.Options{ClockSkew: sameClock, Clients: -1})
	now := at("12:00:01")
	d, err := l.TakeLocal(request(now, 3, 10), counters.ErrNotSent)
	require.NoError(t, err)
	require.True(t, d.Allowed)
	l.Flush()
	assert.EqualValues(t, 3, used(t, store, w, now))
}
