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
	dots, colons, letters := 0, 0, 0
	for i := range len(s) { // most names end it at their first letter or so
		switch b := s[i]; {
		case '0' <= b && b <= '9':
		case b == '.':
			dots++
		case b == ':':
			colons++
		case 'a' <= b && b <= 'f', 'A' <= b && b <= 'F':
			letters++
		default:
			return false
		}
	}
	return colons > 1 || dots > 0 && colons+letters == 0
}

// IsNetwork reports whether s names an address or a CIDR.
func IsNetwork(s string) bool {
	_, ok := parseNetwork(s)
	return ok
}
