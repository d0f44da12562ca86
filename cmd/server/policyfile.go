package main

import (
	"errors"
	"fmt"
	"io"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"

	"go.yaml.in/yaml/v3"

	"weir/api"
	"weir/counters"
	"weir/subwindow"
)

const defaultSubWindows = 10

var namePattern = regexp.MustCompile(`^[a-z0-9][a-z0-9-]{0,62}$`)

// parsePolicies reads a policy file. The policies have no limiters yet. The
// error names every mistake with its line and says what would be right; then
// there are no policies.
func parsePolicies(file string, data []byte) (api.Policies, error) {
	p := &policyParser{file: file, policies: api.Policies{}}
	decoder := yaml.NewDecoder(strings.NewReader(string(data)))
	var document, next yaml.Node
	switch err := decoder.Decode(&document); {
	case errors.Is(err, io.EOF):
		return nil, fmt.Errorf("%s: the file is empty; it needs the key policies", file)
	case err != nil:
		return nil, syntaxError(file, err)
	}
	if err := decoder.Decode(&next); !errors.Is(err, io.EOF) {
		if err != nil {
			return nil, syntaxError(file, err)
		}
		return nil, fmt.Errorf("%s:%d: a second document begins here; a policy file is one", file, next.Line)
	}
	p.parse(document.Content[0])
	if len(p.errs) > 0 {
		return nil, errors.Join(p.errs...)
	}
	return p.policies, nil
}

// syntaxError makes "file:3: ..." of yaml's "yaml: line 3: ...".
func syntaxError(file string, err error) error {
	message := strings.TrimPrefix(err.Error(), "yaml: ")
	if rest, ok := strings.CutPrefix(message, "line "); ok {
		message = rest
	} else {
		message = " " + message
	}
	return fmt.Errorf("%s:%s", file, message)
}

// policyParser walks the nodes of a policy file, because only they know the
// lines.
type policyParser struct {
	file     string
	policies api.Policies
	errs     []error
}

func (p *policyParser) fail(n *yaml.Node, format string, args ...any) {
	p.errs = append(p.errs, fmt.Errorf("%s:%d: %s", p.file, n.Line, fmt.Sprintf(format, args...)))
}

// field is a key that a mapping may have.
type field struct {
	name  string
	parse func(value *yaml.Node)
}

// fields parses a mapping with the given keys.
func (p *policyParser) fields(n *yaml.Node, what string, fields ...field) {
	p.mapping(n, what, func(key, value *yaml.Node) {
		i := slices.IndexFunc(fields, func(f field) bool { return f.name == key.Value })
		if i < 0 {
			names := make([]string, len(fields))
			for i, f := range fields {
				names[i] = f.name
			}
			p.fail(key, "%s has no key %q; it may have %s", what, key.Value, strings.Join(names, ", "))
			return
		}
		fields[i].parse(value)
	})
}

// mapping calls pair for each key and value of a mapping.
func (p *policyParser) mapping(n *yaml.Node, what string, pair func(key, value *yaml.Node)) {
	n = resolve(n)
	if n.Kind != yaml.MappingNode {
		p.fail(n, "%s must be a mapping, keys with values", what)
		return
	}
	seen := make(map[string]int)
	for i := 0; i+1 < len(n.Content); i += 2 {
		key := n.Content[i]
		if line, ok := seen[key.Value]; ok {
			p.fail(key, "%s has %q already, on line %d", what, key.Value, line)
			continue
		}
		seen[key.Value] = key.Line
		pair(key, resolve(n.Content[i+1]))
	}
}

// sequence calls item for each item of a list.
func (p *policyParser) sequence(n *yaml.Node, what string, item func(*yaml.Node)) {
	if n.Kind != yaml.SequenceNode {
		p.fail(n, "%s must be a list", what)
		return
	}
	for _, each := range n.Content {
		item(resolve(each))
	}
}

func resolve(n *yaml.Node) *yaml.Node {
	if n.Kind == yaml.AliasNode {
		return n.Alias
	}
	return n
}

func (p *policyParser) text(what string, into *string) field {
	return field{what, func(n *yaml.Node) {
		if n.Kind != yaml.ScalarNode || n.Tag != "!!str" {
			p.fail(n, "%s must be text", what)
			return
		}
		*into = n.Value
	}}
}

func (p *policyParser) choice(what string, into *string, choices ...string) field {
	return field{what, func(n *yaml.Node) {
		if n.Kind != yaml.ScalarNode || !slices.Contains(choices, n.Value) {
			p.fail(n, "%s %q must be %s", what, n.Value, strings.Join(choices, " or "))
			return
		}
		*into = n.Value
	}}
}

func (p *policyParser) boolean(what string, into *bool) field {
	return field{what, func(n *yaml.Node) {
		if n.Kind != yaml.ScalarNode || n.Tag != "!!bool" || n.Decode(into) != nil {
			p.fail(n, "%s %q must be true or false", what, n.Value)
		}
	}}
}

