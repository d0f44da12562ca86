package memcached_test

import (
	"flag"
	"testing"

	"go.uber.org/goleak"

	"weir/counters/memcachedtest"
)

func TestMain(m *testing.M) {
	memcachedtest.Overlap(8) // many wait for something to expire
	if testing.Short() {     // the example starts memcached
		if err := flag.Set("test.skip", "^Example"); err != nil {
			panic(err)
		}
	}
	goleak.VerifyTestMain(m)
}
