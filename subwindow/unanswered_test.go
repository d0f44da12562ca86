package subwindow_test

import (
	"context"
	"fmt"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"weir/counters"
	"weir/counters/memory"
	"weir/subwindow"
)

// Two flights of one slot: the first is done and told done after the second was
// sent. The second was not done, and nobody tells. What the first counted is taken
// for the second's.
func (by way) TestALateAdditionIsNotTakenForTheNext(t *testing.T) {
	for name, w := range minuteWindows(t) {
		for _, when := range []string{"told before look", "applied before look, told after"} {
			store := &lateStore{Store: memory.New(nil)}
			l := by.newLimiterWith(t, store, w, counters.Options{ClockSkew: sameClock, Clients: 10, StoreTimeout: time.Second})
			now := at("12:00:01")
			const limit = 20
			admitted := int64(1)
			require.True(t, take(t, l, now, 1, limit).Allowed)
			alone := func(cost int64) {
				store.late.Store(true)
				require.True(t, takeAnyway(t, l, request(now, cost, limit)))
				store.late.Store(false)
				admitted += cost
			}
			alone(5)
			alone(5) // looks, then counts
			require.Len(t, store.tell, 2)
			if when == "told before look" {
				done(store.tell[0])
				store.tell[1](false, counters.ErrUnavailable)
			} else {
				store.tell[1](false, counters.ErrUnavailable)
				_, _ = store.Add(t.Context(), counters.Addition{Key: key(w, now), Delta: 5, TTL: time.Minute})
				require.True(t, take(t, l, now, 1, limit).Allowed)
				admitted++
				store.tell[0](false, nil)
			}
			l.Flush()
			for range 40 {
				if takeAnyway(t, l, request(now, 1, limit)) {
					admitted++
				}
				now = now.Add(20 * time.Millisecond)
			}
			l.Flush()
			counts := []int64{0}
			require.NoError(t, store.Read(t.Context(), []string{key(w, now)}, counts))
			assert.Equal(t, int64(limit), admitted, "admitted: %s, %s, store has %d, owing %d", name, when, counts[0], l.Owing())
		}
	}
}

// A countedStore counts additions and reads, and fails while it is told to.
type countedStore struct {
	counters.Store
	fail atomic.Bool
	n    atomic.Int64
}

func (s *countedStore) Read(ctx context.Context, k []string, to []int64) error {
	s.n.Add(1)
	if s.fail.Load() {
		return fmt.Errorf("%w: no", counters.ErrNotSent)
	}
	return s.Store.Read(ctx, k, to)
}

func (s *countedStore) Add(ctx context.Context, a counters.Addition) (int64, error) {
	s.n.Add(1)
	if s.fail.Load() {
		return 0, fmt.Errorf("%w: no", counters.ErrNotSent)
	}
	return s.Store.Add(ctx, a)
}

// What is due of a newer slot than the call's, which the store has lost.
func (by way) TestWhatIsDueOfALostSlotThatIsNewer(t *testing.T) {
	fixed, err := subwindow.NewFixedWindow(time.Minute)
	require.NoError(t, err)
	for name, w := range map[string]subwindow.Window{"fixed": fixed, "sliding": newWindow(t, time.Minute, 60, false)} {
		store := &countedStore{Store: memory.New(nil)}
		l := by.newLimiterWith(t, store, w, counters.Options{ClockSkew: 50 * time.Millisecond, Clients: 10, StoreTimeout: 50 * time.Millisecond})
		now := at("12:01:00.05")
		require.True(t, take(t, l, now, 1, 100).Allowed)
		store.fail.Store(true)
		require.True(t, takeAnyway(t, l, request(now, 1, 100)))
		store.fail.Store(false)
		require.NoError(t, store.Delete(t.Context(), []string{key(w, now)}))
		store.n.Store(0)
		old := now.Add(-60 * time.Millisecond)
		if name == "sliding" {
			old = now.Add(-2 * time.Second)
		}
		_, err = l.Take(t.Context(), request(old, 1, 100))
		assert.Less(t, store.n.Load(), int64(10), name)
		assert.NoError(t, err)
	}
}

