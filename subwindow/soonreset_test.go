package subwindow_test

import (
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"weir/counters"
	"weir/counters/memory"
	"weir/subwindow"
)

// What is given back soon is of before a reset, and of after it, in the same slot: nothing of
// before it is taken from what was counted since.
func TestWhatIsGivenBackSoonIsNotFromBeforeAReset(t *testing.T) {
	t.Parallel()
	fixed, err := subwindow.NewFixedWindow(time.Minute)
	require.NoError(t, err)
	for name, w := range map[string]subwindow.Window{"fixed": fixed, "sliding": newWindow(t, time.Minute, 4, false)} {
		t.Run(name, func(t *testing.T) {
			store := memory.New(nil)
			here := way{many: true}.newLimiter(t, store, w, 50*time.Millisecond)
			there := way{many: true}.newLimiter(t, store, w, 50*time.Millisecond)
			reserve := func(clock string, cost int64) counters.Decision {
				r := request(at(clock), cost, 100)
				r.Reserved = true
				d, err := here.Take(t.Context(), r)
				require.NoError(t, err)
				require.True(t, d.Allowed)
				d.Receipt.At = r.Now.UnixNano()
				return d
			}
			before := reserve("12:00:01", 20)
			require.NoError(t, here.Reset(t.Context(), "c", at("12:00:02")))
			reserve("12:00:03", 60)
			after := reserve("12:00:03.1", 10)
			require.NoError(t, there.RefundSoon(t.Context(), request(at("12:00:04"), 20, 100), before, nil))
			require.NoError(t, there.RefundSoon(t.Context(), request(at("12:00:04"), 5, 100), after, nil))
			there.Flush()
			assert.GreaterOrEqual(t, used(t, store, w, at("12:00:04")), int64(60+10-5))
		})
	}
}

// A process that hasn't heard of a reset takes what it has added before that for its own, if
// others have counted as much since. When they give some back, what it gives back isn't lost.
func TestWhatIsGivenBackSoonAfterAResetElsewhere(t *testing.T) {
	t.Parallel()
	w, err := subwindow.NewFixedWindow(time.Minute)
	require.NoError(t, err)
	store := memory.New(nil)
	here := way{many: true}.newLimiter(t, store, w, 50*time.Millisecond)
	there := way{many: true}.newLimiter(t, store, w, 50*time.Millisecond)
	reserve := func(l *limiter, clock string, cost int64) counters.Decision {
		r := request(at(clock), cost, 100)
		r.Reserved = true
		d, err := l.Take(t.Context(), r)
		require.NoError(t, err)
		d.Receipt.At = r.Now.UnixNano()
		return d
	}
	require.NoError(t, there.Charge(t.Context(), request(at("12:00:01"), 14, 100)))
	require.NoError(t, here.Reset(t.Context(), "c", at("12:00:02")))
	first := reserve(here, "12:00:03", 14)
	second := reserve(there, "12:00:04", 2)
	require.NoError(t, here.Refund(t.Context(), request(at("12:00:05"), 3, 100), first))
	require.NoError(t, there.RefundSoon(t.Context(), request(at("12:00:05"), 1, 100), second, nil))
	there.Flush()
	assert.EqualValues(t, 14+2-3-1, used(t, store, w, at("12:00:05")))
}
