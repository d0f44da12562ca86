package limitertest

import (
	"context"
	"fmt"
	"math/rand/v2"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"weir/counters"
)

// A flight is an addition or a swap that wasn't answered in time.
type flight struct {
	do          func() error // has the store do it
	tell        func(error)  // what has become of it; nil when that is told
	done, never bool         // the store has done it, or never will
}

// land has the store do what is in flight, if it may.
func (f *flight) land() {
	if !f.done && !f.never {
		f.never = f.do() != nil
		f.done = !f.never
	}
}

// end tells what has become of it.
func (f *flight) end() {
	tell, err := f.tell, error(nil)
	if f.tell = nil; tell == nil {
		return
	}
	if !f.done {
		f.never, err = true, counters.ErrNotSent
	}
	tell(err)
}

// A lateStore doesn't answer what would change it while it is late, and does and
// tells of it when the test says. While it is unsent, nothing is sent to it.
type lateStore struct {
	Store
	mu           sync.Mutex
	late, unsent bool
	flights      []*flight
	meanwhile    func() // while the next answer is on its way; or nil
	asked        int
}

// set changes how it answers, and returns what it hasn't come to do meanwhile.
func (s *lateStore) set(late, unsent bool, meanwhile func()) (left func()) {
	s.mu.Lock()
	defer s.mu.Unlock()
	left = s.meanwhile
	s.late, s.unsent, s.meanwhile = late, unsent, meanwhile
	return left
}

// begin returns the error of an operation that isn't answered.
func (s *lateStore) begin(late func() error) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.asked++
	switch {
	case s.unsent:
		return ErrUnsent
	case s.late && late != nil:
		f := &flight{do: late}
		s.flights = append(s.flights, f)
		return &counters.Unanswered{Err: fmt.Errorf("%w: it is late", counters.ErrTimeout), Await: func(tell func(error)) { f.tell = tell }}
	}
	return nil
}

// ask does an operation, unless it is late or isn't sent: then late does it, if
// anything can.
func (s *lateStore) ask(do, late func() error) error {
	if err := s.begin(late); err != nil {
		return err
	}
	err := do()
	s.mu.Lock()
	f := s.meanwhile
	s.meanwhile = nil
	s.mu.Unlock()
	if f != nil {
		f()
	}
	return err
}

// Add implements counters.Store.
func (s *lateStore) Add(ctx context.Context, a counters.Addition) (n int64, err error) {
	err = s.ask(func() (err error) { n, err = s.Store.Add(ctx, a); return err }, func() error {
		a.Read, a.Counts = nil, nil // nobody reads its answer
		_, err := s.Store.Add(context.WithoutCancel(ctx), a)
		return err
	})
	return n, err
}

// Read implements counters.Store.
func (s *lateStore) Read(ctx context.Context, keys []string, counts []int64) error {
	return s.ask(func() error { return s.Store.Read(ctx, keys, counts) }, nil)
}

// Subtract implements counters.Store.
func (s *lateStore) Subtract(ctx context.Context, key string, n int64) error {
	return s.ask(func() error { return s.Store.Subtract(ctx, key, n) }, nil)
}

// Raise implements counters.Store.
func (s *lateStore) Raise(ctx context.Context, floors []counters.Floor) error {
	return s.ask(func() error { return s.Store.Raise(ctx, floors) }, nil)
}

// Load implements counters.StateStore.
func (s *lateStore) Load(ctx context.Context, key string) (state counters.State, err error) {
	err = s.ask(func() (err error) { state, err = s.Store.Load(ctx, key); return err }, nil)
	return state, err
}

// Swap implements counters.StateStore.
func (s *lateStore) Swap(ctx context.Context, key string, old counters.State, value []byte, ttl time.Duration) (now counters.State, swapped bool, err error) {
	value = slices.Clone(value)
	err = s.ask(func() (err error) { now, swapped, err = s.Store.Swap(ctx, key, old, value, ttl); return err }, func() error {
		_, swapped, err := s.Store.Swap(context.WithoutCancel(ctx), key, old, value, ttl)
		if err == nil && !swapped {
			return counters.ErrNotSent
		}
		return err
	})
	return now, swapped, err
}

// An admitted is a request and how it was admitted.
type admitted struct {
	counters.Request
	counters.Decision
}

// Late tests what becomes of a client whose store answers late, in so many courses
// at random: checks that are done after their callers' deadlines, in any order, or
// never, and told at any time, among checks, outages, refunds and whatever else is
// answered in time. Each is counted once if it was admitted, and never otherwise,
// and never more are admitted than the limit. A refund that can't be done, as nobody
// knows whether the store has done it, is reported to failed. For newStore and
// newLimiter see Outage.
func Late(t *testing.T, now time.Time, courses int, newStore func() Store, newLimiter func(t *testing.T, s Store, failed func()) counters.Limiter) {
	for seed := range uint64(courses) {
		limit := []int64{12 * unit, 100 * unit}[seed%2]
		synctest.Test(t, func(t *testing.T) {
			c := course{
				random: rand.New(rand.NewPCG(seed, 0)), shared: newStore(),
				r: counters.Request{Client: "c", Limit: limit, Now: now},
			}
			c.store = &lateStore{Store: c.shared}
			c.limiter, c.others = newLimiter(t, c.store, func() { c.failed++ }), newLimiter(t, c.shared, nil)
			for range 4 + c.random.IntN(30) {
				c.step(t)
				synctest.Wait()
				if c.inUse > limit || c.store.asked > 30 {
					require.FailNow(t, "too much is in use or asked of the store", "%d, %d; seed %d: %s", c.inUse, c.store.asked, seed, c.said)
				}
			}
			c.end(t)
			d, err := newLimiter(t, c.shared, nil).Peek(t.Context(), c.r)
			require.NoError(t, err)
			require.Less(t, limit-d.Remaining, c.inUse+(c.failed+c.unknown)*maxUnits*unit+unit/2, "seed %d: %s", seed, c.said)
			require.Greater(t, limit-d.Remaining, c.inUse-unit/2, "seed %d: %s", seed, c.said)
		})
		if t.Failed() {
			return
		}
	}
}

