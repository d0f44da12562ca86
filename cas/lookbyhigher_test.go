package cas

import (
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"weir/counters"
	"weir/counters/limitertest"
	"weir/counters/memory"
)

// A client has used up a limit of 10 an hour. Who looks at it by a higher limit, by which the bucket
// would drain in seconds, makes nothing of that be forgotten: not by the store, nor by the process,
// which may find that it is lost, or be alone.
func (by way) TestALookByAHigherLimitForgetsNothing(t *testing.T) {
	for name, then := range map[string]func(store *limitertest.BrokenStore, inner *memory.Store){
		"the store has it":  func(*limitertest.BrokenStore, *memory.Store) {},
		"the store is gone": func(store *limitertest.BrokenStore, _ *memory.Store) { store.Fail(limitertest.ErrUnsent) },
		"it is lost": func(_ *limitertest.BrokenStore, inner *memory.Store) {
			_ = inner.Delete(unhurried, []string{testKeys.StateKey("c")})
		},
	} {
		for _, elsewhere := range []bool{false, true} {
			if elsewhere && name != "the store has it" {
				continue
			}
			t.Run(name+map[bool]string{true: ", by another instance"}[elsewhere], func(t *testing.T) {
				synctest.Test(t, func(t *testing.T) {
					inner := memory.New(nil)
					store := &limitertest.BrokenStore{Store: inner}
					l, err := by.asks(NewTokenBucket(by.on(store), time.Hour, 0, testConfig(10)))
					require.NoError(t, err)
					filler, err := NewTokenBucket(inner, time.Hour, 0, testConfig(10))
					require.NoError(t, err)
					at := func(cost, limit int64) counters.Request {
						return counters.Request{Client: "c", Cost: cost, Limit: limit, Now: time.Now()}
					}
					take := l.Take
					if elsewhere {
						take = filler.Take
					}
					d, err := take(t.Context(), at(10, 10))
					require.NoError(t, err)
					require.True(t, d.Allowed)
					_, err = l.Take(t.Context(), at(0, 100_000))
					require.NoError(t, err)
					time.Sleep(5 * time.Second)
					then(store, inner)
					_, known := l.PeekLocal(at(1, 10)) // as a check does that asks several limits
					require.False(t, known)
					r := at(1, 10)
					if d, err = l.Take(t.Context(), r); err != nil {
						d, err = l.TakeLocal(r, err)
					}
					require.NoError(t, err)
					assert.False(t, d.Allowed, "%+v", d)
				})
			})
		}
	}
}

// What was admitted alone is kept for as long as its own limit needs, although the store is told of
// it by a look by a higher one.
func (by way) TestWhatIsToldByALookByAHigherLimitLasts(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := &limitertest.BrokenStore{Store: memory.New(nil)}
		l, err := by.asks(NewTokenBucket(by.on(store), time.Hour, 0, testConfig(10)))
		require.NoError(t, err)
		at := func(cost, limit int64) counters.Request {
			return counters.Request{Client: "c", Cost: cost, Limit: limit, Now: time.Now()}
		}
		store.Fail(limitertest.ErrUnsent)
		r := at(10, 10)
		_, err = l.Take(t.Context(), r)
		d, err := l.TakeLocal(r, err)
		require.NoError(t, err)
		require.True(t, d.Allowed)
		store.Fail(nil)
		_, err = l.Peek(t.Context(), at(1, 100_000))
		require.NoError(t, err)
		time.Sleep(5 * time.Second)
		d, err = l.Take(t.Context(), at(1, 10))
		require.NoError(t, err)
		assert.False(t, d.Allowed, "%+v", d)
	})
}
