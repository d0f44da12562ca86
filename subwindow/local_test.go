package subwindow_test

import (
	"testing"
	"time"

	"weir/counters/limitertest"
	"weir/counters/memory"
	"weir/subwindow"
)

func TestOutages(t *testing.T) {
	t.Parallel()
	fixed, err := subwindow.NewFixedWindow(time.Minute)
	if err != nil {
		t.Fatal(err)
	}
	for name, window := range map[string]subwindow.Window{
		"fixed":    fixed,
		"weighted": newWindow(t, time.Minute, 4, false),
		"strict":   newWindow(t, time.Minute, 60, true),
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			limitertest.Outage(t, at("12:00:01.5"), func() limitertest.Store { return memory.New(nil) },
				func(t *testing.T, store limitertest.Store) limitertest.Limiter {
					return newLimiter(t, store, window, sameClock)
				})
		})
	}
}
