package subwindow_test

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"
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
	"weir/counters/memcachedtest"
	"weir/counters/memory"
	"weir/counters/racetest"
	"weir/subwindow"
)

// serverLosses are ways in which a server loses all counts.
var serverLosses = map[string]func(*memcachedtest.Server){
	"restart":   func(m *memcachedtest.Server) { m.Kill(); m.Restart() },
	"flush_all": func(m *memcachedtest.Server) { m.Do("flush_all", "OK") },
}

// forEachLoss runs a test on a server of its own for each window and loss.
func forEachLoss(t *testing.T, test func(t *testing.T, server *memcachedtest.Server, w subwindow.Window, lose func())) {
	for name, window := range minuteWindows(t) {
		for how, lose := range serverLosses {
			t.Run(name+" "+how, func(t *testing.T) {
				t.Parallel()
				server := memcachedtest.Start(t)
				test(t, server, window, func() { lose(server) })
			})
		}
	}
}

func (by way) newProcess(t *testing.T, server *memcachedtest.Server, w subwindow.Window) *limiter {
	return by.newLimiterWith(t, openMemcached(t, server.Addr), w, counters.Options{StoreTimeout: time.Second, Clients: 100})
}

// decide asks l, and the process alone if the store fails.
func decide(t *testing.T, l *limiter, now time.Time, limit int64) bool {
	ctx, cancel := context.WithTimeout(context.Background(), time.Second)
	defer cancel()
	r := request(now, 1, limit)
	d, err := l.Take(ctx, r)
	if err != nil {
		d, err = l.TakeLocal(r, err)
		assert.NoError(t, err)
	}
	return d.Allowed
}

// admits returns how many of n checks are admitted.
func admits(t *testing.T, l *limiter, now time.Time, limit int64, n int) (admitted int64) {
	for range n {
		if decide(t, l, now, limit) {
			admitted++
		}
	}
	return admitted
}

// A sharedClock tells concurrent checks the time. It stands still while a check
// from so many ticks ago is under way: one that is decided later than its store
// timeout finds others counted where it doesn't look.
type sharedClock struct {
	mu       sync.Mutex
	now      time.Time
	tickSize time.Duration
	most     int
	begun    []time.Time // of the checks under way, in their order
	ended    *sync.Cond
}

func newSharedClock(now time.Time, tick time.Duration, most int) *sharedClock {
	c := &sharedClock{now: now, tickSize: tick, most: most}
	c.ended = sync.NewCond(&c.mu)
	return c
}

// tick returns the time of a check, which is under way until done is called.
func (c *sharedClock) tick() (now time.Time, done func()) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for len(c.begun) > 0 && c.now.Sub(c.begun[0]) >= time.Duration(c.most)*c.tickSize {
		c.ended.Wait()
	}
	c.now = c.now.Add(c.tickSize)
	now = c.now
	c.begun = append(c.begun, now)
	return now, func() {
		c.mu.Lock()
		defer c.mu.Unlock()
		c.begun = slices.DeleteFunc(c.begun, now.Equal)
		c.ended.Broadcast()
	}
}

// A process whose server loses everything, again and again and at any moment,
// admits the limit and not one more.
func (by way) TestOneProcessAdmitsTheLimitWhateverItsServerLoses(t *testing.T) {
	t.Parallel()
	forEachLoss(t, func(t *testing.T, server *memcachedtest.Server, w subwindow.Window, lose func()) {
		const limit, callers, each = 200, 8, 60
		l := by.newProcess(t, server, w)
		var asked, admitted atomic.Int64
		clock := newSharedClock(at("12:00:01.5"), 10*time.Millisecond, 50)
		var wg sync.WaitGroup
		for range callers {
			wg.Go(func() {
				for range each {
					now, done := clock.tick()
					if decide(t, l, now, limit) {
						admitted.Add(1)
					}
					done()
					asked.Add(1)
				}
			})
		}
		for next := int64(20); next < limit; next += 20 {
			require.Eventually(t, func() bool { return admitted.Load() >= next || asked.Load() >= callers*each }, 10*time.Second, time.Millisecond)
			lose()
		}
		wg.Wait()
		now := at("12:00:07")
		for admitted.Load() < limit && now.Before(at("12:00:12")) { // what may have been counted is refused
			admitted.Add(admits(t, l, now, limit, limit))
			now = now.Add(time.Second)
		}
		assert.LessOrEqual(t, admitted.Load(), int64(limit))
		assert.GreaterOrEqual(t, admitted.Load(), int64(limit-callers*10), "at each loss, each caller's check may be counted twice")
	})
}

