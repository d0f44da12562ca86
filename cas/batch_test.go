package cas

import (
	"context"
	"fmt"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"weir/counters"
	"weir/counters/combiner"
	"weir/counters/limitertest"
	"weir/counters/memory"
)

// A togetherStore notes how many swaps and loads it is asked for at once, and
// how many by themselves.
type togetherStore struct {
	counters.StateStore
	together []int
	alone    atomic.Int64
	gate     chan struct{} // single ones wait until it is closed, if it isn't nil
	between  func(i int)   // is called while the swap of that number is under way, if it isn't nil
}

func (s *togetherStore) SwapMany(ctx context.Context, keys []string, begin func(i int) (counters.Replacement, counters.Turn), done func(i int, now counters.State, swapped bool, err error) (again bool)) {
	size := 0
	manyStore{s.StateStore}.SwapMany(ctx, keys, func(i int) (counters.Replacement, counters.Turn) {
		r, turn := begin(i)
		if between := s.between; between != nil {
			between(i)
		}
		if turn == counters.Now {
			size++
		}
		return r, turn
	}, done)
	s.together = append(s.together, size)
}

func (s *togetherStore) Load(ctx context.Context, key string) (counters.State, error) {
	s.alone.Add(1)
	return s.StateStore.Load(ctx, key)
}

func (s *togetherStore) Swap(ctx context.Context, key string, old counters.State, value []byte, ttl time.Duration) (counters.State, bool, error) {
	s.alone.Add(1)
	if s.gate != nil {
		<-s.gate
	}
	return s.StateStore.Swap(ctx, key, old, value, ttl)
}

// newTogether returns a token bucket that remembers many clients.
func newTogether(t *testing.T, store counters.StateStore, cfg Config) (*togetherStore, *Limiter) {
	together := &togetherStore{StateStore: store}
	cfg.Policy, cfg.Limit, cfg.ClockSkew, cfg.Clients = "p", "l", -1, 1000
	l, err := NewTokenBucket(together, time.Minute, 0, cfg)
	require.NoError(t, err)
	require.True(t, l.TakesMany())
	return together, l
}

// manyRequests are one of each client.
func manyRequests(clients int, now time.Time, limit int64) []counters.Request {
	all := make([]counters.Request, clients)
	for i := range all {
		all[i] = counters.Request{Client: fmt.Sprint("client-", i), Cost: 1, Limit: limit, Now: now}
	}
	return all
}

// Many clients are asked about together, those who are known to be denied not
// at all, and each is decided as by Take.
func TestManyClientsAreDecidedTogether(t *testing.T) {
	t.Parallel()
	for _, countDenied := range []bool{false, true} {
		t.Run(fmt.Sprint("count denied=", countDenied), func(t *testing.T) {
			t.Parallel()
			noon := clock(t, "12:00:00")
			cfg := testConfig(1000)
			cfg.CountDenied = countDenied
			store, l := newTogether(t, memory.New(func() time.Time { return noon }), cfg)
			alone, err := NewTokenBucket(memory.New(func() time.Time { return noon }), time.Minute, 0, cfg)
			require.NoError(t, err)
			const clients = 100
			for i, moment := range []string{"12:00:00.1", "12:00:00.2", "12:00:00.3", "12:00:00.35", "12:00:06.1", "12:00:32.3", "12:05:01.3"} {
				asked := manyRequests(clients, clock(t, moment), 2)
				for j, taken := range limitertest.TakeMany(unhurried, l, asked) {
					require.True(t, taken.Done, "round %d", i)
					require.NoError(t, taken.Err)
					want, err := alone.Take(unhurried, asked[j])
					require.NoError(t, err)
					want.Receipt, taken.Receipt = counters.Receipt{}, counters.Receipt{}
					require.Equal(t, want, taken.Decision, "round %d", i)
				}
			}
			assert.Zero(t, store.alone.Load())
			want := []int{clients, clients, clients, clients, clients} // from the fifth round on, denials are too old
			if countDenied {
				want = []int{clients, clients, clients, clients, clients, clients, clients}
			}
			assert.Equal(t, want, store.together)
		})
	}
}

