package cas

import (
	"math/big"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"weir/counters"
	"weir/counters/memory"
	"weir/counters/racetest"
)

func tokenClient(t require.TestingT, window time.Duration, burst int64) *client[bucketState] {
	b, err := newBucket(formatTokenBucket, window, burst, false)
	require.NoError(t, err)
	return newClient(b)
}

// What was admitted elsewhere is in use for as long as it would be here: what was in
// the bucket before it drains first.
func TestWhatABucketIsChargedDrains(t *testing.T) {
	t.Parallel()
	b, err := newBucket(formatTokenBucket, time.Minute, 0, false) // of 10: 1 drains in 6 s
	require.NoError(t, err)
	request := func(second, cost int64) counters.Request {
		return counters.Request{Cost: cost, Limit: 10, Now: clock(t, "12:00:00").Add(time.Duration(second) * time.Second)}
	}
	after := func(requests ...counters.Request) (s bucketState) {
		for _, r := range requests {
			var d counters.Decision
			s, d = b.step(s, r)
			require.True(t, d.Allowed)
		}
		return s
	}
	for name, test := range map[string]struct {
		state           bucketState
		at              int64 // when the 4 were admitted
		remaining, used int64 // then, and after 30 s
	}{
		"an empty bucket":             {bucketState{}, 30, 6, 4},
		"later than the state":        {after(request(0, 8)), 30, 3, 7},
		"before it, into an empty":    {after(request(30, 2)), 18, 6, 4}, // 2 have drained since
		"before it, into a fuller":    {after(request(30, 2)), 18, 5, 5}, // 1 and the 1 before it have
		"before it, and drained":      {after(request(30, 2)), 0, 6, 2},
		"more than there is room for": {after(request(30, 8)), 30, 6, 12},
	} {
		charged := b.charge(test.state, newDebt(request(test.at, 4), counters.Decision{Allowed: true, Remaining: test.remaining}))
		b.drain(&charged, request(30, 0).Now.UnixNano(), 10)
		assert.Equal(t, test.used, charged.ceil(), name)
	}
}

// Of two debts neither stood behind the other, as when the one is known only later to be
// owed. A bucket drains them in turn all the same.
func TestDebtsThatDontKnowEachOtherDrainInTurn(t *testing.T) {
	t.Parallel()
	b, err := newBucket(formatTokenBucket, time.Minute, 0, false) // of 10: 1 drains in 6 s
	require.NoError(t, err)
	owed := func(second, cost int64) *debt {
		r := counters.Request{Cost: cost, Limit: 10, Now: clock(t, "12:00:00").Add(time.Duration(second) * time.Second)}
		return newDebt(r, counters.Decision{Allowed: true, Remaining: 10 - cost})
	}
	for _, test := range []struct {
		debts []*debt
		used  int64
	}{
		{[]*debt{owed(0, 4), owed(12, 4)}, 6},              // 2 of the first
		{[]*debt{owed(0, 4), owed(12, 4), owed(30, 1)}, 4}, // of the 6 another 3 have drained
		{[]*debt{owed(0, 4), owed(12, 4), owed(60, 1)}, 1}, // and all of them
		{[]*debt{owed(0, 4), owed(0, 4), owed(0, 4)}, 12},  // more than it holds
		{[]*debt{owed(0, 10), owed(0, 10), owed(90, 1)}, 20 - 15 + 1},
	} {
		charged := b.charge(bucketState{}, test.debts...)
		assert.Equal(t, test.used, charged.ceil())
	}
}

