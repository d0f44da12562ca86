package subwindow_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"weir/counters"
	"weir/counters/limitertest"
	"weir/counters/memory"
	"weir/subwindow"
)

// A repaidStore notes what is asked of it in exchanges of many.
type repaidStore struct {
	*togetherStore
	inner *tellingStore
	// fault says whether and how an operation on a key fails, if it isn't nil; see
	// faultyStore.
	fault func(operation, key string) error
	// ask is called, if it isn't nil, when additions are about to be done.
	ask       func(additions []counters.Addition)
	exchanges [][]counters.Addition
	unsent    atomic.Bool // nothing is begun
}

func (s *repaidStore) AddMany(ctx context.Context, keys []string, begin func(i int, to []counters.Addition) ([]counters.Addition, counters.Turn), done func(i int, added []counters.Added, err error) (more bool)) {
	if s.unsent.Load() {
		for i := range keys {
			done(i, nil, limitertest.ErrUnsent)
		}
		return
	}
	s.togetherStore.AddMany(ctx, keys, func(i int, to []counters.Addition) ([]counters.Addition, counters.Turn) {
		additions, turn := begin(i, to)
		if turn == counters.Now {
			s.exchanges = append(s.exchanges, additions[len(to):])
			if s.ask != nil {
				s.ask(additions[len(to):])
			}
		}
		return additions, turn
	}, done)
}

// A tellingStore notes the additions that it does.
type tellingStore struct {
	*memory.Store
	subtracts func() error // has Subtract fail, if it isn't nil
	mu        sync.Mutex
	additions []counters.Addition
}

func (s *tellingStore) Subtract(ctx context.Context, key string, delta int64) error {
	if s.subtracts != nil {
		if err := s.subtracts(); err != nil {
			return err
		}
	}
	return s.Store.Subtract(ctx, key, delta)
}

func (s *tellingStore) Add(ctx context.Context, a counters.Addition) (int64, error) {
	n, err := s.Store.Add(ctx, a)
	s.mu.Lock()
	defer s.mu.Unlock()
	if err == nil {
		s.additions = append(s.additions, a)
	}
	return n, err
}

// told returns how often others were told that a slot has changed.
func (s *tellingStore) told() (n int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, a := range s.additions {
		if strings.HasSuffix(a.Key, counters.GenerationKey("")) && a.Delta < 1<<20 {
			n++
		}
	}
	return n
}

// newRepaid returns a limiter that knows its clients, and its store.
func newRepaid(t *testing.T, w subwindow.Window, o counters.Options) (*repaidStore, *subwindow.Limiter) {
	s := &repaidStore{inner: &tellingStore{Store: memory.New(nil)}}
	faulty := &faultyStore{Store: s.inner, fault: func(operation, key string) error {
		if s.fault == nil {
			return nil
		}
		return s.fault(operation, key)
	}}
	s.togetherStore = &togetherStore{manyStore: manyStore{faulty}}
	o.Policy, o.Limit, o.Clients = "p", "l", 1000
	if o.StoreTimeout == 0 {
		o.StoreTimeout = -1
	}
	l, err := subwindow.New(s, w, o)
	require.NoError(t, err)
	// What nobody asks for is repaid a second after that, and not in between.
	owe(t, l, limitertest.ErrUnsent, counters.Request{Client: "another", Cost: 1, Limit: 10, Now: at("12:00:00")})
	l.Flush()
	return s, l
}

// owe has l admit the requests without its store, which failed with err.
func owe(t *testing.T, l *subwindow.Limiter, err error, requests ...counters.Request) {
	t.Helper()
	for _, r := range requests {
		d, err := l.TakeLocal(r, err)
		require.NoError(t, err)
		require.True(t, d.Allowed)
	}
}

// repayBy is a context for requests at now, whose slots others may have settled
// when those are over.
func repayBy(now time.Time) context.Context { return &counters.Deadline{At: now} }

