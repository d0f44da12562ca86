package envoy

import (
	"fmt"
	"strings"
	"sync/atomic"
	"time"

	rls "github.com/envoyproxy/go-control-plane/envoy/service/ratelimit/v3"
	"google.golang.org/protobuf/types/known/structpb"

	"weir/api/policy"
	"weir/counters"
)

// PolicyName is the name that all limits of a Config have in the store and in
// the metrics. No policy may have it.
const PolicyName = "envoy"

// A Unit is the time in which a limit admits its requests. As in
// envoyproxy/ratelimit a month has 30 days and a year 365, and each begins at a
// multiple of it since 1970.
type Unit string

var units = map[Unit]struct {
	code   rls.RateLimitResponse_RateLimit_Unit
	window time.Duration
}{
	"second": {rls.RateLimitResponse_RateLimit_SECOND, time.Second},
	"minute": {rls.RateLimitResponse_RateLimit_MINUTE, time.Minute},
	"hour":   {rls.RateLimitResponse_RateLimit_HOUR, time.Hour},
	"day":    {rls.RateLimitResponse_RateLimit_DAY, 24 * time.Hour},
	"week":   {rls.RateLimitResponse_RateLimit_WEEK, 7 * 24 * time.Hour},
	"month":  {rls.RateLimitResponse_RateLimit_MONTH, 30 * 24 * time.Hour},
	"year":   {rls.RateLimitResponse_RateLimit_YEAR, 365 * 24 * time.Hour},
}

// Units are all units, the shortest first.
var Units = []Unit{"second", "minute", "hour", "day", "week", "month", "year"}

// Window returns how long the unit is, 0 if there is no such unit.
func (u Unit) Window() time.Duration { return units[u].window }

// A Config is what the configuration files of envoyproxy/ratelimit say. It must
// not be changed while it is in use.
type Config struct {
	// Domains are the descriptors of each domain, as Descriptors of one that has
	// no key.
	Domains map[string]*Descriptor
	// Default is, by unit, the limit that counts where a request brings its own
	// limit. Each has its Limiter.
	Default map[Unit]*policy.Limit

	all []*policy.Limit // see List
}

// A Descriptor is one entry of a list of descriptors in a file. Make it with
// Add.
type Descriptor struct {
	Key, Value string
	// Rule is nil if a request that ends here isn't limited.
	Rule *Rule
	// ShareThreshold makes all values that match Value, which has a *, count as
	// one.
	ShareThreshold bool
	// DetailedMetric and ValueToMetric name what a request said in the metrics.
	DetailedMetric, ValueToMetric bool

	children  map[string]*Descriptor
	wildcards []wildcard // in the order of the file
}

// A wildcard is a descriptor whose key and value have a *.
type wildcard struct {
	*Descriptor
	parts []string // what stands between each *
}

// matches reports whether name is the parts in their order, with anything, or
// nothing, between them.
func (w *wildcard) matches(name string) bool {
	rest, ok := strings.CutPrefix(name, w.parts[0])
	if ok {
		rest, ok = strings.CutSuffix(rest, w.parts[len(w.parts)-1])
	}
	for _, part := range w.parts[1 : len(w.parts)-1] {
		if ok {
			_, rest, ok = strings.Cut(rest, part)
		}
	}
	return ok
}

// A Rule is a limit of a descriptor.
type Rule struct {
	// Unlimited says that there is none, and that answers say so.
	Unlimited bool
	// Unit and Limit are that of a rule that isn't unlimited. The Limit's Name
	// is what headers call it; a Limit of 0 denies all.
	Unit  Unit
	Limit policy.Limit
	// Name is what Replaces of other rules call this one; or "".
	Name     string
	Replaces []string
	// Metadata is what answers may say of the rule; nil if it has none.
	Metadata *structpb.Struct

	metric string                     // its name in metrics, if that has no values of requests
	hits   atomic.Pointer[func(Hits)] // of metric, when it has counted
}

// Bind makes limiter decide for the rule, unless its limit is 0: then all is
// denied, and nothing counted.
func (r *Rule) Bind(limiter counters.Limiter) {
	r.Limit.Limiter = limiter
	if r.Limit.Limit == 0 {
		r.Limit.Limiter = policy.Constant{Window: r.Limit.Window}
	}
}

// composite is what a file calls d: its key, and its value if it has one.
func (d *Descriptor) composite() string {
	if d.Value == "" {
		return d.Key
	}
	return d.Key + "_" + d.Value
}

// Add makes child a descriptor below d. The error says that d has one with the
// same key and value.
func (d *Descriptor) Add(child *Descriptor) error {
	name := child.composite()
	if d.children[name] != nil {
		return fmt.Errorf("the list has a descriptor %q already; a key and its value may be there once", name)
	}
	if d.children == nil {
		d.children = make(map[string]*Descriptor)
	}
	d.children[name] = child
	if strings.Contains(name, "*") {
		d.wildcards = append(d.wildcards, wildcard{child, strings.Split(name, "*")})
	}
	return nil
}