func TestTokenBucketTimelines(t *testing.T) {
	t.Parallel()
	t.Run("100 calls a minute: half a minute brings 50 tokens", func(t *testing.T) {
		runTimeline(t, tokenClient(t, time.Minute, 0), []row{
			{at: "12:00:00", cost: 100, limit: 100, allowed: true, remaining: 0, reset: "1m"},
			{at: "12:00:00", cost: 1, limit: 100, remaining: 0, reset: "1m", retry: "600ms"},
			{at: "12:00:30", cost: 0, limit: 100, allowed: true, remaining: 50, reset: "30s"},
			{at: "12:00:30", cost: 51, limit: 100, remaining: 50, reset: "30s", retry: "600ms"},
			{at: "12:00:30", cost: 50, limit: 100, allowed: true, remaining: 0, reset: "1m"},
			{at: "12:01:30", cost: 1, limit: 100, allowed: true, remaining: 99, reset: "600ms"},
		})
	})
	t.Run("capacity 100 and 10 a second: a burst of 100, then 10 a second", func(t *testing.T) {
		c := tokenClient(t, time.Second, 100)
		r := counters.Request{Limit: 10, Now: clock(t, "07:10:00")}
		assert.Equal(t, 100, run(t, c, 120, r))
		for range 5 {
			r.Now = r.Now.Add(time.Second)
			assert.Equal(t, 10, run(t, c, 12, r))
		}
	})
	t.Run("capacity 4 and 2 a second", func(t *testing.T) {
		runTimeline(t, tokenClient(t, time.Second, 4), []row{
			{at: "12:00:00", cost: 1, limit: 2, allowed: true, remaining: 3, reset: "500ms"},
			{at: "12:00:00", cost: 3, limit: 2, allowed: true, remaining: 0, reset: "2s"},
			{at: "12:00:00", cost: 1, limit: 2, remaining: 0, reset: "2s", retry: "500ms"},
			{at: "12:00:00", cost: 4, limit: 2, remaining: 0, reset: "2s", retry: "2s"},
			{at: "12:00:00", cost: 5, limit: 2, remaining: 0, reset: "2s", retry: "forever"},
			{at: "12:00:01", cost: 2, limit: 2, allowed: true, remaining: 0, reset: "2s"},
			{at: "12:00:10", cost: 0, limit: 2, allowed: true, remaining: 4},
		})
	})
	t.Run("capacity 4 and 4 a minute", func(t *testing.T) {
		runTimeline(t, tokenClient(t, time.Minute, 0), []row{
			{at: "01:00:00", cost: 1, limit: 4, allowed: true, remaining: 3, reset: "15s"},
			{at: "01:00:05", cost: 3, limit: 4, allowed: true, remaining: 0, reset: "55s"},
			{at: "01:00:05", cost: 1, limit: 4, remaining: 0, reset: "55s", retry: "10s"},
			{at: "01:00:20", cost: 1, limit: 4, allowed: true, remaining: 0, reset: "55s"},
			{at: "01:01:00", cost: 1, limit: 4, allowed: true, remaining: 2, reset: "30s"},
		})
	})
	t.Run("the clock jumps back, and far forward", func(t *testing.T) {
		runTimeline(t, tokenClient(t, time.Minute, 0), []row{
			{at: "12:00:00", cost: 3, limit: 4, allowed: true, remaining: 1, reset: "45s"},
			{at: "11:00:00", cost: 1, limit: 4, allowed: true, remaining: 0, reset: "1h1m"},
			{at: "11:00:00", cost: 1, limit: 4, remaining: 0, reset: "1h1m", retry: "1h15s"},
			{at: "12:00:15", cost: 1, limit: 4, allowed: true, remaining: 0, reset: "1m"},
			{at: "23:00:00", cost: 4, limit: 4, allowed: true, remaining: 0, reset: "1m"},
		})
	})
	t.Run("a third of a token is kept", func(t *testing.T) {
		runTimeline(t, tokenClient(t, time.Second, 0), []row{
			{at: "12:00:00", cost: 3, limit: 3, allowed: true, remaining: 0, reset: "1s"},
			{at: "12:00:00.1", cost: 1, limit: 3, remaining: 0, reset: "900ms", retry: "233.333334ms"},
			{at: "12:00:00.333333333", cost: 1, limit: 3, remaining: 0, reset: "666.666667ms", retry: "1ns"},
			{at: "12:00:00.333333334", cost: 1, limit: 3, allowed: true, remaining: 0, reset: "1s"},
			{at: "12:00:00.666666667", cost: 1, limit: 3, allowed: true, remaining: 0, reset: "1s"},
			{at: "12:00:01", cost: 1, limit: 3, allowed: true, remaining: 0, reset: "1s"},
		})
	})
}

func TestTokenBucketLosesNothingToRounding(t *testing.T) {
	racetest.Sequential(t)
	t.Parallel()
	c := tokenClient(t, time.Second, 0)
	r := counters.Request{Cost: 333_334, Limit: 333_334, Now: clock(t, "12:00:00")}
	require.True(t, c.ask(t, r).Allowed)
	// Each millisecond brings 333.334 tokens, of which 333 are taken.
	r.Cost = 333
	for range 1000 {
		r.Now = r.Now.Add(time.Millisecond)
		require.True(t, c.ask(t, r).Allowed)
	}
	assert.Equal(t, int64(334), c.peek(t, r).Remaining)
}

