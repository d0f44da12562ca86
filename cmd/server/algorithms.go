package main

import (
	"fmt"
	"strings"
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

// wiring is what limiters are made of.
type wiring struct {
	store     counters.Store
	keyPrefix string
	clockSkew time.Duration
	// viewClients is how many clients each limiter remembers.
	viewClients int
}

// checkLimit returns an error that says what would be right if no limiter can
// be made for l.
func checkLimit(l *api.Limit) error {
	_, err := wiring{}.limiter("", false, l)
	return err
}

// limiter makes the limiter for a limit of a policy.
func (w wiring) limiter(policy string, countDenied bool, l *api.Limit) (api.Limiter, error) {
	switch l.Algorithm {
	case fixedWindow:
		return counters.NewFixedWindow(w.store, l.Window, w.slotConfig(policy, l, l.Window, countDenied))
	case slidingWindow:
		window, err := subwindow.NewWindow(l.Window, l.SubWindows, l.Estimate == "strict")
		if err != nil {
			return nil, err
		}
		return subwindow.New(w.store, window, w.slotConfig(policy, l, window.Width, countDenied)), nil
	default:
		return nil, fmt.Errorf("algorithm %q is not known", l.Algorithm)
	}
}

func (w wiring) slotConfig(policy string, l *api.Limit, width time.Duration, countDenied bool) counters.SlotConfig {
	return counters.SlotConfig{
		Keys:        counters.CounterNamespace(w.keyPrefix, policy, l.Name, width),
		ClockSkew:   w.clockSkew,
		CountDenied: countDenied,
		Clients:     w.viewClients,
	}
}

// equip gives every limit of the policies its limiter.
func (w wiring) equip(policies api.Policies) error {
	for _, p := range policies {
		for i := range p.Limits {
			limiter, err := w.limiter(p.Name, p.CountDenied, &p.Limits[i])
			if err != nil {
				return fmt.Errorf("policy %q, limit %q: %w", p.Name, p.Limits[i].Name, err)
			}
			p.Limits[i].Limiter = limiter
		}
	}
	return nil
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
