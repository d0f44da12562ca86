package subwindow_test

import (
	"context"
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"weir/counters"
	"weir/counters/limitertest"
	"weir/counters/memory"
	"weir/counters/storetest"
	"weir/subwindow"
)

// takeTogether has l decide the requests in one batch, in their order, and
// returns the decisions. The store's gate is open afterwards.
func takeTogether(t *testing.T, l *limiter, store *gatedStore, requests ...counters.Request) []counters.Decision {
	t.Helper()
	decisions := make([]counters.Decision, len(requests))
	leader := requests[0]
	// Others wait for it.
	go take(t, l, leader.Now.Add(-time.Second), 1, leader.Limit)
	synctest.Wait()
	for i, r := range requests {
		go func() { decisions[i] = take(t, l, r.Now, r.Cost, r.Limit) }()
		synctest.Wait()
	}
	close(store.gate)
	synctest.Wait()
	return decisions
}

// Each call of a batch that stands on both sides of a boundary is counted in
// its own slot.
func (by way) TestABatchAcrossABoundary(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		store := &gatedStore{Store: memory.New(nil), gate: make(chan struct{})}
		w := newWindow(t, time.Minute, 4, false)
		l := by.newLimiter(t, store, w, sameClock)
		for _, d := range takeTogether(t, l, store, request(at("12:00:14.9"), 10, 100), request(at("12:00:15.1"), 20, 100)) {
			assert.True(t, d.Allowed)
		}
		assert.Equal(t, int64(1+10), used(t, store, w, at("12:00:14")))
		assert.Equal(t, int64(20), used(t, store, w, at("12:00:15")))
	})
}

// A batch looks as far ahead as the latest of its calls has to.
func (by way) TestABatchIsAsLateAsItsLatestCall(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		inner := memory.New(nil)
		w := newWindow(t, time.Minute, 4, false)
		store := &gatedStore{Store: inner, gate: make(chan struct{})}
		slow := by.newLimiter(t, store, w, 50*time.Millisecond)
		go func() {
			time.Sleep(time.Second)
			take(t, by.newLimiter(t, inner, w, 50*time.Millisecond), at("12:00:15.01"), 9, 10)
		}()
		decisions := make([]counters.Decision, 3)
		for i, moment := range []string{"12:00:14.5", "12:00:14.9", "12:00:14.98"} {
			go func() { decisions[i] = take(t, slow, at(moment), 1, 10) }()
			synctest.Wait()
		}
		time.Sleep(2 * time.Second) // the fast clock counts in the next slot
		close(store.gate)
		synctest.Wait()
		assert.True(t, decisions[0].Allowed)
		assert.False(t, decisions[1].Allowed || decisions[2].Allowed, "1 and 9 are in use")
	})
}

// Where a reset was asked for, it holds at once, also for a client that was
// denied a moment before.
func (by way) TestAResetIsSeenAtOnceWhereItWasAskedFor(t *testing.T) {
	t.Parallel()
	l := by.newLimiter(t, memory.New(nil), newWindow(t, time.Minute, 4, false), sameClock)
	require.True(t, take(t, l, at("12:00:01"), 10, 10).Allowed)
	require.False(t, take(t, l, at("12:00:01.1"), 1, 10).Allowed)
	require.NoError(t, l.Reset(t.Context(), "c", at("12:00:01.2")))
	assert.True(t, take(t, l, at("12:00:01.3"), 10, 10).Allowed)
}