func TestTokenBucketAtItsBounds(t *testing.T) {
	t.Parallel()
	day := 24 * time.Hour
	for _, window := range []time.Duration{counters.MinWindow, counters.MaxWindow} {
		c := tokenClient(t, window, 0)
		r := counters.Request{Cost: counters.MaxCost, Limit: counters.MaxLimit, Now: clock(t, "12:00:00")}
		assert.Equal(t, int64(counters.MaxLimit-counters.MaxCost), c.ask(t, r).Remaining)
		// A thousandth of the bucket takes a thousandth of the window to come
		// back.
		assert.Equal(t, window/1000, c.peek(t, r).ResetAfter)
		r.Limit, r.Cost = 1, 1
		d := c.ask(t, r)
		assert.Equal(t, counters.Decision{ResetAfter: window, RetryAfter: window}, d, "within a smaller bucket")
	}

	// A bucket that takes longer to fill than a Duration can say.
	c := tokenClient(t, 366*day, 1000)
	r := counters.Request{Cost: 1000, Limit: 1, Now: clock(t, "12:00:00")}
	require.True(t, c.ask(t, r).Allowed)
	assert.Equal(t, counters.Decision{ResetAfter: forever, RetryAfter: forever}, c.ask(t, r))
	r.Cost = 1
	assert.Equal(t, 366*day, c.ask(t, r).RetryAfter)

	// The tokens of these pauses, unless the bucket were full, need 64 bits, 65
	// bits, and more.
	pauses := []time.Duration{11 * day, 1844674407370956, 100 * 366 * day}
	for _, pause := range pauses {
		c := tokenClient(t, counters.MinWindow, 0)
		r := counters.Request{Cost: 3, Limit: counters.MaxLimit, Now: clock(t, "12:00:00")}
		require.True(t, c.ask(t, r).Allowed)
		r.Now = r.Now.Add(pause)
		assert.Equal(t, int64(counters.MaxLimit), c.peek(t, r).Remaining, pause)
	}

	// The largest multiple of the window below 2^64: rounding it up carries.
	level := bucketState{window: counters.MinWindow, whole: 184_467_440_737}
	assert.Equal(t, time.Duration(18_446_745), level.drainTime(counters.MaxLimit))
}

func TestTokenBucketLimitsOfARequest(t *testing.T) {
	t.Parallel()
	t.Run("a burst that follows the limit", func(t *testing.T) {
		runTimeline(t, tokenClient(t, time.Minute, 0), []row{
			{at: "12:00:00", cost: 90, limit: 100, allowed: true, remaining: 10, reset: "54s"},
			// What is used is used, of a larger bucket too.
			{at: "12:00:00", cost: 0, limit: 600, allowed: true, remaining: 510, reset: "9s"},
			// Of a smaller one no more than all of it.
			{at: "12:00:00", cost: 1, limit: 60, remaining: 0, reset: "1m", retry: "1s"},
			{at: "12:00:10", cost: 1, limit: 60, allowed: true, remaining: 9, reset: "51s"},
			{at: "12:00:10", cost: 0, limit: 100, allowed: true, remaining: 49, reset: "30.6s"},
		})
	})
	t.Run("a burst of its own stays", func(t *testing.T) {
		runTimeline(t, tokenClient(t, time.Minute, 20), []row{
			{at: "12:00:00", cost: 20, limit: 60, allowed: true, remaining: 0, reset: "20s"},
			{at: "12:00:00", cost: 1, limit: 600, remaining: 0, reset: "2s", retry: "100ms"},
			{at: "12:00:00", cost: 1, limit: 6, remaining: 0, reset: "3m20s", retry: "10s"},
		})
	})
}

