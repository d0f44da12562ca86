package cas

import (
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"weir/counters"
	"weir/counters/limitertest"
	"weir/counters/memory"
)

// A holder is an instance of several that share a store, which may fail for it alone.
type holder struct {
	t     *testing.T
	l     *Concurrency
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
		r := p[i%2].take(at(30_000+i), d.Receipt.Refunded)
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
		r, err := p[0].l.Take(t.Context(), func() counters.Request {
			r := p[0].request(at(1010 + i))
			r.Renews = d.Receipt.Refunded
			return r
		}())
		require.NoError(t, err)
		assert.True(t, r.Allowed, "lease %d is held, and renewed", i)
	}
}

// More places are taken while the store is gone than an instance notes one by one: each is
// given back all the same.
func TestManyLeasesTakenAloneAreEachGivenBack(t *testing.T) {
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
