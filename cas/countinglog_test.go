package cas

import (
	"encoding/binary"
	"math"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"weir/counters"
	"weir/counters/racetest"
)

func countingClient(t require.TestingT, window time.Duration, entries int64, countDenied bool) *client[logState] {
	l, err := newCountingLog(window, entries, countDenied)
	require.NoError(t, err)
	c := newClient(l)
	c.countDenied = countDenied
	return c
}

// Whatever the traffic: at an admission the window holds no more than the
// limit, and at a denial more than the limit less an entry's share, and less
// the cost. (The window is longer there by what a time is rounded up by.)
func TestCountingLogKeepsItsBounds(t *testing.T) {
	racetest.Sequential(t)
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		window := rapid.SampledFrom([]time.Duration{time.Second, time.Minute, counters.MaxWindow}).Draw(t, "window")
		entries := rapid.SampledFrom([]int64{8, 9, 64}).Draw(t, "entries")
		limit := rapid.SampledFrom([]int64{1, 7, 8, 9, 100, 1000}).Draw(t, "limit")
		c := countingClient(t, window, entries, false)
		now := clock(t, "12:00:00")
		admitted := &logModel{window: window}
		longer := &logModel{window: window + time.Duration(c.algorithm.(log).grain())}
		share := (limit + entries - 1) / entries
		pause := rapid.SampledFrom([]int64{10, 100, 2 * limit}).Draw(t, "pace")
		for range rapid.IntRange(1, 300).Draw(t, "requests") {
			r := counters.Request{Cost: rapid.OneOf(rapid.Int64Range(1, 1), rapid.Int64Range(1, limit)).Draw(t, "cost"), Limit: limit, Now: now}
			if c.ask(t, r).Allowed {
				_, used := admitted.live(now.UnixNano())
				require.LessOrEqual(t, used+r.Cost, limit)
				admitted.list = append(admitted.list, logged{now.UnixNano(), r.Cost})
				longer.list = admitted.list
			} else {
				_, used := longer.live(now.UnixNano())
				require.Greater(t, used+r.Cost, limit-max(0, share-2))
			}
			require.LessOrEqual(t, int64(c.state(t).n), 2*entries+1)
			require.LessOrEqual(t, c.peek(t, r).ResetAfter, c.algorithm.lasts())
			now = now.Add(time.Duration(rapid.Int64Range(0, int64(window)/pause).Draw(t, "pause")))
		}
	})
}

// An attacker who fills entries and asks whenever something may leave gets the
// limit and no more, and no less than the limit without an entry.
func TestAttackOnACountingLog(t *testing.T) {
	racetest.Sequential(t)
	t.Parallel()
	const limit, entries = 1000, 64
	c := countingClient(t, time.Minute, entries, false)
	r := counters.Request{Cost: 1, Limit: limit, Now: clock(t, "12:00:00")}
	admitted := &logModel{window: time.Minute}
	least := int64(limit)
	for i := range 20_000 {
		if d := c.ask(t, r); d.Allowed {
			admitted.list = append(admitted.list, logged{r.Now.UnixNano(), 1})
			_, used := admitted.live(r.Now.UnixNano())
			require.LessOrEqual(t, used, int64(limit))
		} else {
			_, used := admitted.live(r.Now.UnixNano())
			least = min(least, used)
		}
		r.Now = r.Now.Add(20*time.Millisecond + time.Duration(i%7)*time.Millisecond)
	}
	assert.GreaterOrEqual(t, least, int64(limit-limit/entries-1))
	assert.Less(t, least, int64(limit-10), "the price is real")
	assert.Less(t, len(c.stored), 600)
}

func TestCountingLogReadsAnExactOne(t *testing.T) {
	t.Parallel()
	exact, counted := logClient(t, time.Minute, false), countingClient(t, time.Minute, 64, false)
	r := counters.Request{Cost: 3, Limit: 10, Now: clock(t, "12:00:00")}
	require.True(t, exact.ask(t, r).Allowed)
	r.Now = r.Now.Add(10 * time.Second)
	require.True(t, exact.ask(t, r).Allowed)
	s, err := counted.algorithm.decode(exact.stored)
	require.NoError(t, err)
	assert.Equal(t, exact.peek(t, r), counted.algorithm.peek(s, r))
}

