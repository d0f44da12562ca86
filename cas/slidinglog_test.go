package cas

import (
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"weir/counters"
	"weir/counters/racetest"
)

func logClient(t require.TestingT, window time.Duration, countDenied bool) *client[logState] {
	l, err := newSlidingLog(window, MaxLogLimit, countDenied)
	require.NoError(t, err)
	c := newClient(l)
	c.countDenied = countDenied
	return c
}

func TestSlidingLogTimelines(t *testing.T) {
	t.Parallel()
	t.Run("two a minute", func(t *testing.T) {
		runTimeline(t, logClient(t, time.Minute, false), []row{
			{at: "1:00:01", cost: 1, limit: 2, allowed: true, remaining: 1, reset: "1m"},
			{at: "1:00:30", cost: 1, limit: 2, allowed: true, remaining: 0, reset: "1m"},
			{at: "1:00:50", cost: 1, limit: 2, remaining: 0, reset: "40s", retry: "11s"},
			{at: "1:01:40", cost: 1, limit: 2, allowed: true, remaining: 1, reset: "1m"},
		})
	})
	t.Run("two a minute, and what is denied is logged too", func(t *testing.T) {
		runTimeline(t, logClient(t, time.Minute, true), []row{
			{at: "1:00:01", cost: 1, limit: 2, allowed: true, remaining: 1, reset: "1m"},
			{at: "1:00:30", cost: 1, limit: 2, allowed: true, remaining: 0, reset: "1m"},
			{at: "1:00:50", cost: 1, limit: 2, remaining: 0, reset: "1m", retry: "40s"},
			{at: "1:01:40", cost: 1, limit: 2, allowed: true, remaining: 0, reset: "1m"},
		})
	})
	t.Run("10:01:00 looks back to 10:00:02", func(t *testing.T) {
		runTimeline(t, logClient(t, time.Minute, false), []row{
			{at: "10:00:02", cost: 1, limit: 100, allowed: true, remaining: 99, reset: "1m"},
			{at: "10:00:15", cost: 1, limit: 100, allowed: true, remaining: 98, reset: "1m"},
			{at: "10:00:44", cost: 1, limit: 100, allowed: true, remaining: 97, reset: "1m"},
			{at: "10:01:00", cost: 1, limit: 100, allowed: true, remaining: 96, reset: "1m"},
		})
	})
	t.Run("a minute old no longer counts", func(t *testing.T) {
		runTimeline(t, logClient(t, time.Minute, false), []row{
			{at: "12:00:00", cost: 2, limit: 2, allowed: true, remaining: 0, reset: "1m"},
			{at: "12:00:59.999999999", cost: 1, limit: 2, remaining: 0, reset: "1ns", retry: "1ns"},
			{at: "12:01:00", cost: 1, limit: 2, allowed: true, remaining: 1, reset: "1m"},
		})
	})
	t.Run("costs wait for as many to leave", func(t *testing.T) {
		runTimeline(t, logClient(t, time.Minute, false), []row{
			{at: "12:00:00", cost: 3, limit: 10, allowed: true, remaining: 7, reset: "1m"},
			{at: "12:00:10", cost: 200, limit: 10, remaining: 7, reset: "50s", retry: "forever"},
			{at: "12:00:10", cost: 4, limit: 10, allowed: true, remaining: 3, reset: "1m"},
			{at: "12:00:20", cost: 3, limit: 10, allowed: true, remaining: 0, reset: "1m"},
			{at: "12:00:30", cost: 3, limit: 10, remaining: 0, reset: "50s", retry: "30s"},
			{at: "12:00:30", cost: 4, limit: 10, remaining: 0, reset: "50s", retry: "40s"},
			{at: "12:00:30", cost: 8, limit: 10, remaining: 0, reset: "50s", retry: "50s"},
			{at: "12:00:30", cost: 10, limit: 10, remaining: 0, reset: "50s", retry: "50s"},
			{at: "12:01:00", cost: 3, limit: 10, allowed: true, remaining: 0, reset: "1m"},
		})
	})
	t.Run("limits of a request", func(t *testing.T) {
		runTimeline(t, logClient(t, time.Minute, false), []row{
			{at: "12:00:00", cost: 8, limit: 10, allowed: true, remaining: 2, reset: "1m"},
			{at: "12:00:10", cost: 1, limit: 20, allowed: true, remaining: 11, reset: "1m"},
			{at: "12:00:10", cost: 1, limit: 5, remaining: 0, reset: "1m", retry: "50s"},
			{at: "12:00:10", cost: 0, limit: 5, remaining: 0, reset: "1m", retry: "50s"},
			{at: "12:00:10", cost: 9_991, limit: 1_000_000, allowed: true, remaining: 0, reset: "1m"},
		})
	})
	t.Run("the clock jumps back, and far forward", func(t *testing.T) {
		runTimeline(t, logClient(t, time.Minute, false), []row{
			{at: "12:00:00", cost: 1, limit: 2, allowed: true, remaining: 1, reset: "1m"},
			{at: "11:59:30", cost: 1, limit: 2, allowed: true, remaining: 0, reset: "1m30s"},
			{at: "11:59:30", cost: 1, limit: 2, remaining: 0, reset: "1m30s", retry: "1m30s"},
			{at: "12:00:59", cost: 1, limit: 2, remaining: 0, reset: "1s", retry: "1s"},
			{at: "23:00:00", cost: 2, limit: 2, allowed: true, remaining: 0, reset: "1m"},
		})
	})
}

