package policyfile

import (
	"cmp"
	"fmt"
	"log/slog"
	"slices"
	"time"

	"golang.org/x/time/rate"

	"weir/api/policy"
	"weir/api/telemetry"
	"weir/cas"
	"weir/counters"
	"weir/counters/memcached"
	"weir/subwindow"
)

// An algorithm is what a policy file says of one way to limit, and the limiter for it.
type algorithm struct {
	name string
	// keys reads what a limit has in the policy file, beyond the keys that
	// every limit has, into l. Keys that algorithms share have the same name
	// and read alike.
	keys       func(r *yamlReader, l *policy.Limit) []yamlKey
	subWindows int    // the default of the key sub_windows
	estimate   string // the default of the key estimate
	waits      bool   // an admitted request may have to wait
	leases     bool   // it has the key lease in the place of window
	// complete sets what follows from the values of a limit. It may be nil.
	complete func(l *policy.Limit)
	// describe says in words what a limit promises.
	describe func(l *policy.Limit) string
	// window returns the window of a limit that counts in slots. It is nil if
	// the algorithm keeps a state.
	window func(l *policy.Limit) (subwindow.Window, error)
	// casLimiter makes the limiter of a limit whose algorithm keeps a state. The
	// error says what is wrong with the limit.
	casLimiter func(store telemetry.Store, l *policy.Limit, cfg cas.Config) (Limiter, error)
}

// algorithms are all that a limit can have, in the order in which messages name
// them.
var algorithms = []*algorithm{
	{
		name: fixedWindow,
		keys: noKeys,
		describe: func(l *policy.Limit) string {
			return fmt.Sprintf("at most %d in each calendar window of %s, so at most %d in any %[2]s", l.Limit, inWords(l.Window), 2*l.Limit)
		},
		window: func(l *policy.Limit) (subwindow.Window, error) { return subwindow.NewFixedWindow(l.Window) },
	},
	{
		name: "sliding_window",
		keys: func(r *yamlReader, l *policy.Limit) []yamlKey {
			return []yamlKey{
				integer(r, "sub_windows", &l.SubWindows, 1, subwindow.MaxSubWindows),
				r.choice("estimate", &l.Estimate, weighted, capped, strict),
			}
		},
		subWindows: 10,
		estimate:   weighted,
		describe: func(l *policy.Limit) string {
			promise := fmt.Sprintf("at most %d in any %s", l.Limit, inWords(l.Window))
			if l.Estimate != strict {
				w := subwindow.Window{Slots: l.SubWindows, Capped: l.Estimate == capped}
				promise = fmt.Sprintf("about %d in any %s, and at most %d whatever the traffic", l.Limit, inWords(l.Window), w.Most(l.Limit))
			}
			return fmt.Sprintf("%s, counted in %s of %s", promise, plural(l.SubWindows, "slot"), inWords(l.Window/time.Duration(l.SubWindows)))
		},
		window: func(l *policy.Limit) (subwindow.Window, error) {
			w, err := subwindow.NewWindow(l.Window, l.SubWindows, l.Estimate == strict)
			w.Capped = l.Estimate == capped
			return w, err
		},
	},
	{
		name:     "token_bucket",
		keys:     burstKey,
		complete: drains,
		describe: func(l *policy.Limit) string {
			burst := cmp.Or(l.Burst, l.Limit)
			return fmt.Sprintf("%d per %s and at most %d at once, so at most %d in any %[2]s", l.Limit, inWords(l.Window), burst, burst+l.Limit)
		},
		casLimiter: func(store telemetry.Store, l *policy.Limit, cfg cas.Config) (Limiter, error) {
			return cas.NewTokenBucket(store, l.Window, l.Burst, cfg)
		},
	},
	{
		name:     "leaky_bucket",
		keys:     burstKey,
		waits:    true,
		complete: drains,
		describe: func(l *policy.Limit) string {
			burst := cmp.Or(l.Burst, l.Limit)
			return fmt.Sprintf("%d per %s, one after the other, with at most %d waiting, so at most %d admitted in any %[2]s",
				l.Limit, inWords(l.Window), burst, burst+l.Limit)
		},
		casLimiter: func(store telemetry.Store, l *policy.Limit, cfg cas.Config) (Limiter, error) {
			return cas.NewLeakyBucket(store, l.Window, l.Burst, cfg)
		},
	},
	{
		name: "sliding_log",
		keys: func(r *yamlReader, l *policy.Limit) []yamlKey {
			return []yamlKey{integer(r, "entries", &l.Entries, cas.MinLogEntries, cas.MaxLogEntries)}
		},
		complete: func(l *policy.Limit) {
			switch {
			case l.Entries > 0:
			case l.Limit > cas.MaxLogLimit:
				l.Entries = cas.DefaultLogEntries
			default:
				l.MaxLimit = cas.MaxLogLimit
			}
		},
		describe: func(l *policy.Limit) string {
			if l.Entries > 0 {
				share := (l.Limit + l.Entries - 1) / l.Entries
				return fmt.Sprintf("at most %d in any %s, and a request is denied only when more than %d are with it, by a log of about %d entries",
					l.Limit, inWords(l.Window), l.Limit-(share-1), l.Entries)
			}
			return fmt.Sprintf("at most %d in any %s, by the time of each request", l.Limit, inWords(l.Window))
		},
		casLimiter: func(store telemetry.Store, l *policy.Limit, cfg cas.Config) (Limiter, error) {
			if l.Entries > 0 {
				return cas.NewCountingLog(store, l.Window, l.Entries, cfg)
			}
			return cas.NewSlidingLog(store, l.Window, l.Limit, cfg)
		},
	},
	{
		name:   "concurrency",
		leases: true,
		keys: func(r *yamlReader, l *policy.Limit) []yamlKey {
			return []yamlKey{r.durationWithin("lease", &l.Lease, cas.MinLease, cas.MaxLease)}
		},
		complete: func(l *policy.Limit) { l.Window, l.MaxLimit = l.Lease, cas.MaxPlaces },
		describe: func(l *policy.Limit) string {
			return fmt.Sprintf("at most %d at once, each until it is settled, or for %s after it was renewed last", l.Limit, inWords(l.Lease))
		},
		casLimiter: func(store telemetry.Store, l *policy.Limit, cfg cas.Config) (Limiter, error) {
			return cas.NewConcurrency(store, l.Lease, l.Limit, cfg)
		},
	},
}

