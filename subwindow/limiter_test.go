package subwindow_test

import (
	"context"
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"weir/counters"
	"weir/counters/limitertest"
	"weir/counters/memcachedtest"
	"weir/counters/memory"
	"weir/counters/racetest"
	"weir/subwindow"
)

// step is one check in a timeline, and what it has to be answered.
type step struct {
	at        string
	cost      int64
	allowed   bool
	remaining int64
	reset     time.Duration
	retry     time.Duration
}

func (by way) TestTimelines(t *testing.T) {
	t.Parallel()
	const second = time.Second
	for _, test := range []struct {
		name        string
		slots       int
		strict      bool
		countDenied bool
		limit       int64
		steps       []step
	}{
		{"two counters: the boundary burst is denied, then lets in one by one", 1, false, false, 100, []step{
			{"07:09:59", 100, true, 0, second + 59400*time.Millisecond + 1, 0},
			{"07:10:00", 1, false, 0, 59400*time.Millisecond + 1, 1},
			{"07:10:00.000000001", 1, true, 0, 60 * second, 0},
			{"07:10:00.5", 1, false, 0, 59500*time.Millisecond + 1, 100*time.Millisecond + 1},
			{"07:10:30", 0, true, 49, 30*second + 1, 0},
			{"07:12:00", 0, true, 100, 0, 0},
		}},
		{"the documents' 7 per minute", 1, false, false, 7, []step{
			{"00:00:10", 5, true, 2, 50*second + 48*second + 1, 0},
			{"00:01:02", 3, true, 0, 118*second + 1 - 20*second, 0},
			{"00:01:18", 1, true, 0, 102*second + 1 - 15*second, 0},
			{"00:01:18", 1, false, 0, 102*second + 1 - 15*second, 6*second + 1},
		}},
		{"15 s slots, strict", 4, true, false, 10, []step{
			{"07:10:00", 4, true, 6, 75 * second, 0},
			{"07:10:20", 6, true, 0, 70 * second, 0},
			{"07:10:44", 3, false, 0, 46 * second, 31 * second},
			{"07:10:44", 5, false, 0, 46 * second, 46 * second},
			{"07:11:14.999999999", 1, false, 0, 15*second + 1, 1},
			{"07:11:15", 4, true, 0, 75 * second, 0},
		}},
		{"denied requests count too", 4, true, true, 10, []step{
			{"07:10:00", 8, true, 2, 75 * second, 0},
			{"07:10:20", 3, false, 0, 70 * second, 55 * second},
			{"07:11:14", 3, false, 0, 61 * second, second},
			{"07:11:30", 3, true, 4, 75 * second, 0},
		}},
		{"the clock jumps back", 4, false, false, 2, []step{
			{"07:10:30", 1, true, 1, 60*second + 1, 0},
			{"07:10:14", 1, true, 1, 46*second + 1, 0},
		}},
	} {
		t.Run(test.name, func(t *testing.T) {
			w := newWindow(t, time.Minute, test.slots, test.strict)
			l := by.newLimiterWith(t, memory.New(nil), w, counters.Options{ClockSkew: sameClock, CountDenied: test.countDenied, Clients: 1})
			for _, s := range test.steps {
				want := counters.Decision{Allowed: s.allowed, Remaining: s.remaining, ResetAfter: s.reset, RetryAfter: s.retry}
				assert.Equal(t, want, take(t, l, at(s.at), s.cost, test.limit), "%s", s.at)
			}
		})
	}
}