func TestSlidingLogWindowChanges(t *testing.T) {
	t.Parallel()
	minute, hour := logClient(t, time.Minute, false), logClient(t, time.Hour, false)
	c := minute
	runTimeline(t, c, []row{
		{at: "12:00:00", cost: 1, limit: 3, allowed: true, remaining: 2, reset: "1m"},
		{at: "12:00:50", cost: 1, limit: 3, allowed: true, remaining: 1, reset: "1m"},
		{at: "12:01:10", cost: 1, limit: 3, allowed: true, remaining: 1, reset: "1m"},
	})
	c.algorithm = hour.algorithm
	runTimeline(t, c, []row{
		// The one of 12:00:00 was dropped at 12:01:10.
		{at: "12:10:00", cost: 1, limit: 3, allowed: true, remaining: 0, reset: "1h"},
		{at: "12:10:00", cost: 1, limit: 3, remaining: 0, reset: "1h", retry: "50m50s"},
	})
}

func TestSlidingLogMergesEqualTimes(t *testing.T) {
	racetest.Sequential(t)
	t.Parallel()
	c := logClient(t, time.Minute, false)
	r := counters.Request{Limit: MaxLogLimit, Now: clock(t, "12:00:00")}
	assert.Equal(t, 300, run(t, c, 300, r))
	assert.Len(t, c.stored, 1+8+1+1+3, "format, base, generation, lag, and one entry of cost 300")
	r.Now = r.Now.Add(-time.Second)
	assert.Equal(t, 300, run(t, c, 300, r), "times before the newest are the newest")
	assert.Len(t, c.stored, 1+8+1+1+3)
	r.Now = r.Now.Add(2 * time.Second)
	assert.Equal(t, 200, run(t, c, 200, r))
	assert.Len(t, c.stored, 1+8+1+1+3+5+2)
}

func TestSlidingLogStaysSmall(t *testing.T) {
	racetest.Sequential(t)
	t.Parallel()
	for _, window := range []time.Duration{counters.MinWindow, time.Minute, counters.MaxWindow} {
		l, err := newSlidingLog(window, MaxLogLimit, false)
		require.NoError(t, err)
		s, now := longLog(t, l, window)
		size := len(l.encode(nil, s))
		assert.Less(t, size, 100<<10)
		assert.Greater(t, size, 2*MaxLogLimit, "the entries are all there")
		assert.False(t, l.peek(s, counters.Request{Cost: 1, Limit: MaxLogLimit, Now: now.Add(-time.Duration(MaxLogLimit))}).Allowed)
	}
}

