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

// inFlight returns a limiter of places, and who asks it for one.
func inFlight(t *testing.T, store counters.StateStore, limit int64) (l *Limiter, ask func(at time.Time, renews int64) (counters.Decision, error)) {
	l, err := NewConcurrency(store, 10*time.Second, limit, testConfig(10))
	require.NoError(t, err)
	return l, func(at time.Time, renews int64) (counters.Decision, error) {
		return l.Take(unhurried, counters.Request{Client: "c", Cost: 1, Limit: limit, Now: at, Renews: renews})
	}
}

// Whoever isn't told that a lease is renewed relies on it as it was, and nobody else gets
// its place.
func TestARenewalThatTheStoreDidNotAnswer(t *testing.T) {
	inner := memory.New(nil)
	store := &limitertest.BrokenStore{Store: inner}
	l, ask := inFlight(t, store, 1)
	_, other := inFlight(t, inner, 1)
	begin := time.Now()
	at := func(s int) time.Time { return begin.Add(time.Duration(s) * time.Second) }
	d, err := ask(at(0), 0)
	require.NoError(t, err)
	require.True(t, d.Allowed)
	lease := d.Receipt.Position
	store.Fail(limitertest.ErrUnanswered)
	_, err = ask(at(5), lease)
	require.Error(t, err)
	store.Fail(nil)
	l.Flush() // what was refused is given back
	for s, allowed := range map[int]bool{6: false, 9: false} {
		d, err := other(at(s), 0)
		require.NoError(t, err)
		assert.Equal(t, allowed, d.Allowed, "%d s", s)
	}
	d, err = ask(at(8), lease)
	require.NoError(t, err)
	assert.True(t, d.Allowed, "it is renewed later")
	d, err = other(at(11), 0)
	require.NoError(t, err)
	assert.False(t, d.Allowed)
	d, err = other(at(19), 0)
	require.NoError(t, err)
	assert.True(t, d.Allowed, "then it has ended")
}

// A refund carries the time of what it gives back, which may be long ago: what it
// leaves in the origin and has run out since isn't missing, and what was renewed isn't put back.
func TestAnOldRefundTakesNothingForLost(t *testing.T) {
	store := memory.New(nil)
	one, ask := inFlight(t, store, 2)
	_, other := inFlight(t, store, 2)
	begin := time.Now()
	at := func(s int) time.Time { return begin.Add(time.Duration(s) * time.Second) }
	take := func(ask func(time.Time, int64) (counters.Decision, error), now time.Time, renews int64) counters.Decision {
		t.Helper()
		d, err := ask(now, renews)
		require.NoError(t, err)
		require.True(t, d.Allowed)
		return d
	}
	back := func(now time.Time, d counters.Decision) {
		t.Helper()
		d.Receipt.Client = nil // as from a receipt
		require.NoError(t, one.Refund(unhurried, counters.Request{Client: "c", Cost: 1, Limit: 2, Now: now}, d))
	}
	first, second := take(ask, at(0), 0), take(ask, at(1), 0)
	back(at(0), first) // marks that something is meant to be missing
	third := take(other, at(20), 0)
	back(at(1), second)
	take(ask, at(21), third.Receipt.Position)
	take(other, at(22), 0) // the second: what it knew has been renewed
}

// A lease that is renewed while the store is gone takes one place, and frees that.
func TestALeaseRenewedAloneTakesOnePlace(t *testing.T) {
	const limit = 4
	store := &limitertest.BrokenStore{Store: memory.New(nil)}
	l, _ := inFlight(t, store, limit)
	begin := time.Now()
	at := func(s int) counters.Request {
		return counters.Request{Client: "c", Cost: 1, Limit: limit, Now: begin.Add(time.Duration(s) * time.Second)}
	}
	remain := func(s int) int64 {
		d, err := l.Peek(unhurried, at(s))
		require.NoError(t, err)
		return d.Remaining
	}
	d, err := l.Take(unhurried, at(0))
	require.NoError(t, err)
	store.Fail(limitertest.ErrUnsent)
	for s := range 3 {
		r := at(s + 1)
		r.Renews = d.Receipt.Position
		_, err = l.Take(unhurried, r)
		d, err = l.TakeLocal(r, err)
		require.NoError(t, err)
		require.True(t, d.Allowed)
		assert.EqualValues(t, limit-1, d.Remaining)
	}
	store.Fail(nil)
	assert.EqualValues(t, limit-1, remain(4))
	require.NoError(t, l.Refund(unhurried, at(3), d))
	assert.EqualValues(t, limit, remain(5))
}

