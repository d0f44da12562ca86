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
		root.eachNamed(domain, func(r *Rule, name string) {
			l := r.Limit.Leniency
			lines = append(lines, fmt.Sprintf("%s: unit=%s requests_per_unit=%d, shadow_mode: %t, quota_mode: %t\n", name, units[r.Unit].code, r.Limit.Limit,
				l.IsShadow(), l == policy.Quota || l == policy.ShadowQuota))
		})
	}
	slices.Sort(lines)
	return strings.Join(lines, "")
}

// eachNamed calls f with all rules of d, which has that name, and below it, and with how
// envoyproxy/ratelimit calls each.
func (d *Descriptor) eachNamed(name string, f func(r *Rule, name string)) {
	if d.Rule != nil {
		f(d.Rule, name)
	}
	for below, child := range d.children {
		child.eachNamed(name+"."+below, f)
	}
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
