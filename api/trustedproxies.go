package api

import (
	"net/http"
	"net/netip"
	"slices"
	"strings"
)

// trustedProxies are networks of peers whose X-Forwarded- headers are believed.
type trustedProxies []netip.Prefix

// clientOf returns the address of the client that sent r. It is the peer's or,
// when the peer is a trusted proxy, the last address in X-Forwarded-For that
// isn't a trusted proxy's. What stands before an entry that is no address isn't
// believed. It is the zero Addr if not even the peer has an address.
func (t trustedProxies) clientOf(r *http.Request) netip.Addr {
	address := peer(r)
	for _, list := range slices.Backward(r.Header["X-Forwarded-For"]) {
		for more := true; more; {
			if !t.has(address) {
				return address
			}
			var entry string
			comma := strings.LastIndexByte(list, ',')
			list, entry, more = list[:max(comma, 0)], strings.TrimSpace(list[comma+1:]), comma >= 0
			if entry == "" {
				continue
			}
			next, ok := parseAddress(entry)
			if !ok {
				return address
			}
			address = next
		}
	}
	return address
}

// has reports whether an address is a trusted proxy's.
func (t trustedProxies) has(address netip.Addr) bool {
	return slices.ContainsFunc(t, func(n netip.Prefix) bool { return n.Contains(address) })
}

// peer returns the address that r came from.
func peer(r *http.Request) netip.Addr {
	address, _ := parseAddress(r.RemoteAddr)
	return address
}

// parseAddress returns the address in an entry of X-Forwarded-For, which may
// have brackets, a port and a zone, and reports whether there is one.
func parseAddress(entry string) (netip.Addr, bool) {
	if inside, ok := strings.CutPrefix(entry, "["); ok {
		host, port, ok := strings.Cut(inside, "]")
		if !ok || port != "" && port[0] != ':' {
			return netip.Addr{}, false
		}
		entry = host
	} else if host, port, ok := strings.Cut(entry, ":"); ok && !strings.Contains(port, ":") {
		entry = host
	}
	address, err := netip.ParseAddr(entry)
	return address.Unmap().WithZone(""), err == nil
}