func (by way) TestPeekRefundReset(t *testing.T) {
	t.Parallel()
	ctx := context.Background()
	w := newWindow(t, time.Minute, 4, true)
	store := memory.New(nil)
	l := by.newLimiter(t, store, w, 50*time.Millisecond)
	r := counters.Request{Client: "c", Cost: 3, Limit: 5, Now: at("07:10:15")}
	peek := func(now string) counters.Decision {
		t.Helper()
		r := r
		r.Now = at(now)
		d, err := l.Peek(ctx, r)
		require.NoError(t, err)
		return d
	}
	fresh := counters.Decision{Allowed: true, Remaining: 5}
	assert.Equal(t, fresh, peek("07:10:15"))
	assert.True(t, take(t, l, r.Now, 3, 5).Allowed)
	assert.Equal(t, counters.Decision{Remaining: 2, ResetAfter: 74050 * time.Millisecond, RetryAfter: 74050 * time.Millisecond}, peek("07:10:16"), "50 ms longer, as another clock may be behind")
	assert.Equal(t, int64(2), peek("07:10:29.99").Remaining, "just before the next slot, which may be open elsewhere")

	require.NoError(t, l.Refund(ctx, counters.Request{Client: "c", Limit: 5, Now: r.Now}, counters.Decision{Allowed: true}))
	assert.Equal(t, int64(2), peek("07:10:16").Remaining, "cost 0 gives nothing back")
	require.NoError(t, l.Refund(ctx, r, counters.Decision{Allowed: true}))
	assert.Equal(t, fresh, peek("07:10:16"))

	for _, moment := range []string{"07:10:15", "07:10:31", "07:11:10", "07:11:15.01"} {
		take(t, l, at(moment), 1, 100)
	}
	require.NoError(t, l.Reset(ctx, "c", at("07:11:14.98")))
	assert.Equal(t, fresh, peek("07:11:14.98"))
	assert.Equal(t, fresh, peek("07:11:16"))
}

// admission is an admitted request.
type admission struct {
	at   time.Time
	cost int64
}

// mostIn returns the largest cost that was admitted in any closed window of the
// given length.
func mostIn(log []admission, length time.Duration) int64 {
	var most, in int64
	first := 0
	for _, a := range log {
		in += a.cost
		for log[first].at.Before(a.at.Add(-length)) {
			in -= log[first].cost
			first++
		}
		most = max(most, in)
	}
	return most
}

// drawLimiter returns a limiter that remembers its client, or doesn't: losing
// what it knows must change nothing.
func (by way) drawLimiter(t *rapid.T, store counters.Store, w subwindow.Window, skew time.Duration) *limiter {
	return by.newLimiterWith(t, store, w, counters.Options{
		ClockSkew: skew, Clients: rapid.SampledFrom([]int{1000, -1}).Draw(t, "clients"),
	})
}

// drawSkew draws a skew up to a number of milliseconds, none included.
func drawSkew(t *rapid.T, most int) time.Duration {
	if ms := rapid.IntRange(0, most).Draw(t, "skew"); ms > 0 {
		return time.Duration(ms) * time.Millisecond
	}
	return sameClock
}

// drawWindow draws a window that can be cut into its slots.
func drawWindow(t *rapid.T) subwindow.Window {
	slots := rapid.SampledFrom([]int{1, 2, 3, 4, 5, 10, 60}).Draw(t, "slots")
	width := time.Duration(rapid.IntRange((99+slots)/slots, 5000).Draw(t, "width")) * time.Millisecond
	estimate := rapid.SampledFrom([]string{"weighted", "capped", "strict"}).Draw(t, "estimate")
	w := newWindow(t, width*time.Duration(slots), slots, estimate == "strict")
	w.Capped = estimate == "capped"
	return w
}

// What the window promises, on random traffic: strict admits no more than the
// limit in any window; weighted admits no more than that in any window that is
// a slot shorter, and never more than twice the limit; capped, as weighted and
// never more than ceil(2 * limit / slots) above the limit.
func (by way) TestNeverMoreThanPromised(t *testing.T) {
	racetest.Sequential(t)
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		w := drawWindow(t)
		length := w.Width * time.Duration(w.Slots)
		limit := rapid.Int64Range(1, 50).Draw(t, "limit")
		clock := &clock{now: at("07:10:00").Add(time.Duration(rapid.Int64Range(0, int64(length)).Draw(t, "start")))}
		l := by.drawLimiter(t, memory.New(clock.Now), w, sameClock)
		gap := rapid.SampledFrom([]time.Duration{0, length / 200, length / 20, w.Width, length}).Draw(t, "gap")
		var log []admission
		for range rapid.IntRange(1, 200).Draw(t, "requests") {
			clock.now = clock.now.Add(time.Duration(rapid.Int64Range(0, int64(gap)).Draw(t, "wait")))
			cost := rapid.Int64Range(1, max(1, limit/3)).Draw(t, "cost")
			if take(t, l, clock.now, cost, limit).Allowed {
				log = append(log, admission{clock.now, cost})
			}
		}
		if w.Strict {
			if most := mostIn(log, length); most > limit {
				t.Fatalf("strict: %d admitted in a window, limit %d", most, limit)
			}
			return
		}
		if most := mostIn(log, length-w.Width); most > limit {
			t.Fatalf("weighted: %d admitted in a window less a slot, limit %d", most, limit)
		}
		if most := mostIn(log, length); most > w.Most(limit) {
			t.Fatalf("%+v: %d admitted in a window, limit %d", w, most, limit)
		}
	})
}

