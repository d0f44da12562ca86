package cas

import (
	"bytes"
	"encoding/binary"
	"math"
	"math/rand/v2"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"weir/counters"
)

// A client asks an algorithm and holds it to what the package promises of all
// of them, at each request. Its state is kept encoded between requests.
type client[S any] struct {
	algorithm   algorithm[S]
	countDenied bool
	stored      []byte // nil: absent
	taken       map[counters.Request]counters.Decision
}

func newClient[S any](a algorithm[S]) *client[S] {
	return &client[S]{algorithm: a, taken: make(map[counters.Request]counters.Decision)}
}

func (c *client[S]) state(t require.TestingT) S {
	var s S
	if c.stored == nil {
		return s
	}
	s, err := c.algorithm.decode(bytes.Clone(c.stored))
	if encoded := c.algorithm.encode(nil, s); err != nil || !bytes.Equal(c.stored, encoded) {
		require.NoError(t, err)
		require.Equal(t, c.stored, encoded, "a state has one encoding")
	}
	return s
}

// same fails the test unless got is want. require looks up its callers first, which takes
// longer than what is compared here hundreds of thousands of times.
func same[T comparable](t require.TestingT, want, got T, message string) {
	if got != want {
		require.Equal(t, want, got, message)
	}
}

func (c *client[S]) ask(t require.TestingT, r counters.Request) counters.Decision {
	peeked := c.peek(t, r)
	next, d := c.algorithm.step(c.state(t), r)
	after := c.algorithm.encode(nil, next)
	same(t, peeked.Allowed, d.Allowed, "peek and step agree")
	if r.Cost == 0 || !d.Allowed && !c.countDenied {
		same(t, peeked, d, "nothing is consumed")
		if c.stored != nil && !bytes.Equal(c.stored, after) {
			require.Equal(t, c.stored, after, "nothing is consumed")
		}
		return d
	}
	c.stored = after
	same(t, true, c.algorithm.ttl(c.state(t), r) > 0, "what is consumed is kept")
	peeked = c.peek(t, r)
	same(t, peeked.Remaining, d.Remaining, "the decision is as of after the step")
	same(t, peeked.ResetAfter, d.ResetAfter, "the decision is as of after the step")
	c.taken[r] = d
	return d
}

func (c *client[S]) peek(t require.TestingT, r counters.Request) counters.Decision {
	d := c.algorithm.peek(c.state(t), r)
	same(t, max(d.Remaining, 0), d.Remaining, "Remaining is never negative")
	same(t, d.Allowed, d.RetryAfter == 0, "a denial, and only a denial, says when to retry")
	if r.Cost > 0 {
		same(t, d.Remaining >= r.Cost, d.Allowed, "Remaining is the largest cost that is admitted")
	}
	lives := c.algorithm.ttl(c.state(t), r)
	same(t, min(lives, d.ResetAfter), lives, "the state lives no longer than it differs from the initial one")
	c.requireExact(t, r, d)
	return d
}

// requireExact asks again around RetryAfter and ResetAfter.
func (c *client[S]) requireExact(t require.TestingT, r counters.Request, d counters.Decision) {
	state := c.state(t)
	later := func(after time.Duration) counters.Request {
		r := r
		r.Now = r.Now.Add(after)
		return r
	}
	if d.RetryAfter > 0 && d.RetryAfter < forever {
		early := c.algorithm.peek(state, later(d.RetryAfter-1))
		same(t, false, early.Allowed, "1 ns before RetryAfter")
		same(t, 1, early.RetryAfter, "1 ns before RetryAfter")
		same(t, true, c.algorithm.peek(state, later(d.RetryAfter)).Allowed, "at RetryAfter")
	}
	if d.ResetAfter < forever {
		reset := later(d.ResetAfter)
		same(t, 0, c.algorithm.ttl(state, reset), "at ResetAfter")
		var initial S
		same(t, c.algorithm.peek(initial, reset), c.algorithm.peek(state, reset), "at ResetAfter all is as if new")
		if d.ResetAfter > 0 {
			same(t, true, c.algorithm.ttl(state, later(d.ResetAfter-1)) > 0, "1 ns before ResetAfter")
		}
	}
}