func TestTokenBucketKeepsWhatIsUsedWhenTheWindowChanges(t *testing.T) {
	t.Parallel()
	minute, err := newBucket(formatTokenBucket, time.Minute, 0, false)
	require.NoError(t, err)
	hour, err := newBucket(formatTokenBucket, time.Hour, 0, false)
	require.NoError(t, err)

	c := newClient(minute)
	runTimeline(t, c, []row{
		{at: "12:00:00", cost: 40, limit: 60, allowed: true, remaining: 20, reset: "40s"},
		{at: "12:00:00.5", cost: 1, limit: 60, allowed: true, remaining: 19, reset: "40.5s"},
	})
	c.algorithm = hour
	runTimeline(t, c, []row{
		{at: "12:00:00.5", cost: 1, limit: 60, allowed: true, remaining: 18, reset: "41m30s"},
		{at: "12:00:30.5", cost: 1, limit: 60, allowed: true, remaining: 18, reset: "42m"},
	})
	// A minute's smallest part of a token is less than that of 100 ms.
	was := bucketState{time: 1, window: time.Minute, whole: 1, part: 2}
	const tenth = 100 * time.Millisecond
	assert.Equal(t, bucketState{time: 1, window: tenth, whole: 1, part: 1}, was.in(tenth), "rounded up")
	was.part = int64(time.Minute) - 1
	assert.Equal(t, bucketState{time: 1, window: tenth, whole: 2}, was.in(tenth), "rounded up to a whole")
}

func TestTokenBucketCountsDenied(t *testing.T) {
	t.Parallel()
	b, err := newBucket(formatTokenBucket, time.Minute, 0, true)
	require.NoError(t, err)
	c := newClient(b)
	c.countDenied = true
	runTimeline(t, c, []row{
		{at: "12:00:00", cost: 60, limit: 60, allowed: true, reset: "1m"},
		// Asking for 2 every second, the time of one token, never gets them ...
		{at: "12:00:01", cost: 2, limit: 60, reset: "1m1s", retry: "3s"},
		{at: "12:00:02", cost: 2, limit: 60, reset: "1m2s", retry: "4s"},
		{at: "12:00:03", cost: 2, limit: 60, reset: "1m3s", retry: "5s"},
		{at: "12:00:03", cost: 0, limit: 60, reset: "1m3s", retry: "3s"},
		// ... but waiting as told does.
		{at: "12:00:08", cost: 2, limit: 60, allowed: true, reset: "1m"},
		{at: "12:00:09", cost: 0, limit: 60, allowed: true, remaining: 1, reset: "59s"},
	})
}

// What is charged when it is known, after a check of cost 0, is paid for at the
// bucket's rate, however much it was.
func TestABucketRemembersItsDebt(t *testing.T) {
	t.Parallel()
	newBucket := func(window time.Duration) *client[bucketState] {
		b, err := newBucket(formatTokenBucket, window, 0, true)
		require.NoError(t, err)
		c := newClient(b)
		c.countDenied = true
		return c
	}
	t.Run("more than the bucket holds", func(t *testing.T) {
		runTimeline(t, newBucket(time.Minute), []row{
			{at: "12:00:00", cost: 0, limit: 1000, allowed: true, remaining: 1000},
			{at: "12:00:01", cost: 100_000, limit: 1000, reset: "1h40m", retry: "forever"},
			{at: "12:00:02", cost: 0, limit: 1000, reset: "1h39m59s", retry: "1h38m59s"},
			{at: "13:39:00", cost: 0, limit: 1000, reset: "1m1s", retry: "1s"},
			{at: "13:39:01", cost: 0, limit: 1000, allowed: true, reset: "1m"},
		})
	})
	t.Run("less than that, several times", func(t *testing.T) {
		runTimeline(t, newBucket(time.Minute), []row{
			{at: "12:00:00", cost: 45, limit: 60, allowed: true, remaining: 15, reset: "45s"},
			{at: "12:00:00", cost: 45, limit: 60, reset: "1m30s", retry: "1m15s"},
			{at: "12:00:00", cost: 45, limit: 60, reset: "2m", retry: "1m45s"}, // no debt of more than a window
			{at: "12:00:59", cost: 0, limit: 60, reset: "1m1s", retry: "1s"},
			{at: "12:01:00", cost: 0, limit: 60, allowed: true, reset: "1m"},
		})
	})
	t.Run("a smaller limit forgets of the bucket, not of the debt", func(t *testing.T) {
		runTimeline(t, newBucket(time.Minute), []row{
			{at: "12:00:00", cost: 60, limit: 60, allowed: true, reset: "1m"},
			{at: "12:00:00", cost: 30, limit: 60, reset: "1m30s", retry: "1m"},
			{at: "12:00:10", cost: 0, limit: 10, reset: "3m50s", retry: "2m50s"}, // 10 and 30
			{at: "12:00:30", cost: 0, limit: 60, allowed: true, reset: "1m"},
		})
	})
}