// An attacker who knows the clock fills the limit at the end of a slot, and
// takes again, N slots later, all that he gets while that is inside the window.
// Capped gives him exactly what the docs say, weighted with the same slots
// nearly twice the limit.
func (by way) TestAttackOnCapped(t *testing.T) {
	racetest.Sequential(t)
	t.Parallel()
	for _, test := range []struct {
		slots            int
		limit            int64
		capped, weighted int64
	}{
		{1, 100, 200, 200}, {2, 100, 200, 200}, {3, 100, 167, 200}, {10, 100, 120, 200}, {60, 100, 104, 200},
		{60, 1000, 1034, 2000}, {7, 3, 4, 6}, {60, 1, 2, 2},
	} {
		for _, capped := range []bool{true, false} {
			t.Run(fmt.Sprintf("%d slots, limit %d, capped %v", test.slots, test.limit, capped), func(t *testing.T) {
				w := newWindow(t, 60*420*time.Millisecond, test.slots, false)
				w.Capped = capped
				first := at("07:10:00")
				end := first.Add(w.Width - counters.Calendar(first, w.Width).Elapsed - 1)
				clock := &clock{now: end}
				l := by.newLimiter(t, memory.New(clock.Now), w, sameClock)
				require.True(t, take(t, l, clock.now, test.limit, test.limit).Allowed)
				log := []admission{{clock.now, test.limit}}
				const places = 420
				for i := range places {
					clock.now = end.Add(time.Duration(w.Slots-1)*w.Width + w.Width*time.Duration(i+1)/places - 1)
					for take(t, l, clock.now, 1, test.limit).Allowed {
						log = append(log, admission{clock.now, 1})
					}
				}
				want := test.weighted
				if capped {
					want = test.capped
				}
				assert.Equal(t, want, mostIn(log, time.Duration(w.Slots)*w.Width-1))
			})
		}
	}
}

// exactLog admits at most limit in any window (t - length, t].
type exactLog struct {
	length time.Duration
	limit  int64
	log    []time.Time
}

func (e *exactLog) take(now time.Time) bool {
	for len(e.log) > 0 && !e.log[0].After(now.Add(-e.length)) {
		e.log = e.log[1:]
	}
	if int64(len(e.log)) == e.limit {
		return false
	}
	e.log = append(e.log, now)
	return true
}

// Under steady overload, a window of N slots admits at least N/(N+1) of what an
// exact log admits. Requests come at whole parts of a slot, so that no place
// that has become free waits for the next request, and the comparison runs over
// whole periods of both, which are W and (N+1)/N W.
func (by way) TestNotMuchLessThanAnExactLog(t *testing.T) {
	racetest.Sequential(t)
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		w := drawWindow(t)
		n := int64(w.Slots)
		perSlot := rapid.Int64Range(1, 3).Draw(t, "requests per slot")
		step := time.Duration(perSlot) * time.Millisecond
		w.Width = (w.Width + step - 1) / step * step
		length := w.Width * time.Duration(n)
		limit := rapid.Int64Range(1, max(1, perSlot*n-1)).Draw(t, "limit")
		gap := w.Width / time.Duration(perSlot)
		start := at("07:10:00").Add(time.Duration(rapid.Int64Range(0, int64(length)).Draw(t, "start")))
		clock := &clock{now: start}
		l := by.drawLimiter(t, memory.New(clock.Now), w, sameClock)
		log := &exactLog{length: length, limit: limit}
		var admitted, exact int64
		for range (n + 1) * n * perSlot {
			if log.take(clock.now) {
				exact++
			}
			if take(t, l, clock.now, 1, limit).Allowed {
				admitted++
			}
			clock.now = clock.now.Add(gap)
		}
		if admitted*(n+1) < exact*n {
			t.Fatalf("%d admitted, an exact log admits %d", admitted, exact)
		}
	})
}

