package main

import (
	"fmt"
	"io"
	"maps"
	"slices"
	"strings"

	"github.com/prometheus/client_golang/prometheus"

	"weir/api"
	"weir/counters/memory"
)

// validate checks a policy file, or the built-in policies when there is none,
// and prints to out what it means. It refuses what a server with the same flags
// would refuse, and connects to nothing.
func validate(cfg *config, out io.Writer) error {
	data, err := readPolicyFile(cfg.policyFile)
	if err != nil {
		return err
	}
	policies, err := parsePolicies(cfg.policyFile, data)
	if err != nil {
		return err
	}
	unused := limiters{resources: resources{
		store:   memory.New(nil),
		options: cfg.limiterOptions(),
		metrics: api.NewMetrics(prometheus.NewRegistry(), version()),
	}}
	if err := unused.bindLimiters(policies); err != nil {
		return err
	}
	var b strings.Builder
	for _, name := range slices.Sorted(maps.Keys(policies)) {
		describe(&b, policies[name])
	}
	_, err = io.WriteString(out, b.String())
	return err
}

// describe says in words what a policy means.
func describe(b *strings.Builder, p *api.Policy) {
	b.WriteString(p.Name)
	if p.Description != "" {
		b.WriteString(": " + p.Description)
	}
	b.WriteString("\n")
	for _, l := range p.Limits {
		fmt.Fprintf(b, "  %s: %s\n", l.Name, findAlgorithm(&l).describe(&l))
	}
	if len(p.Limits) > 1 {
		b.WriteString("  a check needs room in every limit, and takes from all or none\n")
	}
	if p.CountDenied {
		b.WriteString("  denied checks count too\n")
	}
	if p.Hold {
		b.WriteString("  /v1/check answers when the wait is over\n")
	}
	if p.Shadow {
		b.WriteString("  shadow mode: decides and counts, but allows everything\n")
	}
	fmt.Fprintf(b, "  when the store can't decide: %s\n", p.OnStoreError)
	for _, client := range slices.Sorted(maps.Keys(p.Clients)) {
		c := p.Clients[client]
		switch {
		case c.Exempt:
			fmt.Fprintf(b, "  client %q is never limited\n", client)
		case c.Blocked:
			fmt.Fprintf(b, "  client %q is always denied\n", client)
		}
		for _, limit := range slices.Sorted(maps.Keys(c.Limits)) {
			fmt.Fprintf(b, "  client %q has a %s of %d\n", client, limit, c.Limits[limit])
		}
	}
	var identifiers []string
	for _, id := range p.Identify {
		identifiers = append(identifiers, id.String())
	}
	fmt.Fprintf(b, "  /v1/auth/%s identifies clients by %s and denies with %d\n",
		p.Name, strings.Join(identifiers, ", else "), p.AuthDenyStatus)
}
