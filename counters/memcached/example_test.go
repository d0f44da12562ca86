package memcached_test

import (
	"context"
	"fmt"
	"log"
	"time"

	"weir/counters"
	"weir/counters/memcached"
	"weir/counters/memcachedtest"
	"weir/subwindow"
)

// Two limiters, as two processes have them, share a limit on Memcached.
func ExampleNew() {
	server, err := memcachedtest.Run()
	if err != nil {
		log.Fatal(err)
	}
	defer server.Kill()

	window, err := subwindow.NewFixedWindow(time.Hour)
	if err != nil {
		log.Fatal(err)
	}
	now := time.Now()
	for range 2 {
		store, err := memcached.New(memcached.Config{Servers: []string{server.Addr}})
		if err != nil {
			log.Fatal(err)
		}
		defer store.Close()
		limiter, err := subwindow.New(store, window, counters.Options{
			Policy: "api", Limit: "per-hour", StoreTimeout: time.Second,
		})
		if err != nil {
			log.Fatal(err)
		}
		d, err := limiter.Take(context.Background(), counters.Request{Client: "alice", Cost: 6, Limit: 10, Now: now})
		if err != nil {
			log.Fatal(err)
		}
		fmt.Println(d.Allowed, d.Remaining)
	}
	// Output:
	// true 4
	// false 4
}