// Whatever the traffic, nothing is denied without need: then the current slot
// and the N before it hold more than would leave room.
func (by way) TestNothingIsDeniedWithoutNeed(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		w := drawWindow(t)
		limit := rapid.Int64Range(1, 50).Draw(t, "limit")
		clock := &clock{now: at("07:10:00")}
		l := by.drawLimiter(t, memory.New(clock.Now), w, sameClock)
		bySlot := make(map[int64]int64)
		for range rapid.IntRange(1, 150).Draw(t, "requests") {
			clock.now = clock.now.Add(time.Duration(rapid.Int64Range(0, int64(w.Width)*2).Draw(t, "wait")))
			cost := rapid.Int64Range(1, limit).Draw(t, "cost")
			slot := counters.Calendar(clock.now, w.Width).Number
			if take(t, l, clock.now, cost, limit).Allowed {
				bySlot[slot] += cost
				continue
			}
			in := cost
			for i := slot - int64(w.Slots); i <= slot; i++ {
				in += bySlot[i]
			}
			if in <= limit {
				t.Fatalf("denied, and with it %d would be in the window and the slot before, limit %d", in, limit)
			}
		}
	})
}

// Instances whose clocks differ by up to the skew, and whose counts come late
// by up to the store timeout, keep the promise together: no window of true
// time, and no calendar window, holds more than the limit; of capped, no window
// that is shorter by both holds more than the docs say.
func (by way) TestInstancesWithDifferentClocksAndLateCounts(t *testing.T) {
	racetest.Sequential(t)
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		w := drawWindow(t)
		w.Strict = !w.Capped
		length := w.Width * time.Duration(w.Slots)
		if fixed := w.Strict && rapid.Bool().Draw(t, "fixed"); fixed {
			w.Slots, w.Width = 0, length
		}
		o := counters.Options{ClockSkew: drawSkew(t, 120), StoreTimeout: time.Duration(rapid.IntRange(1, 200).Draw(t, "timeout")) * time.Millisecond}
		limit := rapid.Int64Range(1, 10).Draw(t, "limit")
		clock := &clock{now: at("07:10:00")}
		store := memory.New(clock.Now)
		ahead := max(0, o.ClockSkew)
		offsets := []time.Duration{0, ahead, time.Duration(rapid.Int64Range(0, int64(ahead)).Draw(t, "offset"))}
		instances := make([]*limiter, len(offsets))
		for i := range instances {
			o.Clients = rapid.SampledFrom([]int{1000, -1}).Draw(t, "clients")
			instances[i] = by.newLimiterWith(t, store, w, o)
		}
		var log []admission
		byWindow := make(map[int64]int64)
		for range rapid.IntRange(1, 150).Draw(t, "requests") {
			clock.now = clock.now.Add(time.Duration(rapid.Int64Range(0, int64(length)/30).Draw(t, "wait")))
			i := rapid.IntRange(0, len(offsets)-1).Draw(t, "instance")
			late := time.Duration(rapid.SampledFrom([]int64{0, 0, 0, rapid.Int64Range(0, int64(o.StoreTimeout)).Draw(t, "late")}).Draw(t, "is late"))
			now := clock.now.Add(offsets[i] - late)
			if take(t, instances[i], now, 1, limit).Allowed {
				log = append(log, admission{clock.now, 1})
				byWindow[counters.Calendar(now, w.Width).Number]++
			}
		}
		if w.Slots == 0 {
			for window, n := range byWindow {
				if n > limit {
					t.Fatalf("%d admitted in the calendar window %d, limit %d", n, window, limit)
				}
			}
			return
		}
		bound := limit
		if w.Capped {
			length, bound = max(1, length-ahead-o.StoreTimeout), w.Most(limit)
		}
		if most := mostIn(log, length); most > bound {
			t.Fatalf("%d admitted in a window, limit %d", most, limit)
		}
	})
}