func TestSlidingLogCountedDenialsKeepItSmall(t *testing.T) {
	racetest.Sequential(t)
	t.Parallel()
	c := logClient(t, time.Hour, true)
	r := counters.Request{Cost: 1, Limit: 5, Now: clock(t, "12:00:00")}
	for range 1000 {
		r.Now = r.Now.Add(time.Second)
		c.ask(t, r)
	}
	assert.Len(t, c.stored, 1+8+6+1+6*(5+1), "format, base, generation, lag, and six entries")
	r.Cost = counters.MaxCost
	assert.False(t, c.ask(t, r).Allowed)
	assert.Equal(t, int64(6), c.state(t).sum)
}

func TestSlidingLogGivesBack(t *testing.T) {
	t.Parallel()
	ask := func(at string, cost int64) counters.Request {
		return counters.Request{Cost: cost, Limit: 10, Now: clock(t, at)}
	}
	used := func(c *client[logState], at string) int64 { return 10 - c.peek(t, ask(at, 0)).Remaining }

	t.Run("from between others", func(t *testing.T) {
		c := logClient(t, time.Minute, false)
		for _, r := range []counters.Request{ask("12:00:00", 1), ask("12:00:10", 2), ask("12:00:10", 3), ask("12:00:20", 4)} {
			require.True(t, c.ask(t, r).Allowed)
		}
		c.refund(t, ask("12:00:10", 2))
		assert.Equal(t, int64(8), used(c, "12:00:20"))
		assert.Equal(t, int64(7), used(c, "12:01:00"))
		assert.Equal(t, int64(4), used(c, "12:01:10"))
		c.refund(t, ask("12:00:10", 3))
		assert.Equal(t, int64(5), used(c, "12:00:20"))
		assert.Equal(t, int64(4), used(c, "12:01:00"))
		c.refund(t, ask("12:00:00", 1))
		assert.Equal(t, int64(4), used(c, "12:00:20"))
	})
	t.Run("a request whose clock was behind stands later in the log", func(t *testing.T) {
		c := logClient(t, time.Minute, false)
		require.True(t, c.ask(t, ask("12:00:10", 2)).Allowed)
		require.True(t, c.ask(t, ask("12:00:09", 3)).Allowed)
		c.refund(t, ask("12:00:09", 3))
		assert.Equal(t, int64(2), used(c, "12:00:10"))
	})
	t.Run("one that has left takes nobody else's", func(t *testing.T) {
		c := logClient(t, time.Minute, false)
		require.True(t, c.ask(t, ask("12:00:00", 1)).Allowed)
		require.True(t, c.ask(t, ask("12:01:00", 2)).Allowed)
		c.refund(t, ask("12:00:00", 1))
		assert.Equal(t, int64(2), used(c, "12:01:00"))
	})
	t.Run("the log's time stays when its newest is given back", func(t *testing.T) {
		c := logClient(t, time.Minute, false)
		require.True(t, c.ask(t, ask("12:00:00", 1)).Allowed)
		require.True(t, c.ask(t, ask("12:00:30", 1)).Allowed)
		require.True(t, c.ask(t, ask("12:01:01", 8)).Allowed)
		c.refund(t, ask("12:01:01", 8))
		// The one of 12:00:00 has left, and cannot come back.
		require.True(t, c.ask(t, ask("12:00:50", 1)).Allowed)
		assert.Equal(t, int64(2), used(c, "12:01:01"))
		assert.Equal(t, int64(1), used(c, "12:02:00"), "it was logged at 12:01:01")
		c.refund(t, ask("12:00:00", 1))
		assert.Equal(t, int64(2), used(c, "12:01:01"))
	})
}

// logModel is a log as a plain list.
type logModel struct {
	window time.Duration
	time   int64
	list   []logged
	// generation is when the first entry of the list was made in place of none.
	generation int64
	taken      map[counters.Request]int64 // the generation of each
	stands     map[counters.Request]int64 // and its time in the list
}