// What instances have admitted alone lifts the level above the capacity. What is
// given back of that is taken from there, not from what the bucket holds.
func TestARefundAboveTheCapacity(t *testing.T) {
	t.Parallel()
	b, err := newBucket(formatTokenBucket, time.Minute, 0, false)
	require.NoError(t, err)
	request := func(second, cost int64) counters.Request {
		return counters.Request{Cost: cost, Limit: 100, Now: clock(t, "12:00:00").Add(time.Duration(second) * time.Second)}
	}
	one, other := newDebt(request(0, 80), counters.Decision{Allowed: true, Remaining: 20}), newDebt(request(0, 80), counters.Decision{Allowed: true, Remaining: 20})
	s := b.charge(bucketState{}, one, other)
	require.EqualValues(t, 160, s.ceil())
	s, d := b.step(s, request(36, 1)) // 60 have drained
	require.False(t, d.Allowed)
	s, d = b.step(s, request(48, 20))
	require.True(t, d.Allowed)
	s, err = b.decode(b.encode(nil, s))
	require.NoError(t, err)
	s = b.refund(s, newDebt(request(48, 20), d))
	assert.EqualValues(t, 80, s.ceil())
}

func TestTokenBucketGivesBackLate(t *testing.T) {
	t.Parallel()
	c := tokenClient(t, time.Minute, 0)
	ask := func(at string, cost int64) counters.Request {
		return counters.Request{Cost: cost, Limit: 60, Now: clock(t, at)}
	}
	require.True(t, c.ask(t, ask("12:00:00", 20)).Allowed)
	require.True(t, c.ask(t, ask("12:00:00.5", 10)).Allowed)
	c.refund(t, ask("12:00:00", 20))
	// As if there had been only the second, but for what drained of the first.
	assert.Equal(t, int64(50), c.peek(t, ask("12:00:00.5", 1)).Remaining)
	c.refund(t, ask("12:00:00.5", 10))
	assert.Equal(t, int64(60), c.peek(t, ask("12:00:00.5", 1)).Remaining, "never more than full")
}

// Giving back leads to where never asking would have led as long as the cost
// has been in use all the time.
func TestTokenBucketRefundIsExact(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		b, err := newBucket(formatTokenBucket, time.Second, 1000, false)
		require.NoError(t, err)
		now := clock(t, "12:00:00")
		var with, without bucketState
		first := counters.Request{Cost: 500, Limit: 7, Now: now}
		with, _ = b.step(with, first)
		undone := counters.Request{Cost: rapid.Int64Range(1, 100).Draw(t, "undone"), Limit: 7, Now: now}
		without, _ = b.step(without, first)
		with, taken := b.step(with, undone)
		for range rapid.IntRange(0, 20).Draw(t, "requests") {
			now = now.Add(time.Duration(rapid.Int64Range(0, int64(2*time.Second)).Draw(t, "pause")))
			r := counters.Request{Cost: rapid.Int64Range(0, 9).Draw(t, "cost"), Limit: 7, Now: now}
			with, _ = b.step(with, r)
			without, _ = b.step(without, r)
		}
		got := b.refund(with, newDebt(undone, taken))
		require.Equal(t, undone.Cost, got.total-without.total, "it was consumed")
		got.total = without.total
		require.Equal(t, without, got)
	})
}

// Of many small costs that are given back in their order, only what has drained is missing.
func TestABucketGivesBackManySmallCosts(t *testing.T) {
	t.Parallel()
	b, err := newBucket(formatTokenBucket, time.Minute, 0, false)
	require.NoError(t, err)
	var s bucketState
	at := func(i int, from string) time.Time { return clock(t, from).Add(time.Duration(i) * time.Millisecond) }
	debts := make([]*debt, 900)
	for i := range debts {
		var d counters.Decision
		r := counters.Request{Cost: 1, Limit: 1000, Now: at(i, "12:00:00")}
		s, d = b.step(s, r)
		require.True(t, d.Allowed)
		debts[i] = newDebt(r, d)
	}
	for i, d := range debts {
		b.advance(&s, at(i, "12:00:02").UnixNano(), 1000)
		s = b.refund(s, d)
	}
	assert.Equal(t, bucketState{}, s)
}

