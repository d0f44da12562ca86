package envoy

import (
	"cmp"
	"fmt"
	"slices"
	"strings"

	"weir/api/policy"
)

// EachRule calls f with all rules that limit, those of domains included, and with how
// their clients are called: as clientOf calls them, with * for any value.
func (c *Config) EachRule(f func(r *Rule, pattern string)) {
	for domain, root := range c.Domains {
		root.eachRule(appendEscaped(nil, domain), f)
	}
}

func (d *Descriptor) eachRule(pattern []byte, f func(*Rule, string)) {
	if d.Rule != nil && !d.Rule.Unlimited {
		f(d.Rule, string(pattern))
	}
	for _, child := range d.children {
		child.eachRule(appendEntry(slices.Clip(pattern), child.Key, cmp.Or(child.Value, "*")), f)
	}
}

// String returns a line for each rule, as envoyproxy/ratelimit prints them, in their order.
func (c *Config) String() string {
	var lines []string
	for domain, root := range c.Domains {
		lines = root.appendLines(lines, domain)
	}
	slices.Sort(lines)
	return strings.Join(lines, "")
}

func (d *Descriptor) appendLines(lines []string, name string) []string {
	if r := d.Rule; r != nil {
		l := r.Limit.Leniency
		lines = append(lines, fmt.Sprintf("%s: unit=%s requests_per_unit=%d, shadow_mode: %t, quota_mode: %t\n", name, units[r.Unit].code, r.Limit.Limit,
			l.IsShadow(), l == policy.Quota || l == policy.ShadowQuota))
	}
	for _, child := range d.children {
		lines = child.appendLines(lines, name+"."+child.composite())
	}
	return lines
}

// List has the limits of all rules known by their patterns, when all descriptors were
// added.
func (c *Config) List() {
	c.EachRule(func(r *Rule, pattern string) {
		r.Limit.Pattern = pattern
		c.all = append(c.all, &r.Limit)
	})
	slices.SortFunc(c.all, func(a, b *policy.Limit) int { return strings.Compare(a.Pattern, b.Pattern) })
}

// All implements policy.Finder, after List.
func (c *Config) All() []*policy.Limit { return c.all }

// Find implements policy.Finder. A client is called as in the keys of the store:
// DOMAIN|KEY=VALUE|KEY=VALUE.
func (c *Config) Find(client string) (*policy.Limit, string) {
	m := c.find(entriesOf(client))
	if m.rule == nil || m.rule.Unlimited {
		return nil, client
	}
	return &m.rule.Limit, m.client
}

// nameRules gives all rules below d the names that their metrics have, if those have no values
// of requests.
func (d *Descriptor) nameRules(name string) {
	if d.Rule != nil {
		d.Rule.metric = name
	}
	for below, child := range d.children {
		child.nameRules(name + "." + below)
	}
}