// unit is what costs are multiples of: a bucket drains by a part of one meanwhile.
const unit = 10

// maxUnits is how many units a check asks for at most.
const maxUnits = 5

// A course is what happens to a client.
type course struct {
	random  *rand.Rand
	shared  Store
	store   *lateStore
	limiter counters.Limiter
	others  counters.Limiter // another process, which has answers in time
	r       counters.Request
	inUse   int64
	failed  int64 // refunds
	unknown int64 // flights
	taken   []admitted
	refused func() // decides a refused check alone; or nil
	said    []string
}

func (c *course) say(format string, args ...any) {
	c.said = append(c.said, fmt.Sprintf(format, args...))
}

// check asks for a cost, alone if the store doesn't answer and the caller wants it,
// of a store that is late, or is unsent, or does something meanwhile.
func (c *course) check(t *testing.T, late, unsent bool, meanwhile func()) {
	c.store.set(late, unsent, meanwhile)
	r := c.r
	r.Cost = unit * (1 + c.random.Int64N(maxUnits))
	d, err := c.limiter.Take(t.Context(), r)
	c.say("check %d (late %v, unsent %v): %v %v", r.Cost, late, unsent, d.Allowed, err)
	switch k := c.random.IntN(4); {
	case err == nil:
		c.admit(r, d)
	case k == 0: // it stays refused
	case k == 1:
		c.refused = func() { c.alone(t, r, err) }
	default:
		c.alone(t, r, err)
	}
	synctest.Wait()                                                   // what turned out to be due is told
	if meanwhile = c.store.set(false, false, nil); meanwhile != nil { // the store had nothing to answer
		meanwhile()
	}
}

// alone has the process decide what was refused with an error.
func (c *course) alone(t *testing.T, r counters.Request, err error) {
	d, err := c.limiter.TakeLocal(r, err)
	require.NoError(t, err)
	c.say("alone %d: %v", r.Cost, d.Allowed)
	c.admit(r, d)
}

func (c *course) admit(r counters.Request, d counters.Decision) {
	if d.Allowed {
		c.inUse += r.Cost
		c.taken = append(c.taken, admitted{r, d})
	}
}

// step has anything happen.
func (c *course) step(t *testing.T) {
	c.r.Now, c.store.asked = c.r.Now.Add(1), 0 // so that no state is another's
	some := func(what string, do func(f *flight)) {
		if n := len(c.store.flights); n > 0 {
			i := c.random.IntN(n)
			do(c.store.flights[i])
			c.say("%s flight %d: %v", what, i, c.store.flights[i].done)
		}
	}
	switch k := c.random.IntN(17); {
	case k < 3:
		c.check(t, false, false, nil)
	case k < 6:
		c.check(t, true, false, nil)
	case k == 6:
		c.check(t, false, true, nil)
	case k == 7:
		some("land", (*flight).land)
	case k == 8:
		some("end", (*flight).end)
	case k == 9:
		some("land and end", func(f *flight) { f.land(); f.end() })
	case k == 10:
		some("meanwhile", func(f *flight) { c.check(t, false, false, func() { f.land(); f.end() }) })
	case k == 11 && len(c.taken) > 0:
		c.store.set(false, c.random.IntN(4) == 0, nil)
		c.refund(t)()
		synctest.Wait()
		c.store.set(false, false, nil)
	case k == 12 && len(c.taken) > 0:
		refund := c.refund(t)
		c.check(t, c.random.IntN(2) == 0, false, func() {
			go refund()
			synctest.Wait()
		})
	case k == 14 && c.refused != nil: // late, as its goroutine had to wait
		c.refused()
		c.refused = nil
	case k == 15 && c.r.Limit == 12*unit: // else what others have counted may be taken for it
		some("never tell of", func(f *flight) {
			if tell := f.tell; tell != nil {
				f.never, f.tell, c.unknown = !f.done, nil, c.unknown+1
				tell(counters.ErrUnavailable)
			}
		})
	case k == 13 && c.r.Limit > 12*unit: // else both may take the last
		r := c.r
		r.Cost = unit * (1 + c.random.Int64N(maxUnits))
		d, err := c.others.Take(t.Context(), r)
		require.NoError(t, err)
		require.True(t, d.Allowed)
		c.inUse += r.Cost
		c.say("others take %d", r.Cost)
	default:
		c.limiter.(interface{ Flush() }).Flush()
		c.say("flush")
	}
}

// refund returns what gives any of what was admitted back.
func (c *course) refund(t *testing.T) func() {
	i := c.random.IntN(len(c.taken))
	taken := c.taken[i]
	c.taken = slices.Delete(c.taken, i, i+1)
	c.inUse -= taken.Cost
	c.say("refund %d", taken.Cost)
	taken.Receipt.At, taken.Now = taken.Now.UnixNano(), c.r.Now
	return func() { _ = c.limiter.Refund(t.Context(), taken.Request, taken.Decision) }
}

// end has the store tell everything, and be told everything.
func (c *course) end(t *testing.T) {
	for _, f := range c.store.flights {
		f.end()
	}
	for range 3 {
		c.limiter.(interface{ Flush() }).Flush()
	}
	_, _ = c.limiter.Take(t.Context(), counters.Request{Client: "c", Cost: 0, Limit: c.r.Limit, Now: c.r.Now})
	require.Zero(t, c.limiter.(interface{ Owing() int }).Owing(), "%s", c.said)
}
