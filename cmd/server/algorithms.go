package main

import (
	"fmt"
	"strings"
	"sync"
	"time"

	"weir/api"
	"weir/counters"
	"weir/subwindow"
)

const (
	fixedWindow   = "fixed_window"
	slidingWindow = "sliding_window"
)

// defaultLimitName returns the name of a limit that isn't given one.
func defaultLimitName(algorithm string) string { return strings.ReplaceAll(algorithm, "_", "-") }

func algorithmNames() []string { return []string{fixedWindow, slidingWindow} }

// wiring makes limiters, and keeps those in use, so that a limit that hasn't
// changed keeps what its limiter remembers.
type wiring struct {
	store     counters.Store
	keyPrefix string
	clockSkew time.Duration
	// viewClients is how many clients each limiter remembers.
	viewClients int
	batch       func(size int)

	mu    sync.Mutex
	inUse map[limiterKey]*counters.SlotLimiter
}

// limiterKey is all that makes a limiter what it is.
type limiterKey struct {
	policy, limit, algorithm, estimate string
	window                             time.Duration
	subWindows                         int
	countDenied                        bool
}

// checkLimit returns an error that says what would be right if no limiter can
// be made for l.
func checkLimit(l *api.Limit) error {
	_, err := new(wiring).limiter(&api.Policy{}, l)
	return err
}

// limiter makes the limiter for a limit of a policy.
func (w *wiring) limiter(p *api.Policy, l *api.Limit) (*counters.SlotLimiter, error) {
	cfg := counters.SlotConfig{
		ClockSkew:   w.clockSkew,
		CountDenied: p.CountDenied,
		Clients:     w.viewClients,
		Batch:       w.batch,
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
	default:
		return nil, fmt.Errorf("algorithm %q is not known", l.Algorithm)
	}
}

// equip gives every limit of the policies its limiter.
func (w *wiring) equip(policies api.Policies) error {
	w.mu.Lock()
	defer w.mu.Unlock()
	inUse := make(map[limiterKey]*counters.SlotLimiter)
	for _, p := range policies {
		for i := range p.Limits {
			l := &p.Limits[i]
			key := limiterKey{p.Name, l.Name, l.Algorithm, l.Estimate, l.Window, l.SubWindows, p.CountDenied}
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
		{"default", "100 a minute, sliding over 6-second slots", slidingWindow, defaultSubWindows, "weighted"},
	} {
		p := newPolicy(b.name)
		p.Description = b.description
		p.Limits = []api.Limit{{
			Name: defaultLimitName(b.algorithm), Algorithm: b.algorithm, Limit: 100, Window: time.Minute,
			SubWindows: b.subWindows, Estimate: b.estimate,
		}}
		policies[b.name] = p
	}
	return policies
}