func (c *client[S]) refund(t require.TestingT, r counters.Request) {
	c.stored = c.algorithm.encode(nil, c.algorithm.refund(c.state(t), newDebt(r, c.taken[r])))
}

// clock returns the moment of a day at which a clock shows this.
func clock(t require.TestingT, shows string) time.Time {
	day, err := time.Parse("2006-01-02 15:04:05", "2026-07-14 "+shows)
	require.NoError(t, err)
	return day
}

// A row is one request of a timeline and what it is told. Durations are as
// time.ParseDuration takes them; none is 0.
type row struct {
	at                 string
	cost, limit        int64
	allowed            bool
	remaining          int64
	reset, retry, wait string
}

func runTimeline[S any](t *testing.T, c *client[S], rows []row) {
	t.Helper()
	duration := func(s string) time.Duration {
		if s == "" {
			return 0
		}
		if s == "forever" {
			return forever
		}
		d, err := time.ParseDuration(s)
		require.NoError(t, err)
		return d
	}
	for i, row := range rows {
		want := counters.Decision{
			Allowed: row.allowed, Remaining: row.remaining,
			ResetAfter: duration(row.reset), RetryAfter: duration(row.retry), Wait: duration(row.wait),
		}
		got := c.ask(t, counters.Request{Cost: row.cost, Limit: row.limit, Now: clock(t, row.at)})
		got.Receipt, got.FitsAfter = counters.Receipt{}, 0
		require.Equalf(t, want, got, "row %d, %s", i, row.at)
	}
}

// run asks n times for cost 1 at the same moment and returns how many were
// admitted.
func run[S any](t require.TestingT, c *client[S], n int, r counters.Request) (admitted int) {
	r.Cost = 1
	for range n {
		if c.ask(t, r).Allowed {
			admitted++
		}
	}
	return admitted
}

func TestConstructorsRefuseWhatCannotWork(t *testing.T) {
	t.Parallel()
	_, err := newBucket(formatTokenBucket, time.Minute, 0, false)
	require.NoError(t, err)
	_, err = newBucket(formatTokenBucket, time.Minute, counters.MaxLimit, false)
	require.NoError(t, err)
	_, err = newBucket(formatTokenBucket, 99*time.Millisecond, 0, false)
	require.ErrorContains(t, err, "window 99ms")
	_, err = newBucket(formatTokenBucket, time.Minute, -1, false)
	require.ErrorContains(t, err, "burst -1 must be from 0")
	_, err = newBucket(formatLeakyBucket, time.Minute, counters.MaxLimit+1, false)
	require.ErrorContains(t, err, "burst 1000000000001 must be from 0 (the limit) to 1000000000000")
	_, err = newSlidingLog(time.Minute, MaxLogLimit, false)
	require.NoError(t, err)
	_, err = newSlidingLog(time.Minute, MaxLogLimit+1, false)
	require.ErrorContains(t, err, "limit 10001 of a sliding log must be from 1 to 10000: it stores the time of each admitted request")
	_, err = newSlidingLog(time.Minute, 0, false)
	require.Error(t, err)
	_, err = newSlidingLog(367*24*time.Hour, 1, false)
	require.ErrorContains(t, err, "window")
}

// What is true of all three, whatever the order of requests.
func TestOfAllAlgorithms(t *testing.T) {
	t.Parallel()
	token, err := newBucket(formatTokenBucket, time.Minute, 0, false)
	require.NoError(t, err)
	leaky, err := newBucket(formatLeakyBucket, time.Minute, 0, false)
	require.NoError(t, err)
	log, err := newSlidingLog(time.Minute, 100, false)
	require.NoError(t, err)
	t.Run("token bucket", func(t *testing.T) { testAlgorithm(t, token) })
	t.Run("leaky bucket", func(t *testing.T) { testAlgorithm(t, leaky) })
	t.Run("sliding log", func(t *testing.T) { testAlgorithm(t, log) })
	counting, err := newCountingLog(time.Minute, MinLogEntries, false)
	require.NoError(t, err)
	t.Run("counting log", func(t *testing.T) { testAlgorithm(t, counting) })
}

