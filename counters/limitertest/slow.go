package limitertest

import (
	"context"
	"fmt"
	"sync"
	"time"

	"weir/counters"
)

// A SlowStore does at once what it is asked. It answers all that it was asked
// while it wrote the answers before, a delay after that. It is safe for
// concurrent use; LateAdditions is read when nobody asks any more.
type SlowStore struct {
	Store

	// LateAdditions is how many were answered when nobody waited any more.
	LateAdditions int

	mu      sync.Mutex
	delay   time.Duration
	writing bool
	asked   []chan struct{} // closed with the answer
}

// SetDelay sets the delay of the answers that follow.
func (s *SlowStore) SetDelay(d time.Duration) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.delay = d
}

func (s *SlowStore) write() {
	s.mu.Lock()
	defer s.mu.Unlock()
	for len(s.asked) > 0 {
		asked, delay := s.asked, s.delay
		s.asked = nil
		s.mu.Unlock()
		time.Sleep(delay)
		for _, c := range asked {
			close(c)
		}
		s.mu.Lock()
	}
	s.writing = false
}

// ask does something and waits for the answer until the deadline of ctx. An
// answer that comes later is returned.
func (s *SlowStore) ask(ctx context.Context, do func() error) (late <-chan struct{}, err error) {
	deadline, _ := ctx.Deadline()
	if !time.Now().Before(deadline) {
		return nil, fmt.Errorf("%w: %w", counters.ErrTimeout, counters.ErrNotSent)
	}
	err = do()
	answer := make(chan struct{})
	s.mu.Lock()
	if s.asked = append(s.asked, answer); !s.writing {
		s.writing = true
		go s.write()
	}
	s.mu.Unlock()
	select {
	case <-answer:
		return nil, err
	case <-time.After(time.Until(deadline)):
		return answer, fmt.Errorf("%w: it is slow", counters.ErrTimeout)
	}
}

// Load implements counters.StateStore.
func (s *SlowStore) Load(ctx context.Context, key string) (state counters.State, err error) {
	_, err = s.ask(ctx, func() (err error) { state, err = s.Store.Load(ctx, key); return err })
	return state, err
}

// Swap implements counters.StateStore.
func (s *SlowStore) Swap(ctx context.Context, key string, old counters.State, value []byte, ttl time.Duration) (counters.State, bool, error) {
	var now counters.State
	var swapped bool
	late, err := s.ask(ctx, func() (err error) { now, swapped, err = s.Store.Swap(ctx, key, old, value, ttl); return err })
	if late == nil {
		return now, swapped, err
	}
	return counters.State{}, false, &counters.Unanswered{Err: err, Await: func(f func(err error)) {
		go func() {
			<-late
			if swapped {
				f(nil)
			} else {
				f(counters.ErrNotSent)
			}
		}()
	}}
}

// Add implements counters.Store.
func (s *SlowStore) Add(ctx context.Context, a counters.Addition) (n int64, err error) {
	var done error
	late, err := s.ask(ctx, func() error { n, done = s.Store.Add(ctx, a); return done })
	if late == nil {
		return n, err
	}
	s.mu.Lock()
	s.LateAdditions++
	s.mu.Unlock()
	return 0, &counters.Unanswered{Err: err, Await: func(f func(err error)) {
		go func() { <-late; f(done) }()
	}}
}

// Read implements counters.Store.
func (s *SlowStore) Read(ctx context.Context, keys []string, counts []int64) error {
	read := make([]int64, len(counts))
	_, err := s.ask(ctx, func() error { return s.Store.Read(ctx, keys, read) })
	if err == nil {
		copy(counts, read)
	}
	return err
}

// Subtract implements counters.Store.
func (s *SlowStore) Subtract(ctx context.Context, key string, n int64) error {
	_, err := s.ask(ctx, func() error { return s.Store.Subtract(ctx, key, n) })
	return err
}
