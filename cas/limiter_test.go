package cas

import (
	"bytes"
	"cmp"
	"context"
	"fmt"
	"math/rand/v2"
	"regexp"
	"runtime"
	"slices"
	"strings"
	"sync"
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
)

// A riggedStore does what a test wants before and after each operation, and
// counts them.
type riggedStore struct {
	counters.StateStore
	loads, swaps int
	beforeSwap   func()
	afterSwap    func() error
}

func (s *riggedStore) Load(ctx context.Context, key string) (counters.State, error) {
	s.loads++
	return s.StateStore.Load(ctx, key)
}

func (s *riggedStore) Swap(ctx context.Context, key string, old counters.State, value []byte, ttl time.Duration) (counters.State, bool, error) {
	s.swaps++
	if s.beforeSwap != nil {
		s.beforeSwap()
	}
	state, swapped, err := s.StateStore.Swap(ctx, key, old, value, ttl)
	if s.afterSwap != nil {
		if failed := s.afterSwap(); failed != nil {
			return counters.State{}, false, failed
		}
	}
	return state, swapped, err
}

// operations returns how many there were since it was called last.
func (s *riggedStore) operations() int {
	n := s.loads + s.swaps
	s.loads, s.swaps = 0, 0
	return n
}

var unhurried = limitertest.Unhurried

// An instance is a limiter as one process has it, on a store that others may
// share and a clock of its own.
type instance struct {
	t        testing.TB
	store    *riggedStore
	by       way
	limiter  *Limiter
	now      time.Time
	limit    int64
	batches  []int
	attempts []int
	lost     int
	foreign  int

	refundsFailed int
}

// newInstance returns an instance of a token bucket of 10 a second.
func (by way) newInstance(t testing.TB, store counters.StateStore, countDenied bool) *instance {
	i := &instance{t: t, by: by, store: &riggedStore{StateStore: store}, now: clock(t, "12:00:00"), limit: 10}
	cfg := testConfig(10)
	cfg.CountDenied = countDenied
	cfg.RefundFailed = func() { i.refundsFailed++ }
	cfg.Batch = func(size int) { i.batches = append(i.batches, size) }
	cfg.Swaps = func(attempts, lost int) { i.attempts, i.lost = append(i.attempts, attempts), i.lost+lost }
	cfg.Foreign = func() { i.foreign++ }
	var err error
	i.limiter, err = NewTokenBucket(by.on(i.store), time.Second, 0, cfg)
	require.NoError(t, err)
	return i
}

// newPair returns two instances that share an embedded store, on which nothing
// expires.
func (by way) newPair(t testing.TB) (a, b *instance) {
	noon := clock(t, "12:00:00")
	store := memory.New(func() time.Time { return noon })
	return by.newInstance(t, store, false), by.newInstance(t, store, false)
}

func (i *instance) request(cost int64) counters.Request {
	return counters.Request{Client: "c", Cost: cost, Limit: i.limit, Now: i.now}
}

func (i *instance) take(cost int64) counters.Decision {
	i.t.Helper()
	d, err := i.by.take(unhurried, i.limiter, i.request(cost))
	require.NoError(i.t, err)
	return d
}

// remaining returns what the store says is left.
func (i *instance) remaining() int64 {
	i.t.Helper()
	d, err := i.limiter.Peek(context.Background(), i.request(1))
	require.NoError(i.t, err)
	return d.Remaining
}

func (i *instance) reset() {
	i.t.Helper()
	require.NoError(i.t, i.limiter.Reset(context.Background(), "c", i.now))
}

// The numbers of the documents: 100 calls a minute, of which half a minute
// brings back 50; a capacity of 100 and 10 a second.
func TestDocumentedTokenBuckets(t *testing.T) {
	t.Parallel()
	admits := func(window time.Duration, limit, burst int64, at []time.Duration) (admitted []int) {
		now := clock(t, "12:00:00")
		l, err := NewTokenBucket(memory.New(func() time.Time { return now }), window, burst, testConfig(10))
		require.NoError(t, err)
		begin := now
		for _, after := range at {
			now = begin.Add(after)
			n := 0
			for range 200 {
				d, err := l.Take(context.Background(), counters.Request{Client: "c", Cost: 1, Limit: limit, Now: now})
				require.NoError(t, err)
				if d.Allowed {
					n++
				}
			}
			admitted = append(admitted, n)
		}
		return admitted
	}
	s := time.Second
	assert.Equal(t, []int{100, 50, 0, 50, 100}, admits(time.Minute, 100, 0, []time.Duration{0, 30 * s, 30 * s, 60 * s, 200 * s}))
	assert.Equal(t, []int{100, 10, 10, 50, 100}, admits(s, 10, 100, []time.Duration{0, s, 2 * s, 7 * s, 100 * s}))
}

// Checks a millisecond apart lose no fraction of a token, whatever the rate.
func TestFractionsOfTokensSurvive(t *testing.T) {
	t.Parallel()
	for _, limit := range []int64{1000, 999, 333, 70, 7, 1} {
		now := clock(t, "12:00:00")
		l, err := NewTokenBucket(memory.New(func() time.Time { return now }), time.Second, 1, testConfig(-1))
		require.NoError(t, err)
		admitted := int64(0)
		for range 1000 {
			d, err := l.Take(unhurried, counters.Request{Client: "c", Cost: 1, Limit: limit, Now: now})
			require.NoError(t, err)
			if d.Allowed {
				admitted++
			}
			now = now.Add(time.Millisecond)
		}
		// The first is there; each other one comes after at least 1/limit, in
		// whole milliseconds.
		each := (1000 + limit - 1) / limit
		assert.Equal(t, (1000+each-1)/each, admitted, "%d a second", limit)
	}
}