// What a log promises holds for any bytes that it takes for one: so it takes
// only those whose entries are in order.
func TestCountingLogRefusesWhatItHasNotWritten(t *testing.T) {
	t.Parallel()
	l, err := newCountingLog(time.Minute, 8, false)
	require.NoError(t, err)
	second := func(n int) int64 { return int64(n) * int64(time.Second) }
	// A log of 12:00:30, with an entry of 12:00:10 to 12:00:20 before others.
	header := func(newest ...uint64) []byte {
		b := binary.BigEndian.AppendUint64([]byte{formatCountingLog}, uint64(second(30)))
		b = binary.BigEndian.AppendUint64(append(b, 0), uint64(second(30)))
		for _, v := range newest {
			b = binary.AppendUvarint(b, v)
		}
		return b
	}
	older := func(unit byte, first int64, entries ...uint64) []byte {
		b := binary.BigEndian.AppendUint64(append(header(0, 1), unit), uint64(first))
		for _, v := range entries {
			b = binary.AppendUvarint(b, v)
		}
		return b
	}
	const most = math.MaxInt64 / 2
	ns := uint64(second(10))
	s, err := l.decode(older(0, second(10), 0, ns-1, 2, 2, 0, most-3))
	require.NoError(t, err)
	require.Equal(t, []entry{{second(10), second(20) - 1, 2}, {second(20), second(20), most - 3}, {second(30), second(30), 1}}, slices.Collect(l.all(s)))
	s, err = l.decode(older(0, second(10), 0, 2, 7, 3, 3, 8)) // which overlap
	require.NoError(t, err)
	require.Equal(t, []entry{{second(10), second(10) + 2, 7}, {second(10) + 1, second(10) + 4, 8}, {second(30), second(30), 1}}, slices.Collect(l.all(s)))
	require.NoError(t, errOf(l.decode(header(0, most))))
	for name, data := range map[string][]byte{
		"no newest":                    header(),
		"a newest without cost":        header(0),
		"a newest of cost 0":           header(0, 0),
		"more than any sum":            header(0, most+1),
		"cost beyond int64":            header(0, math.MaxUint64),
		"begun before all time":        header(1<<63+ns*3+1, 1),
		"begun before its first":       append(binary.BigEndian.AppendUint64([]byte{formatCountingLog}, 1<<63), append([]byte{1}, header(0, 1)[10:]...)...),
		"a unit and no more":           append(header(0, 1), 0),
		"no older entry":               older(40, second(10)),
		"a first gap":                  older(0, second(10), 2, 0, 1),
		"a first gap backwards":        older(0, second(10), 3, 0, 1),
		"a gap of 0 backwards":         older(0, second(10), 0, 1, 1, 1, 1, 1),
		"no span":                      older(40, second(10), 0),
		"no cost":                      older(40, second(10), 0, 0),
		"cost 0":                       older(40, second(10), 0, 0, 0),
		"a sum beyond the largest":     older(40, second(10), 0, 0, most),
		"two beyond the largest":       older(0, second(10), 0, 1, most-1, 0, 0, 1),
		"a larger unit would do":       older(0, second(10), 0, 2, 1),
		"a unit that is too large":     older(41, second(10), 0, 0, 1),
		"oldest after the newest":      older(40, second(30)+1, 0, 0, 1),
		"ends after all time":          older(0, second(10), 0, 1<<63, 1),
		"begins after the newest":      older(0, second(10), 0, 1, 1, 4*ns, 0, 1),
		"begins with no end":           older(0, second(10), 0, 1, 1, math.MaxUint64-1, 0, 1),
		"begins before the last":       older(0, second(10), 0, 3, 1, 9, 9, 1),
		"newest begins too early":      append(header(ns+1, 1), older(40, second(20), 0, 0, 1)[len(header(0, 1)):]...),
		"begins before the one before": older(0, second(10), 0, 10, 1, 11, 3, 1, 11, 1, 1),
		"begins anew":                  older(0, second(10), 0, 0, 1, math.MaxUint64-1, 0, 1, math.MaxUint64-1, 0, 1, 6, 0, 1),
		"no end of it":                 older(0, second(10), 0, math.MaxUint64, 1),
	} {
		require.ErrorIs(t, errOf(l.decode(data)), errForeignState, name)
	}
}

