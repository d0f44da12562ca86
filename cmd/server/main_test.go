package main

import (
	"os"
	"testing"
	"time"
	"unsafe"

	"github.com/stretchr/testify/assert"
	"go.uber.org/goleak"

	"weir/cmd/server/servertest"
	"weir/counters/memcachedtest"
)

// shifted returns t on a clock whose time of day is off. As on a real one, that
// is nothing to timers: the monotonic reading stays.
func shifted(t time.Time, offset time.Duration) time.Time {
	// The fields of a time.Time that has a monotonic reading; Add moves both.
	type fields struct {
		wall      uint64
		monotonic int64
		location  *time.Location
	}
	moved := t.Add(offset)
	(*fields)(unsafe.Pointer(&moved)).monotonic = (*fields)(unsafe.Pointer(&t)).monotonic
	return moved
}

func TestShiftedClock(t *testing.T) {
	t.Parallel()
	for _, offset := range []time.Duration{0, time.Millisecond, -1500 * time.Millisecond, time.Hour} {
		at := time.Now()
		moved := shifted(at, offset)
		assert.Equal(t, at.UnixNano()+int64(offset), moved.UnixNano())
		assert.Zero(t, moved.Sub(at), "by the monotonic clock")
	}
}

// TestMain lets tests of processes start this test binary as a server whose clock
// is off.
func TestMain(m *testing.M) {
	if value := os.Getenv(servertest.ClockOffset); value != "" {
		offset, err := time.ParseDuration(value)
		if err != nil {
			panic(err)
		}
		now = func() time.Time { return shifted(time.Now(), offset) }
		main()
		os.Exit(0)
	}
	memcachedtest.Overlap(2)
	// net/http closes half a second after it has refused a request.
	goleak.VerifyTestMain(m, goleak.IgnoreAnyFunction("net/http.(*conn).closeWriteAndWait"))
}
