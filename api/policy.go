package api

import (
	"time"

	"weir/counters"
)

// A Limit is one limit of a policy.
type Limit struct {
	Name      string
	Algorithm string
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
	Limiter  Limiter
}

// Most returns the largest limit that may be in force.
func (l *Limit) Most() int64 {
	if l.MaxLimit == 0 {
		return counters.MaxLimit
	}
	return l.MaxLimit
}

// OnStoreError says what a policy answers when the store can't decide.
type OnStoreError string

// The values of OnStoreError.
const (
	StoreErrorAllow OnStoreError = "allow"
	StoreErrorDeny  OnStoreError = "deny"
)

// A Client holds a policy's exceptions for one client.
type Client struct {
	// Limits replaces limits of the policy, by name.
	Limits map[string]int64
	// Exempt clients are always admitted, Blocked ones never. Neither are
	// counted.
	Exempt, Blocked bool
}

// An Identifier finds the client of a request that a proxy asks about: the
// value of Header or, when Header is empty, the IP address of the request.
type Identifier struct {
	Header string
}

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
	Shadow  bool
	Clients map[string]Client
	// Identify and AuthDenyStatus are those of forward auth.
	Identify       []Identifier
	AuthDenyStatus int

	header string // RateLimit-Policy with the policy's own limits
}

// Policies are the policies by name.
type Policies map[string]*Policy