func (p *policyParser) integer(what string, into *int64, least, most int64) field {
	return field{what, func(n *yaml.Node) {
		var value int64
		if n.Kind != yaml.ScalarNode || n.Tag != "!!int" || n.Decode(&value) != nil || value < least || value > most {
			p.fail(n, "%s %q must be a whole number from %d to %d", what, n.Value, least, most)
			return
		}
		*into = value
	}}
}

func (p *policyParser) parse(root *yaml.Node) {
	found := false
	p.fields(root, "the file", field{"policies", func(n *yaml.Node) {
		found = true
		p.mapping(n, "policies", func(key, value *yaml.Node) {
			if !namePattern.MatchString(key.Value) {
				p.fail(key, "policy name %q must be 1 to 63 of a-z, 0-9 and -, and not begin with -", key.Value)
				return
			}
			p.policies[key.Value] = p.policy(key.Value, value)
		})
		if n.Kind == yaml.MappingNode && len(n.Content) == 0 {
			p.fail(n, "policies is empty; it needs at least one policy")
		}
	}})
	if !found && len(p.errs) == 0 {
		p.fail(root, "policies is missing")
	}
}

func (p *policyParser) policy(name string, n *yaml.Node) *api.Policy {
	policy := newPolicy(name)
	what := "policy " + strconv.Quote(name)
	onStoreError, mode, denyStatus := string(policy.OnStoreError), "enforce", int64(policy.AuthDenyStatus)
	var clients *yaml.Node
	limits, hold := false, (*yaml.Node)(nil)
	p.fields(n, what,
		p.text("description", &policy.Description),
		field{"limits", func(n *yaml.Node) {
			limits = true
			p.sequence(n, "limits", func(n *yaml.Node) { p.limit(policy, n) })
			if n.Kind == yaml.SequenceNode && len(n.Content) == 0 {
				p.fail(n, "limits is empty; %s needs at least one limit", what)
			}
		}},
		p.boolean("count_denied", &policy.CountDenied),
		field{"hold", func(n *yaml.Node) {
			hold = n
			p.boolean("hold", &policy.Hold).parse(n)
		}},
		p.choice("on_store_error", &onStoreError, string(api.StoreErrorAllow), string(api.StoreErrorDeny)),
		p.choice("mode", &mode, "enforce", "shadow"),
		// Clients name limits, which may follow them in the file.
		field{"clients", func(n *yaml.Node) { clients = n }},
		field{"identify", func(n *yaml.Node) { p.identify(policy, n) }},
		p.integer("auth_deny_status", &denyStatus, 400, 599),
	)
	if !limits && resolve(n).Kind == yaml.MappingNode {
		p.fail(n, "%s has no limits; it needs at least one", what)
	}
	if policy.Hold && !slices.ContainsFunc(policy.Limits, func(l api.Limit) bool { return l.Algorithm == leakyBucket }) {
		p.fail(hold, "hold needs a limit that makes requests wait, a %s, and %s has none", leakyBucket, what)
	}
	if clients != nil {
		p.clients(policy, clients)
	}
	policy.OnStoreError, policy.Shadow, policy.AuthDenyStatus = api.OnStoreError(onStoreError), mode == "shadow", int(denyStatus)
	return policy
}

// newPolicy returns a policy with all defaults.
func newPolicy(name string) *api.Policy {
	return &api.Policy{
		Name:           name,
		OnStoreError:   api.StoreErrorAllow,
		Identify:       []api.Identifier{{}},
		AuthDenyStatus: 429,
	}
}

