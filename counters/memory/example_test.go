package memory_test

import (
	"context"
	"fmt"
	"log"
	"time"

	"weir/counters"
	"weir/counters/memory"
	"weir/subwindow"
)

// A store with a clock of its own: a day passes at once.
func ExampleNew() {
	now := time.Date(2026, 11, 21, 12, 0, 0, 0, time.UTC)
	store := memory.New(func() time.Time { return now })
	window, err := subwindow.NewFixedWindow(24 * time.Hour)
	if err != nil {
		log.Fatal(err)
	}
	limiter, err := subwindow.New(store, window, counters.Options{Policy: "api", Limit: "per-day"})
	if err != nil {
		log.Fatal(err)
	}
	for range 3 {
		d, err := limiter.Take(context.Background(), counters.Request{Client: "alice", Cost: 6, Limit: 10, Now: now})
		if err != nil {
			log.Fatal(err)
		}
		fmt.Println(d.Allowed, d.Remaining, d.RetryAfter)
		now = now.Add(d.RetryAfter)
	}
	// Output:
	// true 4 0s
	// false 4 12h0m0s
	// true 4 0s
}