func (by way) TestACheckIsOneRoundTripOrNone(t *testing.T) {
	t.Parallel()
	i, _ := by.newPair(t)
	require.True(t, i.take(4).Allowed)
	assert.Equal(t, 1, i.store.operations(), "of a new client")
	require.True(t, i.take(6).Allowed)
	assert.Equal(t, 1, i.store.operations(), "of one that is remembered")

	d := i.take(1)
	assert.Equal(t, counters.Decision{ResetAfter: time.Second, RetryAfter: 100 * time.Millisecond, Local: true}, d)
	i.now = i.now.Add(100*time.Millisecond - 1)
	assert.Equal(t, time.Duration(1), i.take(1).RetryAfter)
	assert.Zero(t, i.store.operations(), "a denial is known until tokens can suffice")
	i.now = i.now.Add(1)
	require.True(t, i.take(1).Allowed)
	assert.Equal(t, 1, i.store.operations())

	i.limit = 1 // a token a second
	i.now = i.now.Add(counters.MaxStaleness)
	assert.True(t, i.take(1).Local, "what was seen is trusted for so long")
	i.now = i.now.Add(1)
	assert.False(t, i.take(1).Local)
	assert.Equal(t, 1, i.store.operations())
	assert.True(t, i.take(1).Local, "it has been seen again")
	i.now = i.now.Add(-time.Second)
	assert.False(t, i.take(1).Local, "the clock jumped back behind what was seen")
	assert.Equal(t, 1, i.store.operations())
	assert.Equal(t, []int{1, 1, 1}, i.attempts)
	assert.Zero(t, i.lost)
}

func (by way) TestCostZeroOnlyLooks(t *testing.T) {
	t.Parallel()
	i, _ := by.newPair(t)
	assert.Equal(t, counters.Decision{Allowed: true, Remaining: 10}, i.take(0))
	require.NoError(t, i.limiter.Refund(context.Background(), i.request(0), counters.Decision{Allowed: true}))
	assert.Zero(t, i.store.swaps)
}

func (by way) TestPeekLocalIsWhatWasSeen(t *testing.T) {
	t.Parallel()
	a, b := by.newPair(t)
	_, ok := a.limiter.PeekLocal(a.request(1))
	assert.False(t, ok, "a new client")
	a.take(4)
	b.take(3)
	a.store.operations()
	d, ok := a.limiter.PeekLocal(a.request(1))
	assert.True(t, ok)
	assert.Equal(t, counters.Decision{Allowed: true, Remaining: 6, ResetAfter: 400 * time.Millisecond, Local: true}, d)
	a.now = a.now.Add(counters.MaxStaleness + 1)
	_, ok = a.limiter.PeekLocal(a.request(1))
	assert.False(t, ok)
	assert.Zero(t, a.store.operations())
}

func (by way) TestInstancesShareAState(t *testing.T) {
	t.Parallel()
	a, b := by.newPair(t)
	require.True(t, a.take(4).Allowed)
	assert.Equal(t, int64(3), b.take(3).Remaining, "a guess that there is nothing brings back what there is")
	assert.Equal(t, []int{2}, b.attempts)
	assert.Zero(t, b.lost, "a guess is no race")
	assert.Equal(t, int64(0), a.take(3).Remaining, "and so does what a remembers")
	assert.Equal(t, []int{1, 2}, a.attempts)
	assert.Zero(t, a.lost)
	assert.False(t, b.take(1).Allowed)
	assert.Equal(t, int64(0), b.remaining())
}

func (by way) TestALostRaceIsRunAgain(t *testing.T) {
	t.Parallel()
	a, b := by.newPair(t)
	races := 3
	a.store.beforeSwap = func() {
		if races > 0 {
			races--
			require.True(t, b.take(1).Allowed)
		}
	}
	assert.Equal(t, int64(6), a.take(1).Remaining)
	assert.Equal(t, []int{4}, a.attempts)
	assert.Equal(t, 2, a.lost)
}

// While others always come first, nothing is consumed and the check ends with
// its time.
func (by way) TestContended(t *testing.T) {
	t.Parallel()
	a, b := by.newPair(t)
	a.limit, b.limit = counters.MaxLimit, counters.MaxLimit
	others := int64(0)
	a.store.beforeSwap = func() {
		b.take(1)
		others++
	}
	ctx, cancel := context.WithTimeout(context.Background(), time.Second)
	defer cancel()
	d, err := a.limiter.Take(ctx, a.request(1000))
	require.NoError(t, err)
	assert.False(t, d.Allowed)
	assert.True(t, d.Contended, "there is room for it")
	assert.Equal(t, contendedRetry, d.RetryAfter)
	assert.Equal(t, counters.MaxLimit-others, b.remaining())
	assert.Greater(t, others, int64(4))
	require.ErrorIs(t, a.limiter.Refund(context.Background(), a.request(1), counters.Decision{Allowed: true}), ErrContended, "without a deadline too")
	a.limiter.Flush()
	assert.Zero(t, a.refundsFailed, "it is tried until it is done")
	assert.Equal(t, counters.MaxLimit-others, b.remaining())
	a.store.beforeSwap = nil
	assert.True(t, a.take(1).Allowed)
}