func testAlgorithm[S any](t *testing.T, a algorithm[S]) {
	noon := clock(t, "12:00:00")
	ask := func(cost int64) counters.Request { return counters.Request{Cost: cost, Limit: 100, Now: noon} }

	t.Run("cost 0 leaves no state", func(t *testing.T) {
		var none S
		s, d := a.step(none, ask(0))
		assert.Equal(t, none, s)
		assert.Equal(t, counters.Decision{Allowed: true, Remaining: 100}, d)
		assert.Zero(t, a.ttl(s, ask(0)))
	})
	t.Run("cost 0 is admitted when nothing is left", func(t *testing.T) {
		c := newClient(a)
		require.True(t, c.ask(t, ask(100)).Allowed)
		d := c.ask(t, ask(0))
		assert.True(t, d.Allowed)
		assert.Zero(t, d.Remaining)
		assert.Equal(t, time.Minute, d.ResetAfter)
	})
	t.Run("a cost above the limit is never admitted", func(t *testing.T) {
		c := newClient(a)
		for _, cost := range []int64{101, counters.MaxCost, 1<<63 - 1} {
			assert.Equal(t, counters.Decision{Remaining: 100, RetryAfter: forever}, c.ask(t, ask(cost)))
		}
		assert.Nil(t, c.stored)
		require.True(t, c.ask(t, ask(1)).Allowed)
		for _, cost := range []int64{101, counters.MaxCost, 1<<63 - 1} {
			d := c.ask(t, ask(cost))
			assert.False(t, d.Allowed)
			assert.Equal(t, forever, d.RetryAfter)
		}
	})
	t.Run("a batch is steps in sequence", func(t *testing.T) {
		assert.Equal(t, 100, run(t, newClient(a), 150, ask(1)))
	})
	t.Run("what is given back can be had again", func(t *testing.T) {
		c := newClient(a)
		require.True(t, c.ask(t, ask(60)).Allowed)
		require.True(t, c.ask(t, ask(40)).Allowed)
		c.refund(t, ask(60))
		assert.Equal(t, int64(60), c.peek(t, ask(1)).Remaining)
		assert.Equal(t, *new(S), a.refund(c.state(t), newDebt(ask(40), c.taken[ask(40)])), "nothing in use is the initial state")
	})
	t.Run("giving back to no state leaves none", func(t *testing.T) {
		var none S
		assert.Equal(t, none, a.refund(none, newDebt(ask(1), counters.Decision{Allowed: true, Remaining: 99, Receipt: counters.Receipt{Generation: 1}})))
	})
	t.Run("a state made after a reset keeps what is refunded late", func(t *testing.T) {
		c := newClient(a)
		before := ask(10)
		require.True(t, c.ask(t, before).Allowed)
		c.stored = nil // by a reset
		r := ask(5)
		r.Now = r.Now.Add(-time.Second) // by an instance whose clock is behind
		require.True(t, c.ask(t, r).Allowed)
		c.refund(t, before)
		assert.Equal(t, int64(95), c.peek(t, r).Remaining)
	})
	t.Run("a clock far ahead does not keep the state longer", func(t *testing.T) {
		c := newClient(a)
		r := ask(100)
		r.Now = noon.Add(365 * 24 * time.Hour)
		require.True(t, c.ask(t, r).Allowed)
		d := c.ask(t, ask(1))
		assert.False(t, d.Allowed)
		assert.Greater(t, d.RetryAfter, 365*24*time.Hour)
		assert.Equal(t, time.Minute, a.ttl(c.state(t), ask(1)))
	})
	t.Run("any moments of a Unix nanosecond clock", func(t *testing.T) {
		first, last := time.Unix(0, -1<<63), time.Unix(0, 1<<63-1)
		r := ask(100)
		r.Now = last
		s, d := a.step(*new(S), r)
		require.True(t, d.Allowed)
		r.Now = first
		assert.Equal(t, forever, a.peek(s, r).RetryAfter)
		assert.Equal(t, forever, a.peek(s, r).ResetAfter)
		s, d = a.step(*new(S), r)
		assert.Equal(t, time.Minute, d.ResetAfter)
		r.Now = last
		assert.True(t, a.peek(s, r).Allowed)
	})
}

