package main

import (
	"errors"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/stretchr/testify/assert"
)

// A fullDisk takes so many bytes, and no more.
type fullDisk struct{ room, written atomic.Int64 }

func (d *fullDisk) Write(p []byte) (int, error) {
	n := min(int64(len(p)), d.room.Load())
	d.room.Add(-n)
	d.written.Add(n)
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
		w.flush()
	}
	w.close()
	assert.EqualValues(t, 10, w.dropped.Load())
}
