package main

import (
	"bytes"
	"io"
	"sync"
	"sync/atomic"
	"time"
)

// logBacklog is how many bytes of the log wait at most for a writer that blocks.
const logBacklog = 1 << 20

// logFlush is how long the program waits for such a writer when it ends.
const logFlush = time.Second

// A logWriter passes lines on to a writer that may block, as a full pipe does: its
// own Write never waits for that. Lines that don't fit into logBacklog are dropped
// and counted. It is safe for concurrent use. Make one with newLogWriter.
type logWriter struct {
	to      io.Writer
	dropped atomic.Int64

	mu      sync.Mutex
	closed  bool
	waiting []byte
	more    chan struct{} // something is waiting, or was
	idle    chan struct{} // closed while nothing is waiting or on its way
}

func newLogWriter(to io.Writer) *logWriter {
	w := &logWriter{to: to, more: make(chan struct{}, 1), idle: make(chan struct{})}
	close(w.idle)
	go w.pass()
	return w
}

// Write implements io.Writer. It is given whole lines, and never fails.
func (w *logWriter) Write(line []byte) (int, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.closed || len(w.waiting)+len(line) > logBacklog {
		w.dropped.Add(1)
		return len(line), nil
	}
	w.waiting = append(w.waiting, line...)
	select {
	case <-w.idle:
		w.idle = make(chan struct{})
	default:
	}
	select {
	case w.more <- struct{}{}:
	default:
	}
	return len(line), nil
}

// pass passes on what is waiting, until w is closed.
func (w *logWriter) pass() {
	var lines []byte
	torn := false // the last line was written in part, as to a full disk
	for range w.more {
		w.mu.Lock()
		lines, w.waiting = w.waiting, lines[:0]
		w.mu.Unlock()
		if len(lines) == 0 { // the last round has taken that, too
			continue
		}
		if torn { // the next line must not become a part of it
			_, err := w.to.Write([]byte("\n"))
			torn = err != nil
		}
		n, err := w.to.Write(lines)
		if err != nil {
			w.dropped.Add(int64(bytes.Count(lines[n:], []byte("\n"))))
		}
		if n > 0 {
			torn = lines[n-1] != '\n'
		}
		w.mu.Lock()
		if len(w.waiting) == 0 {
			close(w.idle)
		}
		w.mu.Unlock()
	}
}

// flush returns when all that was written has been passed on, or after logFlush.
func (w *logWriter) flush() {
	w.mu.Lock()
	idle := w.idle
	w.mu.Unlock()
	select {
	case <-idle:
	case <-time.After(logFlush):
	}
}

// close flushes w, and drops what is written from then on.
func (w *logWriter) close() {
	w.flush()
	w.mu.Lock()
	defer w.mu.Unlock()
	w.closed = true
	close(w.more)
}
