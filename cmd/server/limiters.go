package main

import (
	"fmt"
	"maps"
	"slices"
	"sync"

	"weir/api"
)

// limiters makes limiters and keeps those in use, so that a limit that hasn't
// changed keeps what its limiter remembers.
type limiters struct {
	resources

	mu    sync.Mutex
	inUse map[limiterKey]limiter
	owing []limiter // that were in use, and may still owe the store something
}

// limiterKey is all that tells one limiter from another.
type limiterKey struct {
	policy      string
	countDenied bool
	limit       api.Limit // without the fields Limit, which may change, and Limiter
}

// bindLimiters gives every limit of the policies its limiter.
func (ls *limiters) bindLimiters(policies api.Policies) error {
	ls.mu.Lock()
	defer ls.mu.Unlock()
	inUse := make(map[limiterKey]limiter)
	for _, p := range policies {
		for l := range p.EachLimit() {
			key := limiterKey{p.Name, p.CountDenied, *l}
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
	ls.owing = slices.DeleteFunc(ls.owing, func(l limiter) bool { return l.Owing() == 0 })
	for key, limiter := range ls.inUse {
		if inUse[key] == nil { // checks may still be under way
			ls.owing = append(ls.owing, limiter)
		}
	}
	ls.inUse = inUse
	return nil
}

// flush has the store count what the limiters have admitted without it, and
// returns, when no refund is under way any more, of how many clients it hasn't.
func (ls *limiters) flush() (owing int) {
	ls.mu.Lock()
	defer ls.mu.Unlock()
	all := slices.AppendSeq(ls.owing, maps.Values(ls.inUse))
	var flushing sync.WaitGroup
	for _, limiter := range all {
		flushing.Go(limiter.Flush)
	}
	flushing.Wait()
	ls.options.Refunds.Wait()
	for _, limiter := range all {
		owing += limiter.Owing()
	}
	return owing
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

// clientLimit returns how many clients all limiters in use can remember.
func (ls *limiters) clientLimit() int {
	ls.mu.Lock()
	defer ls.mu.Unlock()
	n := 0
	for _, limiter := range ls.inUse {
		n += limiter.ClientLimit()
	}
	return n
}
