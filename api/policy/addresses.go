package policy

import (
	"net/netip"
	"strings"
)

// Network returns n as addresses are compared with it: with its first bits
// alone, and an IPv4 network as such, even if it is written as one of IPv6.
func Network(n netip.Prefix) netip.Prefix {
	if n.Addr().Is4In6() && n.Bits() >= 96 {
		n = netip.PrefixFrom(n.Addr().Unmap(), n.Bits()-96)
	}
	return n.Masked()
}

// alone returns the network that is one address.
func alone(address netip.Addr) netip.Prefix {
	return netip.PrefixFrom(address, address.BitLen())
}

// networkName names a network as a client: an address or a CIDR.
func networkName(n netip.Prefix) string {
	if n.IsSingleIP() {
		return n.Addr().String()
	}
	return n.String()
}

// parseNetwork returns the network that s names as an address or CIDR, and
// reports whether it names one. Its address may have bits beyond the network.
func parseNetwork(s string) (netip.Prefix, bool) {
	// Checks ask this of each client: an error of netip is an allocation.
	if address, _, _ := strings.Cut(s, "/"); !looksLikeAddress(address) {
		return netip.Prefix{}, false
	}
	if address, err := netip.ParseAddr(s); err == nil {
		return alone(address.Unmap()), true
	}
	n, err := netip.ParsePrefix(s)
	if err != nil {
		return netip.Prefix{}, false
	}
	if n == n.Masked() {
		n = Network(n)
	}
	return n, true
}

// looksLikeAddress reports whether s has only characters of an IPv4 address, or
// of an IPv6 address without a zone.
func looksLikeAddress(s string) bool {
	return strings.Trim(s, "0123456789.") == "" && strings.Contains(s, ".") ||
		strings.Trim(s, "0123456789abcdefABCDEF:.") == "" && strings.Count(s, ":") > 1
}

// IsNetwork reports whether s names an address or a CIDR.
func IsNetwork(s string) bool {
	_, ok := parseNetwork(s)
	return ok
}
