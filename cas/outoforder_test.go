package cas_test

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"weir/cas"
	"weir/counters"
	"weir/counters/memory"
)

// Callers who decide without the store in another order than they have asked get together
// what a bucket holds.
func TestAloneInAnyOrder(t *testing.T) {
	t.Parallel()
	config := cas.Config{Options: counters.Options{Policy: "p", Limit: "l"}}
	token, err := cas.NewTokenBucket(memory.New(nil), time.Second, 10, config)
	require.NoError(t, err)
	leaky, err := cas.NewLeakyBucket(memory.New(nil), time.Second, 10, config)
	require.NoError(t, err)
	for name, l := range map[string]interface {
		TakeLocal(counters.Request, error) (counters.Decision, error)
	}{"token": token, "leaky": leaky} {
		now, admitted := time.Now(), 0
		for n := range 501 {
			at := now
			if n == 0 {
				at = now.Add(2 * time.Millisecond) // in which 2 drain
			}
			d, err := l.TakeLocal(counters.Request{Client: "c", Cost: 1, Limit: 1000, Now: at}, counters.ErrUnavailable)
			require.NoError(t, err)
			if d.Allowed {
				admitted++
			}
		}
		require.LessOrEqual(t, admitted, 12, name)
		require.GreaterOrEqual(t, admitted, 10, name)
	}
}