func errOf[S any](_ S, err error) error { return err }

// Clocks that go back, refunds, denied requests that count, and limits and
// entries that change: never is more admitted than the limit in a window that
// ends at an admission, and the log never gets longer.
func TestCountingLogWhateverComes(t *testing.T) {
	racetest.Sequential(t)
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		window := rapid.SampledFrom([]time.Duration{counters.MinWindow, time.Minute, counters.MaxWindow}).Draw(t, "window")
		countDenied := rapid.Bool().Draw(t, "count denied")
		c := countingClient(t, window, MinLogEntries, countDenied)
		limits := rapid.SampledFrom([]int64{1, 2, 9, 20, 300})
		limit, entries, now := limits.Draw(t, "limit"), int64(MinLogEntries), clock(t, "12:00:00")
		admitted := &logModel{window: window}
		var requests []counters.Request
		t.Repeat(map[string]func(*rapid.T){
			"ask": func(t *rapid.T) {
				cost := rapid.OneOf(rapid.Just(int64(1)), rapid.Int64Range(0, limit+1)).Draw(t, "cost")
				pause := time.Duration(rapid.Int64Range(0, int64(window)/100).Draw(t, "pause"))
				for range rapid.IntRange(1, 30).Draw(t, "times") {
					now = now.Add(pause)
					r := counters.Request{Cost: cost, Limit: limit, Now: now}
					most := max(2*int(entries)+1, c.state(t).n)
					d := c.ask(t, r)
					require.LessOrEqual(t, c.state(t).n, most)
					if !d.Allowed || cost == 0 {
						continue
					}
					at := max(now.UnixNano(), c.state(t).time)
					_, used := admitted.live(at)
					require.LessOrEqual(t, used+cost, limit)
					admitted.list = append(admitted.list, logged{at, cost})
					requests = append(requests, r)
				}
			},
			"refund": func(t *rapid.T) {
				if len(requests) == 0 {
					return // nothing is left to give back
				}
				i := rapid.IntRange(0, len(requests)-1).Draw(t, "which")
				before := c.state(t).time
				c.refund(t, requests[i])
				admitted.list, requests = slices.Delete(admitted.list, i, i+1), slices.Delete(requests, i, i+1)
				if c.state(t).n > 0 {
					return
				}
				now = time.Unix(0, max(now.UnixNano(), before)) // the log forgets what its time was
				for i := len(requests) - 1; i >= 0; i-- {
					if now.UnixNano()-admitted.list[i].time >= int64(window) { // and what had left the window by then
						admitted.list, requests = slices.Delete(admitted.list, i, i+1), slices.Delete(requests, i, i+1)
					}
				}
			},
			"wait": func(t *rapid.T) {
				most := rapid.SampledFrom([]int64{1, 20, 1000}).Draw(t, "part")
				now = now.Add(time.Duration(rapid.Int64Range(0, int64(window)/most).Draw(t, "d")))
			},
			"another clock": func(t *rapid.T) {
				most := min(window, time.Hour)
				now = now.Add(time.Duration(rapid.Int64Range(-int64(most), int64(most)/8).Draw(t, "d")))
			},
			"another policy": func(t *rapid.T) {
				limit, entries = limits.Draw(t, "limit"), rapid.SampledFrom([]int64{8, 9, 64}).Draw(t, "entries")
				a, err := newCountingLog(window, entries, countDenied)
				require.NoError(t, err)
				c.algorithm = a
			},
		})
	})
}

