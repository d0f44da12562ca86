package main

import (
	"cmp"
	"fmt"
	"slices"

	"weir/api"
	"weir/cas"
	"weir/counters"
	"weir/subwindow"
)

// An algorithm is everything that this command knows about one way to limit.
type algorithm struct {
	name string
	// keys reads what a limit has in the policy file, beyond the keys that
	// every limit has, into l. Keys that algorithms share have the same name
	// and read alike.
	keys       func(r *yamlReader, l *api.Limit) []yamlKey
	subWindows int    // the default of the key sub_windows
	estimate   string // the default of the key estimate
	maxLimit   int64  // the largest limit; 0 means counters.MaxLimit
	waits      bool   // an admitted request may have to wait
	// describe says in words what a limit means.
	describe func(l *api.Limit) string
	// newLimiter makes the limiter of a limit. The error says what is wrong
	// with the limit.
	newLimiter func(r *resources, p *api.Policy, l *api.Limit) (limiter, error)
}

// algorithms are all that a limit can have, in the order in which messages name
// them.
var algorithms = []*algorithm{
	{
		name: "fixed_window",
		keys: noKeys,
		describe: func(l *api.Limit) string {
			return fmt.Sprintf("at most %d in each calendar window of %v", l.Limit, l.Window)
		},
		newLimiter: func(r *resources, p *api.Policy, l *api.Limit) (limiter, error) {
			window, err := subwindow.NewFixedWindow(l.Window)
			if err != nil {
				return nil, err
			}
			return subwindow.New(r.store, window, r.limiterOptions(p, l))
		},
	},
	{
		name: "sliding_window",
		keys: func(r *yamlReader, l *api.Limit) []yamlKey {
			return []yamlKey{
				integer(r, "sub_windows", &l.SubWindows, 1, subwindow.MaxSubWindows),
				r.choice("estimate", &l.Estimate, weighted, strict),
			}
		},
		subWindows: 10,
		estimate:   weighted,
		describe: func(l *api.Limit) string {
			oldest := "in proportion"
			if l.Estimate == strict {
				oldest = "in full"
			}
			// The limiter reads the slots of the window and one more.
			return fmt.Sprintf("at most %d in the last %v, estimated from %d slots, the oldest slot %s",
				l.Limit, l.Window, l.SubWindows+1, oldest)
		},
		newLimiter: func(r *resources, p *api.Policy, l *api.Limit) (limiter, error) {
			window, err := subwindow.NewWindow(l.Window, l.SubWindows, l.Estimate == strict)
			if err != nil {
				return nil, err
			}
			return subwindow.New(r.store, window, r.limiterOptions(p, l))
		},
	},
	{
		name: "token_bucket",
		keys: burstKey,
		describe: func(l *api.Limit) string {
			return fmt.Sprintf("%d per %v, and at most %d at once", l.Limit, l.Window, cmp.Or(l.Burst, l.Limit))
		},
		newLimiter: func(r *resources, p *api.Policy, l *api.Limit) (limiter, error) {
			return cas.NewTokenBucket(r.store, l.Window, l.Burst, r.casConfig(p, l))
		},
	},
	{
		name:  "leaky_bucket",
		keys:  burstKey,
		waits: true,
		describe: func(l *api.Limit) string {
			return fmt.Sprintf("%d per %v, one after the other, at most %d waiting", l.Limit, l.Window, cmp.Or(l.Burst, l.Limit))
		},
		newLimiter: func(r *resources, p *api.Policy, l *api.Limit) (limiter, error) {
			return cas.NewLeakyBucket(r.store, l.Window, l.Burst, r.casConfig(p, l))
		},
	},
	{
		name:     "sliding_log",
		keys:     noKeys,
		maxLimit: cas.MaxLogLimit,
		describe: func(l *api.Limit) string { return fmt.Sprintf("at most %d in any %v", l.Limit, l.Window) },
		newLimiter: func(r *resources, p *api.Policy, l *api.Limit) (limiter, error) {
			return cas.NewSlidingLog(r.store, l.Window, l.Limit, r.casConfig(p, l))
		},
	},
}

const weighted, strict = "weighted", "strict" // values of the key estimate

func noKeys(*yamlReader, *api.Limit) []yamlKey { return nil }

func burstKey(r *yamlReader, l *api.Limit) []yamlKey {
	return []yamlKey{integer(r, "burst", &l.Burst, 1, counters.MaxLimit)}
}

// keyNames are the names of the algorithm's keys.
func (a *algorithm) keyNames() []string {
	return namesOf(a.keys(new(yamlReader), new(api.Limit)))
}

// findAlgorithm returns the algorithm that a limit names, which must be one.
func findAlgorithm(l *api.Limit) *algorithm {
	return algorithms[slices.IndexFunc(algorithms, func(a *algorithm) bool { return a.name == l.Algorithm })]
}

// algorithmsThat returns the names of the algorithms that match.
func algorithmsThat(match func(*algorithm) bool) []string {
	var names []string
	for _, a := range algorithms {
		if match(a) {
			names = append(names, a.name)
		}
	}
	return names
}

// A limiter decides by any of the algorithms.
type limiter interface {
	api.Limiter
	// Clients returns how many clients are remembered.
	Clients() int
	// Flush has the store count what was admitted without it, and returns when
	// no refund is under way any more.
	Flush()
	// Owing returns of how many clients the store hasn't counted yet what was
	// admitted without it.
	Owing() int
}

// resources are what all limiters share.
type resources struct {
	store   api.Store
	options counters.Options // without what a limit says
	metrics *api.Metrics
}

// limiterOptions are the options of the limiter of a limit.
func (r *resources) limiterOptions(p *api.Policy, l *api.Limit) counters.Options {
	o := r.options
	o.Policy, o.Limit, o.CountDenied, o.Batch = p.Name, l.StoredName(), p.CountDenied, r.metrics.Batch
	o.Reseeded = r.metrics.Reseeded
	return o
}

// casConfig is the configuration of a limiter by compare-and-swap.
func (r *resources) casConfig(p *api.Policy, l *api.Limit) cas.Config {
	return cas.Config{Options: r.limiterOptions(p, l), Swaps: r.metrics.Swaps, Foreign: r.metrics.Foreign}
}
