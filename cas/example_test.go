package cas_test

import (
	"context"
	"fmt"
	"log"
	"time"

	"weir/cas"
	"weir/counters"
	"weir/counters/memory"
)

// A token bucket: 60 a minute, and up to 5 at once.
func ExampleNewTokenBucket() {
	cfg := cas.Config{Options: counters.Options{Policy: "api", Limit: "per-minute"}}
	limiter, err := cas.NewTokenBucket(memory.New(nil), time.Minute, 5, cfg)
	if err != nil {
		log.Fatal(err)
	}
	now := time.Now()
	for _, cost := range []int64{3, 2, 1} {
		d, err := limiter.Take(context.Background(), counters.Request{Client: "alice", Cost: cost, Limit: 60, Now: now})
		if err != nil {
			log.Fatal(err)
		}
		fmt.Println(d.Allowed, d.Remaining, d.RetryAfter)
	}
	// Output:
	// true 2 0s
	// true 0 0s
	// false 0 1s
}