// A step that finds nothing to allocate for doesn't.
func TestStepsOfBucketsDoNotAllocate(t *testing.T) {
	token, err := newBucket(formatTokenBucket, time.Minute, 0, false)
	require.NoError(t, err)
	leaky, err := newBucket(formatLeakyBucket, time.Minute, 0, false)
	require.NoError(t, err)
	r := counters.Request{Cost: 1, Limit: 100, Now: clock(t, "12:00:00")}
	var s bucketState
	assert.Zero(t, testing.AllocsPerRun(100, func() { s, _ = token.step(s, r) }))
	s = bucketState{}
	assert.Zero(t, testing.AllocsPerRun(100, func() { s, _ = leaky.step(s, r) }))
}

func TestDecodeRefusesWhatIsNotItsOwn(t *testing.T) {
	t.Parallel()
	token, _ := newBucket(formatTokenBucket, time.Minute, 0, false)
	leaky, _ := newBucket(formatLeakyBucket, time.Minute, 0, false)
	log, _ := newSlidingLog(time.Minute, 100, false)
	r := counters.Request{Cost: 3, Limit: 1000, Now: clock(t, "12:00:00")}
	bucket, _ := token.step(bucketState{}, r)
	r.Now = r.Now.Add(7)
	bucket, _ = token.step(bucket, r)
	entries, _ := log.step(logState{}, r)
	r.Now = r.Now.Add(time.Second)
	entries, _ = log.step(entries, r)
	inToken, inLeaky, inLog := token.encode(nil, bucket), leaky.encode(nil, bucket), log.encode(nil, entries)

	refuse := map[string]func([]byte) error{
		"token": func(b []byte) error { _, err := token.decode(b); return err },
		"leaky": func(b []byte) error { _, err := leaky.decode(b); return err },
		"log":   func(b []byte) error { _, err := log.decode(b); return err },
	}
	own := map[string][]byte{"token": inToken, "leaky": inLeaky, "log": inLog}
	for reader, decode := range refuse {
		for writer, data := range own {
			if reader == writer {
				require.NoError(t, decode(data))
			} else {
				require.ErrorIs(t, decode(data), errForeignState, "%s reads %s", reader, writer)
			}
		}
		for _, data := range []string{"", "1", "99 ", "hello", "\x84", "\x00", "\xff"} {
			require.ErrorIs(t, decode([]byte(data)), errForeignState, "%s reads %q", reader, data)
		}
		data := own[reader]
		require.ErrorIs(t, decode(append([]byte{data[0] + 1}, data[1:]...)), errForeignState, "another version")
		require.ErrorIs(t, decode(append(bytes.Clone(data), 0)), errForeignState, "something behind the state")
		for n := 2; n < len(data); n++ {
			// A log cut between two entries is a shorter log.
			if reader != "log" || n != len(data)-6 {
				require.ErrorIs(t, decode(data[:n]), errForeignState, "%s cut to %d bytes", reader, n)
			}
		}
	}

	ms, moment := "\xe0\xd4\x03", "\x18\xc2\x1f\x1d\x5f\x0a\x80\x00\x00" // one minute, in 2026, of that generation
	const total = "\x00"                                                 // of nothing
	for name, data := range map[string]string{
		"window 0":               "\x83" + moment + "\x00\x01\x00",
		"window below 100 ms":    "\x83" + moment + "\x63\x01\x00",
		"window above 366 days":  "\x83" + moment + "\xff\xff\xff\xff\x7f\x01\x00",
		"window beyond Duration": "\x83" + moment + "\xff\xff\xff\xff\xff\xff\xff\xff\xff\x01\x01\x00",
		"level 0":                "\x83" + moment + ms + "\x00\x00",
		"window wraps to 1m":     "\x83" + moment + string(binary.AppendUvarint(nil, 1<<58+60_000)) + "\x01\x00",
		"level above any limit":  "\x83" + moment + ms + "\x81\xa0\x94\xa5\x8d\x1d\x00",
		"level beyond int64":     "\x83" + moment + ms + "\xff\xff\xff\xff\xff\xff\xff\xff\xff\x01\x00",
		"a whole as a part":      "\x83" + moment + ms + "\x01\x80\xb0\x9d\xc2\xdf\x01",
		"a long zero":            "\x83" + moment + ms + "\x01\x80\x00",
		"no part":                "\x83" + moment + ms + "\x01",
		"a debt of 0":            "\x83" + moment + ms + "\x01\x00" + total,
		"a debt above the level": "\x83" + moment + ms + "\x01\x00" + total + "\x03",
		"older than all time":    "\x83\x80\x00\x00\x00\x00\x00\x00\x00\x01" + ms + "\x01\x00",
	} {
		if name != "a debt above the level" {
			data += total
		}
		require.ErrorIs(t, refuse["token"]([]byte(data)), errForeignState, name)
	}
	require.NoError(t, refuse["token"]([]byte("\x83"+moment+ms+"\x01\x00"+total)))
	require.ErrorIs(t, refuse["token"]([]byte("\x82"+moment+ms+"\x01\x00"+total)), errForeignState, "an earlier format")
	require.NoError(t, refuse["token"]([]byte("\x83"+moment+ms+"\x01\x00"+total+"\x01")), "with a debt")
	require.NoError(t, refuse["token"]([]byte("\x83"+moment+ms+"\x80\xa0\x94\xa5\x8d\x1d\x00"+total)), "as much as any limit")
	for name, data := range map[string]string{
		"no entries":            "\xa2" + moment + "\x00",
		"no cost":               "\xa2" + moment + "\x00\x00",
		"cost 0":                "\xa2" + moment + "\x00\x00\x00",
		"two of one time":       "\xa2" + moment + "\x00\x00\x01\x00\x01",
		"more than any limit":   "\xa2" + moment + "\x00\x00\x01" + strings.Repeat("\x01\x01", mostLogged),
		"cost beyond int64":     "\xa2" + moment + "\x00\x00\xff\xff\xff\xff\xff\xff\xff\xff\xff\x01",
		"entry after all time":  "\xa2" + moment + "\x00\x00\x01\xff\xff\xff\xff\xff\xff\xff\xff\x7f\x01",
		"time after all time":   "\xa2" + moment + "\xff\xff\xff\xff\xff\xff\xff\xff\x7f\x00\x01",
		"a long cost":           "\xa2" + moment + "\x00\x00\x81\x00",
		"a long gap":            "\xa2" + moment + "\x00\x80\x00\x01",
		"a varint without end":  "\xa2" + moment + "\x00\x00\x80",
		"a varint of 11 bytes":  "\xa2" + moment + "\x00\x00\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\x01",
		"a time that is no lag": "\xa2" + moment + "\x80",
	} {
		require.ErrorIs(t, refuse["log"]([]byte(data)), errForeignState, name)
	}
	require.NoError(t, refuse["log"]([]byte("\xa2"+moment+"\x00\x00\x01"+strings.Repeat("\x01\x01", MaxLogLimit))), "one more than any limit")
	require.NoError(t, refuse["log"]([]byte("\xa2"+moment+"\x00\x00\x80\xa0\x94\xa5\x8d\x1d")), "charged as much as any limit")
}