// What was admitted alone in a window that is over, when the store has lost that, matters to
// nobody any more: it isn't in the way of the next check.
func (by way) TestWhatIsDueOfALostSlotThatIsOver(t *testing.T) {
	t.Parallel()
	for name, w := range minuteWindows(t) {
		store := &countedStore{Store: memory.New(nil)}
		l := by.newLimiterWith(t, store, w, counters.Options{ClockSkew: 50 * time.Millisecond, Clients: 10, StoreTimeout: 50 * time.Millisecond})
		now := at("12:00:00")
		require.True(t, take(t, l, now, 1, 100).Allowed, name)
		store.fail.Store(true)
		require.True(t, takeAnyway(t, l, request(now, 1, 100)), name)
		store.fail.Store(false)
		require.NoError(t, store.Delete(t.Context(), []string{key(w, now)}))
		store.n.Store(0)
		over := map[string]string{"fixed": "12:01:00", "weighted": "12:01:15", "capped": "12:01:06", "strict": "12:01:02"}[name]
		_, err := l.Take(t.Context(), request(at(over), 1, 100))
		assert.NoError(t, err, name)
		assert.Less(t, store.n.Load(), int64(10), name)
		l.Flush()
		assert.Zero(t, l.Owing(), name)
	}
}

// What was admitted alone, is done after the slot was read and is told done, is
// remembered: the next who decides alone knows of it.
func (by way) TestWhatIsCountedLateIsRemembered(t *testing.T) {
	for name, w := range minuteWindows(t) {
		inner := memory.New(nil)
		store := &lateStore{Store: inner}
		broken := &countedStore{Store: store}
		l := by.newLimiterWith(t, broken, w, counters.Options{ClockSkew: sameClock, Clients: 10, StoreTimeout: time.Second})
		now := at("12:00:01")
		const limit = 10
		require.True(t, take(t, l, now, 1, limit).Allowed)
		store.late.Store(true)
		require.True(t, takeAnyway(t, l, request(now, 5, limit))) // alone
		store.late.Store(false)
		admitted := int64(6)
		require.True(t, take(t, l, now, 1, limit).Allowed) // looks, then counts
		admitted++
		done(store.tell[0]) // only now
		l.Flush()
		require.Zero(t, l.Owing())
		require.EqualValues(t, 7, used(t, inner, w, now))
		broken.fail.Store(true)
		r := request(now, 1, limit)
		d, _ := l.Recall(r)
		assert.EqualValues(t, limit-7, d.Remaining, name)
		for range 20 {
			if takeAnyway(t, l, r) {
				admitted++
			}
		}
		assert.LessOrEqual(t, admitted, int64(limit), name)
	}
}

// Of two late additions the first is in the store when all is read, and the second
// comes later and is told: the next who decides alone knows of both.
func (by way) TestALateAdditionComesAfterTheSlotWasRead(t *testing.T) {
	for name, w := range minuteWindows(t) {
		late := &lateStore{Store: memory.New(nil)}
		store := &countedStore{Store: late}
		l := by.newLimiterWith(t, store, w, counters.Options{ClockSkew: sameClock, Clients: 10, StoreTimeout: time.Second})
		now := at("12:00:01")
		const limit = 12
		require.True(t, take(t, l, now, 7, limit).Allowed, name)
		late.late.Store(true)
		require.True(t, takeAnyway(t, l, request(now, 1, limit)), name) // alone
		_, err := late.Store.Add(t.Context(), counters.Addition{Key: key(w, now), Delta: 1, TTL: time.Minute})
		require.NoError(t, err)
		require.True(t, takeAnyway(t, l, request(now, 4, limit)), name) // reads the 1, and is late too
		late.late.Store(false)
		done(late.tell[1])
		store.fail.Store(true)
		assert.False(t, takeAnyway(t, l, request(now, 1, limit)), name)
		assert.False(t, takeAnyway(t, l, request(now, 1, limit)), name)
	}
}

// What was taken for counted, as others have counted as much, and is refunded then,
// isn't given back before the store tells: it would be theirs.
func (by way) TestWhatOthersHaveCountedIsNotGivenBack(t *testing.T) {
	for name, w := range minuteWindows(t) {
		inner := memory.New(nil)
		late := &lateStore{Store: inner}
		store := &countedStore{Store: late}
		o := counters.Options{ClockSkew: sameClock, Clients: 10, StoreTimeout: time.Second}
		l, others := by.newLimiterWith(t, store, w, o), by.newLimiterWith(t, inner, w, o)
		now := at("12:00:01")
		const limit = 1000
		store.fail.Store(true)
		_, err := l.Take(t.Context(), request(now, 30, limit))
		require.Error(t, err)
		taken, err := l.TakeLocal(request(now, 30, limit), err)
		require.NoError(t, err)
		store.fail.Store(false)
		late.late.Store(true)
		require.True(t, takeAnyway(t, l, request(now, 10, limit)), name) // the 30 are late
		late.late.Store(false)
		require.True(t, take(t, others, now, 40, limit).Allowed, name)
		require.True(t, take(t, l, now, 1, limit).Allowed, name) // reads the 40, and tells the 10
		require.NoError(t, l.Refund(t.Context(), request(now, 30, limit), taken))
		require.True(t, take(t, others, now, 10, limit).Allowed, name)
		undone(late.tell[0])
		l.Flush()
		assert.Zero(t, l.Owing(), name)
		assert.EqualValues(t, 61, used(t, inner, w, now), name)
	}
}