// A limit that is lowered while denied requests count: the log holds what it
// held, of ever more requests, and gets no longer.
func TestCountingLogStaysShortAboveItsLimit(t *testing.T) {
	t.Parallel()
	c := countingClient(t, time.Minute, MinLogEntries, true)
	r := counters.Request{Cost: 1000, Limit: 1000, Now: clock(t, "12:00:00")}
	require.True(t, c.ask(t, r).Allowed)
	r.Cost, r.Limit = 1, 10
	for range 100 {
		r.Now = r.Now.Add(time.Millisecond)
		require.False(t, c.ask(t, r).Allowed)
		require.LessOrEqual(t, c.state(t).n, 2*MinLogEntries+1)
	}
}

// Entries whose times are whole grains get no more, and are joined when they are
// many: to no more than their share, although what is logged is 1 above the limit
// while the oldest has lost its first only.
func TestJoinedEntriesHaveNoMoreThanTheirShare(t *testing.T) {
	racetest.Sequential(t)
	t.Parallel()
	const entries, share = MinLogEntries, 4
	const limit = entries * share
	c := countingClient(t, time.Minute, entries, false)
	grain := c.algorithm.(log).grain()
	now := clock(t, "12:00:00").UnixNano() / grain * grain
	admitted := &logModel{window: time.Minute}
	random := rand.New(rand.NewPCG(1, 2))
	for range 2000 {
		now += random.Int64N(int64(time.Minute)/limit/grain) * grain
		_, used := admitted.live(now)
		if c.ask(t, counters.Request{Cost: 1, Limit: limit, Now: time.Unix(0, now)}).Allowed {
			require.Less(t, used, int64(limit))
			admitted.list = append(admitted.list, logged{now, 1})
		} else {
			require.Greater(t, used+1, int64(limit-(share-2)))
		}
	}
}

// A log that becomes exact, as its limit was lowered, keeps what it has: of
// each entry 1 until the first of it leaves, and the rest until the last does.
func TestExactLogReadsACountingOne(t *testing.T) {
	t.Parallel()
	counted, exact := countingClient(t, time.Minute, MinLogEntries, false), logClient(t, time.Minute, false)
	ask := func(shows string, cost int64) counters.Request {
		return counters.Request{Cost: cost, Limit: 80, Now: clock(t, shows)}
	}
	for _, r := range []counters.Request{ask("12:00:00", 4), ask("12:00:10", 4), ask("12:00:20", 30), ask("12:00:20", 5)} {
		require.True(t, counted.ask(t, r).Allowed)
	}
	exact.stored = counted.stored
	s, err := exact.algorithm.decode(slices.Clone(counted.stored))
	require.NoError(t, err)
	exact.stored = exact.algorithm.encode(nil, s)
	for shows, used := range map[string]int64{"12:00:20": 43, "12:01:09": 42, "12:01:11": 35, "12:01:20": 0} {
		assert.Equal(t, 80-used, exact.peek(t, ask(shows, 1)).Remaining, shows)
	}
	exact.taken[ask("12:00:20", 30)] = counted.taken[ask("12:00:20", 30)]
	exact.refund(t, ask("12:00:20", 30))
	assert.Equal(t, int64(80-13), exact.peek(t, ask("12:00:20", 1)).Remaining)

	t.Run("more than it may admit", func(t *testing.T) {
		counted, exact := countingClient(t, time.Minute, MinLogEntries, false), logClient(t, time.Minute, false)
		r := counters.Request{Cost: 30_000, Limit: 30_005, Now: clock(t, "12:00:00")}
		require.True(t, counted.ask(t, r).Allowed)
		r.Cost, r.Now = 5, clock(t, "12:00:30")
		require.True(t, counted.ask(t, r).Allowed)
		s, err := exact.algorithm.decode(counted.stored)
		require.NoError(t, err)
		exact.stored = exact.algorithm.encode(nil, s)
		ask := func(shows string, cost int64) counters.Request {
			return counters.Request{Cost: cost, Limit: 10, Now: clock(t, shows)}
		}
		assert.Zero(t, exact.peek(t, ask("12:00:59.999", 1)).Remaining)
		exact.taken = counted.taken
		exact.refund(t, counters.Request{Cost: 30_000, Limit: 30_005, Now: clock(t, "12:00:00")})
		assert.Equal(t, int64(5), exact.peek(t, ask("12:00:59.999", 1)).Remaining)
		assert.Equal(t, int64(5), exact.peek(t, ask("12:01:00.001", 1)).Remaining)
	})
}