func FuzzTokenBucketCodec(f *testing.F) {
	a, err := newBucket(formatTokenBucket, time.Minute, 0, false)
	require.NoError(f, err)
	seedBucketCodec(f, a)
	fuzzCodec(f, a)
}

func FuzzLeakyBucketCodec(f *testing.F) {
	a, err := newBucket(formatLeakyBucket, time.Minute, 50, true)
	require.NoError(f, err)
	seedBucketCodec(f, a)
	fuzzCodec(f, a)
}

func FuzzSlidingLogCodec(f *testing.F) {
	a, err := newSlidingLog(time.Minute, 100, true)
	require.NoError(f, err)
	fuzzCodec(f, a)
}

func FuzzCountingLogCodec(f *testing.F) {
	a, err := newCountingLog(time.Minute, MinLogEntries, true)
	require.NoError(f, err)
	fuzzCodec(f, a)
}

// seedBucketCodec adds states in the format that b has today.
func seedBucketCodec(f *testing.F, b bucket) {
	const at, year = 1784030400000000000, 365 * 24 * time.Hour
	for _, seed := range []struct {
		state            bucketState
		now, cost, limit int64
	}{
		{bucketState{}, at, 1, 99},
		{bucketState{time: at, generation: at, window: time.Minute, whole: 1, total: 1}, at + 1, 1, 99},
		{bucketState{time: at, generation: at - 1, window: time.Minute, whole: 98, part: 1, total: 1000}, at, 1, 99}, // a fraction
		{bucketState{time: at, generation: at, window: time.Minute, whole: 40, part: 59_999_999_999, total: 40}, at - int64(time.Hour), 5, 99},
		{bucketState{time: at, generation: at, window: year, whole: 7, part: int64(year) - 1, total: 8}, at + int64(time.Second), 5, 99},
		{bucketState{time: at, generation: at, window: time.Minute, whole: 9, above: 10, total: 19}, at, 1, 99}, // with some above
		{bucketState{time: math.MinInt64, generation: math.MinInt64, window: 100 * time.Millisecond, whole: 3, part: 1}, math.MaxInt64, 1, counters.MaxLimit},
		{bucketState{time: math.MaxInt64, generation: math.MinInt64, window: year, whole: counters.MaxLimit, part: int64(year) - 1, above: counters.MaxLimit, total: 1 << 61}, math.MinInt64, counters.MaxCost, 0},
	} {
		data := b.encode(nil, seed.state)
		_, err := b.decode(data)
		require.NoError(f, err)
		f.Add(data, seed.now, seed.cost, seed.limit)
	}
	f.Add([]byte("99 "), int64(at), int64(1), int64(99)) // what incr leaves
}