// A check is counted where something was lost, and what it is to be judged by can't
// be read: it is refused. What it has counted is given back, and no more than that.
func (by way) TestWhatIsCountedAndCannotBeJudgedIsGivenBack(t *testing.T) {
	for name, w := range minuteWindows(t) {
		var down atomic.Bool
		inner := memory.New(nil)
		store := &faultyStore{Store: inner, fault: func(operation, _ string) error {
			if operation == "read" && down.Load() {
				return counters.ErrNotSent
			}
			return nil
		}}
		l := by.newLimiterWith(t, store, w, counters.Options{ClockSkew: sameClock, Clients: 10})
		now := at("12:00:01")
		const limit = 10
		require.True(t, take(t, l, now, 6, limit).Allowed, name)
		require.NoError(t, inner.Delete(t.Context(), []string{key(w, now)}))
		_, err := inner.Add(t.Context(), counters.Addition{Key: key(w, now), Delta: 1, TTL: 1e10}) // by another process
		require.NoError(t, err)
		down.Store(true)
		_, err = l.Take(t.Context(), request(now, 2, limit))
		require.ErrorIs(t, err, counters.ErrNotSent, name)
		admitted := int64(6)
		for range 10 {
			if d, err := l.TakeLocal(request(now, 1, limit), err); assert.NoError(t, err) && d.Allowed {
				admitted++
			}
		}
		assert.EqualValues(t, limit, admitted, name)
		down.Store(false)
		l.Flush()
		assert.Zero(t, l.Owing(), name)
		assert.EqualValues(t, limit, used(t, inner, w, now), name)
	}
}

// A call is counted again after its counter was found to be lost, while its caller
// leaves.
func (by way) TestACallerLeavesWhileItsSlotIsCountedAgain(t *testing.T) {
	synctest.Test(t, by.testACallerLeavesWhileItsSlotIsCountedAgain)
}

func (by way) testACallerLeavesWhileItsSlotIsCountedAgain(t *testing.T) {
	w, err := subwindow.NewFixedWindow(time.Hour)
	require.NoError(t, err)
	inner := memory.New(nil)
	var slow atomic.Bool
	var adds atomic.Int64
	store := &faultyStore{Store: inner}
	store.fault = func(operation, key string) error {
		if !slow.Load() {
			return nil
		}
		time.Sleep(30 * time.Millisecond)
		if operation == "add" && adds.Add(1) == 2 {
			return counters.ErrLost
		}
		return nil
	}
	l := by.newLimiterWith(t, store, w, counters.Options{ClockSkew: sameClock, Clients: 100, StoreTimeout: time.Second})
	now := time.Now()
	r := func(cost int64) counters.Request {
		return counters.Request{Client: "c", Cost: cost, Limit: 100, Now: now}
	}
	_, err = l.Take(t.Context(), r(1))
	require.NoError(t, err)
	slow.Store(true)
	var callers sync.WaitGroup
	begin := time.Now()
	for _, timeout := range []time.Duration{time.Second, 105 * time.Millisecond, time.Second} {
		callers.Go(func() {
			if _, err := l.Limiter.Take(&counters.Deadline{At: begin.Add(timeout)}, r(1)); err != nil {
				_, _ = l.TakeLocal(r(1), err)
			}
		})
		time.Sleep(5 * time.Millisecond)
	}
	callers.Wait()
	l.Flush()
}