// A cost that was joined with others in a counting log doesn't stand at its own time in the
// exact one that this becomes: it is given back from the oldest that may have it.
func TestAnExactLogGivesBackWhatWasJoined(t *testing.T) {
	t.Parallel()
	counted, exact := countingClient(t, time.Minute, MinLogEntries, false), logClient(t, time.Minute, false)
	ask := func(shows string, cost int64) counters.Request {
		return counters.Request{Cost: cost, Limit: 80, Now: clock(t, shows)}
	}
	for _, r := range []counters.Request{ask("12:00:00", 2), ask("12:00:05", 3), ask("12:00:10", 4)} {
		require.True(t, counted.ask(t, r).Allowed)
	}
	s, err := exact.algorithm.decode(slices.Clone(counted.stored))
	require.NoError(t, err)
	exact.stored, exact.taken = exact.algorithm.encode(nil, s), counted.taken
	exact.refund(t, ask("12:00:05", 3))
	for shows, used := range map[string]int64{"12:00:10": 6, "12:00:59": 6, "12:01:06": 5, "12:01:09": 5, "12:01:11": 0} {
		assert.Equal(t, 80-used, exact.peek(t, ask(shows, 1)).Remaining, shows)
	}

	require.True(t, exact.ask(t, ask("12:01:03", 1)).Allowed)
	exact.refund(t, ask("12:00:00", 2))
	assert.Equal(t, int64(80-6), exact.peek(t, ask("12:01:03", 1)).Remaining, "it has left the window")
}

// The store loses a log, and a process that knows less than another puts it
// back and goes on. When the other tells what it knows, the log has all, in
// whatever order the two knew it, and what it has is told once.
func TestWhatIsLostOfACountingLogIsPutBack(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		limit := rapid.SampledFrom([]int64{8, 20, 100}).Draw(t, "limit")
		l, err := newCountingLog(time.Minute, MinLogEntries, false)
		require.NoError(t, err)
		now := clock(t, "12:00:00")
		request := func() counters.Request {
			now = now.Add(time.Duration(rapid.Int64Range(int64(time.Millisecond), int64(5*time.Second)).Draw(t, "pause")))
			return counters.Request{Cost: rapid.OneOf(rapid.Just(int64(1)), rapid.Int64Range(1, 3)).Draw(t, "cost"), Limit: limit, Now: now}
		}
		exact := &logModel{window: time.Minute}
		var seen []logState // after each
		ask := func(s logState, n int) logState {
			for range n {
				r := request()
				next, d := l.step(l.clone(s), r)
				if d.Allowed {
					exact.list = append(exact.list, logged{now.UnixNano(), r.Cost})
					s = next
				}
				seen = append(seen, l.clone(s))
			}
			return s
		}
		ask(logState{}, rapid.IntRange(1, 30).Draw(t, "before"))
		here, there := rapid.SampledFrom(seen).Draw(t, "here"), rapid.SampledFrom(seen).Draw(t, "there")
		known := max(here.time, there.time)
		exact.list = slices.DeleteFunc(exact.list, func(e logged) bool { return e.time > known })

		r := request()
		s, more := l.fuller(logState{}, here, r)
		if !more {
			return // it has left the window
		}
		s = ask(s, rapid.IntRange(0, 10).Draw(t, "after"))
		r = request()
		s, _ = l.fuller(s, there, r)
		_, used := l.live(s, r)
		_, want := exact.live(now.UnixNano())
		require.GreaterOrEqual(t, used, want)
		require.LessOrEqual(t, used, want+2*l.share(limit))
		again, more := l.fuller(s, there, r)
		require.False(t, more)
		require.Equal(t, s, again)
		_, more = l.fuller(s, here, r)
		require.False(t, more)
		decoded, err := l.decode(l.encode(nil, s))
		require.NoError(t, err)
		require.Equal(t, l.list(s, 0), l.list(decoded, 0))
		require.Equal(t, []int64{s.generation, s.time, s.sum, s.ends}, []int64{decoded.generation, decoded.time, decoded.sum, decoded.ends})
	})
}