// Four processes that are asked in turn know of all but the last three
// admissions.
func (by way) TestFourProcessesPutBackWhatTheirServerLoses(t *testing.T) {
	racetest.Sequential(t)
	t.Parallel()
	forEachLoss(t, func(t *testing.T, server *memcachedtest.Server, w subwindow.Window, lose func()) {
		const limit = 100
		processes := make([]*limiter, 4)
		for i := range processes {
			processes[i] = by.newProcess(t, server, w)
		}
		now := at("12:00:01.5")
		admitted := int64(0)
		for i := range 3 * limit {
			if i == limit/2 {
				lose()
			}
			now = now.Add(10 * time.Millisecond)
			admitted += admits(t, processes[i%len(processes)], now, limit, 1)
		}
		assert.GreaterOrEqual(t, admitted, int64(limit-3))
		assert.LessOrEqual(t, admitted, int64(limit+3))
		assert.Zero(t, admits(t, by.newProcess(t, server, w), now, limit, 3))
	})
}

// Memcached evicts single keys, in any order.
func (by way) TestOneProcessAdmitsTheLimitWhateverIsEvicted(t *testing.T) {
	racetest.Sequential(t)
	t.Parallel()
	for name, w := range minuteWindows(t) {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			const limit = 60
			server := memcachedtest.Start(t)
			l := by.newProcess(t, server, w)
			now := at("12:00:01.5")
			require.Equal(t, int64(10), admits(t, l, now, limit, 10))
			ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
			defer cancel()
			require.NoError(t, l.Reset(ctx, "c", now))
			now = now.Add(5 * time.Second)
			admitted := int64(0)
			for i := range 3 * limit {
				now = now.Add(30 * time.Millisecond)
				admitted += admits(t, l, now, limit, 1)
				if keys := server.Keys(); len(keys) > 0 && i%3 == 0 {
					server.Do("delete "+keys[i/3%len(keys)], "DELETED", "NOT_FOUND")
				}
			}
			assert.Equal(t, int64(limit), admitted)
		})
	}
}

// A reset just before a loss holds where it was asked for, and one just after
// it everywhere.
func (by way) TestALossUndoesNoReset(t *testing.T) {
	racetest.Sequential(t)
	t.Parallel()
	forEachLoss(t, func(t *testing.T, server *memcachedtest.Server, w subwindow.Window, lose func()) {
		const limit = 10
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute) // by default a busy machine has 50 ms
		defer cancel()
		here, there := by.newProcess(t, server, w), by.newProcess(t, server, w)
		now := at("12:00:01.5")
		require.Equal(t, int64(limit), admits(t, here, now, limit, limit))
		require.False(t, decide(t, there, now, limit))
		require.NoError(t, here.Reset(ctx, "c", now))
		require.Equal(t, int64(4), admits(t, here, now, limit, 4))
		lose()
		// By the store, as it is here that the reset is put back.
		require.Eventually(t, func() bool {
			d, err := here.Take(ctx, request(now, 1, limit))
			return err == nil && d.Allowed
		}, 10*time.Second, time.Millisecond)
		now = now.Add(time.Second)
		assert.Equal(t, int64(limit-5), admits(t, there, now, limit, 2*limit))
		assert.Zero(t, admits(t, here, now, limit, limit))

		lose()
		now = now.Add(3 * time.Second)
		require.Eventually(t, func() bool { return here.Reset(ctx, "c", now) == nil }, 10*time.Second, time.Millisecond)
		now = now.Add(time.Second)
		assert.Equal(t, int64(5), admits(t, there, now, limit, 5))
		assert.Equal(t, int64(limit-5), admits(t, here, now, limit, 2*limit))
	})
}

// A raisingStore does something before and after each Raise. That fails with err, if there is
// one.
type raisingStore struct {
	counters.Store
	before, after func()
	err           error
	changes       int // of generations
}

func (s *raisingStore) Add(ctx context.Context, a counters.Addition) (int64, error) {
	if strings.HasSuffix(a.Key, "_reset") {
		s.changes++
	}
	return s.Store.Add(ctx, a)
}

