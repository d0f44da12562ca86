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

func (s *store) reconcile(r counters.Request) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.asked = append(s.asked, r)
	if s.down[r.Client] {
		return errors.New("down")
	}
	return nil
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
		var rounds sync.WaitGroup
		q := New(3, &rounds, s.reconcile)
		now := time.UnixMilli(0) // by another clock
		q.Answered()
		synctest.Wait()
		assert.Empty(t, s.reconciled(), "nobody waits")

		for i, client := range []string{"a", "b", "a", "c", "d"} {
			q.Add(counters.Request{Client: client, Cost: 5, Limit: int64(i), Now: now})
		}
		synctest.Wait()
		assert.Empty(t, s.reconciled(), "the store hasn't answered")
		time.Sleep(time.Minute)
		q.Answered()
		synctest.Wait()
		assert.Contains(t, s.asked, counters.Request{Client: "a", Limit: 2, Now: now.Add(time.Minute)}, "the last request")
		assert.ElementsMatch(t, []string{"a", "b", "c"}, s.reconciled(), "d came to a full queue")

		time.Sleep(interval)
		q.Answered()
		synctest.Wait()
		assert.Empty(t, s.reconciled(), "a second isn't over")
		time.Sleep(time.Nanosecond)
		q.Answered()
		q.Answered()
		synctest.Wait()
		assert.Equal(t, []string{"b"}, s.reconciled())

		s.down = nil
		q.Flush()
		assert.Equal(t, []string{"b"}, s.reconciled())
		q.Flush()
		assert.Empty(t, s.reconciled())
	})
}

// A client that is admitted again while it is being reconciled waits for the
// next round.
func TestALaterRequestWaits(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		var rounds sync.WaitGroup
		var q *Queue
		asked := 0
		q = New(1000, &rounds, func(r counters.Request) error {
			if asked++; r.Limit == 1 {
				q.Add(counters.Request{Client: r.Client, Limit: 2})
			}
			return nil
		})
		q.Add(counters.Request{Client: "a", Limit: 1})
		q.Flush()
		q.Flush()
		q.Flush()
		assert.Equal(t, 2, asked)
	})
}

// A store that answers nobody doesn't hold up a round, however many wait.
func TestARoundEnds(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		var rounds sync.WaitGroup
		q := New(100_000, &rounds, func(counters.Request) error {
			time.Sleep(50 * time.Millisecond)
			return counters.ErrTimeout
		})
		for i := range 100_000 {
			q.Add(counters.Request{Client: fmt.Sprint(i)})
		}
		begin := time.Now()
		q.Flush()
		assert.Equal(t, longest, time.Since(begin))
	})
}

func TestAddsAndRounds(t *testing.T) {
	t.Parallel()
	s := new(store)
	var rounds sync.WaitGroup
	q := New(1000, &rounds, s.reconcile)
	var adding sync.WaitGroup
	for i := range 8 {
		adding.Go(func() {
			for j := range 100 {
				q.Add(counters.Request{Client: fmt.Sprint(i, " ", j)})
				q.Answered()
			}
		})
	}
	adding.Wait()
	rounds.Wait()
	q.Flush()
	assert.Len(t, s.reconciled(), 800)
}