// A generation that was evicted begins anew, and isn't taken for the old one.
func (by way) TestAGenerationIsNeverTakenForAnother(t *testing.T) {
	t.Parallel()
	store := memory.New(nil)
	w := newWindow(t, time.Minute, 60, false)
	here, there := by.newLimiter(t, store, w, sameClock), by.newLimiter(t, store, w, sameClock)
	require.NoError(t, here.Reset(t.Context(), "c", at("12:00:00")))
	require.True(t, take(t, there, at("12:00:01"), 90, 100).Allowed)
	require.Equal(t, int64(9), take(t, there, at("12:00:03"), 1, 100).Remaining, "the slot of 12:00:01 is remembered")
	generation := counters.GenerationKey(counters.CounterNamespace("weir", "p", "l", w.Width).Client("c"))
	require.NoError(t, store.Delete(t.Context(), []string{generation}))
	require.NoError(t, here.Reset(t.Context(), "c", at("12:00:04")))
	assert.Equal(t, int64(99), take(t, there, at("12:00:05"), 1, 100).Remaining)
}

// A shortStore has time for so many exchanges of an AddMany, as memcached.Store has
// when the deadline of its context is near: then it ends what goes on with an
// ErrNotSent, and doesn't begin it again.
type shortStore struct {
	counters.Store
	exchanges int
	silent    bool // Subtract isn't answered, and after that nothing is sent
	down      bool
}

func (s *shortStore) Subtract(ctx context.Context, key string, n int64) error {
	if s.silent {
		s.down = true
		return counters.ErrTimeout
	}
	return s.Store.Subtract(ctx, key, n)
}

func (s *shortStore) Read(ctx context.Context, keys []string, counts []int64) error {
	if s.down {
		return fmt.Errorf("%w: %w", counters.ErrTimeout, counters.ErrNotSent)
	}
	return s.Store.Read(ctx, keys, counts)
}

func (s *shortStore) AddMany(ctx context.Context, keys []string, begin func(i int, to []counters.Addition) ([]counters.Addition, counters.Turn), done func(i int, added []counters.Added, err error) (more bool)) {
	for i := range keys {
		for n, more := 0, true; more; n++ {
			if n == s.exchanges {
				done(i, nil, fmt.Errorf("%w: %w", counters.ErrTimeout, counters.ErrNotSent))
				break
			}
			additions, turn := begin(i, nil)
			more = turn == counters.Now && done(i, storetest.AddEach(ctx, s.Store, additions), nil)
		}
	}
}

// Each request of a batch is answered once, also that of a client of which others
// have still to be told that its past has changed, and time is over by then.
func TestABatchWhoseTimeIsOverIsAnswered(t *testing.T) {
	store := &shortStore{Store: memory.New(nil), exchanges: 1}
	l, err := subwindow.New(store, newWindow(t, time.Minute, 60, true), counters.Options{Policy: "p", Limit: "l", Clients: 1000})
	require.NoError(t, err)
	old := request(time.Now().Add(-5*time.Second), 5, 100)
	d, err := l.Take(t.Context(), old)
	require.NoError(t, err)
	store.silent = true
	require.ErrorIs(t, l.Refund(t.Context(), old, d), counters.ErrTimeout) // nobody knows if it was done
	l.Flush()                                                              // what goes on in the background fails too
	store.silent, store.down = false, false

	answers := 0
	l.TakeMany(t.Context(), []counters.Request{request(time.Now(), 7, 100)}, func(_ int, taken counters.Taken) {
		answers++
		t.Logf("%+v", taken)
	})
	assert.Equal(t, 1, answers)

	// What other clients ask for isn't taken for in use by this one.
	before, _ := l.Recall(request(time.Now(), 1, 100))
	for range 20 { // the pool may choose another work
		_, err = l.Take(t.Context(), counters.Request{Client: "another", Cost: 60, Limit: 1_000_000, Now: time.Now()})
		require.NoError(t, err)
	}
	after, _ := l.Recall(request(time.Now(), 1, 100))
	assert.Equal(t, before.Remaining, after.Remaining, "of c, after checks of another client")
}

// A togetherStore notes how many additions it gets at once.
type togetherStore struct {
	manyStore
	sizes   []int       // 0 if nothing was to be added
	between func(i int) // is called while the addition of that number is under way, if it isn't nil
}

