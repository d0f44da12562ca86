package limitertest

import (
	"context"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"weir/counters"
)

// Loss tests that a limiter puts back what its store has lost, and not what was
// reset. For newStore and newLimiter see Outage. A limiter calls reseeded with the
// number of what it puts back.
func Loss(t *testing.T, now time.Time, newStore func() Store, newLimiter func(t *testing.T, s Store, reseeded func(int)) counters.Limiter) {
	const limit = 10
	type world struct {
		a, b, newcomer *instance // newcomer begins without memory
		reseeded       int
		lose           func()
	}
	begin := func(t *testing.T) *world {
		w := new(world)
		shared := newStore()
		for _, i := range []**instance{&w.a, &w.b, &w.newcomer} {
			store := &BrokenStore{Store: shared}
			*i = &instance{t, store, newLimiter(t, store, func(n int) { w.reseeded += n }), now, limit}
		}
		w.lose = func() {
			empty := newStore()
			for _, i := range []*instance{w.a, w.b, w.newcomer} {
				i.store.change(func() {
					i.store.Store = empty
					i.store.life++
				})
			}
		}
		return w
	}
	reset := func(i *instance) {
		i.t.Helper()
		require.NoError(i.t, i.limiter.Reset(context.Background(), "c", i.now))
	}
	t.Run("one process admits not one more", func(t *testing.T) {
		w := begin(t)
		require.Equal(t, 6, w.a.admits(6))
		w.lose()
		assert.Equal(t, 4, w.a.admits(20))
		assert.Zero(t, w.b.admits(20), "it is back in the store")
		assert.Positive(t, w.reseeded)
	})
	t.Run("again and again", func(t *testing.T) {
		w := begin(t)
		admitted := 0
		for range 30 {
			admitted += w.a.admits(1)
			w.lose()
		}
		assert.Equal(t, limit, admitted)
	})
	for _, failure := range []error{ErrUnsent, ErrUnanswered, ErrUnheard} {
		t.Run("what was admitted alone before it is back too: "+failure.Error(), func(t *testing.T) {
			w := begin(t)
			later := func(d time.Duration) { w.a.now = w.a.now.Add(d) }
			require.Equal(t, 3, w.a.admits(3))
			later(10 * time.Millisecond)
			w.a.store.Fail(failure)
			admitted := 3 + w.a.admits(2)
			later(300 * time.Millisecond)
			admitted += w.a.admits(2)
			w.lose()
			w.a.store.Fail(nil)
			later(10 * time.Millisecond)
			admitted += w.a.admits(20)
			assert.Equal(t, limit, admitted)
			w.newcomer.now = w.a.now
			assert.Zero(t, w.newcomer.admits(20), "all of it is in the store")
		})
		t.Run("as what was admitted alone between two losses is: "+failure.Error(), func(t *testing.T) {
			w := begin(t)
			later := func(d time.Duration) { w.a.now = w.a.now.Add(d) }
			admitted := w.a.admits(2)
			for range 3 {
				later(10 * time.Millisecond)
				w.lose()
				w.a.check(0) // it sees the loss, and has put nothing back
				w.a.store.Fail(failure)
				admitted += w.a.admits(2)
				later(10 * time.Millisecond)
				w.lose()
				w.a.store.Fail(nil)
			}
			later(10 * time.Millisecond)
			admitted += w.a.admits(20)
			assert.Equal(t, limit, admitted)
		})
	}
	t.Run("what had no answer twice is back", func(t *testing.T) {
		w := begin(t)
		later := func() { w.a.now = w.a.now.Add(10 * time.Millisecond) }
		admitted := w.a.admits(2)
		later()
		w.a.store.Fail(ErrUnanswered)
		admitted += w.a.admits(2)
		later()
		w.a.store.change(func() { w.a.store.Err, w.a.store.readable = ErrUnheard, true })
		admitted += w.a.admits(2)
		w.lose()
		w.a.store.Fail(nil)
		later()
		admitted += w.a.admits(20)
		assert.Equal(t, limit, admitted)
	})
	t.Run("who knows more puts back more", func(t *testing.T) {
		w := begin(t)
		require.Equal(t, 3, w.a.admits(3))
		w.b.now = now.Add(time.Millisecond)
		require.Equal(t, 5, w.b.admits(5))
		w.lose()
		w.a.now, w.b.now = now.Add(time.Second), now.Add(time.Second)
		require.Equal(t, 1, w.a.admits(1), "it knows of 3")
		assert.LessOrEqual(t, w.b.admits(20), 2)
		w.a.now, w.newcomer.now = now.Add(2*time.Second), now.Add(2*time.Second)
		assert.Zero(t, w.a.admits(20), "it knows within a second")
		assert.Zero(t, w.newcomer.admits(20))
	})
	t.Run("who knows nothing comes first", func(t *testing.T) {
		w := begin(t)
		require.Equal(t, limit, w.a.admits(limit))
		w.lose()
		w.newcomer.now = now.Add(time.Millisecond)
		require.Equal(t, 1, w.newcomer.admits(1))
		a := w.a
		a.now = now.Add(time.Second) // what it knows isn't fresh
		assert.Zero(t, a.admits(1))
		w.newcomer.now = a.now
		assert.Zero(t, w.newcomer.admits(20))
	})
	t.Run("a cost that was given back stays so", func(t *testing.T) {
		w := begin(t)
		taken := w.a.check(6)
		require.True(t, taken.Allowed)
		w.b.refund(6, taken)
		w.newcomer.now = now.Add(time.Millisecond)
		assert.Equal(t, limit, w.newcomer.admits(20))
		require.Zero(t, w.reseeded)
	})
	t.Run("a reset isn't a loss", func(t *testing.T) {
		w := begin(t)
		require.Equal(t, limit, w.a.admits(limit))
		w.b.now = now.Add(time.Millisecond)
		reset(w.b)
		w.a.now = now.Add(time.Second)
		assert.Equal(t, limit, w.a.admits(20))
		assert.Zero(t, w.reseeded)
	})
	t.Run("nor is a reset undone by a loss", func(t *testing.T) {
		w := begin(t)
		require.Equal(t, limit, w.a.admits(limit))
		w.b.now = now.Add(time.Millisecond)
		reset(w.b)
		require.Equal(t, 2, w.b.admits(2))
		w.lose()
		w.a.now, w.b.now = now.Add(time.Second), now.Add(time.Second)
		assert.Equal(t, 1, w.b.admits(1), "it knows of the reset, and puts that back too")
		w.a.now = now.Add(2 * time.Second)
		assert.Equal(t, limit-3, w.a.admits(20))
	})
	t.Run("what is put back isn't put back twice", func(t *testing.T) {
		w := begin(t)
		require.Equal(t, 2, w.a.admits(2))
		require.Equal(t, 2, w.b.admits(2))
		w.lose()
		for i := range 4 {
			at := now.Add(time.Duration(i) * time.Millisecond)
			w.a.now, w.b.now = at, at
			require.Equal(t, 1, w.b.admits(1)) // b knows of all 4
			w.a.check(0)
		}
		assert.Equal(t, limit-8, w.newcomer.admits(20))
	})
}
