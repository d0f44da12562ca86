package telemetry

import (
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
// only to those who may know them; see Servers.
type operationCounts struct{ byServer sync.Map } // *serverOperations by string

// serverOperations are how many operations ended on one server, and how.
type serverOperations [numOperations][numOutcomes]atomic.Int64

// of returns the counts of a server.
func (c *operationCounts) of(server string) *serverOperations {
	counts, ok := c.byServer.Load(server)
	if !ok {
		counts, _ = c.byServer.LoadOrStore(server, new(serverOperations))
	}
	return counts.(*serverOperations)
}

// keep forgets all servers but those named.
func (c *operationCounts) keep(servers []string) {
	c.byServer.Range(func(server, _ any) bool {
		if !slices.Contains(servers, server.(string)) {
			c.byServer.Delete(server)
		}
		return true
	})
}

// silence returns what Metrics.Silence returns.
func (c *operationCounts) silence() func() bool {
	var before map[any]int64 // answers of each server
	return func() bool {
		heard, silent := make(map[any]int64), false
		c.byServer.Range(func(server, counts any) bool {
			for o := range numOperations {
				heard[server] += counts.(*serverOperations)[o][endedOK].Load()
			}
			answers, known := before[server]
			silent = silent || known && heard[server] == answers
			return true
		})
		before = heard
		return silent || len(heard) == 0
	}
}