// Instances that take turns lose their first attempts, and make their second ones
// together too.
func TestManyLoseRacesTogether(t *testing.T) {
	t.Parallel()
	noon := clock(t, "12:00:00")
	inner := memory.New(func() time.Time { return noon })
	const clients = 100
	asked := manyRequests(clients, noon, 10)
	var instances [2]*Limiter
	var stores [2]*togetherStore
	for i := range instances {
		stores[i], instances[i] = newTogether(t, inner, Config{})
	}
	for round := range 10 {
		for _, taken := range limitertest.TakeMany(unhurried, instances[round%2], asked) {
			require.True(t, taken.Done)
			require.EqualValues(t, 9-round, taken.Remaining)
		}
	}
	for _, store := range stores {
		assert.Zero(t, store.alone.Load())
		assert.Len(t, store.together, 5)
	}
}

// What others are being asked for is left to Take, which joins them.
func TestManyLeaveWhoIsBeingAskedFor(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		store, l := newTogether(t, memory.New(nil), Config{})
		store.gate = make(chan struct{})
		asked := manyRequests(1, time.Now(), 5)
		ask := func() {
			_, err := l.Take(unhurried, asked[0])
			assert.NoError(t, err)
		}
		go ask()
		synctest.Wait()
		assert.Equal(t, make([]counters.Taken, 1), limitertest.TakeMany(unhurried, l, asked))
		assert.Equal(t, []int{0}, store.together)
		go ask()
		close(store.gate)
		synctest.Wait()
		d, err := l.Take(unhurried, asked[0])
		require.NoError(t, err)
		assert.EqualValues(t, 2, d.Remaining)
	})
}

// Of many clients others ask about, all but a few are tried again.
func TestManyTryThoseWhoAreBusyAgain(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		store, l := newTogether(t, memory.New(nil), Config{})
		store.gate = make(chan struct{})
		asked := manyRequests(100, time.Now(), 5)
		for _, r := range asked[:90] {
			go func() {
				_, err := l.Take(unhurried, r)
				assert.NoError(t, err)
			}()
		}
		synctest.Wait()
		go func() {
			time.Sleep(500 * time.Microsecond)
			close(store.gate)
		}()
		left := 0
		for _, one := range limitertest.TakeMany(unhurried, l, asked) {
			if !one.Done {
				left++
			}
		}
		assert.Equal(t, counters.FewBusy, left)
		assert.Equal(t, []int{100 - counters.FewBusy}, store.together)
	})
}

// Nobody else waits for a client of many until it is its turn, and who comes
// while it is asked about is decided by its next attempt.
func TestManyAreLedOnlyWhileTheyAreAskedAbout(t *testing.T) {
	t.Parallel()
	store, l := newTogether(t, memory.New(nil), Config{})
	asked := manyRequests(3, clock(t, "12:00:01"), 5)
	store.between = func(i int) {
		for j, r := range asked {
			if j != i {
				d, err := l.Take(unhurried, r)
				assert.NoError(t, err)
				assert.True(t, d.Allowed)
			}
		}
	}
	for i, taken := range limitertest.TakeMany(unhurried, l, asked) {
		require.True(t, taken.Done)
		assert.EqualValues(t, 4-i, taken.Remaining, "client %d", i)
	}
}

