package cas

import (
	"math"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"weir/counters"
	"weir/counters/limitertest"
	"weir/counters/memory"
	"weir/counters/racetest"
)

// A holder is an instance of several that share a store, which may fail for it alone.
type holder struct {
	t     *testing.T
	l     *Limiter
	store *limitertest.BrokenStore
	limit int64
}

func newHolders(t *testing.T, n int, limit int64) []*holder {
	inner := memory.New(nil)
	all := make([]*holder, n)
	for i := range all {
		all[i] = &holder{t: t, store: &limitertest.BrokenStore{Store: inner}, limit: limit}
		var err error
		cfg := testConfig(10)
		cfg.ClockSkew = 50 * time.Millisecond
		all[i].l, err = NewConcurrency(all[i].store, time.Minute, limit, cfg)
		require.NoError(t, err)
	}
	return all
}

func (p *holder) request(at time.Time) counters.Request {
	return counters.Request{Client: "c", Cost: 1, Limit: p.limit, Now: at, Reserved: true}
}

// take asks for a place, or to renew one, as the API does: with the store, else alone.
func (p *holder) take(at time.Time, renews int64) counters.Decision {
	p.t.Helper()
	r := p.request(at)
	r.Renews = renews
	d, err := p.l.Take(p.t.Context(), r)
	if err != nil {
		d, err = p.l.TakeLocal(r, err)
		require.NoError(p.t, err)
	}
	return d
}

// release gives back by what a receipt says.
func (p *holder) release(at time.Time, d counters.Decision) {
	p.t.Helper()
	d.Receipt.Alone, d.Receipt.Client = nil, nil
	require.NoError(p.t, p.l.Refund(p.t.Context(), p.request(at), d))
}

func (p *holder) remain(at time.Time) int64 {
	p.t.Helper()
	d, err := p.l.Peek(p.t.Context(), p.request(at))
	require.NoError(p.t, err)
	return d.Remaining
}

// Leases that are held are renewed while the store is gone, whatever the share of the
// instance is.
func TestHeldLeasesAreRenewedAlone(t *testing.T) {
	const limit = 4
	p := newHolders(t, 2, limit)
	begin := time.Now()
	at := func(ms int) time.Time { return begin.Add(time.Duration(ms) * time.Millisecond) }
	var held []counters.Decision
	for i := range limit {
		d := p[i%2].take(at(i), 0)
		require.True(t, d.Allowed)
		held = append(held, d)
	}
	for _, q := range p { // they see all
		require.EqualValues(t, 0, q.remain(at(10)))
	}
	for _, q := range p {
		q.store.Fail(limitertest.ErrUnsent)
	}
	for i, d := range held {
		r := p[i%2].take(at(30_000+i), d.Receipt.Position)
		assert.True(t, r.Allowed, "lease %d is held, and renewed alone", i)
	}
}

// The same, when the store has just come back: what others are thought to have admitted
// is no reason to end a lease that is held.
func TestHeldLeasesAreRenewedJustAfterAnOutage(t *testing.T) {
	const limit = 4
	p := newHolders(t, 2, limit)
	begin := time.Now()
	at := func(ms int) time.Time { return begin.Add(time.Duration(ms) * time.Millisecond) }
	var held []counters.Decision
	for i := range limit - 1 {
		d := p[i%2].take(at(i), 0)
		require.True(t, d.Allowed)
		held = append(held, d)
	}
	for _, q := range p {
		require.EqualValues(t, 1, q.remain(at(10)))
		q.store.Fail(limitertest.ErrUnsent)
	}
	alone := p[0].take(at(1000), 0)
	require.True(t, alone.Allowed)
	for _, q := range p {
		q.store.Fail(nil)
	}
	for i, d := range held {
		r, err := p[0].l.Take(unhurried, func() counters.Request {
			r := p[0].request(at(1010 + i))
			r.Renews = d.Receipt.Position
			return r
		}())
		require.NoError(t, err)
		assert.True(t, r.Allowed, "lease %d is held, and renewed", i)
	}
}

