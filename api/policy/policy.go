// Package policy says what a policy is: limits that are checked as one, and for whom
// and for which requests they are others. Its matching of exceptions, addresses and
// routes is pure; it decides nothing and knows no server.
//
// Start reading at Policy; Index finds the exceptions and routes of a request.
package policy

import (
	"iter"
	"net/netip"
	"slices"
	"strings"
	"time"
)

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

// OnMissingClient says what forward auth answers to a request in which Identify
// finds no client. Either way nothing is counted.
type OnMissingClient string

// The values of OnMissingClient: status 400, or 200.
const (
	MissingClientDeny  OnMissingClient = "deny"
	MissingClientAllow OnMissingClient = "allow"
)

// OnMissingPath says what forward auth answers where a policy has routes and the
// proxy doesn't say which path it asks about.
type OnMissingPath string

// The values of OnMissingPath: the policy's own limits decide, or status 400 and
// nothing is counted.
const (
	MissingPathAllow OnMissingPath = "allow"
	MissingPathDeny  OnMissingPath = "deny"
)

// Addresses are counted by so many of their first bits, unless a policy says
// otherwise: a network of 64 bits is what one client of IPv6 has.
const (
	DefaultIPv4Prefix = 32
	DefaultIPv6Prefix = 64
)

// A Policy is a set of limits that are checked as one: all must admit, and if
// one denies, the others are refunded. It must not be changed while it is in
// use.
type Policy struct {
	Name        string
	Description string
	Limits      []Limit
	// CountDenied makes denied requests count, in every limit.
	CountDenied bool
	// OnStoreError must be one of the values of its type.
	OnStoreError OnStoreError
	// Hold makes POST /v1/check answer an admitted check only when its wait
	// is over.
	Hold bool
	// SettleWithin is for how long what a check has reserved can be settled; 0 is for no longer
	// than the moment of the check.
	SettleWithin time.Duration
	// Shadow decides and counts, but always allows.
	Shadow bool
	// Finder, if it isn't nil, finds the limit of a client: each has one of its own. Then
	// Limits are the ways in which such limits count.
	Finder Finder
	// Clients are exceptions. Of those that hold for a client, the one of its
	// own name counts, else that of the smallest network, else that of the
	// longest beginning.
	Clients map[ClientKey]Terms

	// The rest is for forward auth.

	// Identify names the client: the first that the request has counts.
	Identify []Identifier
	// OnMissingClient is for requests that have none; "" means deny.
	OnMissingClient OnMissingClient
	// OnMissingPath is for requests whose route is unknown; "" means allow.
	OnMissingPath OnMissingPath
	// IPv4Prefix and IPv6Prefix are how many bits of an address name the
	// client, 1 to 32 and 1 to 128; 0 means the default. An address with an
	// exception is counted by as many bits as the exception has, if that is
	// more.
	IPv4Prefix, IPv6Prefix int
	// AuthDenyStatus is the HTTP status of a denial. It must be set for forward auth.
	AuthDenyStatus int
	// AuthBadRequestStatus is the HTTP status of a request whose client or path
	// can't be told, or whose cost can never be admitted; 0 means 400.
	AuthBadRequestStatus int
	// Routes are exceptions for some requests. No two have the same method and
	// a path that differs at most in upper and lower case.
	Routes []Route
}

// A Finder knows the limits of a policy whose clients each have one of their own.
type Finder interface {
	// Find returns the limit that counts a client, or nil, and the name by which it
	// counts it.
	Find(client string) (l *Limit, countedAs string)
	// All returns all limits, in the order of their Pattern.
	All() []*Limit
}

// CountedAs returns the name by which p counts a client.
func (p *Policy) CountedAs(client string) string {
	if p.Finder != nil {
		_, client = p.Finder.Find(client)
	}
	return client
}

// KeyOf returns the key of an exception for a client alone. A client that is an address has the
// same key however it is written, unless p identifies clients by headers alone: their values are
// names.
func (p *Policy) KeyOf(client string) ClientKey {
	if address, ok := p.AddressOf(client); ok {
		return ClientKey{network: alone(address)}
	}
	return ClientKey{name: client}
}

// AddressOf returns the address that a client's name is, and reports whether it is one by
// which forward auth may know its clients.
func (p *Policy) AddressOf(client string) (address netip.Addr, ok bool) {
	n, ok := parseNetwork(client)
	return n.Addr(), ok && !strings.Contains(client, "/") && slices.Contains(p.Identify, Identifier{})
}

// Listed returns the limits that p is described by: those of its Finder, or else Limits, without
// those of routes.
func (p *Policy) Listed() []*Limit {
	if p.Finder != nil {
		return p.Finder.All()
	}
	limits := make([]*Limit, len(p.Limits))
	for i := range p.Limits {
		limits[i] = &p.Limits[i]
	}
	return limits
}

// EachLimit yields all limits, those of the routes included.
func (p *Policy) EachLimit() iter.Seq[*Limit] {
	return func(yield func(*Limit) bool) {
		lists := [][]Limit{p.Limits}
		for _, r := range p.Routes {
			lists = append(lists, r.Limits)
		}
		for _, limits := range lists {
			for i := range limits {
				if !yield(&limits[i]) {
					return
				}
			}
		}
	}
}

// Policies are the policies by their Name.
type Policies map[string]*Policy