const fixedWindow = "fixed_window"

const weighted, capped, strict = "weighted", "capped", "strict" // values of the key estimate

func noKeys(*yamlReader, *policy.Limit) []yamlKey { return nil }

func burstKey(r *yamlReader, l *policy.Limit) []yamlKey {
	return []yamlKey{integer(r, "burst", &l.Burst, 1, counters.MaxLimit)}
}

func drains(l *policy.Limit) { l.Drains = true }

// keyNames are the names of the algorithm's keys.
func (a *algorithm) keyNames() []string {
	return namesOf(a.keys(new(yamlReader), new(policy.Limit)))
}

// findAlgorithm returns the algorithm that a limit names, which must be one.
func findAlgorithm(l *policy.Limit) *algorithm {
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

// NewLimiter makes the limiter of a limit, which names an algorithm. The options say
// how policy and limit are called and whether denied requests count. The error says what
// is wrong with the limit.
func NewLimiter(store telemetry.Store, l *policy.Limit, cfg cas.Config) (Limiter, error) {
	a := findAlgorithm(l)
	if a.window == nil {
		return a.casLimiter(store, l, cfg)
	}
	window, err := a.window(l)
	if err != nil {
		return nil, err
	}
	return subwindow.New(store, window, cfg.Options)
}

// usualClient is as long as names of clients usually are.
const usualClient = "twelve-chars"

// Kept returns what Memcached keeps of one client that asks all the time: how
// many items, and how many bytes these take, overhead included. Its Limiter must be one
// that NewLimiter made.
func Kept(l *policy.Limit) (items, bytes int) {
	items, key, value := l.Limiter.(Limiter).Items(usualClient, l.Limit)
	return items, items * memcached.ItemBytes(key, value)
}

// A Limiter decides by any of the algorithms.
type Limiter interface {
	counters.Limiter
	// Clients returns how many clients are remembered.
	Clients() int
	// ClientLimit returns how many can be.
	ClientLimit() int
	// Flush has the store count what was admitted without it, and returns when
	// no refund is under way any more.
	Flush()
	// Owing returns how many clients have been admitted without the store, which
	// hasn't counted that yet.
	Owing() int
	// Items returns what the store keeps of a client that asks all the time: so many
	// items, each with so many bytes of key and of value.
	Items(client string, limit int64) (n, key, value int)
}

// resources are what all limiters share.
type resources struct {
	store   telemetry.Store
	options counters.Options // without what a limit says
	metrics *telemetry.Metrics
	log     *slog.Logger
}

// config is the configuration of the limiter of a limit.
func (r *resources) config(p *policy.Policy, l *policy.Limit) cas.Config {
	o := r.options
	o.Policy, o.Limit, o.CountDenied, o.Batch = p.Name, l.StoredName(), p.CountDenied || l.CountDenied, r.metrics.Batch
	o.Reseeded = r.metrics.Reseeded
	warning := rate.Sometimes{Interval: time.Minute}
	ahead := func(by time.Duration) {
		r.metrics.Ahead()
		warning.Do(func() {
			r.log.Warn("a client's state is from a clock that is ahead of this one, and is taken as of now: synchronize the clocks of all instances",
				slog.String("policy", p.Name), slog.String("limit", l.Name), slog.Duration("ahead", by))
		})
	}
	return cas.Config{Options: o, Swaps: r.metrics.Swaps, Foreign: r.metrics.Foreign, Ahead: ahead}
}
