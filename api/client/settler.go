package client

import (
	"context"
	"encoding/json"
	"errors"
	"sync"
	"time"
)

const (
	// maxWaiting is how many settlements wait for weir at most.
	maxWaiting = 10_000
	// settleAgain is how long after a failure they are tried again.
	settleAgain = time.Second
)

// A settler settles receipts.
type settler struct {
	batcher *batcher
	open    context.Context // ended by close
	end     context.CancelFunc

	mu      sync.Mutex
	waiting []waiting
	works   bool           // work goes on, as some wait
	working sync.WaitGroup // the same
}

// A waiting settlement is one that weir couldn't be asked for.
type waiting struct {
	encoded []byte
	until   time.Time // zero where only weir knows
}

// later has a settlement tried again, unless too many are. It reports whether it is.
func (s *settler) later(w waiting) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.open.Err() != nil || len(s.waiting) >= maxWaiting {
		return false
	}
	s.waiting = append(s.waiting, w)
	if !s.works {
		s.works = true
		s.working.Go(s.work)
	}
	return true
}

// giveBack gives back the places of a check whose caller has left. Its cost stays: who fails
// open spends it all the same.
func (s *settler) giveBack(r *reply, now time.Time) {
	a, err := r.answer()
	if err != nil || a.Receipt.RenewWithin == 0 {
		return
	}
	if encoded, err := encodeSettlement(a.Receipt, -1); err == nil {
		s.later(waiting{encoded, now.Add(a.Receipt.within)})
	}
}

// encodeSettlement returns what asks weir to settle r; a cost that is negative is what was
// reserved.
func encodeSettlement(r Receipt, cost int64) ([]byte, error) {
	settlement := struct {
		Receipt string `json:"receipt"`
		Cost    *int64 `json:"cost,omitempty"`
	}{Receipt: r.Text}
	if cost >= 0 {
		settlement.Cost = &cost
	}
	return json.Marshal(settlement)
}

// work tries until none waits, or once more after close.
func (s *settler) work() {
	for last := false; !last; {
		select {
		case <-time.After(settleAgain):
		case <-s.open.Done():
			last = true
		}
		s.mu.Lock()
		trying := s.waiting // which wait on, as others would take their room
		s.mu.Unlock()
		left := s.try(trying)
		s.mu.Lock()
		if s.waiting = append(left, s.waiting[len(trying):]...); len(s.waiting) == 0 {
			s.works, last = false, true
		}
		s.mu.Unlock()
	}
}

// try tries settlements and returns those that failed again and are in time.
func (s *settler) try(trying []waiting) (left []waiting) {
	var mu sync.Mutex
	var asking sync.WaitGroup
	for _, w := range trying {
		asking.Go(func() {
			r, err := s.batcher.ask(context.Background(), w.encoded)
			if err == nil {
				_, err = r.answer()
			}
			if retryable(err) && (w.until.IsZero() || time.Now().Before(w.until)) {
				mu.Lock()
				defer mu.Unlock()
				left = append(left, w)
			}
		})
	}
	asking.Wait()
	return left
}

// close has what waits tried once more.
func (s *settler) close() {
	s.mu.Lock()
	s.end()
	s.mu.Unlock()
	s.working.Wait()
}

// retryable reports whether a settlement or a renewal that failed with err may succeed later: weir
// couldn't be asked, or its store.
func retryable(err error) bool {
	var p *Problem
	return err != nil && (!errors.As(err, &p) || p.failed())
}
