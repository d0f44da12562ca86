// Package reconcile remembers of which clients a process has still something to tell
// its store, so that it does when that answers again, whether those clients come back
// or not. Start with Queue.
package reconcile

import (
	"sync"
	"sync/atomic"
	"time"

	"weir/counters"
)

const (
	// interval is how long a round waits after the one before, so that clients
	// of a server that is still down don't cost a timeout after another.
	interval = time.Second
	// longest is for how long a round begins with other clients: a process that ends
	// mustn't wait for a store that answers nobody.
	longest = 5 * time.Second
	// workers is how many clients of a round are reconciled at a time.
	workers = 16
)

// A Queue is the clients of type C that wait to be reconciled, each with its last
// request. It is safe for concurrent use. Make one with New; the zero value isn't usable.
type Queue[C comparable] struct {
	most      int
	reconcile func(C, counters.Request) error
	rounds    *counters.Goroutines
	waiting   atomic.Int64 // clients

	mu       sync.Mutex
	requests map[C]*request
	running  bool
	earliest time.Time // no round begins before
	trying   bool      // a timer will call try
}

// A request waits since a moment of this process's own clock.
type request struct {
	counters.Request
	since time.Time
}

// at returns the time of r if it were made now.
func (r request) at(now time.Time) time.Time { return r.Now.Add(now.Sub(r.since)) }

// New returns a queue of at most most clients. Rounds, which run in rounds, call reconcile with
// a client's last request, as if it were made then, at a cost of 0. After an error the client
// waits for the next round.
func New[C comparable](most int, rounds *counters.Goroutines, reconcile func(C, counters.Request) error) *Queue[C] {
	return &Queue[C]{most: most, reconcile: reconcile, rounds: rounds, requests: make(map[C]*request)}
}

// Add has a client wait with the latest of its requests, which have aged since they were added. A
// client that is new to a full queue is left out, and reconciled when it comes back and is still
// remembered.
func (q *Queue[C]) Add(c C, r counters.Request) {
	r.Cost = 0
	q.mu.Lock()
	defer q.mu.Unlock()
	now := time.Now()
	old, waits := q.requests[c]
	if waits && old.at(now).After(r.Now) {
		r.Now = old.at(now)
	}
	if waits || len(q.requests) < q.most {
		q.requests[c] = &request{r, now}
		q.waiting.Store(int64(len(q.requests)))
	}
	q.tryLater()
}

// tryLater has the store tried in an interval, as there may be nobody else who
// asks it. mu is held.
func (q *Queue[C]) tryLater() {
	if len(q.requests) > 0 && !q.trying && !q.running {
		q.trying = true
		time.AfterFunc(interval, q.try)
	}
}

// try reconciles one client, whichever that is, and begins a round if it could
// be: a store that is still down isn't asked about all who wait.
func (q *Queue[C]) try() {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.trying = false
	if q.running {
		return // its end has the store tried again
	}
	for c := range q.requests {
		q.running = true
		q.rounds.Go(func() {
			if q.reconcileOne(c) {
				q.round()
				return
			}
			q.mu.Lock()
			defer q.mu.Unlock()
			q.running = false
			q.tryLater()
		})
		return
	}
}

// Answered notes that the store has answered, and begins a round if clients
// wait and the last round has been a second ago. It costs next to nothing when
// none do.
func (q *Queue[C]) Answered() {
	if q.waiting.Load() == 0 {
		return
	}
	q.mu.Lock()
	defer q.mu.Unlock()
	if !q.running && time.Now().After(q.earliest) {
		q.running = true
		q.rounds.Go(q.round)
	}
}

// Waiting returns how many clients wait.
func (q *Queue[C]) Waiting() int { return int(q.waiting.Load()) }

// Flush reconciles all clients that wait, once, and returns when no round is
// under way any more.
func (q *Queue[C]) Flush() {
	q.rounds.Wait() // a round under way knows nothing of who came after it began
	q.mu.Lock()
	q.earliest = time.Time{}
	q.mu.Unlock()
	q.Answered()
	q.rounds.Wait()
}

func (q *Queue[C]) round() {
	q.mu.Lock()
	todo := make(chan C, len(q.requests))
	for c := range q.requests {
		todo <- c
	}
	q.mu.Unlock()
	close(todo)
	end := time.Now().Add(longest)
	var working sync.WaitGroup
	for range workers {
		working.Go(func() {
			for c := range todo {
				if !time.Now().Before(end) {
					return
				}
				q.reconcileOne(c)
			}
		})
	}
	working.Wait()
	q.mu.Lock()
	q.running, q.earliest = false, time.Now().Add(interval)
	q.tryLater()
	q.mu.Unlock()
}

// Repaid takes out a client that owes nothing any more. Whoever might have it owe something has to
// wait meanwhile.
func (q *Queue[C]) Repaid(c C) {
	if q.waiting.Load() == 0 {
		return
	}
	q.mu.Lock()
	defer q.mu.Unlock()
	q.remove(c)
}

// reconcileOne reports whether a client doesn't wait any more, or only by a request that has
// come meanwhile.
func (q *Queue[C]) reconcileOne(c C) bool {
	q.mu.Lock()
	r, waits := q.requests[c]
	q.mu.Unlock()
	if !waits {
		return true // a check has repaid the client
	}
	present := r.Request
	present.Now = r.at(time.Now())
	if q.reconcile(c, present) != nil {
		return false
	}
	q.mu.Lock()
	defer q.mu.Unlock()
	if q.requests[c] == r { // else a later request has come meanwhile
		q.remove(c)
	}
	return true
}

// remove takes out a client. mu is held.
func (q *Queue[C]) remove(c C) {
	delete(q.requests, c)
	q.waiting.Store(int64(len(q.requests)))
}
