package ledger

import (
	"math"
	"sync/atomic"

	"weir/counters"
)

// A Share is how much of what is counted is this process's own, of all clients
// lately: own / all of what was counted between two visits of the process to the
// same client. (A first visit tells nothing: of clients that asked once all would
// be its own.) It is safe for concurrent use; the zero value is all.
type Share struct{ own, all atomic.Int64 }

// TellingTimeouts is how many store timeouts other processes are given, when the store
// answers again, to tell it what they have admitted alone.
const TellingTimeouts = 2

// remembered is how many counts a share is of, about.
const remembered = 1 << 14

// StandsFor returns what a cost stands for if a process admits such a share of all.
func StandsFor(cost int64, share float64) int64 {
	return int64(min(math.Ceil(float64(cost)/share), counters.MaxLimit))
}

// Note notes that of so many counts since the process last visited a client so
// many were its own.
func (s *Share) Note(own, all int64) {
	s.own.Add(own)
	if n := s.all.Add(all); n > remembered { // two at a time may forget too much: it stays a ratio
		s.own.Store(s.own.Load() / 2)
		s.all.Store(n / 2)
	}
}

// Counts returns what it is of: how much is the process's own, of how much in all.
func (s *Share) Counts() (own, all int64) { return s.own.Load(), s.all.Load() }

// Of returns the share, in (0, 1], of a client that asks for a cost, and of whose
// counts, as far as the process knows them, so many are its own. One cost is left
// out: what the process counted when it last visited the client, as it doesn't know
// what others have counted since. What is left is weighed against the share of all
// clients as if that were four costs more. So a client that moves here while the
// store is gone, and isn't known, has the share of all.
func (s *Share) Of(own, count, cost int64) float64 {
	of := 1.0
	if all := s.all.Load(); all > 0 {
		of = min(1, max(float64(s.own.Load()), 1)/float64(all))
	}
	c := float64(max(1, cost))
	return min(1, (max(0, float64(own)-c)+4*c*of)/(max(0, float64(count)-c)+4*c))
}
