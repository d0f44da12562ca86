package main

import (
	"bytes"
	"io"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"weir/cmd/server/servertest"
)

// A stuckWriter takes nothing until it is let go.
type stuckWriter struct {
	free    chan struct{}
	mu      sync.Mutex
	written bytes.Buffer
}

func (w *stuckWriter) Write(p []byte) (int, error) {
	<-w.free
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.written.Write(p)
}

// passOn returns when all that was written has been passed on, however long a busy machine takes.
func passOn(w *logWriter) {
	w.mu.Lock()
	idle := w.idle
	w.mu.Unlock()
	<-idle
}

// What a reader that stands still doesn't take waits, up to a bound. When it goes on
// it gets all of that, in order.
func TestALogThatNobodyReadsIsBounded(t *testing.T) {
	t.Parallel()
	to := &stuckWriter{free: make(chan struct{})}
	w := newLogWriter(to)
	defer w.close()
	first, second := strings.Repeat("a", logBacklog-1)+"\n", strings.Repeat("b", logBacklog/2)+"\n"
	_, err := io.WriteString(w, first)
	require.NoError(t, err)
	require.Eventually(t, func() bool { w.mu.Lock(); defer w.mu.Unlock(); return len(w.waiting) == 0 }, servertest.Patience, time.Millisecond)
	for range 3 {
		_, err = io.WriteString(w, second)
		require.NoError(t, err)
	}
	assert.EqualValues(t, 2, w.dropped.Load())
	close(to.free)
	passOn(w)
	assert.Equal(t, first+second, to.written.String())
	_, err = io.WriteString(w, "c\n")
	require.NoError(t, err)
	passOn(w)
	assert.Equal(t, first+second+"c\n", to.written.String())
}

// However many write at once, each line is passed on once.
func TestLogLinesArePassedOnOnce(t *testing.T) {
	t.Parallel()
	to := &stuckWriter{free: make(chan struct{})}
	close(to.free)
	w := newLogWriter(to)
	defer w.close()
	var writers sync.WaitGroup
	for range 8 {
		writers.Go(func() {
			for range 1000 {
				_, err := io.WriteString(w, "line\n")
				assert.NoError(t, err)
			}
		})
	}
	writers.Wait()
	passOn(w)
	assert.Equal(t, strings.Repeat("line\n", 8000), to.written.String())
	assert.Zero(t, w.dropped.Load())
}