func (s *raisingStore) Raise(ctx context.Context, floors []counters.Floor) error {
	if errors.Is(s.err, counters.ErrNotSent) {
		return s.err
	}
	s.before()
	err := s.Store.Raise(ctx, floors)
	s.after()
	return cmp.Or(s.err, err)
}

// What comes while a loss is made good: a reset isn't undone, and what is lost
// again is put back again.
func (by way) TestWhatComesWhileALossIsMadeGood(t *testing.T) {
	t.Parallel()
	nothing := func() {}
	once := func(do func()) func() {
		done := false
		return func() {
			if !done {
				done = true
				do()
			}
		}
	}
	for name, w := range minuteWindows(t) {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			now := at("12:00:01.5")
			for _, test := range []struct {
				name                                  string
				resetsBefore, resetsAfter, losesAfter bool
				admitted, reseeded                    int64
			}{
				{"nothing", false, false, false, 4, 1},
				{"a loss", false, false, true, 4, 2},
				{"a reset before", true, false, false, 10, 0},
				{"a reset after", false, true, false, 10, 0},
			} {
				inner := memory.New(nil)
				store := &raisingStore{Store: inner, before: nothing, after: nothing}
				reseeded := int64(0)
				here := by.newLimiterWith(t, store, w, counters.Options{ClockSkew: sameClock, Clients: 10, Reseeded: func(n int) { reseeded += int64(n) }})
				there := by.newLimiter(t, inner, w, sameClock)
				reset := once(func() { require.NoError(t, there.Reset(t.Context(), "c", now.Add(time.Second))) })
				lose := func() { require.NoError(t, inner.Delete(t.Context(), []string{key(w, now)})) }
				require.Equal(t, int64(6), admits(t, here, now, 10, 6), test.name)
				lose()
				switch {
				case test.resetsBefore:
					store.before = reset
				case test.resetsAfter:
					store.after = reset
				case test.losesAfter:
					store.after = once(lose)
				}
				assert.Equal(t, test.admitted, admits(t, here, now, 10, 20), test.name)
				assert.Equal(t, test.reseeded, reseeded, test.name)
				assert.Zero(t, admits(t, there, now.Add(time.Second), 10, 3), test.name)
			}
		})
	}
}

// What can't be put back of one client is put back in no other's slots.
func (by way) TestALossStaysWithItsClient(t *testing.T) {
	t.Parallel()
	for name, w := range minuteWindows(t) {
		synctest.Test(t, func(t *testing.T) { // nothing is told in the background
			nothing := func() {}
			store := &raisingStore{Store: memory.New(nil), before: nothing, after: nothing}
			l := by.newLimiter(t, store, w, sameClock)
			now := at("12:00:01.5")
			of := func(client string, cost int64) counters.Request {
				return counters.Request{Client: client, Cost: cost, Limit: 10, Now: now.Add(time.Second)}
			}
			require.NoError(t, l.Reset(t.Context(), "reset", now))
			_, err := l.Take(t.Context(), of("reset", 1))
			require.NoError(t, err)
			_, err = l.Take(t.Context(), of("lost", 9))
			require.NoError(t, err)
			store.Store = memory.New(nil) // all is lost
			store.err = counters.ErrNotSent
			_, err = l.Take(t.Context(), of("lost", 1))
			require.ErrorIs(t, err, counters.ErrNotSent)
			synctest.Wait()
			store.err = nil
			_, err = l.TakeLocal(of("reset", 1), counters.ErrNotSent)
			require.NoError(t, err)
			d, err := l.Take(t.Context(), of("reset", 1))
			require.NoError(t, err)
			assert.EqualValues(t, 7, d.Remaining, name)
			l.Flush()
		})
	}
}