// More places are taken while the store is gone than an instance notes one by one: each is
// given back all the same.
func TestManyLeasesTakenAloneAreEachGivenBack(t *testing.T) {
	racetest.Sequential(t)
	const limit, n = 500, 300
	p := newHolders(t, 1, limit)[0]
	begin := time.Now()
	at := func(ms int) time.Time { return begin.Add(time.Duration(ms) * time.Millisecond) }
	p.store.Fail(limitertest.ErrUnsent)
	var held []counters.Decision
	for i := range n {
		d := p.take(at(i), 0)
		require.True(t, d.Allowed)
		held = append(held, d)
	}
	p.store.Fail(nil)
	p.l.Flush()
	require.EqualValues(t, limit-n, p.remain(at(1000)))
	for i, d := range held {
		p.release(at(i), d)
	}
	assert.EqualValues(t, limit, p.remain(at(2000)))
}

// Whoever has no answer to a renewal asks again with the receipt that it has: that finds the
// lease, and takes no second place. The same receipt releases it.
func TestARenewalMayBeRepeated(t *testing.T) {
	p := newHolders(t, 2, 2)
	begin := time.Now()
	at := func(s int) time.Time { return begin.Add(time.Duration(s) * time.Second) }
	first := p[0].take(at(0), 0)
	for s := 20; s <= 200; s += 20 {
		q := p[s/20%2]
		d := q.take(at(s), first.Receipt.Position)
		require.True(t, d.Allowed)
		require.EqualValues(t, 1, d.Remaining, "%d s", s)
	}
	other := p[1].take(at(201), 0)
	require.True(t, other.Allowed)
	assert.True(t, p[1].take(at(210), first.Receipt.Position).Allowed, "with no room beside it")
	p[0].release(at(211), first)
	assert.EqualValues(t, 1, p[1].remain(at(211)))
}

// The same while the store is silent, and may have done either.
func TestALeaseRenewedTwiceInAnOutageTakesOnePlace(t *testing.T) {
	for name, fault := range map[string]error{"unsent": limitertest.ErrUnsent, "unanswered": limitertest.ErrUnanswered} {
		t.Run(name, func(t *testing.T) {
			p := newHolders(t, 1, 4)[0]
			begin := time.Now()
			at := func(s int) time.Time { return begin.Add(time.Duration(s) * time.Second) }
			first := p.take(at(0), 0)
			p.store.Fail(fault)
			for s := range 3 {
				require.True(t, p.take(at(20+s), first.Receipt.Position).Allowed)
			}
			p.store.Fail(nil)
			p.l.Flush()
			assert.EqualValues(t, 3, p.remain(at(30)))
			p.release(at(0), first)
			assert.EqualValues(t, 4, p.remain(at(31)))
		})
	}
}

// Two instances whose clocks are behind that of a third, and which have no store, each give
// a lease that is released by itself.
func TestLeasesOfInstancesBehindAreEachTheirOwn(t *testing.T) {
	p := newHolders(t, 2, 5)
	begin := time.Now()
	require.True(t, p[0].take(begin, 0).Allowed)
	require.True(t, p[1].take(begin, 0).Allowed)
	require.EqualValues(t, 3, p[0].remain(begin))
	for _, q := range p {
		q.store.Fail(limitertest.ErrUnsent)
	}
	one := p[0].take(begin.Add(-20*time.Millisecond), 0)
	two := p[1].take(begin.Add(-30*time.Millisecond), 0)
	require.True(t, one.Allowed && two.Allowed)
	for _, q := range p {
		q.store.Fail(nil)
		q.l.Flush()
	}
	require.EqualValues(t, 1, p[0].remain(begin.Add(time.Second)))
	for range 2 {
		p[0].release(begin, one)
	}
	assert.EqualValues(t, 2, p[0].remain(begin.Add(2*time.Second)), "the other holds its own")
}

// What the store has lost is put back once, also of a lease that others have renewed since.
func TestALeaseThatWasRenewedElsewhereIsPutBackOnce(t *testing.T) {
	p := newHolders(t, 2, 4)
	begin := time.Now()
	at := func(s int) time.Time { return begin.Add(time.Duration(s) * time.Second) }
	first := p[0].take(at(0), 0)
	require.True(t, p[1].take(at(2), 0).Allowed)
	require.NoError(t, p[0].store.Store.Delete(t.Context(), []string{p[0].l.limiter.(*limiterOf[logState]).family.keys.StateKey("c")}))
	require.True(t, p[0].take(at(20), first.Receipt.Position).Allowed)
	require.True(t, p[1].take(at(21), 0).Allowed)
	assert.EqualValues(t, 1, p[0].remain(at(22)), "three are held")
}

