package architecture

import (
	"time"

	"weir/bench/traffic"
)

// Stream: each request is an event in a stream, which one consumer aggregates.
// It publishes the counts in another stream, which all instances follow and
// decide by. The consumer takes the events in their order and the same time for
// each, so that a load above its rate makes what the instances know ever older.
type Stream struct {
	limit     Limit
	instances int
	lag, each time.Duration
	idle      time.Duration // when the consumer has done all that was published
	clients   perClient[news]
	worst     time.Duration
}

// NewStream returns instances that know of an event when a consumer with a rate
// per second has done it, and the lag has passed, which is what the ways to the
// consumer and back take.
func NewStream(limit Limit, instances int, lag time.Duration, rate float64) *Stream {
	return &Stream{
		limit: limit, instances: instances, lag: lag, each: time.Duration(float64(time.Second) / rate),
		clients: newPerClient(limit.newNews),
	}
}

// Take implements Architecture.
func (s *Stream) Take(a traffic.Arrival) (Outcome, error) {
	client := s.clients.of(a.Client)
	admitted := client.count(a.At) < s.limit.Requests
	s.idle = max(s.idle, a.At) + s.each
	known := s.idle + s.lag
	s.worst = max(s.worst, known-a.At)
	if admitted {
		client.add(a.At, known)
	}
	// The event, the new count, and that to each instance.
	return Outcome{admitted, 2 + s.instances}, nil
}

// WorstLag returns the longest time that it took until an event was known.
func (s *Stream) WorstLag() time.Duration { return s.worst }

// Bounds implements Architecture: a client gets what it asks for until its
// count is known. A consumer that is too slow has fallen back by the time its
// window's first requests leave it, and everything is admitted again until it
// knows of the next ones. After that it falls back further, for which there is no
// bound but what the client asks for.
func (s *Stream) Bounds(rate float64) (least, most float64) {
	each := s.each.Seconds()
	unknown := s.lag.Seconds() + each + float64(s.limit.Requests-1)*max(each, 1/rate)
	behind := s.limit.Window.Seconds() * max(0, rate*each-1)
	all := s.limit.inWindow(rate)
	least = min(rate*(unknown+behind), all)
	if behind > 0 {
		return least, all
	}
	return least, least
}
