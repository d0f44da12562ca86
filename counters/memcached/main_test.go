package memcached_test

import (
	"flag"
	"testing"

	"go.uber.org/goleak"
)

func TestMain(m *testing.M) {
	// Many tests only wait for something to expire, for which they need no
	// processor of their own. The command line has the last word.
	if err := flag.Set("test.parallel", "16"); err != nil {
		panic(err)
	}
	flag.Parse()
	if testing.Short() { // the example starts memcached
		if err := flag.Set("test.skip", "^Example"); err != nil {
			panic(err)
		}
	}
	goleak.VerifyTestMain(m)
}
