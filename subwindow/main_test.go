package subwindow_test

import (
	"context"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	"weir/counters"
	"weir/subwindow"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// clock is a clock that a test sets.
type clock struct{ now time.Time }

func (c *clock) Now() time.Time { return c.now }

// at returns a moment on a day that begins with a slot of any width that
// divides a day.
func at(clock string) time.Time {
	moment, err := time.Parse("2006-01-02 15:04:05.999999999", "2023-07-15 "+clock)
	if err != nil {
		panic(err)
	}
	return moment
}

func newWindow(t require.TestingT, length time.Duration, slots int, strict bool) subwindow.Window {
	w, err := subwindow.NewWindow(length, slots, strict)
	require.NoError(t, err)
	return w
}

// newLimiter returns a limiter that remembers many clients.
func newLimiter(store counters.Store, w subwindow.Window, skew time.Duration) *counters.SlotLimiter {
	return subwindow.New(store, w, counters.SlotConfig{
		Keys: counters.CounterNamespace("weir", "p", "l", w.Width), ClockSkew: skew, Clients: 1000,
	})
}

func take(t require.TestingT, l *counters.SlotLimiter, now time.Time, cost, limit int64) counters.Decision {
	d, err := l.Take(context.Background(), counters.Request{Client: "c", Cost: cost, Limit: limit, Now: now})
	require.NoError(t, err)
	d.Local = false
	return d
}