// The debts of many clients are repaid by the exchanges that count their
// requests, before those, and as Take would.
func TestManyRepayTogether(t *testing.T) {
	t.Parallel()
	const clients, limit = 50, 20
	for _, outage := range []error{limitertest.ErrUnsent, limitertest.ErrUnheard} {
		for name, w := range minuteWindows(t) {
			synctest.Test(t, func(t *testing.T) {
				store, l := newRepaid(t, w, counters.Options{ClockSkew: sameClock})
				_, alone := newRepaid(t, w, counters.Options{ClockSkew: sameClock})
				store.sizes = nil
				for round, moments := range [][]string{
					{"12:00:01", "12:00:02", "12:00:02.1"}, {"12:00:14.9", "12:00:15.1", "12:00:15.2"}, {"12:00:20", "12:00:59.9", "12:01:00.1"},
				} {
					for _, moment := range moments[:2] {
						owe(t, l, outage, requests(clients, at(moment), limit)...)
						owe(t, alone, outage, requests(clients, at(moment), limit)...)
					}
					now := at(moments[2])
					asked := requests(clients, now, limit)
					for i, taken := range limitertest.TakeMany(repayBy(now), l, asked) {
						want, err := alone.Take(repayBy(now), asked[i])
						require.NoError(t, err)
						if outage == limitertest.ErrUnheard && !taken.Done { // what may have been counted is lost
							taken.Decision, taken.Err = l.Take(repayBy(now), asked[i])
							taken.Done = true
						}
						require.Equal(t, counters.Taken{Decision: want, Done: true}, taken, "%s, %v: client %d in round %d", name, outage, i, round)
					}
				}
				assert.Zero(t, l.Owing(), "nobody has to be asked for alone")
				if outage == limitertest.ErrUnsent {
					assert.Equal(t, []int{3 * clients, 3 * clients, 3 * clients}, store.sizes, "%s: read, repaid, and asked for", name)
				}
			})
		}
	}
}

// Debts of slots that only late requests look at are repaid too, and those that
// time has passed over aren't.
func TestManyRepayTheOldestSlots(t *testing.T) {
	t.Parallel()
	w := newWindow(t, time.Minute, 4, false)
	store, l := newRepaid(t, w, counters.Options{ClockSkew: 50 * time.Millisecond, StoreTimeout: time.Second})
	for _, moment := range []string{"11:58:59", "12:00:01", "12:00:14", "12:00:16", "12:01:14.9"} {
		owe(t, l, limitertest.ErrUnsent, request(at(moment), 1, 100))
	}
	now := at("12:01:15.3")
	taken := limitertest.TakeMany(repayBy(now), l, []counters.Request{request(now, 1, 100)})
	require.True(t, taken[0].Done)
	require.NoError(t, taken[0].Err)
	for moment, want := range map[string]int64{"11:58:59": counters.Absent, "12:00:01": 2, "12:00:16": 1, "12:01:14": 1, "12:01:15": 1} {
		assert.Equal(t, want, used(t, store.inner, w, at(moment)), moment)
	}
}

// Who owes in very many slots repays it all, apart from others.
func TestWhoOwesVeryMuchRepaysApart(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		store, l := newRepaid(t, newWindow(t, 20*time.Second, 400, false), counters.Options{ClockSkew: sameClock})
		now := at("12:00:01")
		for i := range 129 {
			now = now.Add(50 * time.Millisecond)
			owe(t, l, limitertest.ErrUnsent, request(now, 1, 1000))
			if i == 127 {
				taken := limitertest.TakeMany(repayBy(now), l, []counters.Request{request(now, 1, 1000)})
				require.True(t, taken[0].Done)
				assert.EqualValues(t, 1000-129, taken[0].Remaining)
			}
		}
		for range 128 {
			now = now.Add(50 * time.Millisecond)
			owe(t, l, limitertest.ErrUnsent, request(now, 1, 1000))
		}
		asked := []counters.Request{request(now, 1, 1000)}
		store.exchanges = nil
		taken := limitertest.TakeMany(repayBy(now), l, asked)
		require.True(t, taken[0].Done)
		assert.EqualValues(t, 1000-129-129-1, taken[0].Remaining)
		assert.Len(t, store.exchanges, 1, "a look")
	})
}