func (s *togetherStore) AddMany(ctx context.Context, keys []string, begin func(i int, to []counters.Addition) ([]counters.Addition, counters.Turn), done func(i int, added []counters.Added, err error) (more bool)) {
	size := 0
	s.manyStore.AddMany(ctx, keys, func(i int, to []counters.Addition) ([]counters.Addition, counters.Turn) {
		a, turn := begin(i, to)
		if between := s.between; between != nil {
			between(i)
		}
		if turn == counters.Now {
			size++
		}
		return a, turn
	}, done)
	s.sizes = append(s.sizes, size)
}

func newTogether(t *testing.T) (*togetherStore, *subwindow.Limiter) {
	store := &togetherStore{manyStore: manyStore{memory.New(nil)}}
	l, err := subwindow.New(store, newWindow(t, time.Minute, 10, false), counters.Options{Policy: "p", Limit: "l", Clients: 1000, StoreTimeout: -1})
	require.NoError(t, err)
	require.True(t, l.TakesMany())
	return store, l
}

// requests are one of each client.
func requests(clients int, now time.Time, limit int64) []counters.Request {
	all := make([]counters.Request, clients)
	for i := range all {
		all[i] = counters.Request{Client: fmt.Sprint("client-", i), Cost: 1, Limit: limit, Now: now}
	}
	return all
}

// Many clients are counted together, those who are known to be denied not at
// all, and each as Take would.
func (by way) TestManyClientsAreCountedTogether(t *testing.T) {
	t.Parallel()
	store, l := newTogether(t)
	alone := by.newLimiterWith(t, memory.New(nil), newWindow(t, time.Minute, 10, false), counters.Options{Clients: 1000})
	const clients = 100
	for i, moment := range []string{"12:00:00.1", "12:00:00.2", "12:00:00.3", "12:00:00.35", "12:00:06.1", "12:00:07.3", "12:01:01.3"} {
		asked := requests(clients, at(moment), 2)
		for j, taken := range limitertest.TakeMany(t.Context(), l, asked) {
			require.True(t, taken.Done, "round %d", i)
			require.NoError(t, taken.Err)
			want, err := alone.Limiter.Take(t.Context(), asked[j])
			require.NoError(t, err)
			require.Equal(t, want, taken.Decision, "round %d", i)
		}
	}
	assert.Equal(t, []int{clients, clients, clients, clients, clients}, store.sizes, "but for those who are known to be denied")
}

// What others are being asked for is left to Take, which joins them.
func TestManyLeaveWhoIsBeingAskedFor(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		gate := &gatedStore{Store: memory.New(nil), gate: make(chan struct{})}
		store := &togetherStore{manyStore: manyStore{gate}}
		l, err := subwindow.New(store, newWindow(t, time.Minute, 10, false), counters.Options{Policy: "p", Limit: "l", StoreTimeout: -1})
		require.NoError(t, err)
		asked := requests(3, at("12:00:01"), 5)
		go func() {
			_, err := l.Take(t.Context(), asked[0])
			assert.NoError(t, err)
		}()
		synctest.Wait()
		var left []int
		go l.TakeMany(t.Context(), asked, func(i int, taken counters.Taken) {
			if !taken.Done {
				left = append(left, i)
			}
		})
		synctest.Wait()
		assert.Equal(t, []int{0}, left, "and is told before the others are")
		close(gate.gate)
		synctest.Wait()
		assert.Equal(t, []int{0}, left)
		d, err := l.Take(t.Context(), asked[0])
		require.NoError(t, err)
		assert.EqualValues(t, 3, d.Remaining)
	})
}