func (by way) TestAStateThatVanishesBeginsAnew(t *testing.T) {
	t.Parallel()
	a, b := by.newPair(t)
	a.take(7)
	a.store.beforeSwap = func() {
		a.store.beforeSwap = nil
		b.reset() // as an eviction would
	}
	assert.Equal(t, int64(8), a.take(2).Remaining)
}

func (by way) TestAResetIsNeverUndone(t *testing.T) {
	t.Parallel()
	a, b := by.newPair(t)
	a.limit = 1
	a.take(1)
	require.False(t, a.take(1).Allowed)
	b.reset()
	a.now = a.now.Add(time.Millisecond)
	assert.False(t, a.take(1).Allowed, "a trusts what it has seen")
	a.now = a.now.Add(counters.MaxStaleness)
	assert.True(t, a.take(1).Allowed, "but within a second it notices")
	require.False(t, a.take(1).Allowed)
	a.reset()
	assert.True(t, a.take(1).Allowed, "its own reset it knows")
	a.limit = 10

	a.reset()
	assert.Equal(t, int64(5), a.take(5).Remaining)
	b.reset()
	d := a.take(5)
	assert.Equal(t, int64(5), d.Remaining, "what is written starts from what is there")
	b.reset()
	require.NoError(t, a.limiter.Refund(context.Background(), a.request(5), d))
	assert.Equal(t, int64(10), b.remaining(), "what is refunded late adds nothing")
}

// Whether a swap that was not answered has happened is unknown. It isn't
// repeated, and what the process remembered is forgotten.
func (by way) TestAnAmbiguousSwap(t *testing.T) {
	t.Parallel()
	a, _ := by.newPair(t)
	a.take(2)
	a.now = a.now.Add(1)
	a.store.afterSwap = func() error { return counters.ErrTimeout }
	a.store.operations()
	_, err := a.limiter.Take(context.Background(), a.request(3))
	require.ErrorIs(t, err, counters.ErrTimeout)
	require.NotErrorIs(t, err, ErrContended)
	assert.Equal(t, 1, a.store.operations())
	a.store.afterSwap = nil
	_, ok := a.limiter.PeekLocal(a.request(1))
	assert.False(t, ok)
	assert.Equal(t, int64(7), a.take(1).Remaining, "it was stored, and is given back")
}

func (by way) TestForeignValuesAreReplaced(t *testing.T) {
	t.Parallel()
	ctx := context.Background()
	other := newTimelineBucket(t)
	for name, value := range map[string][]byte{
		"empty": {}, "a counter": []byte("99 "), "another version": append([]byte{formatTokenBucket - 2}, other[1:]...),
		"another algorithm": {formatLeakyBucket}, "cut": other[:len(other)-1], "more": append(bytes.Clone(other), 0),
	} {
		t.Run(name, func(t *testing.T) {
			i, other := by.newPair(t)
			_, _, err := i.store.Swap(ctx, testKeys.StateKey("c"), counters.State{}, value, time.Minute)
			require.NoError(t, err)
			assert.Equal(t, int64(10), other.remaining())
			assert.Equal(t, int64(7), i.take(3).Remaining)
			assert.Equal(t, int64(5), i.take(2).Remaining)
			assert.Equal(t, 1, i.foreign)
		})
	}
}

// newTimelineBucket returns an encoded token bucket.
func newTimelineBucket(t *testing.T) []byte {
	b, err := newBucket(formatTokenBucket, time.Second, 0, false)
	require.NoError(t, err)
	s, _ := b.step(bucketState{}, counters.Request{Cost: 3, Limit: 10, Now: clock(t, "12:00:00.7")})
	return b.encode(nil, s)
}

// Callers that arrive while an attempt is under way join the next one.
func (by way) TestArrivalsDuringARetryJoinIt(t *testing.T) {
	a, b := by.newPair(t)
	a.limit, b.limit = 100, 100
	const joining = 20
	a.take(1)
	a.batches, a.attempts = nil, nil
	b.take(1) // so that a's next attempt loses
	var others sync.WaitGroup
	a.store.beforeSwap = func() {
		a.store.beforeSwap = nil
		for range joining {
			others.Go(func() { assert.True(t, a.take(1).Allowed) })
		}
		requireWaiting(t, joining)
	}
	require.True(t, a.take(1).Allowed)
	others.Wait()
	assert.Equal(t, []int{1 + joining}, a.batches)
	assert.Equal(t, []int{2}, a.attempts)
	assert.Equal(t, int64(100-2-1-joining), b.remaining())
}

// requireWaiting waits until that many callers wait for a leader.
func requireWaiting(t *testing.T, callers int) {
	t.Helper()
	stacks := make([]byte, 1<<20)
	require.Eventually(t, func() bool {
		all := stacks[:runtime.Stack(stacks, true)]
		return len(waitingCaller.FindAll(all, -1)) == callers
	}, 10*time.Second, time.Millisecond)
}

// A goroutine whose innermost call is Do has put its own call into a batch.
var waitingCaller = regexp.MustCompile(`\[chan receive.*\]:\n\S+/counters/combiner\.\(\*Combiner\[\.\.\.\]\)\.Do\(`)