// fuzzCodec feeds a any bytes, and those that it accepts to its arithmetic, at
// any time.
func fuzzCodec[S any](f *testing.F, a algorithm[S]) {
	f.Fuzz(func(t *testing.T, data []byte, now, cost, limit int64) {
		s, err := a.decode(bytes.Clone(data))
		if err != nil {
			require.ErrorIs(t, err, errForeignState)
			return
		}
		if own := a.encode(nil, s); own[0] == data[0] { // or it is of an exact log
			require.Equal(t, data, own)
		}
		r := counters.Request{
			Cost:  int64(uint64(cost) % (counters.MaxCost + 1)),
			Limit: int64(uint64(limit)%counters.MaxLimit) + 1,
			Now:   time.Unix(0, now),
		}
		peeked := a.peek(s, r)
		s, taken := a.step(s, r)
		require.Equal(t, peeked.Allowed, taken.Allowed)
		for _, d := range []time.Duration{taken.ResetAfter, taken.RetryAfter, taken.FitsAfter, taken.Wait, a.ttl(s, r)} {
			require.GreaterOrEqual(t, d, time.Duration(0))
			require.LessOrEqual(t, d, forever)
		}
		stored := a.encode(nil, s)
		s, err = a.decode(bytes.Clone(stored))
		require.NoError(t, err)
		require.Equal(t, stored, a.encode(nil, s))
		stored = a.encode(nil, a.refund(s, newDebt(r, taken)))
		_, err = a.decode(stored)
		require.NoError(t, err)
	})
}