// What was admitted elsewhere is in use for a window from its own time on, beside
// what the log has, and be there no room for it.
func TestWhatACountingLogIsChargedStaysForAWindow(t *testing.T) {
	t.Parallel()
	l, err := newCountingLog(time.Minute, MinLogEntries, false)
	require.NoError(t, err)
	second := func(n int64) int64 { return clock(t, "12:00:00").UnixNano() + n*int64(time.Second) }
	of := func(entries ...entry) logState {
		if len(entries) == 0 {
			return logState{}
		}
		return l.logOf(entries, entries[0].first, entries[len(entries)-1].last)
	}
	for _, test := range []struct {
		name     string
		state    logState
		at, cost int64
		used     map[int64]int64 // after seconds
	}{
		{"an empty log", of(), 10, 3, map[int64]int64{59: 3, 69: 3, 71: 0}},
		{"later than the log", of(entry{second(0), second(5), 3}), 10, 2, map[int64]int64{59: 5, 64: 4, 66: 2, 69: 2, 71: 0}},
		{"before the log", of(entry{second(30), second(30), 1}), 10, 2, map[int64]int64{59: 3, 69: 3, 71: 1, 91: 0}},
		{"more than there is room for", of(entry{second(30), second(30), 19}), 10, 5, map[int64]int64{59: 24, 71: 19, 91: 0}},
		{"what has left", of(entry{second(80), second(80), 1}), 10, 5, map[int64]int64{81: 1}},
	} {
		charged := l.charge(l.clone(test.state), &debt{now: second(test.at), limit: 20, cost: test.cost})
		for at, want := range test.used {
			_, used := l.live(l.clone(charged), counters.Request{Limit: 20, Now: time.Unix(0, second(at))})
			assert.Equal(t, want, used, "%s, after %d s", test.name, at)
		}
	}
}

func TestCountingLogTimelines(t *testing.T) {
	t.Parallel()
	t.Run("the first of an entry leaves, then the rest with the last", func(t *testing.T) {
		runTimeline(t, countingClient(t, time.Minute, MinLogEntries, false), []row{
			{at: "12:00:00", cost: 1, limit: 32, allowed: true, remaining: 31, reset: "1m"},
			{at: "12:00:10", cost: 1, limit: 32, allowed: true, remaining: 30, reset: "1m"},
			{at: "12:00:20", cost: 2, limit: 32, allowed: true, remaining: 28, reset: "1m"}, // the entry is full
			{at: "12:00:25", cost: 1, limit: 32, allowed: true, remaining: 27, reset: "1m"},
			{at: "12:00:30", cost: 27, limit: 32, allowed: true, remaining: 0, reset: "1m"},
			{at: "12:00:50", cost: 1, limit: 32, remaining: 0, reset: "40s", retry: "10.000032768s"}, // rounded up
			{at: "12:00:50", cost: 2, limit: 32, remaining: 0, reset: "40s", retry: "30.000047104s"},
			{at: "12:01:10", cost: 2, limit: 32, remaining: 1, reset: "20s", retry: "10.000047104s"},
			{at: "12:01:21", cost: 4, limit: 32, allowed: true, remaining: 0, reset: "1m"},
			{at: "12:01:25.1", cost: 1, limit: 32, allowed: true, remaining: 0, reset: "1m"},
			{at: "12:01:25.1", cost: 33, limit: 32, remaining: 0, reset: "1m", retry: "forever"},
		})
	})
	t.Run("what is denied is logged in place of the oldest", func(t *testing.T) {
		runTimeline(t, countingClient(t, time.Minute, MinLogEntries, true), []row{
			{at: "12:00:00", cost: 2, limit: 8, allowed: true, remaining: 6, reset: "1m"},
			{at: "12:00:10", cost: 4, limit: 8, allowed: true, remaining: 2, reset: "1m"},
			{at: "12:00:20", cost: 3, limit: 8, remaining: 0, reset: "1m", retry: "50.000039936s"},
			{at: "12:01:05", cost: 1, limit: 8, allowed: true, remaining: 0, reset: "1m"},
		})
	})
	t.Run("a clock that is behind", func(t *testing.T) {
		runTimeline(t, countingClient(t, time.Minute, MinLogEntries, false), []row{
			{at: "12:00:30", cost: 6, limit: 8, allowed: true, remaining: 2, reset: "1m"},
			{at: "12:00:20", cost: 2, limit: 8, allowed: true, remaining: 0, reset: "1m10s"},
			{at: "12:00:25", cost: 1, limit: 8, remaining: 0, reset: "1m5s", retry: "1m5s"},
			{at: "12:01:30", cost: 8, limit: 8, allowed: true, remaining: 0, reset: "1m"},
		})
	})
}