func (by way) TestRefundAndTakeInOneBatch(t *testing.T) {
	t.Parallel()
	a, b := by.newPair(t)
	a.take(6)
	d := a.take(4)
	require.NoError(t, a.limiter.Refund(context.Background(), a.request(4), d))
	assert.Equal(t, int64(4), b.remaining())
	assert.Equal(t, int64(1), a.take(3).Remaining)
	assert.Equal(t, []int{1, 1, 1, 1}, a.attempts, "each started from what was seen")
}

func TestALeakyBucketTellsTheWait(t *testing.T) {
	t.Parallel()
	noon := clock(t, "12:00:00")
	l, err := NewLeakyBucket(memory.New(func() time.Time { return noon }), time.Second, 3, testConfig(10))
	require.NoError(t, err)
	r := counters.Request{Client: "c", Cost: 1, Limit: 10, Now: noon}
	for turn := range 3 {
		d, err := l.Take(context.Background(), r)
		require.NoError(t, err)
		assert.True(t, d.Allowed)
		assert.Equal(t, time.Duration(turn)*100*time.Millisecond, d.Wait)
	}
	d, err := l.Take(context.Background(), r)
	require.NoError(t, err)
	assert.Equal(t, counters.Decision{ResetAfter: 300 * time.Millisecond, RetryAfter: 100 * time.Millisecond, Local: true}, d)
}

func (by way) TestDeniedRequestsThatCount(t *testing.T) {
	t.Parallel()
	noon := clock(t, "12:00:00")
	i := by.newInstance(t, memory.New(func() time.Time { return noon }), true)
	require.True(t, i.take(10).Allowed)
	i.now = i.now.Add(99 * time.Millisecond)
	i.store.operations()
	assert.False(t, i.take(1).Allowed)
	assert.Equal(t, 1, i.store.operations())
	i.now = i.now.Add(99 * time.Millisecond)
	assert.False(t, i.take(1).Allowed, "the one before counts")
}

func TestLogsOfManyEntriesAreRememberedForFewerClients(t *testing.T) {
	racetest.Sequential(t)
	t.Parallel()
	for limit, clients := range map[int64]int{100: 1000, MaxLogLimit: 958} {
		l, err := NewSlidingLog(memory.New(nil), time.Minute, limit, testConfig(1000))
		require.NoError(t, err)
		for i := range 5000 {
			_, err := l.Take(context.Background(), counters.Request{Client: fmt.Sprint(i), Cost: 1, Limit: limit, Now: time.Now()})
			require.NoError(t, err)
		}
		assert.InDelta(t, clients, l.Clients(), 32)
	}
}

func TestConstructorsOfLimitersRefuseWhatCannotWork(t *testing.T) {
	t.Parallel()
	_, err := NewTokenBucket(nil, 0, 0, Config{})
	require.ErrorContains(t, err, "window")
	_, err = NewLeakyBucket(nil, time.Minute, -1, Config{})
	require.ErrorContains(t, err, "burst")
	_, err = NewSlidingLog(nil, time.Minute, MaxLogLimit+1, Config{})
	require.ErrorContains(t, err, "limit 10001 of a sliding log")
}

func (by way) TestStoreErrorsAreTold(t *testing.T) {
	t.Parallel()
	i, _ := by.newPair(t)
	i.store.StateStore = failingStore{}
	_, err := i.limiter.Take(context.Background(), i.request(1))
	require.ErrorIs(t, err, counters.ErrUnavailable)
	_, err = i.limiter.Peek(context.Background(), i.request(1))
	require.ErrorIs(t, err, counters.ErrUnavailable)
	require.ErrorIs(t, i.limiter.Refund(context.Background(), i.request(1), counters.Decision{Allowed: true}), counters.ErrUnavailable)
	i.limiter.Flush()
	require.ErrorIs(t, i.limiter.Reset(context.Background(), "c", i.now), counters.ErrUnavailable)
	_, err = i.limiter.Take(context.Background(), i.request(11))
	require.ErrorIs(t, err, counters.ErrUnavailable, "a load that fails")
}

type failingStore struct{}

func (failingStore) Load(context.Context, string) (counters.State, error) {
	return counters.State{}, counters.ErrUnavailable
}

func (failingStore) Swap(context.Context, string, counters.State, []byte, time.Duration) (counters.State, bool, error) {
	return counters.State{}, false, counters.ErrUnavailable
}

func (failingStore) Put(context.Context, string, []byte, time.Duration) error {
	return counters.ErrUnavailable
}

// Instances that share a store decide as one state would that all requests
// passed through in their order. Only a denial that is known without the store
// is as of a moment before, and may be told for counters.MaxStaleness after a
// reset or a refund by another instance.
func (by way) TestLimitersLikeOneState(t *testing.T) {
	racetest.Sequential(t)
	t.Parallel()
	t.Run("token bucket", func(t *testing.T) {
		a, err := newBucket(formatTokenBucket, time.Second, 0, false)
		require.NoError(t, err)
		rapid.Check(t, func(t *rapid.T) { runMachine(t, by, a, false) })
	})
	t.Run("token bucket that counts denied", func(t *testing.T) {
		a, err := newBucket(formatTokenBucket, time.Second, 15, true)
		require.NoError(t, err)
		rapid.Check(t, func(t *rapid.T) { runMachine(t, by, a, true) })
	})
	t.Run("leaky bucket", func(t *testing.T) {
		a, err := newBucket(formatLeakyBucket, time.Second, 7, false)
		require.NoError(t, err)
		rapid.Check(t, func(t *rapid.T) { runMachine(t, by, a, false) })
	})
	t.Run("sliding log", func(t *testing.T) {
		a, err := newSlidingLog(time.Second, 10, false)
		require.NoError(t, err)
		rapid.Check(t, func(t *rapid.T) { runMachine(t, by, a, false) })
	})
	t.Run("counting log", func(t *testing.T) {
		a, err := newCountingLog(time.Second, MinLogEntries, false)
		require.NoError(t, err)
		rapid.Check(t, func(t *rapid.T) { runMachine(t, by, a, false) })
	})
}

