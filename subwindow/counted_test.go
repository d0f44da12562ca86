package subwindow_test

import (
	"sync/atomic"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"weir/counters"
	"weir/counters/memory"
)

// A check is counted where something was lost, and what it is to be judged by can't
// be read: it is refused. What it has counted is given back, and no more than that.
func (by way) TestWhatIsCountedAndCannotBeJudgedIsGivenBack(t *testing.T) {
	for name, w := range minuteWindows(t) {
		var down atomic.Bool
		inner := memory.New(nil)
		store := &faultyStore{Store: inner, fault: func(operation, _ string) error {
			if operation == "read" && down.Load() {
				return counters.ErrNotSent
			}
			return nil
		}}
		l := by.newLimiterWith(t, store, w, counters.Options{ClockSkew: sameClock, Clients: 10})
		now := at("12:00:01")
		const limit = 10
		require.True(t, take(t, l, now, 6, limit).Allowed, name)
		require.NoError(t, inner.Delete(t.Context(), []string{key(w, now)}))
		_, err := inner.Add(t.Context(), counters.Addition{Key: key(w, now), Delta: 1, TTL: 1e10}) // by another process
		require.NoError(t, err)
		down.Store(true)
		_, err = l.Take(t.Context(), request(now, 2, limit))
		require.ErrorIs(t, err, counters.ErrNotSent, name)
		admitted := int64(6)
		for range 10 {
			if d, err := l.TakeLocal(request(now, 1, limit), err); assert.NoError(t, err) && d.Allowed {
				admitted++
			}
		}
		assert.EqualValues(t, limit, admitted, name)
		down.Store(false)
		l.Flush()
		assert.Zero(t, l.Owing(), name)
		assert.EqualValues(t, limit, used(t, inner, w, now), name)
	}
}
