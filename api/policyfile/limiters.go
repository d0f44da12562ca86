package policyfile

import (
	"fmt"
	"log/slog"
	"maps"
	"slices"
	"sync"

	"weir/api/policy"
	"weir/api/telemetry"
	"weir/counters"
)

// Limiters makes limiters and keeps those in use, so that a limit that hasn't
// changed keeps what its limiter remembers. It is safe for concurrent use. Make
// one with NewLimiters: the zero value isn't usable.
type Limiters struct {
	resources

	mu    sync.Mutex
	inUse map[limiterKey]Limiter
	owing []Limiter // that were in use, and may still owe the store something
}

// limiterKey is all that tells one limiter from another.
type limiterKey struct {
	policy      string
	countDenied bool
	limit       policy.Limit // without Limiter, and without Limit where that may change
}

// NewLimiters returns Limiters that keep their counts in store. In the options
// nothing needs to be set that a policy or a limit says.
func NewLimiters(store telemetry.Store, o counters.Options, metrics *telemetry.Metrics, log *slog.Logger) *Limiters {
	return &Limiters{resources: resources{store: store, options: o, metrics: metrics, log: log}}
}

// Bind gives every limit of the policies its limiter. Those in use that no limit
// has any more are dropped. The error names a limit that can't have a limiter;
// then those in use stay.
func (ls *Limiters) Bind(policies policy.Policies) error {
	ls.mu.Lock()
	defer ls.mu.Unlock()
	inUse := make(map[limiterKey]Limiter)
	for _, p := range policies {
		for l := range p.EachLimit() {
			key := limiterKey{p.Name, p.CountDenied, *l}
			if key.limit.Limiter = nil; l.MaxLimit == 0 { // else it bounds the memory
				key.limit.Limit = 0
			}
			limiter, ok := ls.inUse[key]
			if !ok {
				var err error
				if limiter, err = NewLimiter(ls.store, l, ls.config(p, l)); err != nil {
					return fmt.Errorf("policy %q, limit %q: %w", p.Name, l.Name, err)
				}
			}
			l.Limiter, inUse[key] = limiter, limiter
		}
	}
	ls.owing = slices.DeleteFunc(ls.owing, func(l Limiter) bool { return l.Owing() == 0 })
	for key, limiter := range ls.inUse {
		if inUse[key] == nil { // checks may still be under way
			ls.owing = append(ls.owing, limiter)
		}
	}
	ls.inUse = inUse
	return nil
}

// Flush has the store count what the limiters have admitted without it. It returns when
// nothing goes on in the background any more: the number of clients of whom the store still
// hasn't, summed over the limiters.
func (ls *Limiters) Flush() (owing int) {
	ls.mu.Lock()
	defer ls.mu.Unlock()
	all := slices.AppendSeq(ls.owing, maps.Values(ls.inUse))
	var flushing sync.WaitGroup
	for _, limiter := range all {
		flushing.Go(limiter.Flush)
	}
	flushing.Wait()
	ls.options.Background.Wait()
	for _, limiter := range all {
		owing += limiter.Owing()
	}
	return owing
}

// Clients returns how many clients all limiters in use remember.
func (ls *Limiters) Clients() int { return ls.sum(Limiter.Clients) }

// ClientLimit returns how many clients all limiters in use can remember.
func (ls *Limiters) ClientLimit() int { return ls.sum(Limiter.ClientLimit) }

func (ls *Limiters) sum(of func(Limiter) int) (sum int) {
	ls.mu.Lock()
	defer ls.mu.Unlock()
	for _, l := range ls.inUse {
		sum += of(l)
	}
	return sum
}
