package api

import (
	"context"
	"time"
)

const (
	// maxHold is the longest that an answer is held. It leaves time to
	// write the answer before writeTimeout.
	maxHold = 10 * time.Second
	// maxHeld is how many answers are held at once.
	maxHeld = 10_000
)

// hold returns when the wait is over, or earlier: after maxHold, when the
// caller leaves, when the server drains, and at once when maxHeld others are
// held. A caller that leaves keeps its turn: later turns are already assigned,
// so this one isn't reused.
func (s *Server) hold(ctx context.Context, wait time.Duration) {
	defer s.held.Add(-1)
	if s.held.Add(1) > maxHeld {
		return
	}
	s.cfg.Metrics.held.Inc()
	defer s.cfg.Metrics.held.Dec()
	select {
	case <-time.After(min(wait, maxHold)):
	case <-ctx.Done():
	case <-s.drained:
	}
}