// What a process has put back beside the deletes of a reset is given back again, though it hears
// of the reset before that is over.
func (by way) TestWhatIsPutBackDuringAReset(t *testing.T) {
	t.Parallel()
	for name, w := range minuteWindows(t) {
		synctest.Test(t, func(t *testing.T) { // a reset that takes long ends later
			inner := memory.New(nil)
			now := at("12:00:01.5")
			deleted, told, over := make(chan struct{}), make(chan struct{}), make(chan struct{})
			resets := by.newLimiter(t, &deletingStore{Store: inner, after: func() { close(deleted); <-told }}, w, 50*time.Millisecond)
			store := &raisingStore{Store: inner, before: func() {}, after: func() {}}
			here := by.newLimiter(t, &changedStore{store, func() { close(told); <-over }}, w, 50*time.Millisecond)
			require.True(t, take(t, here, now, 6, 10).Allowed, name)
			require.NoError(t, inner.Delete(t.Context(), []string{key(w, now)}))
			store.before = func() {
				store.before = func() {}
				go func() {
					assert.NoError(t, resets.Reset(t.Context(), "c", now.Add(time.Second)))
					close(over)
				}()
				<-deleted
			}
			require.True(t, take(t, here, now, 1, 10).Allowed, name)
			here.Flush()
			assert.LessOrEqual(t, used(t, inner, w, now), int64(1), name)
		})
	}
}

// A changedStore does something after a generation is raised for the first time.
type changedStore struct {
	counters.Store
	changed func()
}

func (s *changedStore) Add(ctx context.Context, a counters.Addition) (int64, error) {
	n, err := s.Store.Add(ctx, a)
	if changed := s.changed; changed != nil && strings.HasSuffix(a.Key, "_reset") {
		s.changed = nil
		changed()
	}
	return n, err
}

// A check whose store loses again and again what is put back ends without it, be there no deadline.
func (by way) TestAStoreThatLosesWhatIsPutBack(t *testing.T) {
	t.Parallel()
	for name, w := range minuteWindows(t) {
		inner := memory.New(nil)
		now, losses := at("12:00:01.5"), 0
		store := &raisingStore{Store: inner, before: func() {}, after: func() {
			if losses++; losses < 1000 {
				require.NoError(t, inner.Delete(t.Context(), []string{key(w, now)}))
			}
		}}
		l := by.newLimiter(t, store, w, sameClock)
		require.True(t, take(t, l, now, 6, 10).Allowed, name)
		require.NoError(t, inner.Delete(t.Context(), []string{key(w, now)}))
		_, err := l.Take(t.Context(), request(now, 1, 10))
		require.ErrorIs(t, err, counters.ErrUnavailable, name)
		assert.Less(t, losses, 100, name)
		d, err := l.TakeLocal(request(now, 5, 10), err)
		require.NoError(t, err)
		assert.False(t, d.Allowed, "%s: 6 of 10 are in use", name)
		losses = 1000
		l.Flush()
	}
}

// A counter that no window looks at any more may have expired: that is no loss.
func (by way) TestWhatHasLeftEveryWindowIsNotPutBack(t *testing.T) {
	t.Parallel()
	w := newWindow(t, time.Minute, 4, true)
	for left, put := range map[string]int{"12:01:15.09": 1, "12:01:15.1": 0, "12:01:29.9": 0} {
		store, reseeded := memory.New(nil), 0
		l := by.newLimiterWith(t, store, w, counters.Options{ClockSkew: 50 * time.Millisecond, Clients: 10, Reseeded: func(n int) { reseeded += n }})
		require.True(t, take(t, l, at("12:00:01"), 3, 10).Allowed)
		require.NoError(t, store.Delete(t.Context(), []string{key(w, at("12:00:01"))}))
		require.True(t, take(t, l, at(left), 3, 10).Allowed, left)
		assert.Equal(t, put, reseeded, left)
	}
}

func (by way) TestAResetIsToldFromALoss(t *testing.T) {
	t.Parallel()
	for name, w := range minuteWindows(t) {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			inner := memory.New(nil)
			store := &deletingStore{Store: inner}
			here, there := by.newLimiter(t, inner, w, sameClock), by.newLimiter(t, store, w, sameClock)
			now := at("12:00:01.5")
			require.Equal(t, int64(10), admits(t, here, now, 10, 10))
			require.NoError(t, there.Reset(t.Context(), "c", now.Add(time.Second)))
			now = now.Add(10 * time.Second) // the mark of a reset doesn't last so long
			require.Equal(t, int64(10), admits(t, here, now, 10, 11), "by the generation")

			now = now.Add(time.Second)
			store.after = func() { assert.Equal(t, int64(3), admits(t, here, now, 10, 3), "by the mark: it isn't over yet") }
			require.NoError(t, there.Reset(t.Context(), "c", now))
			assert.Equal(t, int64(7), admits(t, here, now.Add(time.Second), 10, 20))
		})
	}
}

