// Package architecture simulates ways in which several instances can limit the
// same clients. All but weir's own are those that the documents on distributed
// rate limiting warn of, as well built as their idea allows: each keeps exact
// times, so that what it admits beyond the limit comes from what an instance
// can't know, not from the way it counts.
//
// Time is virtual: it is that of the arrivals, which never go back. Nothing in
// this package is safe for concurrent use.
package architecture

import (
	"time"

	"weir/bench/traffic"
)

// A Limit admits Requests, at least 1, of each client in any Window.
type Limit struct {
	Requests int
	Window   time.Duration
}

// An Architecture decides requests in the order in which they arrive.
type Architecture interface {
	// Take admits or denies a request. The error is that of a store.
	Take(traffic.Arrival) (Outcome, error)
	// Bounds returns what the most that is admitted in a window must be between,
	// to within one request per instance: when one client asks rate times a
	// second, evenly spaced, for three windows, and uses up its limit in a small
	// part of one. It is worked out from the model by hand.
	Bounds(rate float64) (least, most float64)
}

// An Outcome is what became of a request.
type Outcome struct {
	Admitted bool
	// Messages is how many were sent because of the request: between instances,
	// to a store, or to and from a stream. The answer to a question isn't counted.
	Messages int
}

// A turn is a balancer that sends each request to the next of some instances.
type turn struct{ instances, last int }

func (t *turn) next() int {
	t.last = (t.last + 1) % t.instances
	return t.last
}

// recent holds when things happened in the last length of time. Something that
// happened exactly that long ago isn't recent any more.
type recent struct {
	length time.Duration
	times  []time.Duration
}

func (r *recent) add(at time.Duration) { r.times = append(r.times, at) }

func (r *recent) count(now time.Duration) int {
	for len(r.times) > 0 && r.times[0] <= now-r.length {
		r.times = r.times[1:]
	}
	return len(r.times)
}

// news holds the recent admissions of a client that one knows of: each from the
// moment at which it becomes known. They become known in their order.
type news struct {
	known  recent
	coming []admission
}

type admission struct{ at, known time.Duration }

func (n *news) add(at, known time.Duration) { n.coming = append(n.coming, admission{at, known}) }

// count returns how many are known now, those included that become so now.
func (n *news) count(now time.Duration) int {
	for len(n.coming) > 0 && n.coming[0].known <= now {
		n.known.add(n.coming[0].at)
		n.coming = n.coming[1:]
	}
	return n.known.count(now)
}

// perClient holds a state for each client, which create makes when the client
// is first asked about.
type perClient[S any] struct {
	create func() *S
	states map[int]*S
}

func newPerClient[S any](create func() *S) perClient[S] {
	return perClient[S]{create, make(map[int]*S)}
}

func (p perClient[S]) of(client int) *S {
	s, ok := p.states[client]
	if !ok {
		s = p.create()
		p.states[client] = s
	}
	return s
}

// inWindow returns the requests that a rate per second makes in a window.
func (l Limit) inWindow(rate float64) float64 { return rate * l.Window.Seconds() }

func (l Limit) newNews() *news { return &news{known: recent{length: l.Window}} }
