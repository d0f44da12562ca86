package main

import (
	"fmt"
	"strings"
	"sync"
	"time"

	"weir/api"
	"weir/cas"
	"weir/counters"
	"weir/subwindow"
)

const (
	fixedWindow   = "fixed_window"
	slidingWindow = "sliding_window"
	tokenBucket   = "token_bucket"
	leakyBucket   = "leaky_bucket"
	slidingLog    = "sliding_log"
)

// defaultLimitName returns the name of a limit that isn't given one.
func defaultLimitName(algorithm string) string { return strings.ReplaceAll(algorithm, "_", "-") }

func algorithmNames() []string {
	return []string{fixedWindow, slidingWindow, tokenBucket, leakyBucket, slidingLog}
}

// maxLimit returns the largest limit that an algorithm may have; 0 is any.
func maxLimit(algorithm string) int64 {
	if algorithm == slidingLog {
		return cas.MaxLogLimit
	}
	return 0
}

// A limiter is any algorithm's.
type limiter interface {
	api.Limiter
	// Clients returns how many clients are remembered.
	Clients() int
}

// wiring makes limiters, and keeps those in use, so that a limit that hasn't
// changed keeps what its limiter remembers.
type wiring struct {
	store     counters.Store
	states    counters.StateStore
	keyPrefix string
	clockSkew time.Duration
	// viewClients is how many clients each limiter remembers.
	viewClients int
	metrics     *api.Metrics

	mu    sync.Mutex
	inUse map[limiterKey]limiter
}

// limiterKey is all that makes a limiter what it is.
type limiterKey struct {
	policy, limit, algorithm, estimate string
	window                             time.Duration
	subWindows                         int
	burst                              int64
	countDenied                        bool
}

// checkLimit returns an error that says what would be right if no limiter can
// be made for l.
func checkLimit(l *api.Limit) error {
	w := wiring{metrics: new(api.Metrics)}
	_, err := w.limiter(&api.Policy{}, l)
	return err
}

// limiter makes the limiter for a limit of a policy.
func (w *wiring) limiter(p *api.Policy, l *api.Limit) (limiter, error) {
	cfg := counters.SlotConfig{
		ClockSkew:   w.clockSkew,
		CountDenied: p.CountDenied,
		Clients:     w.viewClients,
		Batch:       w.metrics.Batch,
	}
	casConfig := cas.Config{
		Keys:        counters.StateNamespace(w.keyPrefix, p.Name, l.Name, l.Algorithm),
		ClockSkew:   w.clockSkew,
		CountDenied: p.CountDenied,
		Clients:     w.viewClients,
		Batch:       w.metrics.Batch,
		Swaps:       w.metrics.Swaps,
		Foreign:     w.metrics.Foreign,
	}
	switch l.Algorithm {
	case fixedWindow:
		cfg.Keys = counters.CounterNamespace(w.keyPrefix, p.Name, l.Name, l.Window)
		return counters.NewFixedWindow(w.store, l.Window, cfg)
	case slidingWindow:
		window, err := subwindow.NewWindow(l.Window, l.SubWindows, l.Estimate == "strict")
		if err != nil {
			return nil, err
		}
		cfg.Keys = counters.CounterNamespace(w.keyPrefix, p.Name, l.Name, window.Width)
		return subwindow.New(w.store, window, cfg), nil
	case tokenBucket:
		return cas.NewTokenBucket(w.states, l.Window, l.Burst, casConfig)
	case leakyBucket:
		return cas.NewLeakyBucket(w.states, l.Window, l.Burst, casConfig)
	case slidingLog:
		return cas.NewSlidingLog(w.states, l.Window, l.Limit, casConfig)
	default:
		return nil, fmt.Errorf("algorithm %q is not known", l.Algorithm)
	}
}

// equip gives every limit of the policies its limiter.
func (w *wiring) equip(policies api.Policies) error {
	w.mu.Lock()
	defer w.mu.Unlock()
	inUse := make(map[limiterKey]limiter)
	for _, p := range policies {
		for i := range p.Limits {
			l := &p.Limits[i]
			key := limiterKey{p.Name, l.Name, l.Algorithm, l.Estimate, l.Window, l.SubWindows, l.Burst, p.CountDenied}
			limiter, ok := w.inUse[key]
			if !ok {
				var err error
				if limiter, err = w.limiter(p, l); err != nil {
					return fmt.Errorf("policy %q, limit %q: %w", p.Name, l.Name, err)
				}
			}
			l.Limiter, inUse[key] = limiter, limiter
		}
	}
	w.inUse = inUse
	return nil
}

// views returns how many clients all limiters in use remember.
func (w *wiring) views() int {
	w.mu.Lock()
	defer w.mu.Unlock()
	n := 0
	for _, limiter := range w.inUse {
		n += limiter.Clients()
	}
	return n
}

// builtInPolicies returns the policies that are there without a policy file:
// 100 per minute each, one limit each.
func builtInPolicies() api.Policies {
	policies := api.Policies{}
	for _, b := range []struct {
		name        string
		description string
		algorithm   string
		subWindows  int
		estimate    string
	}{
		{"fixed", "100 in each calendar minute", fixedWindow, 0, ""},
		{"sliding", "100 a minute, sliding by two counters", slidingWindow, 1, "weighted"},
		{"sliding-15s", "100 a minute, sliding over 15-second slots", slidingWindow, 4, "weighted"},
		{"sliding-1s", "100 a minute, sliding over 1-second slots", slidingWindow, 60, "weighted"},
		{"strict", "100 in any minute, sliding over 1-second slots", slidingWindow, 60, "strict"},
		{"token", "100 a minute, by a token bucket", tokenBucket, 0, ""},
		{"leaky", "100 a minute, one after the other, by a leaky bucket", leakyBucket, 0, ""},
		{"log", "100 in any minute, by a log of all requests", slidingLog, 0, ""},
		{"default", "100 a minute, sliding over 6-second slots", slidingWindow, defaultSubWindows, "weighted"},
	} {
		p := newPolicy(b.name)
		p.Description = b.description
		p.Limits = []api.Limit{{
			Name: defaultLimitName(b.algorithm), Algorithm: b.algorithm, Limit: 100, Window: time.Minute,
			SubWindows: b.subWindows, Estimate: b.estimate, MaxLimit: maxLimit(b.algorithm),
		}}
		policies[b.name] = p
	}
	return policies
}