// Two instances, one 40 ms ahead of the other, fill a limit of 50 in 2 s once:
// a slot that has left the window by the fast clock is still young by the slow
// one.
func (by way) TestStrictStaysStrictAcrossClocks(t *testing.T) {
	t.Parallel()
	clock := &clock{now: at("12:00:01.999")}
	store := memory.New(clock.Now)
	w := newWindow(t, 2*time.Second, 4, true)
	slow, fast := by.newLimiter(t, store, w, 50*time.Millisecond), by.newLimiter(t, store, w, 50*time.Millisecond)
	require.True(t, take(t, slow, clock.now, 50, 50).Allowed)
	clock.now = at("12:00:03.999")
	d := take(t, fast, clock.now.Add(40*time.Millisecond), 1, 50)
	assert.False(t, d.Allowed, "2 s later, and 2.04 s by its own clock")
	assert.Equal(t, 11*time.Millisecond, d.RetryAfter, "the slot ended at 12:00:02; 2 s, and the skew")
}

// A count that reaches the store as late as the timeout finds its counter, and
// a window that counts it.
func (by way) TestLateCountsFindTheirCounter(t *testing.T) {
	t.Parallel()
	clock := &clock{now: at("12:00:00")}
	w, err := subwindow.NewFixedWindow(time.Second)
	require.NoError(t, err)
	store, options := memory.New(clock.Now), counters.Options{ClockSkew: sameClock, StoreTimeout: 5 * time.Second}
	require.True(t, take(t, by.newLimiterWith(t, store, w, options), clock.now, 5, 5).Allowed)
	clock.now = at("12:00:04.9")
	assert.False(t, take(t, by.newLimiterWith(t, store, w, options), at("12:00:00.5"), 1, 5).Allowed, "its clock was read 4.4 s ago")
}

func TestACheckThatWouldReadTooManyKeysIsRefused(t *testing.T) {
	t.Parallel()
	o := counters.Options{Policy: "p", Limit: "l", ClockSkew: time.Minute, StoreTimeout: 5 * time.Second}
	_, err := subwindow.New(memory.New(nil), newWindow(t, time.Second, 100, true), o)
	assert.ErrorContains(t, err, "so many slots of 10ms that a check would read 13102 keys; it may read 4096")
	_, err = subwindow.New(memory.New(nil), newWindow(t, 10*time.Second, 100, true), o)
	assert.NoError(t, err)
	for _, o := range []counters.Options{{ClockSkew: time.Minute + 1}, {StoreTimeout: 5*time.Second + 1}} {
		o.Policy, o.Limit = "p", "l"
		_, err := subwindow.New(memory.New(nil), newWindow(t, time.Hour, 10, true), o)
		assert.ErrorContains(t, err, "may be at most 1m0s")
	}
}

func (by way) TestRetryAfterIsTrue(t *testing.T) {
	racetest.Sequential(t)
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		w := drawWindow(t)
		limit := rapid.Int64Range(1, 30).Draw(t, "limit")
		clock := &clock{now: at("07:10:00")}
		l := by.drawLimiter(t, memory.New(clock.Now), w, sameClock)
		for range rapid.IntRange(5, 60).Draw(t, "requests") {
			clock.now = clock.now.Add(time.Duration(rapid.Int64Range(0, int64(w.Width)).Draw(t, "wait")))
			cost := rapid.Int64Range(1, limit).Draw(t, "cost")
			d := take(t, l, clock.now, cost, limit)
			if d.Allowed {
				if d.RetryAfter != 0 {
					t.Fatal("an admitted request is told to retry")
				}
				continue
			}
			clock.now = clock.now.Add(d.RetryAfter - 1)
			if take(t, l, clock.now, cost, limit).Allowed {
				t.Fatalf("admitted before %v were over", d.RetryAfter)
			}
			clock.now = clock.now.Add(1)
			if d := take(t, l, clock.now, cost, limit); !d.Allowed {
				t.Fatalf("denied after the wait; now retry after %v", d.RetryAfter)
			}
		}
	})
}