// A reset ends what was admitted before it, however soon after it the debts are
// repaid, and nothing of what was admitted later.
func (by way) TestManyRepayNothingOfBeforeAReset(t *testing.T) {
	t.Parallel()
	const skew = 50 * time.Millisecond
	first := at("12:00:01.5")
	reset := first.Add(20 * time.Millisecond)
	for name, w := range minuteWindows(t) {
		for _, outage := range []error{limitertest.ErrUnsent, limitertest.ErrUnheard} {
			for _, others := range []string{"nobody", "the process", "another"} { // has counted in the slot
				for _, after := range []time.Duration{time.Millisecond, skew / 2, skew, 2 * skew, time.Second} {
					store, l := newRepaid(t, w, counters.Options{ClockSkew: skew})
					there := by.newLimiter(t, store.inner, w, skew)
					if others == "the process" {
						require.Equal(t, int64(8), limitertest.TakeMany(repayBy(first), l, []counters.Request{request(first, 2, 10)})[0].Remaining)
					}
					store.fault = func(string, string) error { return outage }
					owed := request(first, 5, 10)
					owe(t, l, limitertest.TakeMany(repayBy(first), l, []counters.Request{owed})[0].Err, owed)
					store.fault = nil
					require.NoError(t, there.Reset(t.Context(), "c", reset))
					left := int64(9)
					if others == "another" {
						require.True(t, take(t, there, reset.Add(time.Millisecond), 2, 10).Allowed)
						left -= 2
					}
					now := reset.Add(after)
					taken := limitertest.TakeAll(repayBy(now), l, []counters.Request{request(now, 1, 10)})
					require.NoError(t, taken[0].Err)
					assert.Equal(t, left, taken[0].Remaining, "%s, %v: %s, and %v after", name, outage, others, after)
				}
			}
		}
	}
}

// Others are told of what is repaid once, though the store has lost another slot
// by then, and nothing is owed any more after that.
func (by way) TestManyTellOthersOnce(t *testing.T) {
	t.Parallel()
	w := newWindow(t, time.Minute, 60, true)
	store, l := newRepaid(t, w, counters.Options{ClockSkew: sameClock})
	there := by.newLimiter(t, store.inner, w, sameClock)
	require.True(t, limitertest.TakeMany(repayBy(at("12:00:04")), l, []counters.Request{request(at("12:00:04"), 1, 20)})[0].Allowed)
	owe(t, l, limitertest.ErrUnsent, request(at("12:00:01"), 3, 20), request(at("12:00:04.1"), 2, 20))
	require.Equal(t, int64(18), take(t, there, at("12:00:04.2"), 1, 20).Remaining)
	lost := key(w, at("12:00:04"))
	require.NoError(t, store.inner.Delete(t.Context(), []string{lost}))
	now := at("12:00:04.3")
	store.inner.additions = nil
	taken := limitertest.TakeAll(repayBy(now), l, []counters.Request{request(now, 1, 20)})
	require.NoError(t, taken[0].Err)
	assert.Equal(t, int64(13), taken[0].Remaining, "nobody who knows of the other's asks")
	assert.Equal(t, 2, store.inner.told(), "of the loss, and of what is repaid")
	now = at("12:00:05.3")
	assert.Equal(t, int64(12), take(t, there, now, 1, 20).Remaining)
	store.exchanges = nil
	assert.Equal(t, int64(11), limitertest.TakeMany(repayBy(now), l, []counters.Request{request(now, 1, 20)})[0].Remaining)
	assert.Len(t, store.exchanges, 1, "nothing is owed")
}

