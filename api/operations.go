package api

import (
	"maps"
	"slices"
	"sync"
	"sync/atomic"
)

// An operation is one of a Store.
type operation int

const (
	opAdd operation = iota
	opRead
	opSubtract
	opRaise
	opLoad
	opSwap
	opPut
	opDelete
	numOperations
)

var operationNames = [numOperations]string{"add", "read", "subtract", "raise", "load", "swap", "put", "delete"}

// An outcome is how an operation ended.
type outcome int

const (
	endedOK outcome = iota
	endedTimeout
	endedError
	numOutcomes
)

var outcomeNames = [numOutcomes]string{"ok", "timeout", "error"}

// operationCounts count operations by the name of their server. The zero value
// has none. They aren't a prometheus.CounterVec because servers are named
// only to those who may know them; see serverMetrics.
type operationCounts struct {
	byServer atomic.Pointer[map[string]*serverOperations] // replaced as a whole
	mu       sync.Mutex                                   // of replacing it
}

// serverOperations are how many operations ended on one server, and how.
type serverOperations [numOperations][numOutcomes]atomic.Int64

func (c *operationCounts) load() map[string]*serverOperations {
	if m := c.byServer.Load(); m != nil {
		return *m
	}
	return nil
}

// of returns the counts of a server.
func (c *operationCounts) of(server string) *serverOperations {
	if counts := c.load()[server]; counts != nil {
		return counts
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	next := map[string]*serverOperations{server: new(serverOperations)}
	maps.Copy(next, c.load())
	c.byServer.Store(&next)
	return next[server]
}

// keep forgets all servers but those named.
func (c *operationCounts) keep(servers []string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	next := maps.Clone(c.load())
	maps.DeleteFunc(next, func(server string, _ *serverOperations) bool { return !slices.Contains(servers, server) })
	c.byServer.Store(&next)
}

// A listener notices servers that answer nothing. One goroutine at a time may
// use it.
type listener struct {
	counts *operationCounts
	heard  map[string]int64 // answers of each server
}

// silent reports whether a server has answered nothing since the last call, or
// whether none has ever been asked.
func (l *listener) silent() bool {
	heard, silent := make(map[string]int64), true
	for server, operations := range l.counts.load() {
		if len(heard) == 0 {
			silent = false
		}
		for o := range operations {
			heard[server] += operations[o][endedOK].Load()
		}
		before, known := l.heard[server]
		silent = silent || known && heard[server] == before
	}
	l.heard = heard
	return silent
}