// A place that was taken while the store was gone, and is given back by its receipt, is
// free for all instances.
func TestWhatIsLeasedAloneAndReleasedIsNotPutBack(t *testing.T) {
	inner := memory.New(nil)
	store := &limitertest.BrokenStore{Store: inner}
	l, _ := inFlight(t, store, 1)
	_, other := inFlight(t, inner, 1)
	begin := time.Now()
	r := counters.Request{Client: "c", Cost: 1, Limit: 1, Now: begin}
	store.Fail(limitertest.ErrUnsent)
	_, err := l.Take(unhurried, r)
	d, err := l.TakeLocal(r, err)
	require.NoError(t, err)
	store.Fail(nil)
	l.Flush()
	seen, err := other(begin.Add(time.Second), 0)
	require.NoError(t, err)
	require.False(t, seen.Allowed)
	d.Receipt.Alone, d.Receipt.Client = nil, nil // which a receipt doesn't have
	require.NoError(t, l.Refund(unhurried, r, d))
	seen, err = other(begin.Add(2*time.Second), 0)
	require.NoError(t, err)
	assert.True(t, seen.Allowed)
}

// A batch's leases are asked for at one time, and a clock may be behind that of whoever
// asked before: each is given back by itself, and no other with it.
func TestLeasesOfOneTimeAreEachTheirOwn(t *testing.T) {
	now := time.Unix(1_700_000_000, 0)
	for name, later := range map[string]time.Time{"at once": now, "by a clock behind": now.Add(-time.Second)} {
		t.Run(name, func(t *testing.T) {
			l, ask := inFlight(t, memory.New(nil), 3)
			_, err := ask(now.Add(-time.Minute/12), 0)
			require.NoError(t, err)
			first, err := ask(now, 0)
			require.NoError(t, err)
			second, err := ask(later, 0)
			require.NoError(t, err)
			require.True(t, second.Allowed)
			first.Receipt.Client = nil // as from a receipt
			for range 2 {
				require.NoError(t, l.Refund(unhurried, counters.Request{Client: "c", Cost: 1, Limit: 3, Now: now}, first))
			}
			d, err := ask(now.Add(time.Millisecond), 0)
			require.NoError(t, err)
			assert.True(t, d.Allowed, "the place that was given back")
			d, err = ask(now.Add(2*time.Millisecond), 0)
			require.NoError(t, err)
			assert.False(t, d.Allowed, "the second still holds its own")
		})
	}
}

// A lease may begin up to a grid before it was asked for, and so before a reset that came first.
// It isn't dropped by who knows of the reset, and has given back another one since.
func TestALeaseOfRightBehindAResetStays(t *testing.T) {
	t.Parallel()
	store := memory.New(nil)
	one, ask := inFlight(t, store, 4)
	other, otherAsks := inFlight(t, store, 4)
	now := clock(t, "12:00:01.5")
	require.NoError(t, one.Reset(t.Context(), "c", now))
	r := counters.Request{Client: "c", Cost: 1, Limit: 4, Now: now.Add(time.Millisecond)}
	taken, err := one.Take(unhurried, r)
	require.NoError(t, err)
	require.Less(t, taken.Receipt.Position, now.UnixNano())
	require.NoError(t, other.Refund(unhurried, r, taken))
	require.NoError(t, store.Delete(t.Context(), []string{one.limiter.(*limiterOf[logState]).family.keys.StateKey("c")}))
	held, err := ask(now.Add(time.Second), 0)
	require.NoError(t, err)
	require.True(t, held.Allowed)
	d, err := otherAsks(now.Add(2*time.Second), 0)
	require.NoError(t, err)
	require.True(t, d.Allowed)
	assert.LessOrEqual(t, d.Remaining, int64(2))
}

// Who knows that a lease was renewed puts that back into a state that is older than it.
func TestARenewalIsPutBackIntoAnOlderState(t *testing.T) {
	t.Parallel()
	p := places{log{window: time.Minute}}
	r := counters.Request{Cost: 1, Limit: 2, Now: clock(t, "12:00:00")}
	present, d := p.step(logState{}, r)
	r.Now, r.Renews = clock(t, "12:00:30"), d.Receipt.Position
	known, _ := p.step(p.clone(present), r)
	s, _ := p.fuller(present, known, r)
	decoded, err := p.decode(p.encode(nil, s))
	require.NoError(t, err)
	r.Now = clock(t, "12:01:20")
	assert.EqualValues(t, 1, p.peek(decoded, counters.Request{Limit: 2, Now: r.Now}).Remaining)
}
