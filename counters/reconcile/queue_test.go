package reconcile

import (
	"errors"
	"fmt"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"

	"weir/counters"
)

// A store that reconciles all clients but those that are down.
type store struct {
	mu    sync.Mutex
	down  map[string]bool
	asked []counters.Request
}

func (s *store) reconcile(_ string, r counters.Request) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.asked = append(s.asked, r)
	if s.down[r.Client] {
		return errors.New("down")
	}
	return nil
}

// up has the store answer for clients.
func (s *store) up(clients ...string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, client := range clients {
		delete(s.down, client)
	}
}

// reconciled returns the clients that were asked about since the last call.
func (s *store) reconciled() (clients []string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, r := range s.asked {
		clients = append(clients, r.Client)
	}
	s.asked = nil
	return clients
}

func TestARoundReconcilesAllWhoWait(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s := &store{down: map[string]bool{"b": true}}
		var rounds counters.Goroutines
		q := New(3, &rounds, s.reconcile)
		now := time.UnixMilli(0) // by another clock
		q.Answered()
		synctest.Wait()
		assert.Empty(t, s.reconciled(), "nobody waits")

		for i, client := range []string{"a", "b", "a", "c", "d"} {
			q.Add(client, counters.Request{Client: client, Cost: 5, Limit: int64(i), Now: now})
		}
		synctest.Wait()
		assert.Empty(t, s.reconciled(), "the store hasn't answered")
		time.Sleep(interval / 2)
		q.Answered()
		synctest.Wait()
		assert.Contains(t, s.asked, counters.Request{Client: "a", Limit: 2, Now: now.Add(interval / 2)}, "the last request")
		assert.ElementsMatch(t, []string{"a", "b", "c"}, s.reconciled(), "d came to a full queue")

		q.Answered()
		synctest.Wait()
		assert.Empty(t, s.reconciled(), "a second isn't over")
		time.Sleep(5 * interval / 4)
		s.reconciled()
		q.Answered()
		q.Answered()
		synctest.Wait()
		assert.Equal(t, []string{"b"}, s.reconciled())

		s.up("b")
		q.Flush()
		assert.Equal(t, []string{"b"}, s.reconciled())
		q.Flush()
		assert.Empty(t, s.reconciled())
	})
}

// Nobody asks the store any more. It is tried with one client, and when it
// answers, all are reconciled.
func TestWhoWaitsNeedsNobodyToAsk(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s := &store{down: map[string]bool{"a": true, "b": true, "c": true}}
		var rounds counters.Goroutines
		q := New(3, &rounds, s.reconcile)
		for _, client := range []string{"a", "b", "c"} {
			q.Add(client, counters.Request{Client: client})
		}
		time.Sleep(interval / 2)
		for range 60 {
			time.Sleep(interval)
			synctest.Wait()
			assert.Len(t, s.reconciled(), 1, "one a second")
		}
		s.up("a", "b", "c")
		time.Sleep(interval)
		synctest.Wait()
		assert.ElementsMatch(t, []string{"a", "b", "c"}, s.reconciled())
		time.Sleep(time.Minute)
		assert.Empty(t, s.reconciled())

		q.Add("a", counters.Request{Client: "a"})
		time.Sleep(2 * interval)
		synctest.Wait()
		assert.Equal(t, []string{"a"}, s.reconciled(), "in the next outage")
	})
}

// Clients whose server is still down don't keep others waiting.
func TestWhoseServerIsDownHoldsUpNobody(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s := &store{down: map[string]bool{"a": true, "b": true}}
		var rounds counters.Goroutines
		q := New(3, &rounds, s.reconcile)
		for _, client := range []string{"a", "b", "c"} {
			q.Add(client, counters.Request{Client: client})
		}
		time.Sleep(100 * interval)
		synctest.Wait()
		assert.Contains(t, s.reconciled(), "c")
	})
}