// A tornStore does something between the two parts of an Add.
type tornStore struct {
	counters.Store
	between func()
}

func (s *tornStore) Add(ctx context.Context, a counters.Addition) (int64, error) {
	keys, counts := a.Read, a.Counts
	a.Read, a.Counts = nil, nil
	n, err := s.Store.Add(ctx, a)
	if between := s.between; between != nil {
		s.between = nil
		between()
	}
	if err == nil && len(keys) > 0 {
		err = s.Read(ctx, keys, counts)
	}
	return n, err
}

// What a reset takes along of a check that is under way isn't a loss.
func (by way) TestWhatAResetTakesAlongIsNotLost(t *testing.T) {
	t.Parallel()
	for name, w := range minuteWindows(t) {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			inner := memory.New(nil)
			store := &tornStore{Store: inner}
			reseeded := 0
			here := by.newLimiterWith(t, store, w, counters.Options{ClockSkew: sameClock, Clients: 10, Reseeded: func(n int) { reseeded += n }})
			there := by.newLimiter(t, inner, w, sameClock)
			now := at("12:00:01.5")
			require.Equal(t, int64(2), admits(t, here, now, 10, 2))
			now = now.Add(2 * time.Second)
			store.between = func() { require.NoError(t, there.Reset(t.Context(), "c", now)) }
			require.Equal(t, int64(1), admits(t, here, now, 10, 1))
			assert.Zero(t, reseeded)
		})
	}
}

// Whoever takes something back may begin a generation anew that was lost.
func (by way) TestAGenerationThatWasLostIsNoReset(t *testing.T) {
	t.Parallel()
	for name, w := range minuteWindows(t) {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			inner := memory.New(nil)
			here, stranger := by.newLimiter(t, inner, w, sameClock), by.newLimiter(t, inner, w, sameClock)
			now := at("12:00:01.5")
			require.Equal(t, int64(2), admits(t, here, now, 10, 2))
			require.NoError(t, here.Reset(t.Context(), "c", now))
			now = now.Add(5 * time.Second)
			require.Equal(t, int64(10), admits(t, here, now, 10, 11))

			prefix := strings.TrimSuffix(key(w, now), strconv.FormatInt(counters.Calendar(now, w.Width).Number, 10))
			require.NoError(t, inner.Delete(t.Context(), []string{key(w, now), counters.GenerationKey(prefix)}))
			ctx, cancel := context.WithTimeout(t.Context(), time.Second)
			defer cancel()
			taken, err := stranger.Take(ctx, request(now, 1, 10))
			require.NoError(t, err)
			require.True(t, taken.Allowed)
			require.NoError(t, stranger.Refund(ctx, request(now, 1, 10), taken))

			now = now.Add(time.Second)
			assert.Zero(t, admits(t, here, now, 10, 3))
			assert.Zero(t, admits(t, by.newLimiter(t, inner, w, sameClock), now, 10, 3))
		})
	}
}

// What is owed when a slot is lost comes on top of what is put back.
func (by way) TestDebtsAreRepaidAfterALoss(t *testing.T) {
	t.Parallel()
	for name, w := range minuteWindows(t) {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			inner := memory.New(nil)
			var fault error
			store := &faultyStore{Store: inner, fault: func(string, string) error { return fault }}
			here, there := by.newLimiter(t, store, w, sameClock), by.newLimiter(t, inner, w, sameClock)
			now := at("12:00:01.5")
			require.Equal(t, int64(4), admits(t, here, now, 10, 4))
			fault = limitertest.ErrUnsent
			require.Equal(t, int64(3), admits(t, here, now, 10, 3))
			require.NoError(t, inner.Delete(t.Context(), []string{key(w, now)}))
			fault = nil
			d, err := here.Peek(t.Context(), request(now, 1, 10))
			require.NoError(t, err)
			assert.Equal(t, int64(3), d.Remaining, "what is remembered counts, and what is owed")
			require.Equal(t, int64(1), admits(t, here, now, 10, 1))
			assert.Equal(t, int64(2), admits(t, there, now, 10, 20))
		})
	}
}

