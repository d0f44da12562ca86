package main

import (
	"errors"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/stretchr/testify/assert"
)

// A fullDisk takes so many bytes, and no more.
type fullDisk struct {
	room    atomic.Int64
	written strings.Builder
}

func (d *fullDisk) Write(p []byte) (int, error) {
	n := min(int64(len(p)), d.room.Load())
	d.room.Add(-n)
	d.written.Write(p[:n])
	if n < int64(len(p)) {
		return int(n), errors.New("no space left on device")
	}
	return len(p), nil
}

// Lines that a full disk refuses are dropped, too.
func TestLinesThatAFullDiskRefusesAreCounted(t *testing.T) {
	t.Parallel()
	w := newLogWriter(new(fullDisk))
	for range 10 {
		_, _ = w.Write([]byte(strings.Repeat("x", 99) + "\n"))
		passOn(w)
	}
	passOn(w)
	w.close()
	assert.EqualValues(t, 10, w.dropped.Load())
}

// What comes when there is room again begins a line of its own.
func TestALineThatAFullDiskTookInPartSpoilsNoOther(t *testing.T) {
	t.Parallel()
	disk := new(fullDisk)
	disk.room.Store(14)
	w := newLogWriter(disk)
	for _, room := range []int64{0, 0, 100} {
		disk.room.Add(room)
		_, _ = w.Write([]byte("a whole line\n"))
		passOn(w)
	}
	_, _ = w.Write([]byte("another\n"))
	passOn(w)
	w.close()
	assert.Equal(t, "a whole line\na\na whole line\nanother\n", disk.written.String())
	assert.EqualValues(t, 1, w.dropped.Load())
}