type logged struct{ time, cost int64 }

func (m *logModel) live(now int64) (entries []logged, used int64) {
	for _, e := range m.list {
		if now-e.time < int64(m.window) {
			entries = append(entries, e)
			used += e.cost
		}
	}
	return entries, used
}

func (m *logModel) ask(r counters.Request, countDenied bool) (allowed bool, used int64) {
	now := r.Now.UnixNano()
	if len(m.list) > 0 {
		now = max(now, m.time)
	}
	entries, used := m.live(now)
	allowed = used+r.Cost <= r.Limit
	if r.Cost > 0 && (allowed || countDenied) {
		if len(entries) == 0 {
			m.generation = now
		}
		m.taken[r], m.stands[r] = m.generation, now
		m.list, m.time = append(entries, logged{now, r.Cost}), now
		used += r.Cost
	}
	return allowed, used
}

func (m *logModel) refund(r counters.Request) {
	if len(m.list) == 0 || m.taken[r] != m.generation {
		return
	}
	left := r.Cost
	for i := range m.list {
		if e := &m.list[i]; e.time == m.stands[r] {
			taken := min(left, e.cost)
			e.cost -= taken
			left -= taken
		}
	}
	m.list = slices.DeleteFunc(m.list, func(e logged) bool { return e.cost == 0 })
}

func TestSlidingLogLikeAList(t *testing.T) {
	racetest.Sequential(t)
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		windows := rapid.SampledFrom([]time.Duration{counters.MinWindow, time.Second, time.Minute, counters.MaxWindow})
		window := windows.Draw(t, "window")
		limits := rapid.SampledFrom([]int64{1, 2, 5, 20, 300})
		limit := limits.Draw(t, "limit")
		model := &logModel{window: window, taken: make(map[counters.Request]int64), stands: make(map[counters.Request]int64)}
		c := logClient(t, window, false)
		now := clock(t, "12:00:00")
		var admitted []counters.Request
		t.Repeat(map[string]func(*rapid.T){
			"ask": func(t *rapid.T) {
				cost := rapid.OneOf(rapid.Int64Range(0, 2), rapid.Int64Range(0, limit+1)).Draw(t, "cost")
				r := counters.Request{Cost: cost, Limit: limit, Now: now}
				allowed, used := model.ask(r, false)
				d := c.ask(t, r)
				require.Equal(t, allowed, d.Allowed)
				require.Equal(t, max(0, limit-used), d.Remaining)
				if allowed {
					admitted = append(admitted, r)
				}
			},
			"refund": func(t *rapid.T) {
				if len(admitted) == 0 {
					return // nothing is left to give back
				}
				i := rapid.IntRange(0, len(admitted)-1).Draw(t, "which")
				model.refund(admitted[i])
				c.refund(t, admitted[i])
				admitted = append(admitted[:i], admitted[i+1:]...)
			},
			"wait": func(t *rapid.T) {
				now = now.Add(time.Duration(rapid.Int64Range(0, int64(window)).Draw(t, "d")))
			},
			"waitShortly": func(t *rapid.T) {
				now = now.Add(time.Duration(rapid.Int64Range(0, int64(window)/10).Draw(t, "d")))
			},
			"clockJumps": func(t *rapid.T) {
				now = now.Add(time.Duration(rapid.Int64Range(-int64(window), int64(2*window)).Draw(t, "d")))
			},
			"limitChanges": func(t *rapid.T) { limit = limits.Draw(t, "limit") },
			"windowChanges": func(t *rapid.T) {
				window = windows.Draw(t, "window")
				model.window = window
				c.algorithm = logClient(t, window, false).algorithm
			},
		})
	})
}