// bucketModel is a bucket in rational numbers.
type bucketModel struct {
	window time.Duration
	burst  int64
	time   int64
	level  big.Rat
	// generation is when the level rose from 0 last.
	generation int64
	total      int64 // what was consumed
	taken      map[counters.Request]modelTake
}

// modelTake is what a refund has to know of an admitted request: total is with its cost.
type modelTake struct {
	generation, total int64
}

func (m *bucketModel) capacity(limit int64) *big.Rat {
	if m.burst != 0 {
		limit = m.burst
	}
	return new(big.Rat).SetInt64(limit)
}

func (m *bucketModel) at(r counters.Request) *big.Rat {
	level := new(big.Rat).Set(&m.level)
	if c := m.capacity(r.Limit); level.Cmp(c) > 0 {
		level = c
	}
	if now := r.Now.UnixNano(); now > m.time {
		elapsed := new(big.Int).Sub(big.NewInt(now), big.NewInt(m.time))
		drained := new(big.Rat).SetFrac(elapsed.Mul(elapsed, big.NewInt(r.Limit)), big.NewInt(int64(m.window)))
		level.Sub(level, drained)
	}
	if level.Sign() < 0 {
		level.SetInt64(0)
	}
	return level
}

func (m *bucketModel) ask(r counters.Request) (allowed bool, remaining int64) {
	level := m.at(r)
	cost := new(big.Rat).SetInt64(r.Cost)
	next := new(big.Rat).Add(level, cost)
	allowed = next.Cmp(m.capacity(r.Limit)) <= 0
	if allowed && r.Cost > 0 {
		if level.Sign() == 0 {
			m.time, m.generation = r.Now.UnixNano(), r.Now.UnixNano()
		}
		m.level.Set(next)
		m.time = max(m.time, r.Now.UnixNano())
		level = next
		m.total += r.Cost
		m.taken[r] = modelTake{m.generation, m.total}
	}
	free := new(big.Rat).Sub(m.capacity(r.Limit), level)
	return allowed, new(big.Int).Quo(free.Num(), free.Denom()).Int64()
}

func (m *bucketModel) refund(r counters.Request) {
	taken := m.taken[r]
	if taken.generation != m.generation || m.level.Sign() == 0 {
		return
	}
	// What is left of the cost when all before it has left the bucket first, or if it was the
	// first in it.
	left := new(big.Rat).Sub(&m.level, new(big.Rat).SetInt64(m.total-taken.total))
	least, cost := new(big.Rat).SetInt64(r.Cost), new(big.Rat).SetInt64(r.Cost)
	if elapsed := m.time - r.Now.UnixNano(); elapsed > 0 {
		drained := new(big.Int).Mul(big.NewInt(elapsed), big.NewInt(r.Limit))
		least.Sub(least, new(big.Rat).SetFrac(drained, big.NewInt(int64(m.window))))
	}
	if left.Cmp(least) < 0 {
		left = least
	}
	if left.Cmp(cost) > 0 {
		left = cost
	}
	if left.Sign() > 0 {
		m.level.Sub(&m.level, left)
	}
	if m.level.Sign() <= 0 {
		m.level.SetInt64(0)
	}
}

// reframe is a change of the policy's window: the level becomes a multiple of
// 1/window, rounded up.
func (m *bucketModel) reframe(window time.Duration) {
	w := new(big.Rat).SetInt64(int64(window))
	parts := new(big.Rat).Mul(&m.level, w)
	up := new(big.Int).Add(parts.Num(), new(big.Int).Sub(parts.Denom(), big.NewInt(1)))
	up.Quo(up, parts.Denom())
	m.level.Quo(new(big.Rat).SetInt(up), w)
	m.window = window
}