// However a repayment fails, in whichever step, the debts stand until they are
// counted, and are counted once.
func TestManyRepayWhatFailsLater(t *testing.T) {
	t.Parallel()
	w := newWindow(t, time.Minute, 60, true)
	generation := counters.GenerationKey(counters.CounterNamespace("weir", "p", "l", w.Width).Client("c"))
	old, current := at("12:00:01"), at("12:00:04")
	for name, fails := range map[string]func(operation, key string) bool{
		"reading":                func(operation, key string) bool { return operation == "read" && key == generation },
		"the old slot's debt":    func(operation, k string) bool { return operation == "add" && k == key(w, old) },
		"the current one's debt": func(operation, k string) bool { return operation == "add" && k == key(w, current) },
		"all additions":          func(operation, key string) bool { return operation == "add" },
	} {
		for _, failure := range []error{limitertest.ErrUnsent, limitertest.ErrUnheard, limitertest.ErrUnanswered, counters.ErrNotAdded} {
			t.Run(fmt.Sprint(name, ": ", failure), func(t *testing.T) {
				t.Parallel()
				store, l := newRepaid(t, w, counters.Options{ClockSkew: sameClock})
				require.True(t, limitertest.TakeMany(repayBy(current), l, []counters.Request{request(current, 1, 20)})[0].Allowed)
				owe(t, l, limitertest.ErrUnsent, request(old, 3, 20), request(current, 2, 20))
				store.fault = func(operation, key string) error {
					if !fails(operation, key) {
						return nil
					}
					if errors.Is(failure, limitertest.ErrUnanswered) && operation == "add" {
						for _, additions := range store.exchanges {
							for _, a := range additions {
								if a.Key == key {
									_, err := store.inner.Add(t.Context(), a)
									require.NoError(t, err)
								}
							}
						}
					}
					return failure
				}
				store.exchanges = nil
				now := at("12:00:04.5")
				asked := request(now, 1, 20)
				taken := limitertest.TakeMany(repayBy(now), l, []counters.Request{asked})
				if errors.Is(failure, counters.ErrNotAdded) {
					require.Equal(t, counters.Taken{}, taken[0], "it is left to Take")
				} else {
					require.ErrorIs(t, taken[0].Err, counters.ErrNotSent, "the request")
				}
				d, known := l.Recall(asked)
				require.True(t, known)
				assert.EqualValues(t, 20-6, d.Remaining, "it still counts here")

				store.fault = nil
				others := int64(0)
				if !errors.Is(failure, counters.ErrTimeout) { // else theirs might be what was counted
					others = 2
					for _, slot := range []time.Time{old, current} {
						_, err := store.inner.Add(t.Context(), counters.Addition{Key: key(w, slot), Delta: others, TTL: time.Minute})
						require.NoError(t, err)
					}
				}
				now = at("12:00:04.6")
				taken = limitertest.TakeMany(repayBy(now), l, []counters.Request{request(now, 1, 20)})
				require.NoError(t, taken[0].Err)
				assert.EqualValues(t, 20-7-2*others, taken[0].Remaining)
				assert.EqualValues(t, 3+others, used(t, store.inner, w, old))
				assert.EqualValues(t, 4+others, used(t, store.inner, w, current))
				store.exchanges = nil
				limitertest.TakeMany(repayBy(now), l, []counters.Request{request(now, 1, 20)})
				assert.Len(t, store.exchanges, 1, "nothing is owed")
			})
		}
	}
}

// What the store loses while debts are repaid takes none of them along.
func TestALossWhileManyRepayTakesNoDebtAlong(t *testing.T) {
	t.Parallel()
	w := newWindow(t, time.Minute, 60, true)
	for _, outage := range []error{limitertest.ErrUnsent, limitertest.ErrUnheard} {
		for lost := range 3 { // before that exchange
			t.Run(fmt.Sprint(outage, ", ", lost), func(t *testing.T) {
				t.Parallel()
				store, l := newRepaid(t, w, counters.Options{ClockSkew: sameClock})
				first := at("12:00:01")
				require.True(t, limitertest.TakeMany(repayBy(first), l, []counters.Request{request(first, 1, 20)})[0].Allowed)
				before := []counters.Request{request(first, 3, 20), request(at("12:00:04"), 2, 20)}
				store.fault = func(string, string) error { return outage }
				for _, r := range before { // the store is asked, so that it is known what it had
					taken := limitertest.TakeMany(repayBy(r.Now), l, []counters.Request{r})
					require.Error(t, taken[0].Err)
					owe(t, l, taken[0].Err, r)
				}
				store.fault, store.exchanges = nil, nil
				store.ask = func([]counters.Addition) {
					if len(store.exchanges) == lost+1 {
						keys := []string{key(w, first), key(w, at("12:00:04"))}
						require.NoError(t, store.inner.Delete(t.Context(), keys))
					}
				}
				now := at("12:00:04.6")
				taken := limitertest.TakeAll(repayBy(now), l, []counters.Request{request(now, 1, 20)})
				require.NoError(t, taken[0].Err)
				assert.EqualValues(t, 20-7, taken[0].Remaining)
				assert.EqualValues(t, 4, used(t, store.inner, w, first))
				assert.EqualValues(t, 3, used(t, store.inner, w, now))
			})
		}
	}
}

