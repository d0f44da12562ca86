package policy

import (
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"strings"
)

// NoteOn says in words what of e, an exception made at run time, isn't as most would expect;
// "" if nothing is.
func (p *Policy) NoteOn(e *Exception) string {
	limits := p.Listed()
	if p.Finder != nil {
		limits = slices.DeleteFunc(slices.Clone(limits), func(l *Limit) bool {
			beginning, _, _ := strings.Cut(l.Pattern, "*")
			return !e.Key.all || !strings.HasPrefix(beginning, e.Key.name) && !strings.HasPrefix(e.Key.name, beginning)
		})
		if !e.Key.all && !e.Key.network.IsValid() {
			l, countedAs := p.Finder.Find(e.Key.name)
			if l != nil && countedAs != e.Key.name {
				return fmt.Sprintf("it holds for nobody: this client is counted as %q", countedAs)
			}
			if l != nil {
				limits = []*Limit{l}
			}
		}
		switch {
		case len(limits) > 0:
		case e.Key.network.IsValid():
			return "it holds for nobody: no limit of the policy counts such a client"
		default:
			return "it holds only where requests bring limits of their own: none of the policy counts such a client"
		}
	}
	if note := e.Key.Note(); note != "" {
		return note
	}
	names := make(map[string]bool, len(limits))
	for _, l := range limits {
		names[l.Name] = true
	}
	for _, name := range slices.Sorted(maps.Keys(e.Limits)) {
		if !names[name] {
			return fmt.Sprintf("the limit %q isn't one of those that count such a client", name)
		}
	}
	own := p.Clients[e.Key].Limits
	for _, name := range slices.Sorted(maps.Keys(own)) {
		if len(e.Limits) > 0 && e.Limits[name] == 0 {
			return fmt.Sprintf("the %d that the policy file gives by the limit %q don't hold meanwhile", own[name], name)
		}
	}
	if p.Shadow && e.Blocked {
		return "the policy is in shadow mode, so its requests are admitted all the same"
	}
	for _, l := range limits {
		if e.Blocked && l.Leniency.IsShadow() {
			return fmt.Sprintf("the limit %q is in shadow mode, so it admits these requests all the same", l.Name)
		}
		if own, most := e.Limits[l.Name], l.LargestLimit(); own > most { // a reload has lowered it
			return fmt.Sprintf("the limit %q is %d and not %d, as it can't count more any longer", l.Name, most, own)
		}
		if e.Limits[l.Name] > l.Limit && l.Burst > 0 {
			return fmt.Sprintf("the burst of the limit %q stays %d, and no more are admitted at once", l.Name, l.Burst)
		}
	}
	for i := range p.Routes {
		r := &p.Routes[i]
		for _, l := range p.Limits {
			own, has := e.Limits[l.Name]
			apart := slices.ContainsFunc(r.Limits, func(on Limit) bool { return on.Name == l.Name })
			if has && own < r.Cost && l.Burst == 0 && !l.CountsRequests && !apart {
				return fmt.Sprintf("the cost %d of the route %s is above %d, so the limit %q refuses each request of it as one that is wrong", r.Cost, r, own, l.Name)
			}
		}
	}
	return ""
}

// Note warns that k counts as a name, if it was probably meant as an address, perhaps with brackets
// or a port, or as a range of addresses; else it is "".
func (k ClientKey) Note() string {
	if same, err := ParseClientKey(k.name); k.all || k.network.IsValid() || err != nil || same != k { // else it is in quotes
		return ""
	}
	meant := strings.NewReplacer("[", "", "]", "").Replace(k.name)
	if withPort, err := netip.ParseAddrPort(k.name); err == nil {
		meant = withPort.Addr().String()
	}
	address, bits, isNetwork := strings.Cut(meant, "/")
	address, _, _ = strings.Cut(address, "%") // behind it is a zone
	first, last, isRange := strings.Cut(address, "-")
	if !looksLikeAddress(first) || isRange && !looksLikeAddress(last) {
		return ""
	}
	if isNetwork {
		address += "/" + bits
	}
	right := "10.0.0.0/8"
	if n, ok := parseNetwork(address); ok {
		right = networkName(n.Masked())
	}
	return fmt.Sprintf("%q counts as a name: it is neither an address nor a range of them, such as %s", k.name, right)
}