func runMachine[S any](t *rapid.T, by way, a algorithm[S], countDenied bool) {
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	now := clock(t, "12:00:00")
	store := memory.New(func() time.Time { return now })
	limiters := make([]*Limiter, 3)
	for i := range limiters {
		cfg := testConfig([]int{20, 10, -1}[i])
		cfg.CountDenied = countDenied
		var err error
		limiters[i], err = newLimiter(by.on(store), a, nil, "test", 0, cfg)
		require.NoError(t, err)
	}
	model := newClient(a)
	model.countDenied = countDenied
	type taken struct {
		counters.Request
		got, want counters.Decision
	}
	var admitted []taken
	emptier := now.Add(-time.Hour) // when the state last became emptier by more than time
	pick := func(t *rapid.T) *Limiter { return rapid.SampledFrom(limiters).Draw(t, "instance") }
	request := func(t *rapid.T) counters.Request {
		return counters.Request{Client: "c", Cost: rapid.Int64Range(0, 4).Draw(t, "cost"), Limit: 10, Now: now}
	}
	// check holds what requests that were made at once were told to what the
	// model tells them one after the other.
	check := func(t *rapid.T, r counters.Request, got []counters.Decision) {
		slices.SortFunc(got, func(a, b counters.Decision) int {
			if a.Allowed != b.Allowed {
				return -cmp.Compare(fmt.Sprint(a.Allowed), fmt.Sprint(b.Allowed))
			}
			return cmp.Or(cmp.Compare(b.Remaining, a.Remaining), cmp.Compare(a.ResetAfter, b.ResetAfter))
		})
		for _, d := range got {
			if d.Local {
				require.False(t, d.Allowed)
				if now.Sub(emptier) > counters.MaxStaleness {
					want := model.peek(t, r)
					require.False(t, want.Allowed)
					require.LessOrEqual(t, d.RetryAfter, want.RetryAfter)
				}
				continue
			}
			want := model.ask(t, r)
			if r.Cost == 0 {
				d.Receipt = counters.Receipt{} // of what a Peek has seen
			}
			got := d
			if _, bucket := any(a).(bucket); bucket { // of the model's state, which isn't forgotten when it is empty
				got.Receipt.Position = want.Receipt.Position
			}
			require.Equal(t, want, got)
			if d.Allowed && r.Cost > 0 {
				admitted = append(admitted, taken{r, d, want})
			}
		}
	}
	t.Repeat(map[string]func(*rapid.T){
		"take": func(t *rapid.T) {
			r := request(t)
			d, err := by.take(ctx, pick(t), r)
			require.NoError(t, err)
			check(t, r, []counters.Decision{d})
		},
		"batch": func(t *rapid.T) {
			l, r := pick(t), request(t)
			got := make([]counters.Decision, 5)
			var done sync.WaitGroup
			for i := range got {
				done.Go(func() {
					d, err := by.take(ctx, l, r)
					assert.NoError(t, err)
					got[i] = d
				})
			}
			done.Wait()
			check(t, r, got)
		},
		"peek": func(t *rapid.T) {
			r := request(t)
			d, err := pick(t).Peek(ctx, r)
			require.NoError(t, err)
			d.Receipt = counters.Receipt{}
			require.Equal(t, model.peek(t, r), d)
		},
		"give back": func(t *rapid.T) {
			if len(admitted) == 0 {
				return // nothing is left to give back
			}
			i := rapid.IntRange(0, len(admitted)-1).Draw(t, "which")
			one := admitted[i]
			admitted = slices.Delete(admitted, i, i+1)
			require.NoError(t, pick(t).Refund(ctx, one.Request, one.got))
			model.taken[one.Request] = one.want
			model.refund(t, one.Request)
			emptier = now
		},
		"reset": func(t *rapid.T) {
			require.NoError(t, pick(t).Reset(ctx, "c", now))
			model.stored = nil
			emptier = now
			now = now.Add(1) // a bucket that is begun anew is told from the one before by its time
		},
		"time": func(t *rapid.T) {
			now = now.Add(time.Duration(rapid.SampledFrom([]int64{1, 1e6, 37e6, 100e6, 333e6, 1e9, 4e9}).Draw(t, "ns")))
		},
	})
}