// The longest log there is: every entry alone, at irregular times.
func longLog(t testing.TB, a log, window time.Duration) (logState, time.Time) {
	random := rand.New(rand.NewPCG(1, 2))
	gap := int64(window) / MaxLogLimit
	now := clock(t, "12:00:00")
	var s logState
	for range MaxLogLimit {
		var d counters.Decision
		s, d = a.step(s, counters.Request{Cost: 1, Limit: MaxLogLimit, Now: now})
		require.True(t, d.Allowed)
		now = now.Add(time.Duration(gap/2 + random.Int64N(gap/2)))
	}
	return s, now
}

func BenchmarkStep(b *testing.B) {
	token, _ := newBucket(formatTokenBucket, time.Minute, 0, false)
	leaky, _ := newBucket(formatLeakyBucket, time.Minute, 0, false)
	log, _ := newSlidingLog(time.Minute, MaxLogLimit, false)
	now := clock(b, "12:00:00")
	request := func(limit int64) counters.Request { return counters.Request{Cost: 1, Limit: limit, Now: now} }

	b.Run("token", func(b *testing.B) { benchmarkStep(b, token, bucketState{}, request(6_000)) })
	b.Run("leaky", func(b *testing.B) { benchmarkStep(b, leaky, bucketState{}, request(6_000)) })
	b.Run("log-100", func(b *testing.B) { benchmarkStep(b, log, logState{}, request(100)) })
	b.Run("log-10000", func(b *testing.B) { benchmarkStep(b, log, logState{}, request(MaxLogLimit)) })
}

// benchmarkStep asks every 5 ms: half of the requests or more are denied.
func benchmarkStep[S any](b *testing.B, a algorithm[S], s S, r counters.Request) {
	b.ReportAllocs()
	for b.Loop() {
		s, _ = a.step(s, r)
		r.Now = r.Now.Add(5 * time.Millisecond)
	}
}

func BenchmarkCodec(b *testing.B) {
	token, _ := newBucket(formatTokenBucket, time.Minute, 0, false)
	log, _ := newSlidingLog(time.Minute, MaxLogLimit, false)
	r := counters.Request{Cost: 1, Limit: 7, Now: clock(b, "12:00:00")}
	bucket, _ := token.step(bucketState{}, r)
	r.Now = r.Now.Add(time.Second)
	bucket, _ = token.step(bucket, r)
	var short logState
	for range 100 {
		short, _ = log.step(short, counters.Request{Cost: 1, Limit: 100, Now: r.Now})
		r.Now = r.Now.Add(600 * time.Millisecond)
	}
	long, _ := longLog(b, log, time.Minute)
	b.Run("token", func(b *testing.B) { benchmarkCodec(b, token, bucket) })
	b.Run("log-100", func(b *testing.B) { benchmarkCodec(b, log, short) })
	b.Run("log-10000", func(b *testing.B) { benchmarkCodec(b, log, long) })
}

func benchmarkCodec[S any](b *testing.B, a algorithm[S], s S) {
	data := a.encode(nil, s)
	b.Run("encode", func(b *testing.B) {
		b.ReportAllocs()
		var buf []byte
		for b.Loop() {
			buf = a.encode(buf[:0], s)
		}
		b.ReportMetric(float64(len(data)), "bytes/state")
	})
	b.Run("decode", func(b *testing.B) {
		b.ReportAllocs()
		for b.Loop() {
			if _, err := a.decode(data); err != nil {
				b.Fatal(err)
			}
		}
	})
}