// A log that counts denied requests decides as if it kept them all.
func TestSlidingLogForgetsOnlyWhatDecidesNothing(t *testing.T) {
	racetest.Sequential(t)
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		limit := rapid.SampledFrom([]int64{1, 3, 20, 300}).Draw(t, "limit")
		model := &logModel{window: time.Second, taken: make(map[counters.Request]int64), stands: make(map[counters.Request]int64)}
		c := logClient(t, time.Second, true)
		now := clock(t, "12:00:00")
		for range rapid.IntRange(1, 60).Draw(t, "requests") {
			r := counters.Request{Cost: rapid.Int64Range(0, limit).Draw(t, "cost"), Limit: limit, Now: now}
			allowed, used := model.ask(r, true)
			d := c.ask(t, r)
			require.Equal(t, allowed, d.Allowed)
			require.Equal(t, max(0, limit-used), d.Remaining)
			require.LessOrEqual(t, c.state(t).sum, limit+1)
			now = now.Add(time.Duration(rapid.Int64Range(0, int64(700*time.Millisecond)).Draw(t, "pause")))
		}
	})
}

// Whatever limits are mixed, and whether denied requests count: at an
// admission, the window holds no more admitted cost than its limit.
func TestSlidingLogAdmitsNoMoreThanTheLimit(t *testing.T) {
	racetest.Sequential(t)
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		countDenied := rapid.Bool().Draw(t, "countDenied")
		c := logClient(t, time.Second, countDenied)
		now := clock(t, "12:00:00")
		var admitted logModel
		admitted.window = time.Second
		var total int64
		for range rapid.IntRange(1, 60).Draw(t, "requests") {
			limit := rapid.SampledFrom([]int64{1, 3, 20, 30}).Draw(t, "limit")
			r := counters.Request{Cost: rapid.Int64Range(1, limit).Draw(t, "cost"), Limit: limit, Now: now}
			if _, inUse := admitted.live(now.UnixNano()); c.ask(t, r).Allowed {
				require.LessOrEqual(t, inUse+r.Cost, limit)
				admitted.list = append(admitted.list, logged{now.UnixNano(), r.Cost})
				total += r.Cost
			} else if !countDenied {
				require.Greater(t, inUse+r.Cost, limit)
			}
			now = now.Add(time.Duration(rapid.Int64Range(0, int64(300*time.Millisecond)).Draw(t, "pause")))
		}
		require.Positive(t, total)
	})
}

// A step that doesn't have to grow the log allocates nothing.
func TestSlidingLogStepReusesItsMemory(t *testing.T) {
	l, err := newSlidingLog(time.Minute, 100, false)
	require.NoError(t, err)
	r := counters.Request{Cost: 1, Limit: 100, Now: clock(t, "12:00:00")}
	s, _ := l.step(logState{}, r)
	s.older = slices.Grow(s.older, 10_000)
	assert.Zero(t, testing.AllocsPerRun(1000, func() {
		r.Now = r.Now.Add(700 * time.Millisecond)
		s, _ = l.step(s, r)
	}))
	assert.Equal(t, int64(86), s.sum)
}

// What is remembered of a client must not change under those who read it.
func TestStepLeavesTheStateThatItWasCloned(t *testing.T) {
	t.Parallel()
	l, err := newSlidingLog(time.Minute, 100, true)
	require.NoError(t, err)
	now := time.Unix(1_000_000_000, 0)
	request := func(cost int64) counters.Request {
		return counters.Request{Client: "a", Cost: cost, Limit: 100, Now: now}
	}
	remembered, _ := l.step(logState{}, request(60))
	stored := l.encode(nil, remembered)
	for name, cost := range map[string]int64{"counted at the same time": 7, "denied, in place of the oldest": 50} {
		after, _ := l.step(l.clone(remembered), request(cost))
		assert.NotEqual(t, stored, l.encode(nil, after), name)
		assert.Equal(t, stored, l.encode(nil, remembered), name)
	}
}

