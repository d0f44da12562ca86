package subwindow_test

import (
	"context"
	"fmt"
	"log"
	"time"

	"weir/counters"
	"weir/counters/memory"
	"weir/subwindow"
)

// A fixed window: at most 3 in each calendar minute.
func ExampleNew() {
	window, err := subwindow.NewFixedWindow(time.Minute)
	if err != nil {
		log.Fatal(err)
	}
	limiter, err := subwindow.New(memory.New(nil), window, counters.Options{Policy: "api", Limit: "per-minute"})
	if err != nil {
		log.Fatal(err)
	}
	now := time.Now()
	for range 4 {
		d, err := limiter.Take(context.Background(), counters.Request{Client: "alice", Cost: 1, Limit: 3, Now: now})
		if err != nil {
			log.Fatal(err)
		}
		fmt.Println(d.Allowed, d.Remaining)
	}
	// Output:
	// true 2
	// true 1
	// true 0
	// false 0
}

// A sliding window: 3 per minute, estimated from four slots of 15 seconds and
// the one before them.
func ExampleNew_sliding() {
	window, err := subwindow.NewWindow(time.Minute, 4, false)
	if err != nil {
		log.Fatal(err)
	}
	limiter, err := subwindow.New(memory.New(nil), window, counters.Options{Policy: "api", Limit: "per-minute"})
	if err != nil {
		log.Fatal(err)
	}
	noon := time.Date(2026, 11, 21, 12, 0, 0, 0, time.UTC)
	for _, after := range []time.Duration{0, time.Second, 2 * time.Second, 3 * time.Second} {
		d, err := limiter.Take(context.Background(), counters.Request{Client: "alice", Cost: 1, Limit: 3, Now: noon.Add(after)})
		if err != nil {
			log.Fatal(err)
		}
		fmt.Println(d.Allowed, d.Remaining, d.RetryAfter.Round(time.Second))
	}
	// Output:
	// true 2 0s
	// true 1 0s
	// true 0 0s
	// false 0 57s
}