// A client that is admitted again while it is being reconciled waits for the
// next round.
func TestALaterRequestWaits(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		var rounds counters.Goroutines
		var q *Queue[string]
		asked := 0
		q = New(1000, &rounds, func(_ string, r counters.Request) error {
			if asked++; r.Limit == 1 {
				q.Add(r.Client, counters.Request{Client: r.Client, Limit: 2})
			}
			return nil
		})
		q.Add("a", counters.Request{Client: "a", Limit: 1})
		q.Flush()
		q.Flush()
		q.Flush()
		assert.Equal(t, 2, asked)
	})
}

// Who has been repaid since isn't reconciled, whether a round has begun or not.
func TestWhoIsRepaidIsNotReconciled(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s := &store{}
		var rounds counters.Goroutines
		var q *Queue[string]
		q = New(1000, &rounds, func(_ string, r counters.Request) error {
			time.Sleep(time.Millisecond)
			for i := range 100 {
				q.Repaid(fmt.Sprint(i))
			}
			return s.reconcile(r.Client, r)
		})
		for i := range 101 {
			q.Add(fmt.Sprint(i), counters.Request{Client: fmt.Sprint(i)})
		}
		q.Repaid("100")
		assert.Equal(t, 100, q.Waiting())
		q.Repaid("nobody")
		q.Flush()
		assert.Len(t, s.reconciled(), workers, "those whose turn had come")
		assert.Zero(t, q.Waiting())
		q.Repaid("nobody")
		q.Add("0", counters.Request{Client: "0"})
		q.Flush()
		assert.Equal(t, []string{"0"}, s.reconciled())
	})
}

// A store that answers nobody doesn't hold up a round, however many wait.
func TestARoundEnds(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		var rounds counters.Goroutines
		q := New(100_000, &rounds, func(string, counters.Request) error {
			time.Sleep(50 * time.Millisecond)
			return counters.ErrTimeout
		})
		for i := range 100_000 {
			q.Add(fmt.Sprint(i), counters.Request{Client: fmt.Sprint(i)})
		}
		begin := time.Now()
		q.Flush()
		assert.Equal(t, longest, time.Since(begin))
	})
}

func TestAddsAndRounds(t *testing.T) {
	t.Parallel()
	s := new(store)
	var rounds counters.Goroutines
	q := New(1000, &rounds, s.reconcile)
	var adding sync.WaitGroup
	for i := range 8 {
		adding.Go(func() {
			for j := range 100 {
				q.Add(fmt.Sprint(i, " ", j), counters.Request{Client: fmt.Sprint(i, " ", j)})
				q.Answered()
			}
		})
	}
	adding.Wait()
	rounds.Wait()
	q.Flush()
	assert.Len(t, s.reconciled(), 800)
}

// Who comes while a round is under way isn't part of it, but of the flush.
func TestFlushReconcilesWhoCameDuringARound(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s := &store{}
		slow := func(_ string, r counters.Request) error {
			time.Sleep(time.Second)
			return s.reconcile(r.Client, r)
		}
		var rounds counters.Goroutines
		q := New(3, &rounds, slow)
		q.Add("a", counters.Request{Client: "a", Now: time.Now()})
		q.Answered()
		synctest.Wait()
		q.Add("b", counters.Request{Client: "b", Now: time.Now()})
		q.Flush()
		assert.Equal(t, []string{"a", "b"}, s.reconciled())
	})
}

// Who is added while being reconciled, be it at the same moment, waits for the next round.
func TestAddedWhileReconciled(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		var rounds counters.Goroutines
		var q *Queue[string]
		again := true
		q = New(3, &rounds, func(_ string, r counters.Request) error {
			if again {
				again = false
				q.Add(r.Client, r)
			}
			return nil
		})
		q.Add("a", counters.Request{Client: "a", Now: time.Now()})
		q.Flush()
		assert.Equal(t, 1, q.Waiting())
		q.Flush()
		assert.Zero(t, q.Waiting())
	})
}