// What the store has lost of a log, and another process has put back without it, can't be
// given back any more: what others were admitted since stays.
func TestALogGivesBackOnlyWhatStands(t *testing.T) {
	t.Parallel()
	l, err := newSlidingLog(time.Minute, 50, false)
	require.NoError(t, err)
	noon := clock(t, "12:00:00")
	request := func(after time.Duration, cost int64) counters.Request {
		return counters.Request{Client: "c", Cost: cost, Limit: 50, Now: noon.Add(after)}
	}
	first, _ := l.step(logState{}, request(0, 3))
	_, lost := l.step(l.clone(first), request(time.Second, 5))
	others, _ := l.step(first, request(2*time.Second, 6))
	assert.EqualValues(t, 9, l.refund(others, newDebt(request(time.Second, 5), lost)).sum)

	// By a clock that is behind it stands at the time of the state, and is given back there.
	late, taken := l.step(others, request(time.Second, 5))
	assert.EqualValues(t, 14, late.sum)
	assert.EqualValues(t, 9, l.refund(late, newDebt(request(time.Second, 5), taken)).sum)
}

// What is charged above the limit takes the place of nothing, so what stays is right when some
// of it is given back.
func TestAnExactLogHasAllThatIsCharged(t *testing.T) {
	t.Parallel()
	l, err := newSlidingLog(time.Minute, MaxLogLimit, false)
	require.NoError(t, err)
	ask := func(shows string, cost int64) counters.Request {
		return counters.Request{Cost: cost, Limit: MaxLogLimit, Now: clock(t, shows)}
	}
	charge := func(s logState, r counters.Request) logState {
		d := newDebt(r, counters.Decision{Allowed: true})
		d.kind = charged
		s, err := l.decode(l.encode(nil, l.charge(s, d)))
		require.NoError(t, err)
		return s
	}
	s, _ := l.step(logState{}, ask("12:00:00", 5000))
	s, taken := l.step(s, ask("12:00:10", 5000))
	s = charge(s, ask("12:00:20", 1_000_000))
	s = l.refund(s, newDebt(ask("12:00:10", 5000), taken))
	assert.EqualValues(t, 1_005_000, s.sum)
	assert.Equal(t, 20*time.Second, l.peek(s, ask("12:01:00", 1)).RetryAfter)
	assert.Equal(t, int64(MaxLogLimit), l.peek(s, ask("12:01:20", 1)).Remaining)

	// Of more charges than there is room for the oldest are one.
	s = logState{}
	for range mostLogged {
		s = charge(s, counters.Request{Cost: 2, Limit: 5, Now: clock(t, "12:00:00").Add(time.Duration(s.n))})
	}
	s = charge(s, ask("12:00:30", 7))
	assert.Equal(t, mostLogged, s.n)
	assert.EqualValues(t, 2*mostLogged+7, s.sum)
	live, used := l.live(s, ask("12:01:00", 1))
	assert.EqualValues(t, 2*mostLogged+7, used, "the first leaves with the next")
	_, used = l.live(live, counters.Request{Now: clock(t, "12:01:00").Add(1)})
	assert.EqualValues(t, 2*(mostLogged-2)+7, used)
}

// A lower limit makes a log exact, and a higher one a counting log again: all the while it has
// all of what was admitted before.
func TestALogThatIsExactForAWhileLosesNothing(t *testing.T) {
	t.Parallel()
	counting, exact := countingClient(t, time.Minute, MinLogEntries, false), logClient(t, time.Minute, false)
	ask := func(shows string, cost, limit int64) counters.Request {
		return counters.Request{Cost: cost, Limit: limit, Now: clock(t, shows)}
	}
	for _, shows := range []string{"12:00:00", "12:00:10", "12:00:20"} {
		require.True(t, counting.ask(t, ask(shows, 5000, 20_000)).Allowed)
	}
	s, err := exact.algorithm.decode(slices.Clone(counting.stored))
	require.NoError(t, err)
	assert.EqualValues(t, 15_000, s.sum)
	d := newDebt(ask("12:00:30", 1, 5000), counters.Decision{Allowed: true})
	d.kind = charged
	exact.stored = exact.algorithm.encode(nil, exact.algorithm.charge(s, d))
	s, err = counting.algorithm.decode(exact.stored)
	require.NoError(t, err)
	assert.EqualValues(t, 4999, counting.algorithm.peek(s, ask("12:00:59", 1, 20_000)).Remaining)
}
