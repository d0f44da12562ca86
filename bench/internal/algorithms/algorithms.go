// Package algorithms is the one list of what the experiments measure. Each
// experiment picks from it by name, and sets window, limit and store itself.
package algorithms

import (
	"cmp"
	"fmt"
	"image/color"
	"strings"
	"time"

	"weir/api/policy"
	"weir/api/policyfile"
	"weir/api/telemetry"
	"weir/bench/internal/report"
	"weir/cas"
	"weir/counters"
	"weir/counters/memcached"
	"weir/counters/memory"
)

// Names of algorithms. N is the number of sub-windows of a sliding window.
const (
	Fixed     = "fixed"
	Sliding1  = "N=1"
	Sliding4  = "N=4"
	sliding5  = "N=5"
	Sliding10 = "N=10"
	Sliding60 = "N=60"
	Strict60  = "strict N=60"
	Capped10  = "capped N=10"
	Capped60  = "capped N=60"
	Token     = "token"
	Leaky     = "leaky"
	Log       = "log"
	// Logs that count, with so many entries.
	Counting64 = "counting 64"
	Counting32 = "counting 32"
)

// An Algorithm is one that weir offers.
type Algorithm struct {
	Name   string
	Slots  int // sub-windows; 0 for all but sliding windows
	Strict bool
	Capped bool
	Kind   Kind
	Color  color.Color // in all pictures; those of one kind may share it

	policy  string // what policy files call one that is no window
	entries int64  // of a log that counts
}

// A Kind says what an algorithm keeps.
type Kind int

// What an algorithm keeps.
const (
	Counters Kind = iota // of a window
	Bucket
	Times
)

// All are the algorithms. Nobody changes them.
var All = []Algorithm{
	{Name: Fixed, Color: report.Vermillion},
	{Name: Sliding1, Slots: 1, Color: report.Sky},
	{Name: Sliding4, Slots: 4, Color: report.Blue},
	{Name: sliding5, Slots: 5, Color: report.Blue},
	{Name: Sliding10, Slots: 10, Color: report.Blue},
	{Name: Sliding60, Slots: 60, Color: report.Indigo},
	{Name: Strict60, Slots: 60, Strict: true, Color: report.Green},
	{Name: Capped10, Slots: 10, Capped: true, Color: report.Orange},
	{Name: Capped60, Slots: 60, Capped: true, Color: report.Orange},
	{Name: Token, Kind: Bucket, Color: report.Purple, policy: "token_bucket"},
	{Name: Leaky, Kind: Bucket, Color: report.Purple, policy: "leaky_bucket"},
	{Name: Log, Kind: Times, Color: report.Wine, policy: "sliding_log"},
	counting(Counting64, 64),
	counting(Counting32, 32),
}

// Counting is a log of as few entries as there can be. It isn't in All.
var Counting = counting("counting log", cas.MinLogEntries)

// Leases is a limit of how much is under way at once; a window is its lease. It isn't in
// All.
var Leases = Algorithm{Name: "leases", Kind: Times, policy: "concurrency"}

// counting returns a log that counts, with so many entries.
func counting(name string, entries int64) Algorithm {
	return Algorithm{Name: name, Kind: Times, Color: report.Wine, policy: "sliding_log", entries: entries}
}

// Select returns the algorithms with these names, in their order. It panics if
// there is none of a name.
func Select(names ...string) []Algorithm {
	var selected []Algorithm
	for _, name := range names {
		selected = append(selected, Named(name))
	}
	return selected
}

// Named is Select for one name.
func Named(name string) Algorithm {
	a, ok := report.Find(All, func(a Algorithm) bool { return a.Name == name })
	if !ok {
		panic("algorithms: there is no " + name)
	}
	return a
}

// String returns the name.
func (a Algorithm) String() string { return a.Name }

// Title returns the name in tables that don't explain N.
func (a Algorithm) Title() string {
	if a.Slots > 0 && !a.Strict && !a.Capped {
		return "sliding " + a.Name
	}
	return a.Name
}

// Short returns the name without what a policy's name can't have.
func (a Algorithm) Short() string { return Plain(a.Name) }