// Of two instances one is told now and then that the store is out of memory, and then
// decides alone. What it admits it has counted before its next check: together they
// admit no more than the limit, or one more while that isn't counted yet.
func TestWhatTheStoreRefusesIsCountedByTheNext(t *testing.T) {
	t.Parallel()
	for _, test := range []struct {
		name  string
		more  int64
		fails func(adds int) bool
	}{
		{"the first two", 0, func(n int) bool { return n <= 2 }},
		{"every third", 1, func(n int) bool { return n%3 == 0 }},
	} {
		for _, limit := range []int64{5, 20} {
			for _, slots := range []int{1, 10} {
				inner := memory.New(nil)
				adds := 0
				store := &faultyStore{Store: inner, fault: func(operation, _ string) error {
					if operation != "add" {
						return nil
					}
					if adds++; !test.fails(adds) {
						return nil
					}
					return fmt.Errorf("%w, %w: SERVER_ERROR out of memory", counters.ErrUnavailable, counters.ErrRefused)
				}}
				open := func(s counters.Store) *subwindow.Limiter {
					l, err := subwindow.New(s, newWindow(t, time.Minute, slots, false), counters.Options{Policy: "p", Limit: "l", StoreTimeout: -1})
					require.NoError(t, err)
					return l
				}
				a, b := open(store), open(inner)
				now, admitted := at("12:00:01"), int64(0)
				for i := range 4 * limit {
					now = now.Add(time.Millisecond)
					l, r := a, counters.Request{Client: "c", Cost: 1, Limit: limit, Now: now}
					if i%2 == 1 {
						l = b
					}
					d, err := l.Take(t.Context(), r)
					if err != nil {
						require.ErrorIs(t, err, counters.ErrRefused)
						d, err = l.TakeLocal(r, err)
						require.NoError(t, err)
					}
					if d.Allowed {
						admitted++
					}
				}
				assert.LessOrEqual(t, admitted, limit+test.more, "%s, limit %d, %d slots", test.name, limit, slots)
			}
		}
	}
}

// The flight of a follower, which leaves while the leader only refunds, isn't used
// again: what it admits alone can be refunded.
func (by way) TestARefundIsNotForgottenAsItsFlightIsUsedAgain(t *testing.T) {
	t.Parallel()
	synctest.Test(t, by.testARefundIsNotForgottenAsItsFlightIsUsedAgain)
}

func (by way) testARefundIsNotForgottenAsItsFlightIsUsedAgain(t *testing.T) {
	w, err := subwindow.NewFixedWindow(time.Hour)
	require.NoError(t, err)
	inner := memory.New(nil)
	var mu sync.Mutex
	slow := time.Duration(0)
	store := &faultyStore{Store: inner, fault: func(operation, key string) error {
		mu.Lock()
		d := slow
		mu.Unlock()
		time.Sleep(d)
		return nil
	}}
	failed := 0
	l := by.newLimiterWith(t, store, w, counters.Options{ClockSkew: sameClock, Clients: 100, StoreTimeout: time.Second, RefundFailed: func() { failed++ }})
	now := time.Now()
	r := func(client string, cost int64) counters.Request {
		return counters.Request{Client: client, Cost: cost, Limit: 100, Now: now}
	}
	taken, err := l.Take(t.Context(), r("c", 1))
	require.NoError(t, err)
	mu.Lock()
	slow = 60 * time.Millisecond
	mu.Unlock()
	var callers sync.WaitGroup
	begin := time.Now()
	callers.Go(func() { _, _ = l.Take(t.Context(), r("c", 1)) }) // leads until 60 ms
	time.Sleep(10 * time.Millisecond)
	var local counters.Decision
	callers.Go(func() { // follows
		d, err := l.Limiter.Take(&counters.Deadline{At: begin.Add(150 * time.Millisecond)}, r("c", 7))
		if !assert.Error(t, err) {
			return
		}
		d, err = l.TakeLocal(r("c", 7), err)
		assert.NoError(t, err)
		assert.True(t, d.Allowed)
		local = d
	})
	time.Sleep(5 * time.Millisecond)
	callers.Go(func() { _ = l.Refund(&counters.Deadline{At: begin.Add(900 * time.Millisecond)}, r("c", 1), taken) }) // leads both
	callers.Wait()
	mu.Lock()
	slow = 0
	mu.Unlock()
	l.Flush()
	require.EqualValues(t, 100-8, take(t, l, now, 0, 100).Remaining)
	for i := range 100 {
		_, err := l.Take(t.Context(), r("x"+string(rune(0x61+i)), 1))
		require.NoError(t, err)
	}
	require.NoError(t, l.Refund(t.Context(), r("c", 7), local))
	l.Flush()
	fresh := by.newLimiterWith(t, inner, w, counters.Options{ClockSkew: sameClock, Clients: 100})
	assert.EqualValues(t, 100-1, take(t, fresh, now, 0, 100).Remaining, "the 7 are given back (failed: %d)", failed)
}
