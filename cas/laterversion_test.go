package cas

import (
	"context"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"weir/counters"
	"weir/counters/limitertest"
	"weir/counters/memory"
)

// A keyedStore remembers which key was loaded last.
type keyedStore struct {
	limitertest.Store
	key string
}

func (s *keyedStore) Load(ctx context.Context, key string) (counters.State, error) {
	s.key = key
	return s.Store.Load(ctx, key)
}

// What a later version has written is left alone: the store can't be asked, and the
// process decides alone. A reset begins anew, as the later version can read that.
func (by way) TestAStateOfALaterVersionIsLeftAlone(t *testing.T) {
	t.Parallel()
	for name, newLimiter := range by.makers() {
		for _, resetBefore := range []bool{false, true} {
			t.Run(name, func(t *testing.T) {
				t.Parallel()
				store := &keyedStore{Store: memory.New(nil)}
				cfg := testConfig(10)
				cfg.Foreign = func() { t.Error("it is a state") }
				l, err := newLimiter(store, cfg)
				require.NoError(t, err)
				now := clock(t, "12:00:01.5")
				request := counters.Request{Client: "c", Cost: 1, Limit: 10, Now: now}
				if resetBefore {
					require.NoError(t, l.Reset(t.Context(), "c", now.Add(-time.Second)))
				}
				_, err = l.Take(unhurried, request)
				require.NoError(t, err)
				_, err = l.Peek(unhurried, request)
				require.NoError(t, err)
				state, err := store.Load(t.Context(), store.key)
				require.NoError(t, err)
				later := append([]byte{state.Value[0] | 0x0f}, "of a later format"...)
				require.NoError(t, store.Put(t.Context(), store.key, later, time.Hour))

				for range 3 {
					_, err = l.Take(unhurried, request)
					require.ErrorContains(t, err, "a newer version has written the client's state")
					d, err := l.TakeLocal(request, err)
					require.NoError(t, err)
					require.True(t, d.Allowed)
				}
				_, err = l.Peek(unhurried, request)
				require.Error(t, err)
				l.(interface{ Flush() }).Flush()
				state, err = store.Load(t.Context(), store.key)
				require.NoError(t, err)
				require.Equal(t, later, state.Value)

				require.NoError(t, l.Reset(t.Context(), "c", now))
				d, err := l.Take(unhurried, request)
				require.NoError(t, err)
				assert.EqualValues(t, 9, d.Remaining)
			})
		}
	}
}