// The longest log there is, of entries that are as far apart as can be, is far
// below what Memcached takes for an item.
func TestLongestCountingLog(t *testing.T) {
	racetest.Sequential(t)
	t.Parallel()
	for _, test := range []struct {
		entries int64
		most    int // bytes
	}{{MinLogEntries, 200}, {DefaultLogEntries, 1_000}, {MaxLogEntries, 15_000}} {
		l, err := newCountingLog(counters.MaxWindow, test.entries, false)
		require.NoError(t, err)
		random := rand.New(rand.NewPCG(1, 2))
		var s logState
		longest, size := 0, 0
		now := clock(t, "12:00:00")
		for i := range 10 * test.entries {
			cost := int64(1) // in turns with one that leaves no room for it
			if i%2 == 0 {
				cost = l.share(counters.MaxLimit)
			}
			s, _ = l.step(s, counters.Request{Cost: cost, Limit: counters.MaxLimit, Now: now})
			now = now.Add(time.Duration(random.Int64N(int64(counters.MaxWindow) / test.entries)))
			longest, size = max(longest, s.n), max(size, len(l.encode(nil, s)))
		}
		assert.InDelta(t, 2*test.entries, longest, float64(test.entries)/2)
		assert.LessOrEqual(t, size, test.most, "%d entries", test.entries)
	}
}

// When the first of an entry is taken back, all of the rest stays until the
// last leaves; when another is, the first still leaves on time.
func TestRefundOfAnEntry(t *testing.T) {
	t.Parallel()
	for _, test := range []struct {
		name, refund string
		used         map[string]int64
	}{
		{"the first", "12:00:00", map[string]int64{"12:00:59": 2, "12:01:01": 2, "12:01:09": 2, "12:01:11": 0}},
		{"the second", "12:00:05", map[string]int64{"12:00:59": 2, "12:01:01": 1, "12:01:09": 1, "12:01:11": 0}},
		{"the last", "12:00:10", map[string]int64{"12:00:59": 2, "12:01:01": 1, "12:01:09": 1, "12:01:11": 0}},
	} {
		c := countingClient(t, time.Minute, MinLogEntries, false)
		ask := func(shows string) counters.Request { return counters.Request{Cost: 1, Limit: 24, Now: clock(t, shows)} }
		for _, shows := range []string{"12:00:00", "12:00:05", "12:00:10"} {
			require.True(t, c.ask(t, ask(shows)).Allowed)
		}
		c.refund(t, ask(test.refund))
		for shows, used := range test.used {
			assert.Equal(t, 24-used, c.peek(t, ask(shows)).Remaining, "%s at %s", test.name, shows)
		}
	}

	// What is left of an entry whose first has left may be nothing.
	c := countingClient(t, time.Minute, MinLogEntries, false)
	ask := func(shows string, cost int64) counters.Request {
		return counters.Request{Cost: cost, Limit: 24, Now: clock(t, shows)}
	}
	for _, r := range []counters.Request{ask("12:00:00", 1), ask("12:00:05", 2), ask("12:01:02", 3)} {
		require.True(t, c.ask(t, r).Allowed)
	}
	c.refund(t, ask("12:00:05", 2))
	assert.Equal(t, int64(24-3), c.peek(t, ask("12:01:02", 1)).Remaining)
}

