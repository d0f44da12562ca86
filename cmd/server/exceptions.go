package main

import (
	"slices"
	"strconv"
	"strings"

	"go.yaml.in/yaml/v3"

	"weir/api"
	"weir/counters"
)

// An exceptionReader reads the exceptions of a policy whose limits have been
// read.
type exceptionReader struct {
	*yamlReader
	policy *api.Policy
}

// clients reads the exceptions for clients.
func (r *exceptionReader) clients(n *yaml.Node) {
	p := r.policy
	p.Clients = make(map[api.ClientKey]api.Client)
	lines := make(map[api.ClientKey]int)
	r.mapping(n, "clients", func(key, value *yaml.Node) {
		k, err := api.ParseClientKey(key.Value)
		line, ok := lines[k]
		switch {
		case err != nil:
			r.fail(key, "%v", err)
		case ok:
			r.fail(key, "client %q is the same as the one on line %d", key.Value, line)
		default:
			lines[k] = key.Line
		}
		var c api.Client
		name := "client " + strconv.Quote(key.Value)
		r.object(value, name,
			yamlKey{"limits", func(n *yaml.Node) { c.Limits = r.numbers("limits of "+name, n) }},
			r.boolean("exempt", &c.Exempt),
			r.boolean("blocked", &c.Blocked),
		)
		if c.Exempt && c.Blocked {
			r.fail(value, "%s can't be both exempt and blocked", name)
		}
		if err == nil {
			p.Clients[k] = c
		}
	})
}

// numbers reads numbers that take the place of those of the policy's limits.
func (r *exceptionReader) numbers(name string, n *yaml.Node) map[string]int64 {
	p, numbers := r.policy, make(map[string]int64)
	r.mapping(n, name, func(limit, value *yaml.Node) {
		most := int64(counters.MaxLimit)
		i := slices.IndexFunc(p.Limits, func(l api.Limit) bool { return l.Name == limit.Value })
		if i < 0 {
			r.fail(limit, "policy %q has no limit %q", p.Name, limit.Value)
		} else {
			most = p.Limits[i].Most()
		}
		var n int64
		integer(r.yamlReader, limit.Value, &n, 1, most).read(value)
		numbers[limit.Value] = n
	})
	return numbers
}

func compareKeys(a, b api.ClientKey) int { return strings.Compare(a.String(), b.String()) }