// A place that was taken alone may be known to the store, as its check had no answer. It is released
// when the store tells.
func TestALeaseThatTheStoreMayKnowIsReleased(t *testing.T) {
	store := &scriptedSwap{Store: memory.New(nil)}
	l, err := NewConcurrency(store, time.Minute, 4, testConfig(10))
	require.NoError(t, err)
	p := &holder{t: t, l: l, limit: 4}
	begin := time.Now()
	p.take(begin, 0)
	late := store.late(true)
	alone := p.take(begin.Add(time.Second), 0)
	require.True(t, alone.Allowed)
	p.release(begin.Add(2*time.Second), alone)
	late.tell(nil)
	l.Flush()
	assert.EqualValues(t, 3, p.remain(begin.Add(3*time.Second)))
}

// Leases of a clock that was far ahead are taken as of now, and are each released all the same.
func TestLeasesOfAClockFarAheadAreEachTheirOwn(t *testing.T) {
	p := newHolders(t, 2, 4)
	begin := time.Now()
	ahead := begin.Add(30 * time.Minute)
	one, two := p[0].take(ahead, 0), p[0].take(ahead.Add(time.Second), 0)
	require.True(t, one.Allowed && two.Allowed)
	require.True(t, p[1].take(begin, 0).Allowed)
	for range 2 {
		p[1].release(begin, one)
	}
	require.EqualValues(t, 2, p[1].remain(begin.Add(time.Second)))
	p[1].release(begin, two)
	assert.EqualValues(t, 3, p[1].remain(begin.Add(2*time.Second)))
}

// Whatever is taken, renewed and released by whichever receipt of a lease, and by whatever
// clock: the state has those leases that haven't ended, and each is found.
func TestLeasesAreFoundByEachOfTheirReceipts(t *testing.T) {
	const lease, skew = 16 * time.Second, time.Second
	p := places{log{window: lease + grid + skew}}
	type held struct {
		receipts []int64
		at, cost int64
	}
	rapid.Check(t, func(t *rapid.T) {
		limit := rapid.Int64Range(1, 6).Draw(t, "limit")
		now := time.Unix(1_700_000_000, 0)
		var s logState
		var leases []*held
		for range rapid.IntRange(1, 40).Draw(t, "steps") {
			now = now.Add(rapid.SampledFrom([]time.Duration{0, 1, time.Millisecond, time.Second, 5 * time.Second, 20 * time.Second}).Draw(t, "pause"))
			r := counters.Request{Cost: 1, Limit: limit, Now: now.Add(-rapid.SampledFrom([]time.Duration{0, 0, 1, skew}).Draw(t, "behind"))}
			var of *held
			if len(leases) > 0 && rapid.IntRange(0, 2).Draw(t, "what") > 0 {
				of = rapid.SampledFrom(leases).Draw(t, "lease")
				r.Cost, r.Renews = of.cost, rapid.SampledFrom(of.receipts).Draw(t, "receipt")
			} else if limit > 1 {
				r.Cost = rapid.Int64Range(1, 2).Draw(t, "cost")
			}
			time, used := max(s.time, r.Now.UnixNano()), int64(0)
			live := func(l *held) bool { return l.at > time-int64(p.window) }
			for _, l := range leases {
				if live(l) {
					used += l.cost
				}
			}
			if of != nil && rapid.Bool().Draw(t, "release") {
				r.Renews, of.at = 0, math.MinInt64
				s = p.refund(s, newDebt(r, counters.Decision{Receipt: counters.Receipt{Position: rapid.SampledFrom(of.receipts).Draw(t, "by")}}))
			} else {
				peeked := p.peek(s, r)
				next, d := p.step(p.clone(s), r)
				require.Equal(t, d.Allowed, peeked.Allowed)
				require.Equal(t, of != nil && live(of) || used+r.Cost <= limit, d.Allowed)
				if d.Allowed {
					at := d.Receipt.Position
					require.True(t, at <= time && at > time-int64(grid), "%d of %d", at, time)
					for _, l := range leases {
						require.False(t, l != of && live(l) && sameLease(l.at, at), "two of one name")
					}
					if of == nil {
						of = &held{cost: r.Cost}
						leases = append(leases, of)
					}
					of.at, of.receipts = at, append(of.receipts, at)
				}
				s = next
			}
			// What has ended by a clock that the state doesn't know goes on for who is behind that.
			leases = slices.DeleteFunc(leases, func(l *held) bool { return l.at <= s.time-int64(p.window) })
			used = 0
			for _, l := range leases {
				if live(l) {
					used += l.cost
				}
			}
			now, _ := p.live(p.clone(s), r)
			require.Equal(t, used, now.sum)
			again, err := p.decode(p.encode(nil, s))
			require.NoError(t, err)
			require.Equal(t, p.encode(nil, s), p.encode(nil, again))
		}
	})
}

