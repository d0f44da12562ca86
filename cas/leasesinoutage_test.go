package cas

import (
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"weir/counters"
	"weir/counters/limitertest"
	"weir/counters/memory"
	"weir/counters/racetest"
)

// Leases that are taken and given back by their receipts while the store is gone leave
// nothing to be told: a check in a long outage costs no more than one in a short one.
func TestLeasesThatComeAndGoAloneLeaveNothing(t *testing.T) {
	t.Parallel()
	store := &limitertest.BrokenStore{Store: memory.New(nil)}
	l, err := NewConcurrency(store, 30*time.Second, 8, testConfig(10))
	require.NoError(t, err)
	store.Fail(limitertest.ErrUnsent)
	now := clock(t, "12:00:01.5")
	for range 500 {
		now = now.Add(100 * time.Millisecond)
		r := counters.Request{Client: "c", Cost: 1, Limit: 8, Now: now}
		d, err := l.TakeLocal(r, limitertest.ErrUnsent)
		require.NoError(t, err)
		require.True(t, d.Allowed)
		d.Receipt.Alone, d.Receipt.Client = nil, nil // as a receipt has it
		_ = l.Refund(unhurried, r, d)
	}
	l.limiter.(*limiterOf[logState]).Change("c", func(a *account[logState]) { assert.Less(t, len(a.due), 2*mostDebts) })
	store.Fail(nil)
	l.Flush()
}

// Nor is there more to be told the longer leases are renewed, or end by themselves: of a lease
// that is held the store is told all the same.
func TestLeasesThatAreRenewedAloneDontPileUp(t *testing.T) {
	racetest.Sequential(t)
	t.Parallel()
	const places = 100
	store := &limitertest.BrokenStore{Store: memory.New(nil)}
	l, err := NewConcurrency(store, 10*time.Second, places, testConfig(10))
	require.NoError(t, err)
	store.Fail(limitertest.ErrUnsent)
	now := clock(t, "12:00:01.5")
	request := func(i int, renews int64) counters.Request {
		return counters.Request{Client: "c", Cost: 1, Limit: places, Now: now.Add(time.Duration(i) * time.Millisecond), Renews: renews}
	}
	held := make([]int64, places)
	for range 20 {
		for i := range held {
			if i%10 == 0 {
				held[i] = 0 // its holder has died, and another comes when it has ended
			}
			d, err := l.TakeLocal(request(i, held[i]), limitertest.ErrUnsent)
			require.NoError(t, err)
			if d.Allowed {
				held[i] = d.Receipt.Position
			}
		}
		now = now.Add(5 * time.Second)
	}
	l.limiter.(*limiterOf[logState]).Change("c", func(a *account[logState]) { assert.Less(t, len(a.due), 3*places) })
	store.Fail(nil)
	l.Flush()
	now = now.Add(-5 * time.Second)
	d, err := l.Peek(unhurried, request(places, 0))
	require.NoError(t, err)
	assert.Zero(t, d.Remaining)
}

// Of a lease that is renewed far more often than it has to be, the store is told the last renewal.
func TestALeaseThatIsRenewedAloneAllTheTime(t *testing.T) {
	t.Parallel()
	store := &limitertest.BrokenStore{Store: memory.New(nil)}
	l, err := NewConcurrency(store, time.Hour, 8, testConfig(10))
	require.NoError(t, err)
	store.Fail(limitertest.ErrUnsent)
	r := counters.Request{Client: "c", Cost: 1, Limit: 8, Now: clock(t, "12:00:01.5")}
	for range 1000 {
		r.Now = r.Now.Add(time.Second)
		d, err := l.TakeLocal(r, limitertest.ErrUnsent)
		require.NoError(t, err)
		require.True(t, d.Allowed)
		r.Renews = d.Receipt.Position
	}
	l.limiter.(*limiterOf[logState]).Change("c", func(a *account[logState]) { assert.Less(t, len(a.due), 2*mostDebts) })
	store.Fail(nil)
	l.Flush()
	r.Renews = 0
	d, err := l.Peek(unhurried, r)
	require.NoError(t, err)
	assert.EqualValues(t, 7, d.Remaining)
}

// A lease that the store hasn't said anything about is given back by its receipt. Others have
// written meanwhile; that it wasn't taken is only told after that. It isn't taken then.
func TestALeaseThatIsGivenBackBeforeItIsKnownStaysFree(t *testing.T) {
	t.Parallel()
	inner := memory.New(nil)
	store := &scriptedSwap{Store: inner}
	var background counters.Goroutines
	cfg := testConfig(10)
	cfg.Background = &background
	l, err := NewConcurrency(store, 30*time.Second, 8, cfg)
	require.NoError(t, err)
	other, err := NewConcurrency(inner, 30*time.Second, 8, testConfig(10))
	require.NoError(t, err)
	now := clock(t, "12:00:01.5")
	request := func() counters.Request {
		now = now.Add(time.Millisecond)
		return counters.Request{Client: "c", Cost: 1, Limit: 8, Now: now}
	}
	late := store.late(false)
	r := request()
	_, err = l.Take(unhurried, r)
	require.ErrorIs(t, err, counters.ErrTimeout)
	d, err := l.TakeLocal(r, err)
	require.NoError(t, err)
	require.True(t, d.Allowed)
	held, err := other.Take(unhurried, request())
	require.NoError(t, err)
	require.True(t, held.Allowed)
	d.Receipt.Alone, d.Receipt.Client = nil, nil // as a receipt has it
	require.NoError(t, l.Refund(unhurried, r, d))
	late.tell(counters.ErrNotSent) // the store's answer EXISTS comes late
	background.Wait()
	l.Flush()
	d, err = other.Peek(unhurried, request())
	require.NoError(t, err)
	assert.EqualValues(t, 7, d.Remaining, "only the other's lease is held")
}

// A renewal and a check of the same cost have no answer, and the check decides alone. It isn't
// taken for the renewal, although another instance's clock is so far ahead that both are as of
// that.
func TestACheckIsNotTakenForARenewal(t *testing.T) {
	store := &scriptedSwap{Store: memory.New(nil)}
	cfg := testConfig(10)
	cfg.ClockSkew = 100 * time.Millisecond
	here, err := NewConcurrency(manyStore{store}, time.Minute, 4, cfg)
	require.NoError(t, err)
	there, err := NewConcurrency(store, time.Minute, 4, cfg)
	require.NoError(t, err)
	p, other := &holder{t: t, l: here, limit: 4}, &holder{t: t, l: there, limit: 4}
	begin := time.Now()
	held := p.take(begin, 0)
	require.True(t, other.take(begin.Add(70*time.Millisecond), 0).Allowed)
	require.EqualValues(t, 2, p.remain(begin))
	now := begin.Add(5 * time.Millisecond)
	renewal, check := p.request(now), p.request(now)
	renewal.Renews = held.Receipt.Position
	var failed [2]counters.Taken
	late := store.late(false)
	here.TakeMany(t.Context(), []counters.Request{renewal, check}, func(i int, t counters.Taken) { failed[i] = t })
	require.ErrorIs(t, failed[1].Err, counters.ErrTimeout)
	d, err := here.TakeLocal(check, failed[1].Err)
	require.NoError(t, err)
	require.True(t, d.Allowed)
	assert.NotEqual(t, held.Receipt.Position%int64(grid), d.Receipt.Position%int64(grid), "it has a lease of its own")
	late.tell(counters.ErrNotSent)
	here.Flush()
	assert.EqualValues(t, 1, other.remain(now), "three are held")
}
