package policyfile

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strings"

	"weir/api/envoy"
	"weir/api/policy"
)

// Describe says in words what policies mean, and what Memcached keeps for them.
// The policies must have their limiters.
func Describe(policies policy.Policies) string {
	var b strings.Builder
	for _, name := range slices.Sorted(maps.Keys(policies)) {
		describe(&b, policies[name])
	}
	return b.String()
}

// DescribeEnvoy says how many limits in how many domains a configuration has.
func DescribeEnvoy(config *envoy.Config) string {
	return fmt.Sprintf("%s in %s", plural(len(config.All()), "limit"), plural(len(config.Domains), "domain"))
}

// describe says in words what a policy means, and what Memcached keeps for it.
func describe(b *strings.Builder, p *policy.Policy) {
	b.WriteString(p.Name)
	if p.Description != "" {
		b.WriteString(": " + p.Description)
	}
	b.WriteString("\n")
	for _, l := range p.Listed() {
		fmt.Fprintf(b, "  %s: %s\n", cmp.Or(l.Pattern, l.Name), describeLimit(l))
	}
	if p.Finder != nil {
		return
	}
	if len(p.Limits) > 1 {
		b.WriteString("  a check needs room in every limit, and takes from all or none\n")
	}
	leases := slices.ContainsFunc(p.Limits, isLease)
	if p.CountDenied && slices.ContainsFunc(p.Limits, func(l policy.Limit) bool { return !isLease(l) }) {
		b.WriteString("  denied checks count too\n")
	}
	if p.SettleWithin != defaultSettleWithin || leases || slices.ContainsFunc(p.Limits, countsRequests) {
		fmt.Fprintf(b, "  what a check has cost is settled within %s, and each settlement takes about 120 B for so long\n", inWords(p.SettleWithin))
	}
	if leases {
		b.WriteString("  what takes longer than that can neither renew its lease nor give it back\n")
	}
	if p.Hold && !p.Shadow {
		b.WriteString("  /v1/check answers when the wait is over\n")
	}
	if p.Shadow {
		b.WriteString("  shadow mode: decides and counts, but allows everything\n")
	}
	fmt.Fprintf(b, "  when the store can't decide: %s\n", p.OnStoreError)
	for _, key := range slices.SortedFunc(maps.Keys(p.Clients), compareKeys) {
		c := p.Clients[key]
		switch {
		case c.Exempt:
			fmt.Fprintf(b, "  %s is never limited\n", key.Means())
		case c.Blocked:
			fmt.Fprintf(b, "  %s is always denied\n", key.Means())
		}
		for _, limit := range slices.Sorted(maps.Keys(c.Limits)) {
			fmt.Fprintf(b, "  %s has a %s of %d\n", key.Means(), limit, c.Limits[limit])
		}
		if note := key.Note(); note != "" {
			fmt.Fprintf(b, "  %s\n", note)
		}
	}
	describeAuth(b, p)
}

// describeLimit says in words what a limit promises and takes in Memcached.
func describeLimit(l *policy.Limit) string {
	if l.Limit == 0 {
		return "denies all"
	}
	a := findAlgorithm(l)
	items, bytes := Kept(l)
	promise := a.describe(l)
	if l.CountsRequests {
		promise += ", each check 1"
	}
	if l.CountDenied {
		promise += ", denied requests too"
	}
	words := fmt.Sprintf("%s, about %s, %s per active client", promise, plural(items, "Memcached key"), size(bytes))
	if l.SubWindows > a.subWindows {
		words += "; after a pause a check reads a key for each slot that has passed, about 1 us of processor time each"
	}
	return words
}

// describeAuth says in words what a policy means to proxies.
func describeAuth(b *strings.Builder, p *policy.Policy) {
	if slices.ContainsFunc(p.Limits, isLease) {
		fmt.Fprintf(b, "  /v1/auth/%s refuses all requests, as a proxy doesn't tell when they end\n", p.Name)
		return
	}
	var identifiers []string
	for _, id := range p.Identify {
		identifiers = append(identifiers, id.String())
	}
	fmt.Fprintf(b, "  /v1/auth/%s identifies clients by %s and denies with %d\n",
		p.Name, strings.Join(identifiers, ", else "), p.AuthDenyStatus)
	if i := slices.Index(p.Identify, policy.Identifier{}); i >= 0 && i < len(p.Identify)-1 {
		fmt.Fprintf(b, "  /v1/auth/%s never gets to %v: each request has an address\n", p.Name, p.Identify[i+1])
	}
	for _, id := range p.Identify {
		if strings.EqualFold(id.Header, "X-Forwarded-For") || strings.EqualFold(id.Header, "Forwarded") {
			fmt.Fprintf(b, "  /v1/auth/%s takes all of %s for a name, and users may write its beginning: ip is the address in X-Forwarded-For\n", p.Name, id.Header)
		}
	}
	if p.AuthBadRequestStatus != 400 {
		fmt.Fprintf(b, "  /v1/auth/%s refuses requests whose client it can't name with %d\n", p.Name, p.AuthBadRequestStatus)
	}
	if p.OnMissingClient == policy.MissingClientAllow {
		fmt.Fprintf(b, "  /v1/auth/%s admits requests in which it finds no client\n", p.Name)
	}
	if p.OnMissingPath == policy.MissingPathDeny && len(p.Routes) > 0 {
		fmt.Fprintf(b, "  /v1/auth/%s refuses requests whose path it isn't told with %d\n", p.Name, p.AuthBadRequestStatus)
	}
	if p.IPv4Prefix != policy.DefaultIPv4Prefix || p.IPv6Prefix != policy.DefaultIPv6Prefix {
		fmt.Fprintf(b, "  /v1/auth/%s counts addresses by the first %d bits of IPv4 and %d of IPv6\n", p.Name, p.IPv4Prefix, p.IPv6Prefix)
	}
	for i := range p.Routes {
		r := &p.Routes[i]
		fmt.Fprintf(b, "  /v1/auth/%s takes %d for %s and what is below", p.Name, r.Cost, r)
		if r.Cost != 1 && slices.ContainsFunc(p.Limits, countsRequests) {
			b.WriteString(", but 1 of limits that count requests")
		}
		b.WriteString("\n")
		for _, l := range r.Limits {
			fmt.Fprintf(b, "  /v1/auth/%s counts %s and what is below apart, %s: %s\n", p.Name, r, l.Name, describeLimit(&l))
		}
	}
}

func isLease(l policy.Limit) bool { return l.Lease > 0 }

func countsRequests(l policy.Limit) bool { return l.CountsRequests }

// size writes a number of bytes.
func size(bytes int) string {
	switch {
	case bytes < 1000:
		return fmt.Sprintf("%d B", bytes)
	case bytes < 1e6:
		return fmt.Sprintf("%.1f kB", float64(bytes)/1e3)
	default:
		return fmt.Sprintf("%.1f MB", float64(bytes)/1e6)
	}
}