// An item lives until its state is the initial one, and longer by the margin:
// nothing that matters expires, and an expired item and a full bucket are the
// same thing.
func (by way) TestExpiryAndTruthAgree(t *testing.T) {
	t.Parallel()
	server := memcachedtest.Start(t)
	store := openStore(t, server)
	l, err := NewTokenBucket(by.on(store), time.Second, 0, testConfig(10))
	require.NoError(t, err)
	ctx, cancel := context.WithTimeout(context.Background(), 30*time.Second)
	defer cancel()
	request := func(cost int64) counters.Request {
		return counters.Request{Client: "c", Cost: cost, Limit: 10, Now: time.Now()}
	}
	start := time.Now()
	d, err := l.Take(ctx, request(10))
	require.NoError(t, err)
	require.Equal(t, time.Second, d.ResetAfter)
	assert.InDelta(t, 3, server.TTL(testKeys.StateKey("c")), 1, "a second to fill, and two")
	for {
		// What is peeked after the item is seen alive may be after its end.
		state, err := store.Load(ctx, testKeys.StateKey("c"))
		require.NoError(t, err)
		if !state.Exists() {
			break
		}
		require.Less(t, time.Since(start), 5*time.Second)
		time.Sleep(20 * time.Millisecond)
	}
	assert.Greater(t, time.Since(start), time.Second, "it lived for as long as it mattered")
	d, err = l.Take(ctx, request(10))
	require.NoError(t, err)
	assert.True(t, d.Allowed, "the bucket is full, as it would be if it had not expired")

	r := request(counters.MaxCost)
	r.Limit = counters.MaxLimit
	r.Client = "slow"
	slow, err := NewTokenBucket(store, counters.MaxWindow, 0, testConfig(-1))
	require.NoError(t, err)
	r.Limit = counters.MaxCost
	_, err = slow.Take(ctx, r)
	require.NoError(t, err)
	assert.InDelta(t, counters.MaxWindow.Seconds(), server.TTL(testKeys.StateKey("slow")), 5, "above 30 days too")
}

func (by way) TestCallersThatRaceFillTheLimit(t *testing.T) {
	t.Parallel()
	for name, newLimiter := range everyAlgorithm {
		t.Run(name, func(t *testing.T) {
			limitertest.Races(t, clock(t, "12:00:00"), true, func(t *testing.T, address string) counters.Limiter {
				l, err := newLimiter(openMemcached(t, counters.MaxTimeout, address), 5000, testConfig(10))
				require.NoError(t, err)
				return asked{l, by}
			})
		})
	}
}

// While demand exceeds it, what is admitted is what has flowed into the bucket,
// however many processes take from it.
func TestProcessesAdmitTheRate(t *testing.T) {
	t.Parallel()
	// The bucket is emptied first, and so large that it doesn't overflow while a
	// busy machine holds up everybody who asks.
	const rate, burst, length = 100, 400, 2 * time.Second
	server := memcachedtest.Start(t)
	log := new(requestLog)
	processes := make([]taker, 4)
	for i := range processes {
		limiter, err := NewTokenBucket(openStore(t, server), time.Second, burst, testConfig(10))
		require.NoError(t, err)
		processes[i] = loggedTaker{limiter, log}
	}
	start := time.Now()
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
	defer cancel()
	d, err := processes[0].Take(ctx, counters.Request{Client: "c", Cost: burst, Limit: rate, Now: start})
	require.NoError(t, err)
	require.True(t, d.Allowed)
	c := storm(processes, 8, counters.Request{Client: "c", Cost: 1, Limit: rate}, 10*time.Second, length)
	most := rate * time.Since(start).Seconds()
	assert.LessOrEqual(t, float64(c.admitted), most)
	assert.GreaterOrEqual(t, float64(c.admitted), 0.99*float64(log.admitted(t, burst)))
	assert.Zero(t, c.failed+c.contended)
}

// A requestLog notes the requests that are made.
type requestLog struct {
	mu   sync.Mutex
	made []counters.Request
}

// loggedTaker notes each request that it passes on.
type loggedTaker struct {
	taker
	log *requestLog
}

func (l loggedTaker) Take(ctx context.Context, r counters.Request) (counters.Decision, error) {
	l.log.mu.Lock()
	l.log.made = append(l.log.made, r)
	l.log.mu.Unlock()
	return l.taker.Take(ctx, r)
}

// admitted returns how many of the requests of cost 1, one after the other, a
// bucket admits that nobody contends for. A machine that is busy makes fewer
// requests.
func (l *requestLog) admitted(t *testing.T, burst int64) (admitted int) {
	b, err := newBucket(formatTokenBucket, time.Second, burst, false)
	require.NoError(t, err)
	slices.SortStableFunc(l.made, func(a, b counters.Request) int { return a.Now.Compare(b.Now) })
	var s bucketState
	var d counters.Decision
	for _, r := range l.made {
		if s, d = b.step(s, r); d.Allowed && r.Cost == 1 {
			admitted++
		}
	}
	return admitted
}

func TestWrongRequestsAreErrors(t *testing.T) {
	t.Parallel()
	l, err := NewTokenBucket(memory.New(nil), time.Minute, 10, testConfig(10))
	require.NoError(t, err)
	limitertest.WrongRequests(t, l, clock(t, "12:00:00"))
}

func TestOptionsAreChecked(t *testing.T) {
	t.Parallel()
	for want, o := range map[string]counters.Options{
		`policy name "" must be`:         {Limit: "l"},
		`limit name "a:b" must be`:       {Policy: "p", Limit: "a:b"},
		`key prefix "two words" must be`: {KeyPrefix: "two words", Policy: "p", Limit: "l"},
	} {
		_, err := NewTokenBucket(memory.New(nil), time.Minute, 0, Config{Options: o})
		assert.ErrorContains(t, err, want)
	}
}