// Of an entry that two have with the same cost, the later end is kept: a refund
// may have taken what came before it.
func TestWhatIsPutBackOfAnEntryEndsLast(t *testing.T) {
	t.Parallel()
	l, err := newCountingLog(time.Minute, MinLogEntries, false)
	require.NoError(t, err)
	first, last := clock(t, "12:00:00").UnixNano(), clock(t, "12:00:10").UnixNano()
	short := l.logOf([]entry{{first, first, 1}}, first, first)
	long := l.logOf([]entry{{first, last, 1}}, first, last)
	r := counters.Request{Limit: 8, Now: clock(t, "12:00:20")}
	s, more := l.fuller(short, long, r)
	assert.True(t, more)
	assert.Equal(t, l.rounded(last), s.ends)
	_, more = l.fuller(long, short, r)
	assert.False(t, more)

	beside := l.logOf([]entry{{first, last, 1}, {first, first, 1}}, first, last)
	several := l.logOf([]entry{{first, first, 3}}, first, first)
	s, more = l.fuller(several, beside, r)
	assert.True(t, more)
	assert.Equal(t, l.rounded(last), s.ends)
}

// Neighbours that are joined stay until the last of both, where they overlap too.
func TestJoinedEntriesStayUntilTheLastOfBoth(t *testing.T) {
	t.Parallel()
	l, err := newCountingLog(time.Minute, MinLogEntries, false)
	require.NoError(t, err)
	second := func(n int64) int64 { return clock(t, "12:00:00").UnixNano() + n*int64(time.Second) }
	entries := []entry{{second(0), second(50), 2}}
	for n := range int64(2*MinLogEntries + 1) {
		entries = append(entries, entry{second(n), second(n), 1})
	}
	s := l.logOf(entries, second(0), second(50))
	joined := l.short(l.clone(s), 20)
	require.Less(t, joined.n, s.n)
	for n := range int64(120) {
		assert.GreaterOrEqual(t, l.used(joined, second(n)), l.used(s, second(n)), "after %d s", n)
	}
}

// Entries overlap where a debt has come between: when a cost fits is true all
// the same.
func TestOverlappingEntriesTellWhenACostFits(t *testing.T) {
	t.Parallel()
	c := countingClient(t, time.Minute, MinLogEntries, false)
	second := func(n int) int64 { return clock(t, "12:00:00").UnixNano() + int64(n)*int64(time.Second) }
	c.stored = c.algorithm.encode(nil, c.algorithm.(log).logOf([]entry{
		{second(0), second(40), 5}, {second(10), second(20), 3}, {second(15), second(15), 1}, {second(15), second(50), 2},
	}, second(0), second(50)))
	for cost, want := range []time.Duration{0, 10, 20, 25, 25, 30, 30, 50, 50, 50, 50, 60} {
		d := c.peek(t, counters.Request{Cost: int64(cost), Limit: 11, Now: clock(t, "12:00:50")})
		assert.Equal(t, want*time.Second, d.RetryAfter, cost)
	}
}

// A debt was told late, between the first and the last of an entry. Whichever of them are given back,
// and in whatever order, what was admitted later stays until it leaves the window.
func TestRefundsOfOverlappingEntriesTakeTheFirstToEnd(t *testing.T) {
	t.Parallel()
	l, err := newCountingLog(time.Minute, MinLogEntries, false)
	require.NoError(t, err)
	noon := clock(t, "12:00:00")
	at := func(second, cost int64) *debt {
		r := counters.Request{Cost: cost, Limit: 800, Now: noon.Add(time.Duration(second) * time.Second)}
		return newDebt(r, counters.Decision{Allowed: true})
	}
	s := l.charge(logState{}, at(1, 50))
	s = l.charge(s, at(3, 30))
	s = l.charge(s, at(2, 50))
	s = l.charge(s, at(50, 60))
	for _, refunded := range []*debt{at(2, 50), at(1, 50), at(3, 30)} {
		refunded.kind, refunded.generation = back, s.generation
		s = l.refund(s, refunded)
	}
	assert.EqualValues(t, 740, l.peek(s, at(70, 1).request()).Remaining)
}
