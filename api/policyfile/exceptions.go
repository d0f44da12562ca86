package policyfile

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"

	"go.yaml.in/yaml/v3"

	"weir/api/policy"
	"weir/counters"
)

// An exceptionReader reads the exceptions of a policy whose limits have been
// read.
type exceptionReader struct {
	*yamlReader
	policy *policy.Policy
}

// clients reads the exceptions for clients.
func (r *exceptionReader) clients(n *yaml.Node) {
	p := r.policy
	p.Clients = make(map[policy.ClientKey]policy.Terms)
	lines := make(map[policy.ClientKey]int)
	r.mapping(n, "clients", func(key, value *yaml.Node) {
		k, err := policy.ParseClientKey(key.Value)
		line, ok := lines[k]
		switch {
		case err != nil:
			r.fail(key, "%v", err)
		case ok:
			r.fail(key, "client %q is the same as the one on line %d", key.Value, line)
		default:
			lines[k] = key.Line
		}
		var c policy.Terms
		name := "client " + strconv.Quote(key.Value)
		if variable.MatchString(key.Value) {
			r.fail(key, "%s has no name", name)
		}
		r.object(value, name, r.clientKeys(name, &c)...)
		if c.Exempt && c.Blocked {
			r.fail(value, "%s can't be both exempt and blocked", name)
		}
		if err == nil {
			p.Clients[k] = c
		}
	})
}

// clientKeys are the keys of a client, which messages call by name.
func (r *exceptionReader) clientKeys(name string, c *policy.Terms) []yamlKey {
	return []yamlKey{
		{"limits", func(n *yaml.Node) { c.Limits = r.numbers("limits of "+name, n) }},
		r.boolean("exempt", &c.Exempt),
		r.boolean("blocked", &c.Blocked),
	}
}

// numbers reads numbers that take the place of those of the policy's limits.
func (r *exceptionReader) numbers(name string, n *yaml.Node) map[string]int64 {
	numbers := make(map[string]int64)
	r.mapping(n, name, func(limit, value *yaml.Node) {
		l := r.limitNamed(limit)
		var n int64
		integer(r.yamlReader, limit.Value, &n, 1, l.LargestLimit()).read(value)
		numbers[limit.Value] = n
	})
	return numbers
}

// limitNamed returns the limit of the policy that n names, or an empty one if
// it has none, which is a mistake.
func (r *exceptionReader) limitNamed(n *yaml.Node) policy.Limit {
	var names []string
	for _, l := range r.policy.Limits {
		if l.Name == n.Value {
			return l
		}
		if l.Name != "" { // a limit with a mistake may have none
			names = append(names, l.Name)
		}
	}
	message := fmt.Sprintf("policy %q has no limit %q", r.policy.Name, n.Value)
	if meant := didYouMean(n.Value, names); meant != "" {
		message += "; " + meant
	} else if len(names) > 0 {
		message += "; it has " + strings.Join(names, ", ")
	}
	r.fail(n, "%s", message)
	return policy.Limit{}
}

// routes reads the exceptions for some requests.
func (r *exceptionReader) routes(n *yaml.Node) {
	lines := make(map[string]int)
	r.sequence(n, "routes", "leave it out if all requests are alike", func(n *yaml.Node) { r.route(n, lines) })
}

// route reads one route and adds it to the policy. lines are the lines of the routes before
// it.
func (r *exceptionReader) route(n *yaml.Node, lines map[string]int) {
	mistakes := len(r.errs)
	route := policy.Route{Cost: 1}
	var numbers map[string]int64
	values := r.object(n, "a route", r.routeKeys(&route, &numbers)...)
	// Some backends don't tell upper from lower case.
	name := route.Method + " " + strings.ToLower(route.Path)
	switch {
	case len(r.errs) > mistakes:
	case route.Path == "":
		r.fail(n, "the route has no path; / is all paths")
	case len(numbers) == 0 && values["cost"] == nil:
		r.fail(n, "the route %s has neither limits nor a cost, so it changes nothing", &route)
	case lines[name] > 0:
		r.fail(n, "policy %q has a route %s already, on line %d; upper and lower case make no difference", r.policy.Name, &route, lines[name])
	default:
		lines[name] = n.Line
		for _, l := range r.policy.Limits {
			if number, ok := numbers[l.Name]; ok {
				l.Limit, l.Route = number, route.String()
				route.Limits = append(route.Limits, l)
			}
			r.fits(&route, &l, values["cost"])
		}
	}
	r.policy.Routes = append(r.policy.Routes, route)
}

// routeKeys are the keys of a route. The numbers are its limits' values.
func (r *exceptionReader) routeKeys(route *policy.Route, numbers *map[string]int64) []yamlKey {
	return []yamlKey{
		r.scalar("method", "an HTTP method such as POST; leave it out for all methods", func(n *yaml.Node) bool {
			route.Method = strings.ToUpper(n.Value)
			return n.Tag == "!!str" && madeOf(n.Value, methodCharacters)
		}),
		{"path", func(n *yaml.Node) {
			var err error
			if route.Path, err = policy.ParseRoutePath(n.Value); err != nil {
				r.fail(n, "%v", err)
			}
		}},
		{"limits", func(n *yaml.Node) { *numbers = r.numbers("limits of a route", n) }},
		integer(r.yamlReader, "cost", &route.Cost, 0, counters.MaxCost),
	}
}

// fits makes sure that the cost of a route can be admitted by a limit that is in
// force there, for all clients.
func (r *exceptionReader) fits(route *policy.Route, l *policy.Limit, cost *yaml.Node) {
	if l.Limit == 0 || l.CountsRequests { // it is wrong itself, or costs make no difference
		return
	}
	if most := cmp.Or(l.Burst, l.Limit); route.Cost > most {
		r.fail(cost, "cost %d of the route %s is above the limit %q, which admits at most %d at once, and could never be admitted", route.Cost, route, l.Name, most)
		return
	}
	if l.Burst > 0 || l.Route != "" {
		return // no client has another
	}
	for _, key := range slices.SortedFunc(maps.Keys(r.policy.Clients), compareKeys) {
		if own, ok := r.policy.Clients[key].Limits[l.Name]; ok && own < route.Cost {
			r.fail(cost, "cost %d of the route %s is above the %s of %s, which is %d, and could never be admitted", route.Cost, route, l.Name, key.Means(), own)
		}
	}
}

func compareKeys(a, b policy.ClientKey) int { return strings.Compare(a.String(), b.String()) }

const methodCharacters = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_"