func TestTokenBucketLikeRationalNumbers(t *testing.T) {
	racetest.Sequential(t)
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		windows := rapid.SampledFrom([]time.Duration{counters.MinWindow, time.Second, time.Minute, 7 * time.Hour, counters.MaxWindow})
		limits := rapid.SampledFrom([]int64{1, 3, 7, 60, 100, 9973, 1_000_003, counters.MaxLimit})
		window, limit := windows.Draw(t, "window"), limits.Draw(t, "limit")
		burst := rapid.SampledFrom([]int64{0, 0, 1, 13, counters.MaxLimit}).Draw(t, "burst")
		model := &bucketModel{window: window, burst: burst, taken: make(map[counters.Request]modelTake)}
		c := tokenClient(t, window, burst)
		now := clock(t, "12:00:00")
		var admitted []counters.Request
		t.Repeat(map[string]func(*rapid.T){
			"ask": func(t *rapid.T) {
				capacity := burst
				if capacity == 0 {
					capacity = limit
				}
				cost := rapid.OneOf(rapid.Int64Range(0, 3), rapid.Int64Range(0, min(counters.MaxCost, capacity+1))).Draw(t, "cost")
				r := counters.Request{Cost: cost, Limit: limit, Now: now}
				allowed, remaining := model.ask(r)
				d := c.ask(t, r)
				require.Equal(t, allowed, d.Allowed)
				require.Equal(t, remaining, d.Remaining)
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
				most := max(1, int64(window)/limit*2)
				now = now.Add(time.Duration(rapid.Int64Range(0, most).Draw(t, "d")))
			},
			"clockJumps": func(t *rapid.T) {
				now = now.Add(time.Duration(rapid.Int64Range(-int64(window), int64(2*window)).Draw(t, "d")))
			},
			"limitChanges": func(t *rapid.T) { limit = limits.Draw(t, "limit") },
			"windowChanges": func(t *rapid.T) {
				window = windows.Draw(t, "window")
				b, err := newBucket(formatTokenBucket, window, burst, false)
				require.NoError(t, err)
				c.algorithm = b
				if s := c.state(t); s != (bucketState{}) {
					c.stored = b.encode(nil, s.in(window))
				}
				model.reframe(window)
			},
		})
	})
}

// While demand exceeds the bucket, what is admitted since it was full is what
// it held and what came, less at most what doesn't make up another cost.
func TestTokenBucketConserves(t *testing.T) {
	racetest.Sequential(t)
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		window := rapid.SampledFrom([]time.Duration{counters.MinWindow, time.Second, time.Minute}).Draw(t, "window")
		limit := rapid.Int64Range(1, 1000).Draw(t, "limit")
		cost := rapid.Int64Range(1, 10).Draw(t, "cost")
		burst := cost + rapid.Int64Range(1, 30).Draw(t, "burst")
		b, err := newBucket(formatTokenBucket, window, burst, false)
		require.NoError(t, err)

		start := clock(t, "12:00:00")
		type moment struct{ before, after, elapsed int64 }
		var moments []moment
		var s bucketState
		var total int64
		now := start
		for range rapid.IntRange(1, 30).Draw(t, "moments") {
			m := moment{before: total, elapsed: int64(now.Sub(start))}
			for {
				next, d := b.step(s, counters.Request{Cost: cost, Limit: limit, Now: now})
				if !d.Allowed {
					break
				}
				s, total = next, total+cost
			}
			m.after = total
			moments = append(moments, m)
			// The bucket, in which less than cost is left, isn't full again by
			// then.
			now = now.Add(time.Duration(rapid.Int64Range(0, int64(window)*(burst-cost)/limit).Draw(t, "pause")))
		}
		for i, from := range moments {
			for _, to := range moments[i:] {
				brought := limit * (to.elapsed - from.elapsed)
				require.LessOrEqual(t, (to.after-from.before)*int64(window), burst*int64(window)+brought)
			}
			require.Greater(t, from.after*int64(window), (burst-cost)*int64(window)+limit*from.elapsed)
		}
	})
}

// Clocks d apart admit burst + limit*(t+d)/window in a time t: the fast one
// finds the bucket drained already.
func TestTokenBucketBoundAcrossClocks(t *testing.T) {
	racetest.Sequential(t)
	t.Parallel()
	slow := clock(t, "12:00:00")
	fast := slow.Add(50 * time.Millisecond)
	store := memory.New(func() time.Time { return slow })
	var admitted int64
	for _, now := range []time.Time{slow, fast} {
		l, err := NewTokenBucket(store, time.Second, 0, testConfig(10))
		require.NoError(t, err)
		for range 1000 {
			d, err := l.Take(unhurried, counters.Request{Client: "c", Cost: 1, Limit: 1000, Now: now})
			require.NoError(t, err)
			if d.Allowed {
				admitted++
			}
		}
	}
	assert.Equal(t, int64(1050), admitted)
}
