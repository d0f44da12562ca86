package policy

import (
	"cmp"
	"crypto/sha256"
	"encoding/base32"
	"strings"
	"time"

	"weir/counters"
)

// OnStoreError says what a policy answers when the store can't decide. A client
// that the process knows to be over its limit is denied in any case.
type OnStoreError string

// The values of OnStoreError: the process limits by itself, or allows, or
// denies with status 503, in forward auth with the policy's AuthDenyStatus.
const (
	StoreErrorLocal OnStoreError = "local"
	StoreErrorAllow OnStoreError = "allow"
	StoreErrorDeny  OnStoreError = "deny"
)

// A Limit is one limit of a policy.
type Limit struct {
	Name      string
	Algorithm string // as policy files name it: Limiter decides
	// Limit is what is admitted per Window, 1 to counters.MaxLimit; of a Finder's, 0 denies all.
	Limit  int64
	Window time.Duration
	// SubWindows and Estimate are set for sliding windows, and zero otherwise.
	SubWindows int
	Estimate   string
	// Entries is how many entries a sliding log is cut into; 0 for an exact one,
	// and for what isn't a log.
	Entries int64
	// Burst is the capacity of a token or leaky bucket; 0 means the limit.
	Burst int64
	// MaxLimit is the largest value that may replace Limit for one client
	// or one check; 0 means counters.MaxLimit.
	MaxLimit int64
	// Route is the String of the Route whose requests this limit counts, apart
	// from those of the policy's limit of the same name; "" in a policy.
	Route string
	// Pattern is how the clients are called that this limit of a Finder counts, with * for
	// what differs; "" in other policies.
	Pattern string
	// Leniency is what a denial is to the checks that are decided with it.
	Leniency Leniency
	// Lease is how long an admission holds its place in a limit of concurrency, whose
	// Window it is too. It is 0 for all other limits.
	Lease time.Duration
	// CountsRequests says that each check takes 1, whatever it costs, and that this is
	// never settled.
	CountsRequests bool
	// CountDenied makes denied requests count in this limit of a Finder, whatever becomes
	// of the other limits that a request asks; in other policies the Policy says so.
	CountDenied bool
	// OnStoreError is that of a limit of a Finder; "" means the policy's.
	OnStoreError OnStoreError
	// Drains says that what is in use drains at the rate of the limit.
	Drains bool
	// Limiter decides for this limit. It must not be nil.
	Limiter counters.Limiter
}

// LargestLimit returns the largest that may be in force.
func (l *Limit) LargestLimit() int64 { return cmp.Or(l.MaxLimit, counters.MaxLimit) }

// A Leniency says what a limit's denial is to the checks that are decided with
// it.
type Leniency int

// The values of Leniency: the denial denies all of them, or none, or all if
// every other Quota denies too. Beside a ShadowQuota, which denies none, no Quota
// does either.
const (
	Strict Leniency = iota
	Shadow
	Quota
	ShadowQuota
)

// IsShadow reports whether the denial denies nothing, whatever others say.
func (l Leniency) IsShadow() bool { return l == Shadow || l == ShadowQuota }

// routeHashBytes of SHA-256 are kept: 120 bits, which base32 writes in 24
// characters.
const routeHashBytes = 15

// StoredName returns the name that l has in the store: its Name, or for a limit
// of a route, a name of the same form that no other limit has.
func (l *Limit) StoredName() string {
	if l.Route == "" {
		return l.Name
	}
	sum := sha256.Sum256([]byte(l.Name + " " + l.Route))
	hash := strings.ToLower(base32.StdEncoding.EncodeToString(sum[:routeHashBytes]))
	return l.Name[:min(len(l.Name), counters.MaxNameBytes-1-len(hash))] + "-" + hash
}