// What a check has found counted before a reset is not put back when it learns
// of that reset by the very same check, be the client new to it or not.
func (by way) TestACountFromBeforeAResetIsNotPutBack(t *testing.T) {
	t.Parallel()
	for _, knows := range []bool{false, true} {
		for _, countDenied := range []bool{false, true} {
			t.Run(fmt.Sprint(knows, countDenied), func(t *testing.T) {
				inner := memory.New(nil)
				w := newWindow(t, 2*time.Second, 1, true)
				store := &tornStore{Store: inner}
				here := by.newLimiterWith(t, store, w, counters.Options{ClockSkew: sameClock, Clients: 10, CountDenied: countDenied})
				there := by.newLimiter(t, inner, w, sameClock)
				if knows {
					require.True(t, take(t, here, at("12:00:00.1"), 1, 10).Allowed)
				}
				require.True(t, take(t, there, at("12:00:02.1"), 8, 10).Allowed)
				store.between = func() { require.NoError(t, there.Reset(t.Context(), "c", at("12:00:02.2"))) }
				take(t, here, at("12:00:02.2"), 1, 10)
				assert.LessOrEqual(t, int64(9), take(t, here, at("12:00:03.3"), 0, 10).Remaining)
				assert.True(t, take(t, here, at("12:00:04.1"), 9, 10).Allowed)
			})
		}
	}
}

// A clock that is set back finds in the window again what had left it.
func (by way) TestWhatHasLeftEveryWindowComesBackWithTheClock(t *testing.T) {
	t.Parallel()
	l := by.newLimiter(t, memory.New(nil), newWindow(t, time.Minute, 2, true), time.Second)
	require.Equal(t, int64(16), take(t, l, at("12:00:29"), 5, 21).Remaining)
	require.Equal(t, int64(0), take(t, l, at("12:01:20"), 16, 21).Remaining)
	require.Equal(t, int64(4), take(t, l, at("12:01:32.5"), 1, 21).Remaining)
	assert.False(t, take(t, l, at("12:01:30.5"), 1, 21).Allowed, "22 are in the window")
}

// A process that puts back what the store has lost, and isn't answered, tells those to whom
// the slot is final by then, once, whether the store has done it or not.
func (by way) TestWhatIsPutBackWithoutAnAnswerIsToldToOthers(t *testing.T) {
	t.Parallel()
	for _, err := range []error{counters.ErrTimeout, counters.ErrNotSent} {
		t.Run(err.Error(), func(t *testing.T) {
			t.Parallel()
			w := newWindow(t, time.Minute, 4, true)
			inner := memory.New(nil)
			store := &raisingStore{Store: inner, before: func() {}, after: func() {}}
			here, there := by.newLimiter(t, store, w, sameClock), by.newLimiter(t, inner, w, sameClock)
			require.Equal(t, int64(3), admits(t, here, at("12:00:01"), 4, 3))
			require.NoError(t, inner.Delete(t.Context(), []string{key(w, at("12:00:01"))}))
			require.True(t, decide(t, there, at("12:00:16"), 4))
			store.err = err
			require.False(t, decide(t, here, at("12:00:16"), 2))
			store.err, store.changes = nil, 0
			require.False(t, decide(t, here, at("12:00:16"), 2))
			assert.False(t, decide(t, there, at("12:00:18"), 4))
			assert.Equal(t, 1, store.changes)
		})
	}
}

// A client that is over its limit is only looked at: the slot of now has no count, and those that
// have are final. When Memcached forgets the client, the process that remembers it puts them back,
// also if nobody has reset it or changed the past, so that no generation is lost with them.
func (by way) TestWhatIsLostOfFinalSlotsIsPutBack(t *testing.T) {
	t.Parallel()
	w := newWindow(t, time.Minute, 10, false)
	store := memory.New(nil)
	here, there := by.newLimiter(t, store, w, sameClock), by.newLimiter(t, store, w, sameClock)
	require.EqualValues(t, 10, admits(t, here, at("12:00:01"), 10, 10))
	require.Zero(t, admits(t, here, at("12:00:13"), 10, 1))
	require.NoError(t, store.Delete(t.Context(), []string{key(w, at("12:00:01"))}))
	require.Zero(t, admits(t, here, at("12:00:14"), 10, 1))
	assert.Zero(t, admits(t, there, at("12:00:15"), 10, 1), "a process that has just begun")
}
