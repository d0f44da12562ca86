package main

import (
	"fmt"
	"sync"

	"weir/api"
)

// limiters makes limiters and keeps those in use, so that a limit that hasn't
// changed keeps what its limiter remembers.
type limiters struct {
	resources

	mu    sync.Mutex
	inUse map[limiterKey]limiter
}

// limiterKey is all that tells one limiter from another.
type limiterKey struct {
	policy           string
	countDenied      bool
	refundUnanswered bool
	limit            api.Limit // without the fields Limit, which may change, and Limiter
}

// bindLimiters gives every limit of the policies its limiter.
func (ls *limiters) bindLimiters(policies api.Policies) error {
	ls.mu.Lock()
	defer ls.mu.Unlock()
	inUse := make(map[limiterKey]limiter)
	for _, p := range policies {
		for i := range p.Limits {
			l := &p.Limits[i]
			key := limiterKey{p.Name, p.CountDenied, refundUnanswered(p), *l}
			key.limit.Limit, key.limit.Limiter = 0, nil
			limiter, ok := ls.inUse[key]
			if !ok {
				var err error
				if limiter, err = findAlgorithm(l).newLimiter(&ls.resources, p, l); err != nil {
					return fmt.Errorf("policy %q, limit %q: %w", p.Name, l.Name, err)
				}
			}
			l.Limiter, inUse[key] = limiter, limiter
		}
	}
	ls.inUse = inUse
	return nil
}

// flush has the store count what the limiters in use have admitted without it,
// and returns when no refund is under way any more.
func (ls *limiters) flush() {
	ls.mu.Lock()
	defer ls.mu.Unlock()
	for _, limiter := range ls.inUse {
		limiter.Flush()
	}
	ls.options.Refunds.Wait()
}

// clients returns how many clients all limiters in use remember.
func (ls *limiters) clients() int {
	ls.mu.Lock()
	defer ls.mu.Unlock()
	n := 0
	for _, limiter := range ls.inUse {
		n += limiter.Clients()
	}
	return n
}
