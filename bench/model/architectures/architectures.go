// Package architectures simulates ways in which several instances can limit the
// same client. All but weir's own are those that the documents on distributed
// rate limiting warn of, as well built as their idea allows: each keeps exact
// times, so that what it admits beyond the limit comes from what an instance
// can't know, not from the way it counts.
//
// Time is virtual: it is that of the arrivals, which never go back. Nothing in
// this package is safe for concurrent use.
package architectures

import (
	"context"
	"fmt"
	"time"

	"weir/bench/internal/algorithms"
	"weir/bench/internal/traffic"
	"weir/counters"
	"weir/counters/memory"
)

// begin is the time of day of an arrival at 0: two thirds of a minute, so that
// runs don't begin with a calendar window.
var begin = time.Unix(40, 0)

// A Limit admits Requests, at least 1, of a client in any Window.
type Limit struct {
	Requests int
	Window   time.Duration
}

// An Architecture decides the requests of a client in the order in which they
// arrive, each at a time since the start. The error is that of a store.
type Architecture interface {
	Take(at time.Duration) (admitted bool, err error)
}

// A turn is a balancer that sends each request to the next of some instances.
type turn struct{ instances, last int }

func (t *turn) next() int {
	t.last = (t.last + 1) % t.instances
	return t.last
}

// news holds the recent admissions that one knows of: each from the moment at
// which it becomes known. They become known in their order.
type news struct {
	known  traffic.Recent
	coming []admission
}

type admission struct{ at, known time.Duration }

func (l Limit) newNews() news { return news{known: traffic.NewRecent(l.Window)} }

func (n *news) add(at, known time.Duration) { n.coming = append(n.coming, admission{at, known}) }

// count returns how many are known now, those included that become so now.
func (n *news) count(now time.Duration) int {
	for len(n.coming) > 0 && n.coming[0].known <= now {
		n.known.Add(n.coming[0].at)
		n.coming = n.coming[1:]
	}
	return int(n.known.Count(now))
}

// Sticky sessions: the balancer binds each client to one instance, which limits
// alone. Nothing has to be shared, until the number of instances changes.
type Sticky struct {
	limit Limit
	scale ScaleOut
	logs  []traffic.Recent // of the instances
}

// NewSticky returns sticky sessions through a scale-out, by a balancer that sends
// client c to instance c modulo the number of instances. The client is the last
// of as many as there will be instances: each step moves it to an instance where
// it hasn't been.
func NewSticky(limit Limit, scale ScaleOut) *Sticky {
	return &Sticky{limit, scale, traffic.NewRecents(scale.To, limit.Window)}
}

// Take implements Architecture.
func (s *Sticky) Take(at time.Duration) (bool, error) {
	log := &s.logs[(s.scale.To-1)%s.scale.Instances(at)]
	if int(log.Count(at)) >= s.limit.Requests {
		return false, nil
	}
	log.Add(at)
	return true, nil
}

// A ScaleOut doubles the instances from one to To, a power of two: first at
// Start, and again each time that Every has passed.
type ScaleOut struct {
	To           int
	Start, Every time.Duration
}

// Instances returns how many there are at a time since the start of the run.
func (s ScaleOut) Instances(at time.Duration) int {
	instances := 1
	for next := s.Start; instances < s.To && next <= at; next += s.Every {
		instances *= 2
	}
	return instances
}

// Chatty servers: each instance counts what it admits and tells all others, who
// hear of it after a delay.
type Chatty struct {
	limit Limit
	turn  turn
	delay time.Duration
	heard news             // what all have been told of
	own   []traffic.Recent // what each instance knows of itself before that
}

// NewChatty returns so many instances that requests are sent to in turn.
func NewChatty(limit Limit, instances int, delay time.Duration) *Chatty {
	return &Chatty{limit, turn{instances: instances}, delay, limit.newNews(), traffic.NewRecents(instances, min(delay, limit.Window))}
}

// Take implements Architecture.
func (c *Chatty) Take(at time.Duration) (bool, error) {
	own := &c.own[c.turn.next()]
	if c.heard.count(at)+int(own.Count(at)) >= c.limit.Requests {
		return false, nil
	}
	c.heard.add(at, at+c.delay)
	own.Add(at)
	return true, nil
}