// A caller whose time is over while another one leads is denied, not told that
// the store has failed, if the store has answered the leader meanwhile.
func (by way) TestAFollowerOfAContendedLeaderIsDenied(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		c := by.newContended(t, testConfig(10))
		leader := c.lead()
		d, err := c.takeBy(c.limiter, 50*time.Millisecond)
		require.NoError(t, err)
		assert.True(t, d.Contended)
		assert.False(t, d.Allowed)
		assert.True(t, (<-leader).Contended)

		// Where the store hasn't answered, it has failed.
		c.rigged.beforeSwap = func() { time.Sleep(time.Hour) }
		go func() { _, _ = c.takeBy(c.limiter, 2*time.Hour) }()
		time.Sleep(time.Second)
		_, err = c.takeBy(c.limiter, 50*time.Millisecond)
		assert.ErrorIs(t, err, context.DeadlineExceeded)
		synctest.Wait()
		time.Sleep(3 * time.Hour)
	})
}

// Processes that are a millisecond away from the store, more or less, and ask
// for the same client all the time, all get their turn.
func TestProcessesTakeTurns(t *testing.T) {
	const roundTrip, length = time.Millisecond, 2 * time.Second
	for i := range 8 {
		processes := []int{8, 2}[i/4]
		jitter := []time.Duration{0, 10, 50, 200}[i%4] * time.Microsecond // of each way
		synctest.Test(t, func(t *testing.T) {
			store := memory.New(nil)
			var slowest time.Duration
			var contended, admitted int
			var mu sync.Mutex
			var done sync.WaitGroup
			end := time.Now().Add(length)
			for i := range processes {
				random := rand.New(rand.NewPCG(1, uint64(i)))
				way := func() {
					time.Sleep(roundTrip/2 + time.Duration((2*random.Float64()-1)*float64(jitter)))
				}
				far := &riggedStore{StateStore: store}
				far.beforeSwap = way
				far.afterSwap = func() error { way(); return nil }
				l, err := NewTokenBucket(far, time.Second, 0, testConfig(10))
				require.NoError(t, err)
				done.Go(func() {
					for start := time.Now(); start.Before(end); start = time.Now() {
						ctx, cancel := context.WithTimeout(t.Context(), counters.DefaultTimeout)
						d, err := l.Take(ctx, counters.Request{Client: "c", Cost: 1, Limit: counters.MaxLimit, Now: start})
						cancel()
						mu.Lock()
						if d.Contended {
							contended++
						} else if assert.NoError(t, err) {
							admitted++
							slowest = max(slowest, time.Since(start))
						}
						mu.Unlock()
					}
				})
			}
			done.Wait()
			assert.Zero(t, contended, jitter)
			assert.Greater(t, admitted, 1000, "%v: of the 2000 that one after the other could be", jitter)
			assert.Less(t, slowest, 30*time.Millisecond, jitter)
		})
	}
}

// Another instance may have admitted a smaller cost since the state was seen:
// while something remains, the store is asked before a denial promises a time.
func (by way) TestADenialWithRoomForLessAsksTheStore(t *testing.T) {
	t.Parallel()
	a, b := by.newPair(t)
	require.True(t, a.take(3).Allowed)
	require.True(t, b.take(4).Allowed)
	d := a.take(8)
	require.False(t, d.Allowed)
	a.now = a.now.Add(d.RetryAfter)
	assert.True(t, a.take(8).Allowed)
}

// A clock that was an hour ahead has left a state, and a limit counts what another denied.
func (by way) TestFitsAfterOfAStateFromTheFuture(t *testing.T) {
	t.Parallel()
	i := by.newInstance(t, memory.New(nil), true)
	i.now = i.now.Add(time.Hour)
	require.True(t, i.take(6).Allowed)
	i.now = i.now.Add(-time.Hour)
	d := i.take(4)
	require.True(t, d.Allowed)
	assert.LessOrEqual(t, d.FitsAfter, d.ResetAfter, "%v after the state is gone", d.FitsAfter)
}

// A refund gives back what hasn't drained of it: others have had the rest.
func (by way) TestATokenRefundGivesBackOnlyWhatWasTaken(t *testing.T) {
	t.Parallel()
	a, b := by.newPair(t)
	first := a.request(10)
	taken := a.take(10)
	require.True(t, taken.Allowed)
	b.now = b.now.Add(900 * time.Millisecond)
	require.True(t, b.take(9).Allowed)
	require.NoError(t, a.limiter.Refund(unhurried, first, taken))
	assert.Equal(t, int64(1), b.remaining(), "9 of the 10 have drained, and been taken by b")
}

// A limit that counts what others deny says when the same cost fits again.
func TestFitsAfterAnAdmissionThatCounts(t *testing.T) {
	t.Parallel()
	cfg := testConfig(10)
	cfg.CountDenied = true
	noon := clock(t, "12:00:00")
	store := memory.New(func() time.Time { return noon })
	token, err := NewTokenBucket(store, time.Minute, 2, cfg)
	require.NoError(t, err)
	log, err := NewSlidingLog(store, time.Minute, 2, cfg)
	require.NoError(t, err)
	counting, err := NewCountingLog(store, time.Minute, MinLogEntries, cfg)
	require.NoError(t, err)
	for name, l := range map[string]taker{"token": token, "log": log, "counting log": counting} {
		for i, want := range []time.Duration{0, time.Minute} {
			d, err := l.Take(unhurried, counters.Request{Client: name, Cost: 1, Limit: 2, Now: noon})
			require.NoError(t, err)
			require.True(t, d.Allowed)
			if name == "token" {
				want /= 2
			}
			assert.Equal(t, want, d.FitsAfter, "%s %d", name, i)
		}
	}
}

