package architectures

import (
	"context"
	"fmt"
	"iter"
	"math/bits"
	"slices"
	"strconv"
	"time"

	"weir/bench/internal/algorithms"
	"weir/bench/internal/traffic"
	"weir/counters"
	"weir/counters/memory"
)

// Sticky sessions: the balancer binds each client to one instance, which limits
// alone. Nothing has to be shared, until the number of instances changes.
type Sticky struct {
	limit     Limit
	scale     ScaleOut
	rebinds   bool
	instances map[int]int // when each client came, for clients that stay
	logs      perKey[binding, traffic.Recent]
}

type binding struct{ client, instance int }

// NewSticky returns sticky sessions through a scale-out. A balancer that
// rebinds sends client c to instance c modulo the number of instances; one that
// doesn't goes on sending it to the instance that it was sent to first.
func NewSticky(limit Limit, scale ScaleOut, rebinds bool) *Sticky {
	return &Sticky{limit: limit, scale: scale, rebinds: rebinds, instances: make(map[int]int), logs: newPerKey[binding](func() *traffic.Recent {
		return &traffic.NewRecents(1, limit.Window)[0]
	})}
}

// Take implements Architecture.
func (s *Sticky) Take(a traffic.Arrival) (Outcome, error) {
	log := s.logs.of(binding{a.Client, s.Instance(a)})
	if int(log.Count(a.At)) >= s.limit.Requests {
		return Outcome{}, nil
	}
	log.Add(a.At)
	return Outcome{Admitted: true}, nil
}

// Instance returns the instance that a request is sent to.
func (s *Sticky) Instance(a traffic.Arrival) int {
	if s.rebinds {
		return a.Client % s.scale.Instances(a.At)
	}
	instances, ok := s.instances[a.Client]
	if !ok {
		instances = s.scale.Instances(a.At)
		s.instances[a.Client] = instances
	}
	return a.Client % instances
}

