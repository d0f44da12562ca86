package main

import (
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"go.uber.org/goleak"

	"weir/counters/memcachedtest"
)

func TestShiftedClock(t *testing.T) {
	t.Parallel()
	for _, offset := range []time.Duration{0, time.Millisecond, -1500 * time.Millisecond, time.Hour} {
		at := time.Now()
		moved := shifted(at, offset)
		assert.Equal(t, at.UnixNano()+int64(offset), moved.UnixNano())
		assert.Zero(t, moved.Sub(at), "by the monotonic clock")
	}
}

func TestMain(m *testing.M) {
	memcachedtest.Overlap(4)
	// net/http closes half a second after it has refused a request.
	goleak.VerifyTestMain(m, goleak.IgnoreAnyFunction("net/http.(*conn).closeWriteAndWait"))
}
