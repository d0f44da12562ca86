package policy

import (
	"fmt"
	"net/netip"
	"slices"
	"strconv"
	"strings"
	"time"

	"weir/counters"
)

// Terms are what an exception gives a client in the place of what the policy says. The zero value
// is none.
type Terms struct {
	// Limits replaces limits of the policy, by name.
	Limits map[string]int64
	// Exempt clients are always admitted, Blocked ones never. Neither is
	// counted. Exempt wins.
	Exempt, Blocked bool
	// Until is when they end, if they were made at run time: then their limits win over those
	// of a check. It is zero for terms of the policy itself.
	Until time.Time
}

// Kind says in a word what they are: exempt, blocked, limits, or "" if they are none.
func (t *Terms) Kind() string {
	switch {
	case t.Exempt:
		return "exempt"
	case t.Blocked:
		return "blocked"
	case len(t.Limits) > 0:
		return "limits"
	default:
		return ""
	}
}

// An Exception says for whom which terms hold. The nil Exception is none.
type Exception struct {
	Key ClientKey
	Terms
}

// AtRunTime reports whether the exception was made at run time.
func (e *Exception) AtRunTime() bool { return e != nil && !e.Until.IsZero() }

// none is the exception of clients that have none.
var none = new(Exception)

// A ClientKey says for whom an exception holds: for one client by its name, for
// all whose names begin alike, or for the addresses of a network. Make one with
// ParseClientKey. Keys are equal when they mean the same.
type ClientKey struct {
	name    string
	all     bool         // whose names begin with name
	network netip.Prefix // of addresses; not valid if the key is a name
}

// ParseClientKey reads a key as the policy file has it: an address, a CIDR, the
// beginning of names with * at its end, or a name. What stands in double quotes is a
// name, whatever it looks like. The error says what would be right.
func ParseClientKey(s string) (ClientKey, error) {
	name, quoted := s, len(s) > 1 && s[0] == '"' && s[len(s)-1] == '"'
	if quoted {
		name = s[1 : len(s)-1]
	}
	if name == "" || len(name) > counters.MaxClientBytes {
		return ClientKey{}, fmt.Errorf("a client must be 1 to %d bytes", counters.MaxClientBytes)
	}
	if quoted {
		return ClientKey{name: name}, nil
	}
	if n, ok := parseNetwork(s); ok {
		if n != n.Masked() {
			return ClientKey{}, fmt.Errorf("client %q names an address within a range; write %v for the range, or the address alone", s, n.Masked())
		}
		return ClientKey{network: n}, nil
	}
	if address, _, ok := strings.Cut(s, "/"); ok && looksLikeAddress(address) {
		return ClientKey{}, fmt.Errorf("client %q is no address range; one is 10.0.0.0/8 or 2001:db8::/32", s)
	}
	beginning, rest, all := strings.Cut(s, "*")
	if rest != "" {
		return ClientKey{}, fmt.Errorf("client %q has a * before its end; only at the end does it stand for what follows, and a name that has one is a key in double quotes", s)
	}
	return ClientKey{name: beginning, all: all}, nil
}

// String returns k as the policy file writes it.
func (k ClientKey) String() string {
	switch {
	case k.network.IsValid():
		return networkName(k.network)
	case k.all:
		return k.name + "*"
	default:
		if same, err := ParseClientKey(k.name); err != nil || same != k {
			return `"` + k.name + `"`
		}
		return k.name
	}
}

// Means says in words for whom k holds, as the subject of a sentence.
func (k ClientKey) Means() string {
	switch {
	case k.network.IsSingleIP():
		return "address " + k.String()
	case k.network.IsValid():
		return "each address in " + k.String()
	case k.all:
		return "each client that begins with " + strconv.Quote(k.name)
	default:
		return "client " + strconv.Quote(k.name)
	}
}

// exceptions finds the exception of a client with one look-up for each length of
// its keys, however many keys there are.
type exceptions struct {
	names      map[string]*Exception
	networks   map[netip.Prefix]*Exception
	bits4      []int // how long the networks are, the longest first
	bits6      []int
	beginnings map[string]*Exception
	bytes      []int     // how long the beginnings are, the longest first
	begins     [256]bool // whether a name that begins with this byte may have one of beginnings
}

func newExceptions(all map[ClientKey]Terms) exceptions {
	e := exceptions{names: make(map[string]*Exception), networks: make(map[netip.Prefix]*Exception), beginnings: make(map[string]*Exception)}
	for k, terms := range all {
		switch c := (&Exception{k, terms}); {
		case !k.network.IsValid() && !k.all:
			e.names[k.name] = c
		case k.all:
			e.beginnings[k.name] = c
			e.bytes = append(e.bytes, len(k.name))
			if k.name != "" {
				e.begins[k.name[0]] = true
				continue
			}
			for b := range e.begins { // the key is *
				e.begins[b] = true
			}
		case k.network.Addr().Is4():
			e.networks[k.network] = c
			e.bits4 = append(e.bits4, k.network.Bits())
		default:
			e.networks[k.network] = c
			e.bits6 = append(e.bits6, k.network.Bits())
		}
	}
	for _, lengths := range []*[]int{&e.bits4, &e.bits6, &e.bytes} {
		slices.Sort(*lengths)
		*lengths = slices.Compact(*lengths)
		slices.Reverse(*lengths)
	}
	return e
}

// find returns the exception of a client, or an empty one: by its name, else by the smallest
// network around its own, if it has one, else by the longest beginning of its
// name.
func (e *exceptions) find(name string, network netip.Prefix) *Exception {
	if c, ok := e.names[name]; ok {
		return c
	}
	if c := e.around(network); c != nil {
		return c
	}
	if name != "" && !e.begins[name[0]] { // spares most names the look-ups
		return none
	}
	for _, n := range e.bytes {
		if n <= len(name) {
			if c, ok := e.beginnings[name[:n]]; ok {
				return c
			}
		}
	}
	return none
}

// around returns the exception of the smallest network that n is part of, or nil. There is
// none if n isn't valid.
func (e *exceptions) around(n netip.Prefix) *Exception {
	lengths := e.bits6
	if n.Addr().Is4() {
		lengths = e.bits4
	}
	for _, bits := range lengths {
		if bits <= n.Bits() {
			if c := e.networks[netip.PrefixFrom(n.Addr(), bits).Masked()]; c != nil {
				return c
			}
		}
	}
	return nil
}

// IsExempt reports whether there is an exception, and it exempts.
func (e *Exception) IsExempt() bool { return e != nil && e.Exempt }