// Bounds implements Architecture, for a client that each step moves to an
// instance where it hasn't been, as they do the one whose number is
// ScaleOut.To-1, and steps that all fall in one window: it gets its whole limit
// on each instance.
func (s *Sticky) Bounds(float64) (least, most float64) {
	instances := 1
	if s.rebinds {
		instances += s.scale.steps()
	}
	all := float64(instances * s.limit.Requests)
	return all, all
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

func (s ScaleOut) steps() int { return bits.Len(uint(s.To)) - 1 }

// Busiest returns the load of the busiest of so many instances in the mean load
// of all, by the requests that a balancer with sticky sessions sends them from
// a time on.
func Busiest(s *Sticky, instances int, from time.Duration, arrivals iter.Seq[traffic.Arrival]) float64 {
	loads := make([]int, instances)
	all := 0
	for a := range arrivals {
		if instance := s.Instance(a); a.At >= from {
			loads[instance]++
			all++
		}
	}
	return float64(slices.Max(loads)) * float64(instances) / float64(all)
}

// Chatty servers: each instance counts what it admits and tells all others, who
// hear of it after a delay.
type Chatty struct {
	limit   Limit
	turn    turn
	delay   time.Duration
	clients perKey[int, chattyClient]
}

type chattyClient struct {
	heard *news            // what all have been told of
	own   []traffic.Recent // what each instance knows of itself before that
}

// NewChatty returns so many instances that requests are sent to in turn.
func NewChatty(limit Limit, instances int, delay time.Duration) *Chatty {
	return &Chatty{limit: limit, turn: turn{instances: instances}, delay: delay, clients: newPerKey[int](func() *chattyClient {
		return &chattyClient{limit.newNews(), traffic.NewRecents(instances, min(delay, limit.Window))}
	})}
}

// Take implements Architecture.
func (c *Chatty) Take(a traffic.Arrival) (Outcome, error) {
	client := c.clients.of(a.Client)
	own := &client.own[c.turn.next()]
	if client.heard.count(a.At)+int(own.Count(a.At)) >= c.limit.Requests {
		return Outcome{}, nil
	}
	client.heard.add(a.At, a.At+c.delay)
	own.Add(a.At)
	return Outcome{Admitted: true, Messages: c.turn.instances - 1}, nil
}

// Bounds implements Architecture: until the others have told of the last that
// the limit allows, they go on. An instance knows of 1/n of what is on its way,
// as it did that itself, and no instance admits more than the limit.
func (c *Chatty) Bounds(rate float64) (least, most float64) {
	limit, n := float64(c.limit.Requests), float64(c.turn.instances)
	all := min(limit+rate*c.delay.Seconds()*(n-1)/n, n*limit, c.limit.inWindow(rate))
	return all, all
}

// Stream: each request is an event in a stream, which one consumer aggregates.
// It publishes the counts in another stream, which all instances follow and
// decide by. The consumer takes the events in their order and the same time for
// each, so that a load above its rate makes what the instances know ever older.
type Stream struct {
	limit     Limit
	instances int
	lag, each time.Duration
	idle      time.Duration // when the consumer has done all that was published
	clients   perKey[int, news]
	worst     time.Duration
}

// NewStream returns instances that know of an event when a consumer with a rate
// per second has done it, and the lag has passed, which is what the ways to the
// consumer and back take.
func NewStream(limit Limit, instances int, lag time.Duration, rate float64) *Stream {
	return &Stream{
		limit: limit, instances: instances, lag: lag, each: time.Duration(float64(time.Second) / rate),
		clients: newPerKey[int](limit.newNews),
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
// knows of the next ones. After that it falls back further, for which there is
// no bound but what the client asks for.
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

// Later checks first and counts afterwards: an instance reads the count from a
// store that all share, decides, answers, and increments it in the background.
// How many instances do so makes no difference.
type Later struct {
	limit   Limit
	delay   time.Duration
	clients perKey[int, news]
}

// NewLater returns instances whose increments reach the store the delay after
// the count was read.
func NewLater(limit Limit, delay time.Duration) *Later {
	return &Later{limit: limit, delay: delay, clients: newPerKey[int](limit.newNews)}
}

// Take implements Architecture.
func (l *Later) Take(a traffic.Arrival) (Outcome, error) {
	client := l.clients.of(a.Client)
	if client.count(a.At) >= l.limit.Requests {
		return Outcome{Messages: 1}, nil // the read
	}
	client.add(a.At, a.At+l.delay)
	return Outcome{Admitted: true, Messages: 2}, nil
}

// Bounds implements Architecture: all that come before the increment of the
// last that the limit allows are admitted.
func (l *Later) Bounds(rate float64) (least, most float64) {
	all := min(float64(l.limit.Requests)+rate*l.delay.Seconds(), l.limit.inWindow(rate))
	return all, all
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
		l, err := a.New(store, algorithms.Config{Options: algorithms.OneClock("architectures", 1000), Window: limit.Window})
		if err != nil {
			return nil, err
		}
		w.limiters = append(w.limiters, l)
	}
	return w, nil
}

// Take implements Architecture.
func (w *Weir) Take(a traffic.Arrival) (Outcome, error) {
	before := w.store.operations
	now := begin.Add(a.At)
	w.store.advance(now)
	d, err := w.limiters[w.turn.next()].Take(context.Background(), counters.Request{
		Client: strconv.Itoa(a.Client), Cost: 1, Limit: int64(w.limit.Requests), Now: now,
	})
	if err != nil {
		return Outcome{}, fmt.Errorf("weir: %w", err)
	}
	return Outcome{d.Allowed, w.store.operations - before}, nil
}

// Bounds implements Architecture: exactly the limit. For the fixed window, that
// is in calendar windows.
func (w *Weir) Bounds(float64) (least, most float64) {
	return float64(w.limit.Requests), float64(w.limit.Requests)
}

// sharedStore counts operations, and gives back after a lag.
type sharedStore struct {
	*memory.Store
	now        time.Time
	lag        time.Duration
	refunds    []refund
	operations int
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

// Add implements counters.Store.
func (s *sharedStore) Add(ctx context.Context, a counters.Addition) (int64, error) {
	s.operations++
	return s.Store.Add(ctx, a)
}

// Read implements counters.Store.
func (s *sharedStore) Read(ctx context.Context, keys []string, counts []int64) error {
	s.operations++
	return s.Store.Read(ctx, keys, counts)
}

// Subtract implements counters.Store.
func (s *sharedStore) Subtract(_ context.Context, key string, delta int64) error {
	s.operations++
	s.refunds = append(s.refunds, refund{s.now.Add(s.lag), key, delta})
	return nil
}