func (by way) TestSlotsOnMemcachedLiveUntilTheyHaveLeftTheWindow(t *testing.T) {
	server := memcachedtest.Start(t)
	store := openMemcached(t, server.Addr)
	const day = 24 * time.Hour
	for _, length := range []time.Duration{100 * time.Millisecond, time.Minute, 30 * day, 31 * day, counters.MaxWindow} {
		for _, slots := range []int{1, 10} {
			t.Run(fmt.Sprintf("%v in %d", length, slots), func(t *testing.T) {
				w := newWindow(t, length, slots, false)
				ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
				defer cancel()
				now := time.Now()
				l := by.newLimiter(t, store, w, 50*time.Millisecond)
				for remaining := range int64(2) {
					d, err := l.Take(ctx, counters.Request{Client: "c", Cost: 1, Limit: 2, Now: now})
					require.NoError(t, err)
					assert.Equal(t, counters.Decision{Allowed: true, Remaining: 1 - remaining, ResetAfter: d.ResetAfter}, d)
				}
				left := w.Width*time.Duration(slots+1) - counters.Calendar(now, w.Width).Elapsed + 50*time.Millisecond + 2*time.Second
				requireTTL(t, left.Seconds(), server.TTL(key(w, now)))
			})
		}
	}
}

// A busy client's sliding check is one incr. What its slots held is read once,
// with one get.
func (by way) TestACheckOfABusyClientIsOneCommand(t *testing.T) {
	t.Parallel()
	server := memcachedtest.Start(t)
	l := by.newLimiter(t, openMemcached(t, server.Addr), newWindow(t, time.Minute, 60, false), 50*time.Millisecond)
	take(t, l, at("12:00:00.5"), 1, 100)
	gets, incrs, sets := server.Stat("cmd_get"), server.Stat("incr_hits"), server.Stat("cmd_set")
	for i := range 10 {
		take(t, l, at("12:00:00.5").Add(time.Duration(i)*time.Millisecond), 1, 100)
	}
	assert.Equal(t, gets, server.Stat("cmd_get"))
	assert.Equal(t, int64(10), server.Stat("incr_hits")-incrs)
	assert.Equal(t, sets, server.Stat("cmd_set"))

	take(t, l, at("12:00:01.2"), 1, 100)
	assert.Equal(t, int64(1), server.Stat("cmd_get")-gets, "the slot that has closed")
	take(t, l, at("12:00:02.2"), 1, 100)
	assert.Equal(t, int64(3), server.Stat("cmd_get")-gets, "the next, and whether the client was reset")
}

func (by way) TestStoreErrorsArePassedOn(t *testing.T) {
	t.Parallel()
	ctx, cancel := context.WithDeadline(context.Background(), time.Now().Add(-time.Second))
	defer cancel()
	server := memcachedtest.Start(t)
	l := by.newLimiter(t, openMemcached(t, server.Addr), newWindow(t, time.Minute, 4, false), sameClock)
	r := counters.Request{Client: "c", Cost: 1, Limit: 2, Now: at("00:00:00")}
	_, takeErr := l.Take(ctx, r)
	_, peekErr := l.Peek(ctx, r)
	for _, err := range []error{takeErr, peekErr, l.Refund(ctx, r, counters.Decision{Allowed: true}), l.Reset(ctx, "c", r.Now)} {
		assert.ErrorIs(t, err, counters.ErrTimeout)
	}
}

func BenchmarkTake(b *testing.B) {
	server := memcachedtest.Start(b)
	for _, store := range []struct {
		name string
		counters.Store
	}{{"memory", memory.New(nil)}, {"memcached", openMemcached(b, server.Addr)}} {
		for _, slots := range []int{1, 10, 60} {
			b.Run(fmt.Sprintf("%s/%d", store.name, slots), func(b *testing.B) {
				b.ReportAllocs()
				l := way{}.newLimiter(b, store.Store, newWindow(b, time.Minute, slots, false), 50*time.Millisecond)
				r := counters.Request{Client: "c", Cost: 1, Limit: counters.MaxLimit, Now: at("12:00:00.5")}
				for b.Loop() {
					if _, err := l.Take(context.Background(), r); err != nil {
						b.Fatal(err)
					}
				}
			})
		}
	}
}

