package api

import (
	"cmp"
	"context"
	"time"

	"weir/counters"
)

// A Limiter decides whether a client may spend a cost now. Its errors are those
// of a counters.Store and mean that nothing could be decided. It is safe for
// concurrent use.
type Limiter interface {
	// Take decides r and consumes its cost if it is admitted.
	Take(ctx context.Context, r counters.Request) (counters.Decision, error)
	// Peek decides r and consumes nothing.
	Peek(ctx context.Context, r counters.Request) (counters.Decision, error)
	// PeekLocal decides r by what the process remembers, which is at most a
	// second old, without asking the store. It reports whether the process
	// remembers anything. It consumes nothing.
	PeekLocal(r counters.Request) (counters.Decision, bool)
	// TakeLocal decides r after a Take that failed with err, by what the process
	// remembers, and counts it there until the store answers again. The error
	// is counters.ErrRequest.
	TakeLocal(r counters.Request, err error) (counters.Decision, error)
	// Recall decides r by what the process remembers, however old that is, and
	// reports whether it remembers anything. It consumes nothing.
	Recall(r counters.Request) (counters.Decision, bool)
	// Refund undoes a Take or a TakeLocal that was admitted, given the same r
	// and what Take answered. It may go on after ctx has ended.
	Refund(ctx context.Context, r counters.Request, taken counters.Decision) error
	// Reset forgets what the client has consumed.
	Reset(ctx context.Context, client string, now time.Time) error
}

// A Limit is one limit of a policy.
type Limit struct {
	Name      string
	Algorithm string // only shown: Limiter decides
	// Limit is what is admitted per Window, 1 to counters.MaxLimit.
	Limit  int64
	Window time.Duration
	// SubWindows and Estimate are those of a sliding window, else zero.
	SubWindows int
	Estimate   string
	// Burst is the capacity of a token or leaky bucket; 0 means the limit.
	Burst int64
	// MaxLimit is the largest value that may replace Limit for one client
	// or one check; 0 means counters.MaxLimit.
	MaxLimit int64
	// Limiter decides for this limit. It must not be nil.
	Limiter Limiter
}

// Most returns the largest limit that may be in force.
func (l *Limit) Most() int64 { return cmp.Or(l.MaxLimit, counters.MaxLimit) }

// OnStoreError says what a policy answers when the store can't decide. A client
// that the process knows to be over its limit is denied in any case.
type OnStoreError string

// The values of OnStoreError: the process limits by itself, or allows, or
// denies with status 503.
const (
	StoreErrorLocal OnStoreError = "local"
	StoreErrorAllow OnStoreError = "allow"
	StoreErrorDeny  OnStoreError = "deny"
)

// A Client holds a policy's exceptions for one client. The zero value is none.
type Client struct {
	// Limits replaces limits of the policy, by name.
	Limits map[string]int64
	// Exempt clients are always admitted, Blocked ones never. Neither is
	// counted. Exempt wins.
	Exempt, Blocked bool
}

// An Identifier finds the client of a request that a proxy asks about: the
// value of Header or, when Header is empty, the IP address of the request.
type Identifier struct {
	Header string
}

// String returns i as the policy file writes it: ip or header:<name>.
func (i Identifier) String() string {
	if i.Header == "" {
		return "ip"
	}
	return "header:" + i.Header
}

// A Policy is a set of limits that are checked as one: all must admit, and if
// one denies, the others are refunded. It must not be changed while it is in
// use.
type Policy struct {
	Name        string
	Description string
	Limits      []Limit
	// CountDenied makes denied requests count, in every limit.
	CountDenied  bool
	OnStoreError OnStoreError
	// Hold makes POST /v1/check answer an admitted check only when its wait
	// is over.
	Hold bool
	// Shadow decides and counts, but always allows.
	Shadow bool
	// Clients are exceptions, by the client's name.
	Clients map[string]Client
	// Identify names the client in forward auth: the first that the request
	// has counts. A request that has none of them is a mistake, status 400.
	Identify []Identifier
	// AuthDenyStatus is the HTTP status of a denial in forward auth.
	AuthDenyStatus int

	header string // RateLimit-Policy with the policy's own limits
}

// Policies are the policies by their Name.
type Policies map[string]*Policy