// A store that panics while debts are repaid ends the settlement once: what it has
// counted is all that may count twice.
func TestAPanicWhileManyRepay(t *testing.T) {
	t.Parallel()
	w := newWindow(t, time.Minute, 60, true)
	for exchange := range 3 {
		for _, counts := range []bool{false, true} {
			t.Run(fmt.Sprint(exchange, counts), func(t *testing.T) {
				t.Parallel()
				store, l := newRepaid(t, w, counters.Options{ClockSkew: sameClock})
				first, now := at("12:00:01"), at("12:00:01.5")
				require.True(t, limitertest.TakeMany(repayBy(first), l, []counters.Request{request(first, 1, 20)})[0].Allowed)
				owe(t, l, limitertest.ErrUnsent, request(first, 3, 20))
				store.exchanges = nil
				counted := int64(0)
				store.ask = func(additions []counters.Addition) {
					if len(store.exchanges) == exchange+1 {
						if counts && additions[0].Key != "" {
							_, err := store.inner.Add(t.Context(), additions[0])
							require.NoError(t, err)
							counted = additions[0].Delta // nobody has heard of it
						}
						panic("a bug")
					}
				}
				assert.PanicsWithValue(t, "a bug", func() { limitertest.TakeMany(repayBy(now), l, []counters.Request{request(now, 1, 20)}) })
				store.ask = nil
				taken := limitertest.TakeAll(repayBy(now), l, []counters.Request{request(now, 1, 20)})
				require.NoError(t, taken[0].Err)
				assert.EqualValues(t, 20-5-counted, taken[0].Remaining)
				assert.EqualValues(t, 5+counted, used(t, store.inner, w, first))
			})
		}
	}
}

// fill has another instance take what is left of the limits, which l doesn't
// learn.
func (by way) fill(t *testing.T, store *repaidStore, w subwindow.Window, asked []counters.Request, cost int64) {
	t.Helper()
	there := by.newLimiterWith(t, store.inner, w, counters.Options{ClockSkew: sameClock, Clients: 1000})
	for _, r := range asked {
		r.Cost = cost
		d, err := there.Limiter.Take(t.Context(), r)
		require.NoError(t, err)
		require.True(t, d.Allowed)
	}
}

// What was counted of many clients and then denied is given back together, as
// Take would.
func (by way) TestManyAreGivenBackTogether(t *testing.T) {
	t.Parallel()
	const clients, limit = 50, 5
	for name, w := range minuteWindows(t) {
		for _, moment := range []string{"12:00:07.1", "12:00:14.99"} { // others may settle the slot after the latter
			store, l := newRepaid(t, w, counters.Options{ClockSkew: sameClock})
			inTurn, alone := newRepaid(t, w, counters.Options{ClockSkew: sameClock})
			now := at(moment)
			asked := requests(clients, now, limit)
			limitertest.TakeMany(repayBy(now), l, asked)
			for _, r := range asked {
				_, err := alone.Take(repayBy(now), r)
				require.NoError(t, err)
			}
			by.fill(t, store, w, asked, limit-1)
			by.fill(t, inTurn, w, asked, limit-1)
			store.sizes, store.inner.additions, inTurn.inner.additions = nil, nil, nil
			end := now.Add(20 * time.Millisecond)
			for i, taken := range limitertest.TakeMany(repayBy(end), l, asked) {
				want, err := alone.Take(repayBy(end), asked[i])
				require.NoError(t, err)
				require.False(t, want.Allowed)
				assert.Equal(t, counters.Taken{Decision: want, Done: true}, taken, "%s: client %d", name, i)
			}
			assert.Equal(t, []int{2 * clients}, store.sizes, "%s: counted and given back", name)
			told := 0
			if name != "fixed" && counters.Calendar(now, w.Width).Number != counters.Calendar(end, w.Width).Number {
				told = clients
			}
			assert.Equal(t, []int{told, told}, []int{store.inner.told(), inTurn.inner.told()}, name)
			namespace := counters.CounterNamespace("weir", "p", "l", w.Width)
			for _, r := range asked {
				counted := []int64{0}
				counter := counters.CounterKey(namespace.Client(r.Client), counters.Calendar(now, w.Width).Number)
				require.NoError(t, store.inner.Read(t.Context(), []string{counter}, counted))
				assert.EqualValues(t, limit, counted[0], name)
			}
		}
	}
}

