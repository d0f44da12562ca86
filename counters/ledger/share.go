package ledger

import (
	"math"
	"sync/atomic"

	"weir/counters"
)

// A Share is how much of what is counted is this process's own: own / all of what was
// counted between two visits of the process to the same client. A first visit says nothing:
// if nobody else has the client, all would be its own; if others have had it for long, next to
// nothing. It is safe for concurrent use; the zero value is all.
//
// While the store is away each process sees only what it admits itself. So it takes that for
// its share of what all admit: a cost stands for cost / share. The first cost that is
// admitted alone stands for itself, so that every process can admit one.
type Share struct{ others, all atomic.Int32 }

// Over about how many of the last counts a share is taken: over fewer for one client, which may
// move to another process.
const (
	ofAll    = 1 << 14
	ofClient = 1 << 10
	// mostNoted is the most that is noted at once, so that no sum overflows an int32 when
	// several come at the same time.
	mostNoted = 1 << 26
)

// StandsFor returns what a cost stands for if a process admits such a share of all.
func StandsFor(cost int64, share float64) int64 {
	return int64(min(math.Ceil(float64(cost)/share), counters.MaxLimit))
}

// Note notes that own of all that was counted of a client since the process's last visit was its
// own: in the share of all clients, and in the client's.
func (s *Share) Note(client *Share, own, all int64) {
	s.note(all-own, all, ofAll)
	client.note(all-own, all, ofClient)
}

func (s *Share) note(others, all int64, most int32) {
	if all > mostNoted {
		others, all = int64(float64(others)/float64(all)*mostNoted), mostNoted
	}
	s.others.Add(int32(others))
	if n := s.all.Add(int32(all)); n > most { // two at a time may forget too much: it stays a ratio
		s.others.Store(s.others.Load() / 2)
		s.all.Store(n / 2)
	}
}

// Of returns the process's share, in (0, 1], of a client that asks for a cost: that of the
// client's counts, to which four costs are added by the share of all clients. One cost is
// left out: what is noted of a client ends with a visit of this process, so that its share would
// be too large. Of a client that it has never seen it is the share of all clients.
func (s *Share) Of(client *Share, cost int64) float64 {
	of := 1.0
	if all := s.all.Load(); all > 0 {
		of = min(1, max(float64(all-s.others.Load()), 1)/float64(all))
	}
	c := float64(max(1, cost))
	all := float64(client.all.Load())
	own := max(0, all-float64(client.others.Load())-c)
	all = max(0, all-c)
	return min(1, (own+4*c*of)/(all+4*c))
}
