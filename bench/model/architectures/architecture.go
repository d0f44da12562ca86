// Package architectures simulates ways in which several instances can limit the
// same clients. All but weir's own are those that the documents on distributed
// rate limiting warn of, as well built as their idea allows: each keeps exact
// times, so that what it admits beyond the limit comes from what an instance
// can't know, not from the way it counts.
//
// Time is virtual: it is that of the arrivals, which never go back. Nothing in
// this package is safe for concurrent use.
package architectures

import (
	"iter"
	"time"

	"weir/bench/internal/traffic"
	"weir/counters"
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
	// Bounds returns what the most that is admitted in a window must be
	// between, to within one request per instance: when one client asks rate
	// times a second, evenly spaced, for three windows, and uses up its limit
	// in a small part of one. It is worked out from the model by hand.
	Bounds(rate float64) (least, most float64)
}

// An Outcome is what became of a request.
type Outcome struct {
	Admitted bool
	// Messages is how many were sent because of the request: between instances,
	// to a store, or to and from a stream. The answer to a question isn't
	// counted.
	Messages int
}

// A turn is a balancer that sends each request to the next of some instances.
type turn struct{ instances, last int }

func (t *turn) next() int {
	t.last = (t.last + 1) % t.instances
	return t.last
}

// news holds the recent admissions of a client that one knows of: each from the
// moment at which it becomes known. They become known in their order.
type news struct {
	known  traffic.Recent
	coming []admission
}

type admission struct{ at, known time.Duration }

func (n *news) add(at, known time.Duration) { n.coming = append(n.coming, admission{at, known}) }

// count returns how many are known now, those included that become so now.
func (n *news) count(now time.Duration) int {
	for len(n.coming) > 0 && n.coming[0].known <= now {
		n.known.Add(n.coming[0].at)
		n.coming = n.coming[1:]
	}
	return int(n.known.Count(now))
}

// perKey holds a state for each client, or whatever else a key is, which create
// makes when the key is first asked about.
type perKey[K comparable, S any] struct {
	create func() *S
	states map[K]*S
}

func newPerKey[K comparable, S any](create func() *S) perKey[K, S] {
	return perKey[K, S]{create, make(map[K]*S)}
}

func (p perKey[K, S]) of(key K) *S {
	s, ok := p.states[key]
	if !ok {
		s = p.create()
		p.states[key] = s
	}
	return s
}

// inWindow returns the requests that a rate per second makes in a window.
func (l Limit) inWindow(rate float64) float64 { return rate * l.Window.Seconds() }

func (l Limit) newNews() *news { return &news{known: traffic.NewRecent(l.Window)} }

// Figures are what an architecture did.
type Figures struct {
	Requests int `json:"requests"`
	Admitted int `json:"admitted"`
	// Fullest is the most that one client was admitted in any window (t-W, t].
	Fullest int `json:"fullest"`
	// Calendar is that in any of the windows that follow each other from the
	// Unix epoch on.
	Calendar int `json:"calendar"`
	// WronglyDenied are requests that were denied when fewer than the limit had
	// been admitted in the window that ended with them.
	WronglyDenied int `json:"wrongly_denied"`
	Messages      int `json:"messages"`
}

// clientLog is what one client was admitted.
type clientLog struct {
	window   traffic.Recent
	calendar int64 // window, and how many in it
	count    int
}

// Measure has an architecture decide all arrivals. The error is the
// architecture's.
func Measure(limit Limit, arch Architecture, arrivals iter.Seq[traffic.Arrival]) (Figures, error) {
	var f Figures
	clients := newPerKey[int](func() *clientLog { return &clientLog{window: traffic.NewRecent(limit.Window)} })
	for a := range arrivals {
		o, err := arch.Take(a)
		if err != nil {
			return Figures{}, err
		}
		f.Requests++
		f.Messages += o.Messages
		client := clients.of(a.Client)
		before := int(client.window.Count(a.At))
		if !o.Admitted {
			if before < limit.Requests {
				f.WronglyDenied++
			}
			continue
		}
		f.Admitted++
		client.window.Add(a.At)
		f.Fullest = max(f.Fullest, before+1)
		f.Calendar = max(f.Calendar, client.inCalendar(a.At, limit.Window))
	}
	return f, nil
}

// begin is the time of day of an arrival at 0: two thirds of a minute, so that
// runs don't begin with a calendar window.
var begin = time.Unix(40, 0)

// inCalendar counts an admission and returns how many its calendar window has.
func (c *clientLog) inCalendar(at, window time.Duration) int {
	if number := counters.Calendar(begin.Add(at), window).Number; number != c.calendar {
		c.calendar, c.count = number, 0
	}
	c.count++
	return c.count
}