// A client that is denied is in use until what was counted is given back.
func (by way) TestManyAreHeldUntilTheyAreGivenBack(t *testing.T) {
	t.Parallel()
	w := newWindow(t, time.Minute, 10, false)
	store, l := newRepaid(t, w, counters.Options{ClockSkew: sameClock})
	asked := requests(1, at("12:00:01"), 5)
	limitertest.TakeMany(t.Context(), l, asked)
	by.fill(t, store, w, asked, 4)
	asks := 0
	store.ask = func([]counters.Addition) {
		asks++
		store.ask = func([]counters.Addition) {
			asks++
			assert.Equal(t, counters.Taken{}, limitertest.TakeMany(t.Context(), l, asked)[0])
		}
	}
	taken := limitertest.TakeMany(t.Context(), l, asked)
	require.True(t, taken[0].Done)
	assert.False(t, taken[0].Allowed)
	assert.Equal(t, 2, asks)
	store.ask = nil
	assert.True(t, limitertest.TakeMany(t.Context(), l, asked)[0].Done)
}

// However giving back fails, it is done once, or it is known that it may not have
// been; the denial stands.
func (by way) TestManyAreGivenBackLater(t *testing.T) {
	t.Parallel()
	for _, failure := range []error{limitertest.ErrUnsent, limitertest.ErrUnheard, counters.ErrNotAdded} {
		t.Run(failure.Error(), func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				w := newWindow(t, time.Minute, 10, false)
				failed := 0
				store, l := newRepaid(t, w, counters.Options{ClockSkew: sameClock, RefundFailed: func() { failed++ }})
				now := at("12:00:01")
				asked := []counters.Request{request(now, 1, 5)}
				limitertest.TakeMany(t.Context(), l, asked)
				by.fill(t, store, w, asked, 4)
				store.inner.subtracts = func() error {
					store.inner.subtracts = nil
					return failure
				}
				taken := limitertest.TakeMany(t.Context(), l, asked)
				require.True(t, taken[0].Done)
				require.NoError(t, taken[0].Err)
				require.False(t, taken[0].Allowed)
				l.Flush()
				if !errors.Is(failure, counters.ErrTimeout) {
					assert.EqualValues(t, 5, used(t, store.inner, w, now))
					assert.Zero(t, failed)
				} else {
					assert.EqualValues(t, 6, used(t, store.inner, w, now), "nobody knows")
					assert.Equal(t, 1, failed)
				}
			})
		})
	}
}