// Stream: each request is an event in a stream, which one consumer aggregates.
// It publishes the counts in another stream, which all instances follow and
// decide by. The consumer takes the events in their order and the same time for
// each, so that a load above its rate makes what the instances know ever older.
type Stream struct {
	limit     Limit
	lag, each time.Duration
	idle      time.Duration // when the consumer has done all that was published
	known     news
	worst     time.Duration
}

// NewStream returns instances that know of an event when a consumer with a rate
// per second has done it, and the lag has passed, which is what the ways to the
// consumer and back take.
func NewStream(limit Limit, lag time.Duration, rate float64) *Stream {
	return &Stream{limit: limit, lag: lag, each: time.Duration(float64(time.Second) / rate), known: limit.newNews()}
}

// Take implements Architecture.
func (s *Stream) Take(at time.Duration) (bool, error) {
	admitted := s.known.count(at) < s.limit.Requests
	s.idle = max(s.idle, at) + s.each
	known := s.idle + s.lag
	s.worst = max(s.worst, known-at)
	if admitted {
		s.known.add(at, known)
	}
	return admitted, nil
}

// WorstLag returns the longest time that it took until an event was known.
func (s *Stream) WorstLag() time.Duration { return s.worst }

// Later checks first and counts afterwards: an instance reads the count from a
// store that all share, decides, answers, and increments it in the background.
// How many instances do so makes no difference.
type Later struct {
	limit   Limit
	delay   time.Duration
	counted news
}

// NewLater returns instances whose increments reach the store the delay after
// the count was read.
func NewLater(limit Limit, delay time.Duration) *Later { return &Later{limit, delay, limit.newNews()} }

// Take implements Architecture.
func (l *Later) Take(at time.Duration) (bool, error) {
	if l.counted.count(at) >= l.limit.Requests {
		return false, nil
	}
	l.counted.add(at, at+l.delay)
	return true, nil
}

// Weir is the real thing: limiters of the counters and subwindow packages, one
// for each instance, on one store that counts before it answers.
//
// The way to the store takes the same time for all, so that counts get there in
// the order of the requests: a slow store makes an answer late, and doesn't
// change it. Only what a limiter gives back after its answer comes later.
type Weir struct {
	limit    Limit
	turn     turn
	limiters []algorithms.Limiter
	store    *sharedStore
}

// NewWeir returns so many instances with a limiter of weir's, to which requests
// are sent in turn, and which are away from the store by lag.
func NewWeir(a algorithms.Algorithm, limit Limit, instances int, lag time.Duration) (*Weir, error) {
	store := &sharedStore{lag: lag}
	store.Store = memory.New(func() time.Time { return store.now })
	w := &Weir{limit: limit, turn: turn{instances: instances}, store: store}
	for range instances {
		l, err := a.New(store, algorithms.Config{Options: algorithms.OneClock("architectures", 1), Window: limit.Window})
		if err != nil {
			return nil, err
		}
		w.limiters = append(w.limiters, l)
	}
	return w, nil
}

// Take implements Architecture.
func (w *Weir) Take(at time.Duration) (bool, error) {
	now := begin.Add(at)
	w.store.advance(now)
	d, err := w.limiters[w.turn.next()].Take(context.Background(), counters.Request{
		Client: "client", Cost: 1, Limit: int64(w.limit.Requests), Now: now,
	})
	if err != nil {
		return false, fmt.Errorf("weir: %w", err)
	}
	return d.Allowed, nil
}

// sharedStore gives back after a lag.
type sharedStore struct {
	*memory.Store
	now     time.Time
	lag     time.Duration
	refunds []refund
}

type refund struct {
	due   time.Time
	key   string
	delta int64
}

// advance gives back what is due.
func (s *sharedStore) advance(now time.Time) {
	for len(s.refunds) > 0 && !s.refunds[0].due.After(now) {
		r := s.refunds[0]
		s.refunds = s.refunds[1:]
		s.now = r.due
		_ = s.Store.Subtract(context.Background(), r.key, r.delta) // never fails
	}
	s.now = now
}

// Subtract implements counters.Store.
func (s *sharedStore) Subtract(_ context.Context, key string, delta int64) error {
	s.refunds = append(s.refunds, refund{s.now.Add(s.lag), key, delta})
	return nil
}