func (by way) TestWrongRequestsAreErrors(t *testing.T) {
	t.Parallel()
	l := by.newLimiter(t, memory.New(nil), newWindow(t, time.Minute, 4, false), sameClock)
	limitertest.WrongRequests(t, l, at("12:00:00"))
}

func TestOptionsAreChecked(t *testing.T) {
	t.Parallel()
	for want, o := range map[string]counters.Options{
		`policy name "" must be`:         {Limit: "l"},
		`limit name "a:b" must be`:       {Policy: "p", Limit: "a:b"},
		`key prefix "two words" must be`: {KeyPrefix: "two words", Policy: "p", Limit: "l"},
	} {
		_, err := subwindow.New(memory.New(nil), newWindow(t, time.Minute, 4, false), o)
		assert.ErrorContains(t, err, want)
	}
}

// A Window can be made without its constructors.
func TestWindowsThatCannotBeAreErrors(t *testing.T) {
	t.Parallel()
	for _, w := range []subwindow.Window{
		{}, {Slots: 10}, {Width: time.Minute}, {Slots: -1, Width: time.Minute, Strict: true}, {Slots: 1, Width: 50 * time.Millisecond},
		{Slots: 3, Width: time.Second / 3}, {Slots: 3600, Width: counters.MaxWindow}, {Slots: subwindow.MaxSubWindows + 1, Width: time.Second},
	} {
		_, err := subwindow.New(memory.New(nil), w, counters.Options{Policy: "p", Limit: "l"})
		assert.Error(t, err, "%+v", w)
	}
}

// stallingStore takes so long for an Add, but no longer than it may.
type stallingStore struct {
	counters.Store
	delay time.Duration
}

func (s *stallingStore) Add(ctx context.Context, a counters.Addition) (int64, error) {
	deadline, _ := ctx.Deadline()
	may := time.Until(deadline)
	if s.delay > may {
		time.Sleep(may)
		return 0, counters.ErrTimeout
	}
	time.Sleep(s.delay)
	return s.Store.Add(ctx, a)
}

// A context may leave a check more time than the StoreTimeout. Other instances
// rely on that, so the check doesn't take it.
func (by way) TestACheckTakesNoLongerThanTheStoreTimeout(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		store := memory.New(nil)
		w := newWindow(t, 10*time.Second, 10, true)
		o := counters.Options{StoreTimeout: 50 * time.Millisecond}
		late := by.newLimiterWith(t, &stallingStore{store, 3 * time.Second}, w, o)
		l := by.newLimiterWith(t, store, w, o)
		go func() {
			began := time.Now()
			ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
			defer cancel()
			_, err := late.Take(ctx, request(began, 10, 10))
			assert.ErrorIs(t, err, counters.ErrTimeout)
			assert.Equal(t, 50*time.Millisecond, time.Since(began))
		}()
		time.Sleep(2 * time.Second)
		assert.True(t, take(t, l, time.Now(), 10, 10).Allowed, "the slot of the other is settled")
		time.Sleep(time.Minute)
	})
}

// Such a cost never fits, and whoever asks is told so.
func (by way) TestACostAboveTheLimitIsDeniedForever(t *testing.T) {
	t.Parallel()
	for name, w := range minuteWindows(t) {
		t.Run(name, func(t *testing.T) {
			l := by.newLimiter(t, memory.New(nil), w, sameClock)
			never := counters.Decision{Remaining: 10, RetryAfter: counters.Forever}
			r := request(at("12:00:00"), 11, 10)
			assert.Equal(t, never, take(t, l, r.Now, 11, 10))
			d, err := l.Peek(t.Context(), r)
			require.NoError(t, err)
			assert.Equal(t, never, d)
			d, err = l.TakeLocal(r, counters.ErrTimeout)
			require.NoError(t, err)
			assert.Equal(t, never.RetryAfter, d.RetryAfter)
			assert.False(t, d.Allowed)

			require.True(t, take(t, l, r.Now, 5, 10).Allowed)
			assert.Equal(t, counters.Forever, take(t, l, r.Now, 11, 10).RetryAfter)
		})
	}
}
