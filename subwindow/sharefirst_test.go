package subwindow_test

import (
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"weir/counters/limitertest"
	"weir/counters/memory"
)

// What others have had of a client before a process saw it first says nothing of its share, also if
// the store was gone then.
func (by way) TestTheShareBeginsWithTheFirstVisit(t *testing.T) {
	const limit = 1000
	alone := make(map[bool]int)
	for _, gone := range []bool{false, true} {
		shared := memory.New(nil)
		broken := &limitertest.BrokenStore{Store: shared}
		w := newWindow(t, time.Minute, 6, false)
		here, there := by.newLimiter(t, broken, w, 50*time.Millisecond), by.newLimiter(t, shared, w, 50*time.Millisecond)
		now := at("12:00:02")
		take := func(l *limiter) bool {
			r := request(now, 1, limit)
			d, err := l.Limiter.Take(t.Context(), r)
			if err != nil {
				d, err = l.TakeLocal(r, err)
			}
			require.NoError(t, err)
			now = now.Add(time.Millisecond)
			return d.Allowed
		}
		for range 50 {
			require.True(t, take(there))
		}
		now = at("12:00:17")
		if gone {
			broken.Fail(limitertest.ErrUnsent)
		}
		require.True(t, take(here))
		broken.Fail(nil)
		now = at("12:00:22")
		for range 10 {
			require.True(t, take(here))
		}
		broken.Fail(limitertest.ErrUnsent)
		for range limit {
			if take(here) {
				alone[gone]++
			}
		}
	}
	assert.Equal(t, limit-50-11, alone[false], "all since then was its own")
	assert.Equal(t, alone[false], alone[true])
}

// A process that has had nine of ten of a client has its share of a small limit alone, too: what its
// checks stand for is rounded up once, and not for each of them.
func (by way) TestTheShareOfASmallLimitIsRoundedOnce(t *testing.T) {
	t.Parallel()
	for name, w := range minuteWindows(t) {
		store := &limitertest.BrokenStore{Store: memory.New(nil)}
		here, there := by.newLimiter(t, store, w, sameClock), by.newLimiter(t, store.Store, w, sameClock)
		now := at("11:00:00")
		for range 50 {
			now = now.Add(time.Minute / 5)
			require.True(t, takeAnyway(t, there, request(now, 1, 100)))
			for range 9 {
				require.True(t, takeAnyway(t, here, request(now, 1, 100)))
			}
		}
		store.Fail(limitertest.ErrUnsent)
		admitted := 0
		for range 10 {
			if takeAnyway(t, here, request(at("12:00:01"), 1, 5)) {
				admitted++
			}
		}
		assert.Equal(t, 4, admitted, name)
	}
}
