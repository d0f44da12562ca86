package policy

import (
	"cmp"
	"maps"
	"net/netip"
	"sync/atomic"
)

// An Index is a policy that finds its exceptions and routes by look-ups, however
// many there are. Make it with NewIndex. It is safe for concurrent use.
type Index struct {
	*Policy
	own        exceptions // of the policy
	exceptions atomic.Pointer[exceptions]
	routing    *routing
}

// NewIndex returns the Index of p, which must not be changed any more.
func NewIndex(p *Policy) *Index {
	x := &Index{Policy: p, own: newExceptions(p.Clients), routing: newRouting(p.Routes)}
	x.exceptions.Store(&x.own)
	return x
}

// Override has exceptions hold besides those of the policy, until it is called again:
// each in the place of the policy's of the same key.
func (x *Index) Override(with map[ClientKey]Terms) {
	if len(with) == 0 {
		x.exceptions.Store(&x.own)
		return
	}
	all := make(map[ClientKey]Terms, len(x.Clients)+len(with))
	maps.Copy(all, x.Clients)
	maps.Copy(all, with)
	found := newExceptions(all)
	x.exceptions.Store(&found)
}

// Exception returns the exception of a client, an empty one if it has none. If
// network is valid, the client is known by that. Else it is known by its name,
// which is an address too if it looks like one, unless opaque.
func (x *Index) Exception(name string, network netip.Prefix, opaque bool) *Exception {
	e := x.exceptions.Load()
	if !opaque && !network.IsValid() && len(e.networks) > 0 {
		network, _ = parseNetwork(name)
	}
	return e.find(name, network)
}

// ByAddress returns the name of the client that has an address, which is that of
// the network that it is counted by, and the network that is the address alone.
func (x *Index) ByAddress(address netip.Addr) (client string, network netip.Prefix) {
	network, bits := alone(address), cmp.Or(x.IPv6Prefix, DefaultIPv6Prefix)
	if address.Is4() {
		bits = cmp.Or(x.IPv4Prefix, DefaultIPv4Prefix)
	}
	if own := x.exceptions.Load().around(network); own != nil && own.Key.network.Bits() > bits {
		return own.Key.String(), network
	}
	return networkName(netip.PrefixFrom(address, bits).Masked()), network
}

// MatchRoutes appends to routes those that a request has to pass, and returns
// them. It is one, or nil for the policy's own limits, if all readings of the path
// agree. Otherwise it is one for each reading, so that nobody passes a limit,
// or pays less, by writing a path in another way. The last is what most would
// read.
func (x *Index) MatchRoutes(routes []*Route, method, target string) []*Route {
	if len(x.Routes) == 0 {
		return append(routes, nil)
	}
	return x.routing.match(routes, method, target)
}