// A state is kept until it is initial for each request that it was written for,
// and for as long as clocks and the way to the store may differ.
func TestTTLIsThatOfTheSlowestCallAndTheHorizon(t *testing.T) {
	t.Parallel()
	cfg := testConfig(10)
	cfg.ClockSkew, cfg.StoreTimeout = 300*time.Millisecond, 200*time.Millisecond
	l, err := NewTokenBucket(memory.New(nil), time.Minute, 100, cfg)
	require.NoError(t, err)
	noon := clock(t, "12:00:00")
	slow, fast := new(call[bucketState]), new(call[bucketState])
	slow.Request.Request = counters.Request{Client: "c", Cost: 1, Limit: 1, Now: noon}
	fast.Request.Request = counters.Request{Client: "c", Cost: 1, Limit: 100, Now: noon}
	for _, calls := range [][]*call[bucketState]{{slow, fast}, {fast, slow}} {
		w := &work[bucketState]{family: &l.limiter.(*limiterOf[bucketState]).family, a: new(account[bucketState]), calls: calls}
		w.next.latest = &calls[0].Request.Request
		w.decide(true, true)
		assert.Equal(t, 2*time.Minute+500*time.Millisecond+2*time.Second, w.next.ttl)
	}
}

// A bucket gives back what a Peek has seen in use, whoever has taken it, and
// nothing once it is empty or the client has been reset.
func (by way) TestWhatAPeekHasSeenCanBeGivenBack(t *testing.T) {
	t.Parallel()
	a, b := by.newPair(t)
	a.take(4)
	b.take(3)
	giveBack := func(cost int64) int64 {
		r := a.request(0)
		seen, err := a.limiter.Peek(context.Background(), r)
		require.NoError(t, err)
		r.Cost = cost
		require.NoError(t, a.limiter.Refund(context.Background(), r, seen))
		after, err := b.limiter.Peek(context.Background(), b.request(0))
		require.NoError(t, err)
		return after.Remaining
	}
	assert.EqualValues(t, 8, giveBack(5))
	assert.EqualValues(t, 10, giveBack(2))
	assert.EqualValues(t, 10, giveBack(1), "nothing is in use")

	a.take(4)
	seen, err := a.limiter.Peek(context.Background(), a.request(0))
	require.NoError(t, err)
	a.now = a.now.Add(time.Hour)
	a.take(4)
	require.NoError(t, a.limiter.Refund(context.Background(), a.request(3), seen))
	seen, err = a.limiter.Peek(context.Background(), a.request(0))
	require.NoError(t, err)
	assert.EqualValues(t, 6, seen.Remaining, "the bucket was empty in between")
}

// Two instances deny the whole limit in turns, and each denial takes the place of all
// that the log has. Neither takes that for a loss of what it had seen.
func (by way) TestADenialThatReplacesAWholeLogIsNoLoss(t *testing.T) {
	t.Parallel()
	for name, newLimiter := range by.makers() {
		if !strings.Contains(name, "log") {
			continue
		}
		t.Run(name, func(t *testing.T) {
			const limit = 5
			cfg, store, now := testConfig(100), memory.New(nil), clock(t, "12:00:01")
			reseeded := 0
			cfg.CountDenied, cfg.Reseeded = true, func(n int) { reseeded += n }
			var instances [2]counters.Limiter
			for i := range instances {
				l, err := newLimiter(store, cfg)
				require.NoError(t, err)
				instances[i] = l
			}
			r := counters.Request{Client: "c", Cost: limit, Limit: limit, Now: now}
			for i := range 6 {
				r.Now = r.Now.Add(time.Second)
				d, err := instances[i%2].Take(unhurried, r)
				require.NoError(t, err)
				assert.Equal(t, i == 0, d.Allowed)
			}
			r.Cost, r.Limit = 1, 2*limit
			d, err := instances[0].Peek(unhurried, r)
			require.NoError(t, err)
			assert.EqualValues(t, limit-1, d.Remaining, "a log has one more than the limit")
			assert.Zero(t, reseeded)
		})
	}
}

// Who looks at a client of which the process has still to tell is answered by what was seen last,
// if other instances come first until the deadline.
func (by way) TestALookIsAnsweredThoughOthersComeFirst(t *testing.T) {
	t.Parallel()
	for name, newLimiter := range by.makers() {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				inner := memory.New(nil)
				store := &racedStore{Store: inner}
				l, err := newLimiter(store, testConfig(10))
				require.NoError(t, err)
				other, err := newLimiter(inner, testConfig(10))
				require.NoError(t, err)
				request := func() counters.Request {
					return counters.Request{Client: "c", Cost: 1, Limit: 100, Now: time.Now()}
				}
				taken, err := l.Take(unhurried, request())
				require.NoError(t, err)
				require.True(t, taken.Allowed)
				_, err = l.TakeLocal(request(), counters.ErrNotSent)
				require.NoError(t, err)
				store.races = 2
				store.meanwhile = func() {
					time.Sleep(20 * time.Millisecond)
					taken, err := other.Take(unhurried, request())
					require.NoError(t, err)
					require.True(t, taken.Allowed)
				}
				d, err := l.Peek(&counters.Deadline{At: time.Now().Add(50 * time.Millisecond)}, request())
				require.NoError(t, err)
				assert.True(t, d.Allowed)
				assert.EqualValues(t, 97, d.Remaining, "its own, and two of the other")
				l.(interface{ Flush() }).Flush()
			})
		})
	}
}