// Plain returns a name in lower case, without = and with - for spaces.
func Plain(name string) string {
	return strings.NewReplacer(" ", "-", "=", "").Replace(strings.ToLower(name))
}

// limit returns what policy files say of it.
func (a Algorithm) limit() policy.Limit {
	l := policy.Limit{Algorithm: cmp.Or(a.policy, "fixed_window"), SubWindows: a.Slots, Entries: a.entries}
	if a.Slots > 0 {
		l.Algorithm = "sliding_window"
	}
	switch {
	case a.Strict:
		l.Estimate = "strict"
	case a.Capped:
		l.Estimate = "capped"
	}
	return l
}

// Policy returns the keys of a limit in a policy file that say which it is.
func (a Algorithm) Policy() string {
	l := a.limit()
	keys := "algorithm: " + l.Algorithm
	if l.SubWindows > 0 {
		keys += fmt.Sprintf(", sub_windows: %d", l.SubWindows)
	}
	if l.Estimate != "" {
		keys += ", estimate: " + l.Estimate
	}
	if l.Entries > 0 {
		keys += fmt.Sprintf(", entries: %d", l.Entries)
	}
	return keys
}

// Complexity returns with what both the time of a check and the space of a
// client grow: the slots N, the entries k or the limit L.
func (a Algorithm) Complexity() string {
	switch {
	case a.Name == Log:
		return "O(L)"
	case a.Kind == Times:
		return "O(k)"
	case a.Slots > 0:
		return "O(N)"
	default:
		return "O(1)"
	}
}

// Counts reports whether its estimate is a count of the window that doesn't depend
// on the limit, so that there is one of requests that no limit is put on.
func (a Algorithm) Counts() bool { return a.Kind == Counters && !a.Capped || a.Name == Log }

// Exact reports whether it promises never to admit more than the limit in any
// window.
func (a Algorithm) Exact() bool { return a.Strict || a.Kind == Times }

// Width returns the width of a slot, or the window if there are none.
func (a Algorithm) Width(window time.Duration) time.Duration {
	return window / time.Duration(max(1, a.Slots))
}

// A Config says how a limiter is to be. New sets the options' names but Policy.
type Config struct {
	counters.Options
	Window time.Duration
	Limit  int64 // the largest that the log will be asked for
	Burst  int64 // of buckets
}

// OneClock are the options of limiters with the same clock, on a store that
// answers at once.
func OneClock(policy string, clients int) counters.Options {
	return counters.Options{Policy: policy, ClockSkew: -1, StoreTimeout: -1, Clients: clients}
}

// Window is that of the limits of the experiments in real time.
const Window = time.Minute

// What all experiments' keys and policies are named.
const (
	keyPrefix = "weir"
	LimitName = "limit"
)

// Namespace returns the keys of the counters of a policy's limit.
func Namespace(policy string, width time.Duration) counters.Namespace {
	return counters.CounterNamespace(keyPrefix, policy, LimitName, width)
}

// New returns a limiter on a store.
func (a Algorithm) New(s telemetry.Store, c Config) (policyfile.Limiter, error) {
	l := a.limit()
	l.Window, l.Lease, l.Limit, l.Burst = c.Window, c.Window, c.Limit, c.Burst
	options := c.Options
	options.KeyPrefix, options.Limit = keyPrefix, LimitName
	return policyfile.NewLimiter(s, &l, cas.Config{Options: options})
}

// Bytes returns what Memcached keeps of one client that asks evenly, and as
// often as the limit in a window allows, overhead included.
func (a Algorithm) Bytes(window time.Duration, limit int64) (int, error) {
	const usualPolicy = "policy" // as long as such names usually are
	limiter, err := a.New(memory.New(time.Now), Config{Options: counters.Options{Policy: usualPolicy, Clients: 1}, Window: window, Limit: limit})
	if err != nil {
		return 0, err
	}
	_, bytes := policyfile.Kept(&policy.Limit{Limit: limit, Limiter: limiter})
	return bytes, nil
}

// OpenStore returns weir's store on the memcached at addr.
func OpenStore(addr string) (*memcached.Store, error) {
	return memcached.New(memcached.Config{Servers: []string{addr}})
}