// Several requests of a client whom others ask about aren't left to as many callers of Take.
func TestManyOfOneWhoIsBeingAskedForWaitTogether(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		gate := &gatedStore{Store: memory.New(nil), gate: make(chan struct{})}
		l, err := subwindow.New(&togetherStore{manyStore: manyStore{gate}}, newWindow(t, time.Minute, 10, false), counters.Options{Policy: "p", Limit: "l", StoreTimeout: -1})
		require.NoError(t, err)
		r := request(at("12:00:01"), 1, 10)
		go func() {
			_, err := l.Take(t.Context(), r)
			assert.NoError(t, err)
		}()
		synctest.Wait()
		var taken []counters.Taken
		asked := make(chan struct{})
		go func() {
			taken = limitertest.TakeMany(t.Context(), l, []counters.Request{r, r, r})
			close(asked)
		}()
		synctest.Wait()
		close(gate.gate)
		<-asked
		for i, one := range taken {
			require.True(t, one.Done && one.Err == nil && one.Decision.Allowed)
			assert.EqualValues(t, 8-i, one.Remaining)
		}
	})
}

// Of many clients others ask about, all but a few are tried again: batches
// that overlap don't fall apart.
func TestManyTryThoseWhoAreBusyAgain(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		gate := &gatedStore{Store: memory.New(nil), gate: make(chan struct{})}
		store := &togetherStore{manyStore: manyStore{gate}}
		l, err := subwindow.New(store, newWindow(t, time.Minute, 10, false), counters.Options{Policy: "p", Limit: "l", Clients: 1000, StoreTimeout: -1})
		require.NoError(t, err)
		asked := requests(100, at("12:00:01"), 5)
		ask := func(r counters.Request) {
			_, err := l.Take(t.Context(), r)
			assert.NoError(t, err)
		}
		for _, r := range asked[:90] {
			go ask(r)
		}
		synctest.Wait()
		go func() {
			time.Sleep(500 * time.Microsecond)
			close(gate.gate)
		}()
		taken := limitertest.TakeMany(t.Context(), l, asked)
		left := 0
		for _, one := range taken {
			if !one.Done {
				left++
			}
		}
		assert.Equal(t, 16, left)
		assert.Equal(t, []int{84}, store.sizes)
	})
}

// Who stays busy is left to Take in the end.
func TestManyLeaveWhoStaysBusy(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		gate := &gatedStore{Store: memory.New(nil), gate: make(chan struct{})}
		store := &togetherStore{manyStore: manyStore{gate}}
		l, err := subwindow.New(store, newWindow(t, time.Minute, 10, false), counters.Options{Policy: "p", Limit: "l", Clients: 1000, StoreTimeout: -1})
		require.NoError(t, err)
		asked := requests(100, at("12:00:01"), 5)
		for _, r := range asked {
			go func() {
				_, err := l.Take(t.Context(), r)
				assert.NoError(t, err)
			}()
		}
		synctest.Wait()
		assert.Equal(t, make([]counters.Taken, 100), limitertest.TakeMany(t.Context(), l, asked))
		close(gate.gate)
	})
}

// Nobody else waits for a client of many until it is its turn.
func TestManyAreLedOnlyWhileTheyAreAskedAbout(t *testing.T) {
	t.Parallel()
	store, l := newTogether(t)
	asked := requests(3, at("12:00:01"), 5)
	store.between = func(i int) {
		for j, r := range asked {
			if j != i {
				d, err := l.Take(t.Context(), r)
				assert.NoError(t, err)
				assert.True(t, d.Allowed)
			}
		}
	}
	for i, taken := range limitertest.TakeMany(t.Context(), l, asked) {
		require.True(t, taken.Done)
		assert.EqualValues(t, 4-i, taken.Remaining, "client %d", i)
	}
}

// A panic of the store fails those who wait for it, and nobody after them.
func TestAPanicOfAStoreEndsTheLeads(t *testing.T) {
	t.Parallel()
	store, l := newTogether(t)
	asked := requests(3, at("12:00:01"), 5)
	store.between = func(i int) {
		if i == 1 {
			panic("a bug")
		}
	}
	taken := make([]counters.Taken, len(asked))
	assert.PanicsWithValue(t, "a bug", func() {
		l.TakeMany(t.Context(), asked, func(i int, t counters.Taken) { taken[i] = t })
	})
	assert.Equal(t, []bool{true, false, false}, []bool{taken[0].Done, taken[1].Done, taken[2].Done})
	store.between = nil
	for i, taken := range limitertest.TakeMany(t.Context(), l, asked) {
		require.True(t, taken.Done)
		assert.EqualValues(t, 3+min(i, 1), taken.Remaining, "client %d", i)
	}
}