// The store is told within a moment of what is given back soon, of many clients together,
// however often of each; also when it answers again only later.
func TestWhatIsRefundedSoon(t *testing.T) {
	t.Parallel()
	const clients = 50
	for name, w := range minuteWindows(t) {
		for _, broken := range []string{"", "when asked", "before"} {
			synctest.Test(t, func(t *testing.T) {
				store, l := newRepaid(t, w, counters.Options{ClockSkew: sameClock})
				now := at("12:00:01")
				all := requests(clients, now, 20)
				for i := range all {
					all[i].Cost = 10
				}
				taken := limitertest.TakeMany(t.Context(), l, all)
				inUse := func() (n int64) {
					for _, r := range all {
						other, err := subwindow.New(store.inner, w, counters.Options{Policy: "p", Limit: "l", ClockSkew: sameClock})
						require.NoError(t, err)
						r.Cost = 0
						d, err := other.Peek(t.Context(), r)
						require.NoError(t, err)
						n += r.Limit - d.Remaining
					}
					return n
				}
				store.sizes = nil
				var fails atomic.Bool
				store.fault = func(string, string) error {
					if fails.Load() {
						return limitertest.ErrUnsent
					}
					return nil
				}
				fails.Store(broken == "when asked")
				store.unsent.Store(broken == "before")
				for _, cost := range []int64{3, 4} {
					for i, r := range all {
						r.Cost = cost
						require.NoError(t, l.RefundSoon(t.Context(), r, taken[i].Decision, nil))
						d, known := l.Recall(counters.Request{Client: r.Client, Limit: r.Limit, Now: now})
						require.True(t, known)
						require.Equal(t, 10+(cost-3)*4+3, d.Remaining, "it is known here at once")
					}
				}
				require.EqualValues(t, 10*clients, inUse())
				time.Sleep(25 * time.Millisecond)
				synctest.Wait()
				if broken == "when asked" {
					require.EqualValues(t, 10*clients, inUse())
				}
				if broken != "" {
					fails.Store(false)
					store.unsent.Store(false)
					time.Sleep(2 * time.Second)
					synctest.Wait()
				} else {
					assert.Equal(t, []int{2 * clients}, store.sizes, "%s: reset or not, and subtracted", name)
				}
				require.EqualValues(t, 3*clients, inUse(), name)
				assert.Zero(t, l.Owing())
			})
		}
	}
}

// A check counts after what is refunded soon, and Flush doesn't leave it behind.
func TestWhatIsRefundedSoonIsToldBefore(t *testing.T) {
	t.Parallel()
	for name, w := range minuteWindows(t) {
		synctest.Test(t, func(t *testing.T) {
			store, l := newRepaid(t, w, counters.Options{ClockSkew: sameClock})
			now := at("12:00:01")
			other, err := subwindow.New(store.inner, w, counters.Options{Policy: "p", Limit: "l", ClockSkew: sameClock})
			require.NoError(t, err)
			for _, before := range []func(){
				func() {
					d, err := l.Take(t.Context(), request(now, 20, 20))
					require.NoError(t, err)
					require.True(t, d.Allowed, name)
				},
				func() {
					l.Flush()
					d, err := other.Take(t.Context(), request(now, 20, 20))
					require.NoError(t, err)
					require.True(t, d.Allowed, name)
				},
			} {
				require.NoError(t, other.Reset(t.Context(), "c", now))
				now = now.Add(2 * time.Minute)
				d, err := l.Take(t.Context(), request(now, 20, 20))
				require.NoError(t, err)
				require.True(t, d.Allowed)
				require.NoError(t, l.RefundSoon(t.Context(), request(now, 20, 20), d, nil))
				before()
				time.Sleep(time.Second)
				synctest.Wait()
				d, err = other.Peek(t.Context(), request(now, 1, 20))
				require.NoError(t, err)
				require.Zero(t, d.Remaining, "%s: it is given back once", name)
			}
		})
	}
}

// A client that is reset elsewhere before the store is told is given nothing back.
func TestAResetBeforeWhatIsRefundedSoon(t *testing.T) {
	t.Parallel()
	for name, w := range minuteWindows(t) {
		synctest.Test(t, func(t *testing.T) {
			store, l := newRepaid(t, w, counters.Options{ClockSkew: sameClock})
			other, err := subwindow.New(store.inner, w, counters.Options{Policy: "p", Limit: "l", ClockSkew: sameClock})
			require.NoError(t, err)
			d, err := l.Take(t.Context(), request(at("12:00:01"), 20, 20))
			require.NoError(t, err)
			require.NoError(t, l.RefundSoon(t.Context(), request(at("12:00:01"), 10, 20), d, nil))
			require.NoError(t, other.Reset(t.Context(), "c", at("12:00:01.1")))
			again, err := other.Take(t.Context(), request(at("12:00:01.2"), 15, 20))
			require.NoError(t, err)
			require.True(t, again.Allowed)
			l.Flush()
			again, err = other.Peek(t.Context(), request(at("12:00:01.3"), 1, 20))
			require.NoError(t, err)
			require.EqualValues(t, 5, again.Remaining, name)
			assert.Zero(t, l.Owing(), name)
		})
	}
}