// Who frees the leases that end first, be they of others, may take a part of one: a renewal
// of that takes what is missing only if there is room.
func TestARenewalOfAPartTakesNoMoreThanThereIs(t *testing.T) {
	p := newHolders(t, 2, 5)
	begin := time.Now()
	at := func(s int) time.Time { return begin.Add(time.Duration(s) * time.Second) }
	ask := func(by *holder, s int, cost, renews int64) counters.Decision {
		r := by.request(at(s))
		r.Cost, r.Renews = cost, renews
		d, err := by.l.Take(unhurried, r)
		require.NoError(t, err)
		return d
	}
	three := ask(p[0], 0, 3, 0)
	require.True(t, three.Allowed)
	r := p[1].request(at(1))
	r.Cost = 2
	require.NoError(t, p[1].l.Refund(unhurried, r, counters.Decision{Allowed: true, Receipt: counters.Receipt{Position: counters.EarliestLeases}}))
	require.EqualValues(t, 4, p[0].remain(at(2)))
	other := ask(p[1], 3, 4, 0)
	require.True(t, other.Allowed)
	peek := p[0].request(at(4))
	peek.Cost, peek.Renews = 3, three.Receipt.Position
	d, err := p[0].l.Peek(unhurried, peek)
	require.NoError(t, err)
	assert.False(t, d.Allowed)
	assert.False(t, ask(p[0], 4, 3, three.Receipt.Position).Allowed, "others have it")
	other.Receipt.Client = nil // as from a receipt
	r = p[1].request(at(5))
	r.Cost = 4
	require.NoError(t, p[1].l.Refund(unhurried, r, other))
	require.EqualValues(t, 4, p[0].remain(at(6)), "what was left goes on")
	assert.True(t, ask(p[0], 7, 3, three.Receipt.Position).Allowed)
	assert.EqualValues(t, 2, p[1].remain(at(8)))
}

// Who frees the leases that end first while the store is gone, frees none that began after a
// reset since: neither if it surely wasn't told, nor if that is known only later.
func TestLeasesOfAfterAResetAreNotFreedByWhatWasDueBefore(t *testing.T) {
	for name, failure := range map[string]error{"not sent": limitertest.ErrUnsent, "unknown": counters.ErrTimeout} {
		t.Run(name, func(t *testing.T) {
			p := newHolders(t, 2, 5)
			begin := time.Now()
			at := func(s int) time.Time { return begin.Add(time.Duration(s) * time.Second) }
			for s := range 3 {
				require.True(t, p[0].take(at(s), 0).Allowed)
			}
			p[0].store.Fail(failure)
			r := p[0].request(at(3))
			r.Cost = 3
			require.Error(t, p[0].l.Refund(unhurried, r, counters.Decision{Allowed: true, Receipt: counters.Receipt{Position: counters.EarliestLeases}}))
			require.NoError(t, p[1].l.Reset(t.Context(), "c", at(4)))
			for s := range 4 {
				require.True(t, p[1].take(at(5+s), 0).Allowed)
			}
			p[0].store.Fail(nil)
			p[0].l.Flush()
			assert.EqualValues(t, 1, p[0].remain(at(10)))
		})
	}
}

// oneBesideAnother returns a holder of the only place of a limit, and a limiter of another
// instance, whose store is rigged.
func oneBesideAnother(t *testing.T) (*holder, *riggedStore, *Limiter) {
	p := newHolders(t, 1, 1)[0]
	rigged := &riggedStore{StateStore: p.store.Store}
	l, err := NewConcurrency(rigged, time.Minute, 1, testConfig(10))
	require.NoError(t, err)
	return p, rigged, l
}