// A panic of one decision is that one's, wherever it comes: the others are
// decided, and the client too when it is asked for again.
func TestAPanicOfOneOfManyIsItsOwn(t *testing.T) {
	t.Parallel()
	width := 6 * time.Second
	for _, where := range []string{"answered", "put back"} {
		t.Run(where, func(t *testing.T) {
			store := &togetherStore{manyStore: manyStore{memory.New(nil)}}
			panics, answers := false, 0
			l, err := subwindow.New(store, newWindow(t, time.Minute, 10, false), counters.Options{
				Policy: "p", Limit: "l", Clients: 1000, StoreTimeout: -1,
				Reseeded: func(int) {
					if panics {
						panic("a bug")
					}
				},
				Batch: func(int) {
					if answers++; panics && where != "put back" && answers == 2 {
						panic("a bug")
					}
				},
			})
			require.NoError(t, err)
			asked := requests(3, at("12:00:01"), 5)
			limitertest.TakeMany(t.Context(), l, asked)
			if where == "put back" {
				client := counters.CounterNamespace("weir", "p", "l", width).Client(asked[1].Client)
				require.NoError(t, store.Delete(t.Context(), []string{counters.CounterKey(client, counters.Calendar(asked[1].Now, width).Number)}))
			}
			panics, answers = true, 0
			taken := limitertest.TakeMany(t.Context(), l, asked)
			assert.Equal(t, "a bug", taken[1].Panic)
			assert.Contains(t, string(taken[1].Stack), "subwindow")
			for _, i := range []int{0, 2} {
				require.True(t, taken[i].Done)
				assert.EqualValues(t, 3, taken[i].Remaining)
			}
			panics = false
			d, err := l.Take(t.Context(), asked[1])
			require.NoError(t, err)
			assert.Equal(t, where != "known", d.Allowed)
		})
	}
}

// What a store can't do together is left to Take, and counted once.
func TestManyLeaveWhatIsNotAdded(t *testing.T) {
	t.Parallel()
	store := &unableStore{memory.New(nil)}
	l, err := subwindow.New(store, newWindow(t, time.Minute, 10, false), counters.Options{Policy: "p", Limit: "l", StoreTimeout: -1})
	require.NoError(t, err)
	asked := requests(4, at("12:00:01"), 5)
	for round := range 3 {
		require.Equal(t, make([]counters.Taken, 4), limitertest.TakeMany(t.Context(), l, asked))
		for _, r := range asked {
			d, err := l.Take(t.Context(), r)
			require.NoError(t, err)
			assert.EqualValues(t, 4-round, d.Remaining)
		}
	}
	assert.Zero(t, l.Owing())
}

// An unableStore adds nothing together, whether it has begun or not.
type unableStore struct{ counters.Store }

func (unableStore) AddMany(_ context.Context, keys []string, begin func(i int, to []counters.Addition) ([]counters.Addition, counters.Turn), done func(i int, added []counters.Added, err error) (more bool)) {
	for i := range keys {
		if i%2 == 0 {
			begin(i, nil)
			done(i, []counters.Added{{Err: counters.ErrNotAdded}}, nil)
		} else {
			done(i, nil, counters.ErrNotAdded)
		}
	}
}

// Wrong requests, and those that count nothing, are Take's.
func TestManyLeaveWhatCountsNothing(t *testing.T) {
	t.Parallel()
	store, l := newTogether(t)
	asked := requests(2, at("12:00:01"), 5)
	asked[0].Cost, asked[1].Limit = 0, 0
	assert.Equal(t, make([]counters.Taken, 2), limitertest.TakeMany(t.Context(), l, asked))
	assert.Empty(t, store.sizes)
}