// limit parses one limit and adds it to the policy if it is right.
func (p *policyParser) limit(policy *api.Policy, n *yaml.Node) {
	errsBefore := len(p.errs)
	l := api.Limit{}
	var subWindows int64
	var subWindowsNode, estimateNode, windowNode, burstNode, limitNode *yaml.Node
	p.fields(n, "a limit",
		p.text("name", &l.Name),
		p.choice("algorithm", &l.Algorithm, algorithmNames()...),
		field{"limit", func(n *yaml.Node) {
			limitNode = n
			p.integer("limit", &l.Limit, 1, counters.MaxLimit).parse(n)
		}},
		field{"window", func(n *yaml.Node) {
			windowNode = n
			var err error
			if l.Window, err = parseDuration(n.Value); err != nil {
				p.fail(n, "window %q must be a duration such as 500ms, 1m, 24h or 7d", n.Value)
			}
		}},
		field{"sub_windows", func(n *yaml.Node) {
			subWindowsNode = n
			p.integer("sub_windows", &subWindows, 1, subwindow.MaxSubWindows).parse(n)
		}},
		field{"estimate", func(n *yaml.Node) {
			estimateNode = n
			p.choice("estimate", &l.Estimate, "weighted", "strict").parse(n)
		}},
		field{"burst", func(n *yaml.Node) {
			burstNode = n
			p.integer("burst", &l.Burst, 1, counters.MaxLimit).parse(n)
		}},
	)
	if l.Name == "" {
		l.Name = defaultLimitName(l.Algorithm)
	}
	// Clients may name a limit that is wrong, so that its mistake is told once.
	defer func() { policy.Limits = append(policy.Limits, l) }()
	if len(p.errs) > errsBefore {
		return
	}
	switch {
	case l.Algorithm == "":
		p.fail(n, "the limit has no algorithm; it must be %s", strings.Join(algorithmNames(), " or "))
		return
	case l.Limit == 0:
		p.fail(n, "the limit has no limit, the number that is admitted per window")
		return
	case windowNode == nil:
		p.fail(n, "the limit has no window, a duration such as 1m")
		return
	}
	switch {
	case !namePattern.MatchString(l.Name):
		p.fail(n, "limit name %q must be 1 to 63 of a-z, 0-9 and -, and not begin with -", l.Name)
	case slices.ContainsFunc(policy.Limits, func(other api.Limit) bool { return other.Name == l.Name }):
		p.fail(n, "policy %q has a limit named %q already; give this one a name of its own", policy.Name, l.Name)
	}
	mistaken := windowNode // what checkLimit finds wrong
	if l.Algorithm == slidingWindow {
		if subWindowsNode == nil {
			subWindows = defaultSubWindows
		} else {
			mistaken = subWindowsNode
		}
		if l.Estimate == "" {
			l.Estimate = "weighted"
		}
		l.SubWindows = int(subWindows)
	} else {
		for _, n := range []*yaml.Node{subWindowsNode, estimateNode} {
			if n != nil {
				p.fail(n, "sub_windows and estimate are for %s only, and this limit is a %s", slidingWindow, l.Algorithm)
			}
		}
	}
	if burstNode != nil && l.Algorithm != tokenBucket && l.Algorithm != leakyBucket {
		p.fail(burstNode, "burst is for %s and %s only, and this limit is a %s", tokenBucket, leakyBucket, l.Algorithm)
	}
	l.MaxLimit = maxLimit(l.Algorithm)
	if l.Limit > l.Most() {
		mistaken = limitNode
	}
	if err := checkLimit(&l); err != nil {
		p.fail(mistaken, "%v", err)
	}
}

func (p *policyParser) clients(policy *api.Policy, n *yaml.Node) {
	policy.Clients = make(map[string]api.Client)
	p.mapping(n, "clients", func(key, value *yaml.Node) {
		if key.Value == "" || len(key.Value) > counters.MaxClientBytes {
			p.fail(key, "a client must be 1 to %d bytes", counters.MaxClientBytes)
		}
		var c api.Client
		what := "client " + strconv.Quote(key.Value)
		p.fields(value, what,
			field{"limits", func(n *yaml.Node) {
				c.Limits = make(map[string]int64)
				p.mapping(n, "limits of "+what, func(name, value *yaml.Node) {
					most := int64(counters.MaxLimit)
					i := slices.IndexFunc(policy.Limits, func(l api.Limit) bool { return l.Name == name.Value })
					if i < 0 {
						p.fail(name, "policy %q has no limit %q", policy.Name, name.Value)
					} else {
						most = policy.Limits[i].Most()
					}
					var limit int64
					p.integer(name.Value, &limit, 1, most).parse(value)
					c.Limits[name.Value] = limit
				})
			}},
			p.boolean("exempt", &c.Exempt),
			p.boolean("blocked", &c.Blocked),
		)
		if c.Exempt && c.Blocked {
			p.fail(value, "%s can't be both exempt and blocked", what)
		}
		policy.Clients[key.Value] = c
	})
}

func (p *policyParser) identify(policy *api.Policy, n *yaml.Node) {
	policy.Identify = nil
	p.sequence(n, "identify", func(n *yaml.Node) {
		header, isHeader := strings.CutPrefix(n.Value, "header:")
		switch {
		case isHeader && header != "":
			policy.Identify = append(policy.Identify, api.Identifier{Header: header})
		case n.Value == "ip":
			policy.Identify = append(policy.Identify, api.Identifier{})
		default:
			p.fail(n, "identify %q must be ip or header:<name>, such as header:X-Api-Key", n.Value)
		}
	})
	if n.Kind == yaml.SequenceNode && len(n.Content) == 0 {
		p.fail(n, "identify is empty; leave it out to identify clients by ip")
	}
}

// parseDuration parses a Go duration that may begin with days, as in 7d or
// 1d12h.
func parseDuration(s string) (time.Duration, error) {
	days, rest, ok := strings.Cut(s, "d")
	if !ok {
		return time.ParseDuration(s)
	}
	n, err := strconv.ParseUint(days, 10, 16)
	if err != nil {
		return 0, err
	}
	d := time.Duration(n) * 24 * time.Hour
	if rest == "" {
		return d, nil
	}
	more, err := time.ParseDuration(rest)
	return d + more, err
}