// Who joins a client of many that loses a race is decided with it.
func TestManyAreJoined(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		rigged := &riggedStore{StateStore: memory.New(nil)}
		var batches []int
		_, l := newTogether(t, rigged, Config{Options: counters.Options{Batch: func(size int) { batches = append(batches, size) }}})
		_, other := newTogether(t, rigged.StateStore, Config{})
		asked := manyRequests(1, time.Now(), 10)
		joined := make(chan counters.Decision, 3)
		rigged.beforeSwap = func() {
			rigged.beforeSwap = nil
			_, err := other.Take(unhurried, asked[0])
			assert.NoError(t, err)
			for range 3 {
				go func() {
					d, err := l.Take(unhurried, asked[0])
					assert.NoError(t, err)
					joined <- d
				}()
			}
			synctest.Wait()
		}
		assert.EqualValues(t, 8, limitertest.TakeMany(unhurried, l, asked)[0].Remaining)
		synctest.Wait()
		require.Len(t, joined, 3)
		assert.Equal(t, []int{4}, batches)
	})
}

// A process that has won against others leaves them a gap, also when it asks
// about many.
func TestManyAwaitTheirTurn(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		store, l := newTogether(t, memory.New(nil), Config{})
		asked := manyRequests(3, time.Now(), 10)
		limitertest.TakeMany(unhurried, l, asked)
		turn := time.Now().Add(10 * time.Millisecond)
		setTurn := func(at time.Time) {
			l.limiter.(*limiterOf[bucketState]).Change(asked[1].Client, func(a *account[bucketState]) { a.pace.turn = momentOf(at) })
		}
		setTurn(turn)
		var order []int
		l.TakeMany(unhurried, asked, func(i int, taken counters.Taken) {
			assert.True(t, taken.Done && taken.Allowed)
			assert.Equal(t, i == 1, !time.Now().Before(turn))
			order = append(order, i)
		})
		assert.Equal(t, []int{0, 2, 1}, order)
		setTurn(time.Now().Add(10 * time.Millisecond))
		deadline := &counters.Deadline{At: time.Now().Add(8 * time.Millisecond)}
		assert.True(t, limitertest.TakeMany(deadline, l, asked)[1].Allowed, "at the latest after half the time")
		assert.Zero(t, store.alone.Load())
	})
}

// A panic of the store fails those who wait for it, and who has joined them.
func TestAPanicOfAStoreEndsTheLeads(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		store, l := newTogether(t, memory.New(nil), Config{})
		asked := manyRequests(3, time.Now(), 5)
		failures := make(chan error, 1)
		store.between = func(i int) {
			if i == 1 {
				go func() {
					_, err := l.Take(unhurried, asked[1])
					failures <- err
				}()
				synctest.Wait()
				panic("a bug")
			}
		}
		taken := make([]counters.Taken, len(asked))
		assert.PanicsWithValue(t, "a bug", func() {
			l.TakeMany(unhurried, asked, func(i int, t counters.Taken) { taken[i] = t })
		})
		assert.Equal(t, []bool{true, false, false}, []bool{taken[0].Done, taken[1].Done, taken[2].Done})
		assert.NoError(t, <-failures, "it hadn't been joined to the attempt, and is led then")
		store.between = nil
		for _, taken := range limitertest.TakeMany(unhurried, l, asked) {
			require.True(t, taken.Done)
		}
	})
}

// A panic of one decision is that one's, and of those who have joined it: the
// others are decided, and the client too when it is asked for again.
func TestAPanicOfOneOfManyIsItsOwn(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		rigged := &riggedStore{StateStore: memory.New(nil)}
		swaps, panics := 0, true
		_, l := newTogether(t, rigged, Config{Swaps: func(int, int) {
			if swaps++; panics && swaps == 2 {
				panic("a bug")
			}
		}})
		_, other := newTogether(t, rigged.StateStore, Config{})
		asked := manyRequests(3, time.Now(), 5)
		joined := make(chan error, 1)
		attempts := 0
		rigged.beforeSwap = func() {
			if attempts++; attempts != 2 {
				return
			}
			_, err := other.Take(unhurried, asked[1])
			assert.NoError(t, err)
			go func() {
				_, err := l.Take(unhurried, asked[1])
				joined <- err
			}()
			synctest.Wait()
		}
		taken := limitertest.TakeMany(unhurried, l, asked)
		assert.Equal(t, "a bug", taken[1].Panic)
		assert.Contains(t, string(taken[1].Stack), "weir/cas")
		assert.ErrorIs(t, <-joined, combiner.ErrLeaderFailed)
		for _, i := range []int{0, 2} {
			require.True(t, taken[i].Done)
			assert.EqualValues(t, 4, taken[i].Remaining)
		}
		panics = false
		d, err := l.Take(unhurried, asked[1])
		require.NoError(t, err)
		assert.True(t, d.Allowed)
	})
}

