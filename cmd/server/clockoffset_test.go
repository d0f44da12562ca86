package main

import (
	"os"
	"time"
	"unsafe"
)

// Tests of processes build this file into the server, whose clock is then off where the
// environment says so. So it may import only what isn't for tests.
func init() {
	value := os.Getenv("TEST_CLOCK_OFFSET")
	if value == "" {
		return
	}
	offset, err := time.ParseDuration(value)
	if err != nil {
		panic(err)
	}
	now = func() time.Time { return shifted(time.Now(), offset) }
}

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