// An instance that others hold up, or the store, doesn't know whether a lease has ended that it
// has never seen.
func TestARenewalThatIsHeldUpIsContended(t *testing.T) {
	racetest.Sequential(t)
	synctest.Test(t, func(t *testing.T) {
		p, rigged, l := oneBesideAnother(t)
		first := p.take(time.Now(), 0)
		var second counters.Decision
		rigged.beforeSwap = func() {
			time.Sleep(time.Millisecond)
			if rigged.swaps < 4 {
				p.take(time.Now(), first.Receipt.Position)
				return
			}
			p.release(time.Now(), first)
			second = p.take(time.Now(), 0)
			time.Sleep(20 * time.Millisecond)
		}
		ask := func(limit, renews int64, timeout time.Duration) (counters.Decision, error) {
			r := counters.Request{Client: "c", Cost: 1, Limit: limit, Renews: renews, Now: time.Now()}
			return l.Take(&counters.Deadline{At: r.Now.Add(timeout)}, r)
		}
		_, err := ask(1, 0, time.Second) // which reads what there is
		require.NoError(t, err)
		go func() { _, _ = ask(2, 0, time.Second) }()
		time.Sleep(5 * time.Millisecond)
		require.True(t, second.Allowed)
		d, err := ask(1, second.Receipt.Position, 10*time.Millisecond)
		require.NoError(t, err)
		require.False(t, d.Allowed)
		assert.True(t, d.Contended)
		time.Sleep(time.Second)
	})
}

// A lease that is given while a batch of another instance reads the state is not in what that
// reads. Its renewal, which joins the batch then, isn't lost for that.
func TestARenewalIsNotDecidedByWhatWasReadBeforeIt(t *testing.T) {
	racetest.Sequential(t)
	synctest.Test(t, func(t *testing.T) {
		p, rigged, l := oneBesideAnother(t)
		first := p.take(time.Now(), 0)
		take := func(renews int64) counters.Decision {
			d, err := l.Take(unhurried, counters.Request{Client: "c", Cost: 1, Limit: 1, Renews: renews, Now: time.Now()})
			assert.NoError(t, err)
			return d
		}
		renewed := make(chan counters.Decision, 1)
		rigged.afterSwap = func() error { // it has lost, and has read that the place is taken
			rigged.afterSwap = nil
			p.release(time.Now(), first)
			second := p.take(time.Now().Add(time.Millisecond), 0)
			go func() { renewed <- take(second.Receipt.Position) }()
			synctest.Wait()
			return nil
		}
		assert.False(t, take(0).Allowed)
		assert.True(t, (<-renewed).Allowed)
	})
}

// A lease that an instance has admitted alone, and couldn't tell the store of yet, takes one place,
// also if another instance has renewed it before, and whoever gives it back frees that.
func TestALeaseTakenAloneIsRenewedElsewhere(t *testing.T) {
	p := newHolders(t, 2, 4)
	begin := time.Now()
	at := func(s int) time.Time { return begin.Add(time.Duration(s) * time.Second) }
	p[0].store.Fail(limitertest.ErrUnsent)
	held := p[0].take(at(0), 0)
	require.True(t, held.Allowed)
	renewed := p[1].take(at(20), held.Receipt.Position)
	require.True(t, renewed.Allowed)
	p[0].store.Fail(nil)
	p[0].l.Flush()
	assert.EqualValues(t, 3, p[1].remain(at(21)))
	p[1].release(at(22), renewed)
	assert.EqualValues(t, 4, p[1].remain(at(23)))
}

// An instance has renewed a lease alone, and tells it when another has renewed it since: it lasts from
// then on.
func TestARenewalToldLateShortensNoLease(t *testing.T) {
	p := newHolders(t, 2, 4)
	begin := time.Now()
	at := func(second int) time.Time { return begin.Add(time.Duration(second) * time.Second) }
	held := p[0].take(at(0), 0)
	p[0].store.Fail(limitertest.ErrUnsent)
	require.True(t, p[0].take(at(20), held.Receipt.Position).Allowed)
	require.True(t, p[1].take(at(40), held.Receipt.Position).Allowed)
	p[0].store.Fail(nil)
	require.EqualValues(t, 3, p[0].remain(at(41)))
	assert.EqualValues(t, 3, p[1].remain(at(90)))
	assert.EqualValues(t, 4, p[1].remain(at(101)))
}