// A panicking algorithm can't tell how a client stands.
type panicking struct {
	algorithm[bucketState]
	armed *bool
}

func (a panicking) peek(s bucketState, r counters.Request) counters.Decision {
	if *a.armed {
		panic("a bug")
	}
	return a.algorithm.peek(s, r)
}

// Who asks for a client whose decision has panicked isn't held up for ever, nor
// the batch that it is in.
func TestAPanicLeavesNothingLocked(t *testing.T) {
	t.Parallel()
	rigged := &riggedStore{StateStore: memory.New(nil)}
	_, l := newTogether(t, rigged, Config{})
	_, other := newTogether(t, rigged.StateStore, Config{})
	armed := false
	l.limiter.(*limiterOf[bucketState]).family.algorithm = panicking{l.limiter.(*limiterOf[bucketState]).family.algorithm, &armed}
	asked := manyRequests(1, time.Now(), 5)
	limitertest.TakeMany(unhurried, l, asked)
	rigged.beforeSwap = func() {
		rigged.beforeSwap = nil
		_, err := other.Take(unhurried, asked[0])
		assert.NoError(t, err)
		rigged.afterSwap = func() error {
			if rigged.swaps == 3 {
				armed = true // it is to be contended
				return counters.ErrTimeout
			}
			return nil
		}
	}
	assert.Equal(t, "a bug", limitertest.TakeMany(unhurried, l, asked)[0].Panic)
	free := make(chan struct{})
	go l.limiter.(*limiterOf[bucketState]).Change(asked[0].Client, func(*account[bucketState]) { close(free) })
	select {
	case <-free:
	case <-time.After(10 * time.Second):
		t.Fatal("the client is locked")
	}
}

// What a store can't do together is left to Take, or goes on alone if it has
// begun, and is consumed once.
func TestManyLeaveWhatIsNotSwapped(t *testing.T) {
	t.Parallel()
	store := &unableStore{memory.New(nil)}
	l, err := NewTokenBucket(store, time.Minute, 0, testConfig(10))
	require.NoError(t, err)
	asked := manyRequests(4, clock(t, "12:00:01"), 5)
	for round := range 3 {
		for i, taken := range limitertest.TakeMany(unhurried, l, asked) {
			if i%2 == 1 {
				require.Equal(t, counters.Taken{}, taken)
				taken.Decision, err = l.Take(unhurried, asked[i])
				require.NoError(t, err)
			}
			assert.EqualValues(t, 4-round, taken.Remaining)
		}
	}
	assert.Zero(t, l.Owing())
}

// An unableStore swaps nothing together, whether it has begun or not.
type unableStore struct{ counters.StateStore }

func (unableStore) SwapMany(_ context.Context, keys []string, begin func(i int) (counters.Replacement, counters.Turn), done func(i int, now counters.State, swapped bool, err error) bool) {
	for i := range keys {
		if i%2 == 0 {
			begin(i)
		}
		done(i, counters.State{}, false, counters.ErrNotAdded)
	}
}

// Wrong requests, and those that consume nothing, are Take's.
func TestManyLeaveWhatConsumesNothing(t *testing.T) {
	t.Parallel()
	store, l := newTogether(t, memory.New(nil), Config{})
	asked := manyRequests(2, clock(t, "12:00:01"), 5)
	asked[0].Cost, asked[1].Limit = 0, 0
	assert.Equal(t, make([]counters.Taken, 2), limitertest.TakeMany(unhurried, l, asked))
	assert.Empty(t, store.together)
}
