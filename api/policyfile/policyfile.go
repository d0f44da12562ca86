// Package policyfile reads policy files and makes policies and limiters of
// them. What is wrong in a file is an error that names the line, the mistake and
// what would be right.
//
// Start reading at Parse, and at algorithms, the table of all that can limit. A policy's
// keys are in policyKeys, a limit's in limitKeys and in its algorithm, those of clients and
// routes in exceptions.go. envoyfile.go reads the files of envoyproxy/ratelimit.
package policyfile

import (
	"cmp"
	_ "embed"
	"errors"
	"fmt"
	"io"
	"net/textproto"
	"os"
	"slices"
	"strconv"
	"strings"
	"time"

	"go.yaml.in/yaml/v3"

	"weir/api/policy"
	"weir/cas"
	"weir/counters"
	"weir/counters/memory"
)

// builtIn is the policy file of a server that is given none.
//
//go:embed builtin.yaml
var builtIn []byte

// Read returns the content of a policy file, or the built-in policies when file
// is "". A file of more than 1 MB is an error.
func Read(file string) ([]byte, error) {
	if file == "" {
		return builtIn, nil
	}
	f, err := os.Open(file)
	if err != nil {
		return nil, fmt.Errorf("policy file: %w", err)
	}
	defer f.Close()
	data, err := io.ReadAll(io.LimitReader(f, maxPolicyBytes+1))
	if err != nil {
		return nil, fmt.Errorf("policy file: %w", err)
	}
	if len(data) > maxPolicyBytes {
		return nil, fmt.Errorf("%s: the file is larger than 1 MB, the most that a policy file may have", file)
	}
	return data, nil
}

// CheckFile returns an error if name exists and isn't a regular file. Reading a pipe would wait for
// a writer, and a pipe can't be read again.
func CheckFile(name string) error {
	at, err := os.Stat(name)
	if err != nil || at.Mode().IsRegular() {
		return nil // reading it says what is wrong
	}
	what := "a device"
	switch at.Mode().Type() {
	case os.ModeDir:
		return fmt.Errorf("%s is a folder; give a file", name)
	case os.ModeNamedPipe:
		what = "a pipe"
	case os.ModeSocket:
		what = "a socket"
	}
	return fmt.Errorf("%s is %s, not a file; weir reads it again when it changes, so give a file", name, what)
}

const (
	maxPolicyBytes      = 1 << 20
	defaultSettleWithin = 10 * time.Minute
)

// Parse returns the policies in data, the content of a policy file, without
// limiters. Errors call it file. The error names each mistake with its line and says what
// would be right; then there are no policies. No policy may have one of the names taken by
// what limits Envoy.
func Parse(file string, data []byte, taken ...string) (policy.Policies, error) {
	root, err := document(file, data, "policies", "a policy file is one")
	if err != nil {
		return nil, err
	}
	r := &policyReader{yamlReader{name: file, kinds: policyKinds()}, taken}
	policies := r.file(root)
	if len(r.errs) > 0 {
		return nil, errors.Join(r.errs...)
	}
	return policies, nil
}

// A policyReader reads policies from the nodes of a policy file.
type policyReader struct {
	yamlReader
	taken []string // see Parse
}

// policyKinds are the kinds of mappings in a policy file, the outer ones first.
func policyKinds() []yamlKind {
	var r policyReader
	exceptions := exceptionReader{&r.yamlReader, new(policy.Policy)}
	return []yamlKind{
		{"a policy", namesOf(r.policyKeys(new(policy.Policy), new(string)))},
		{"a limit", namesOf(r.limitKeys(new(policy.Limit)))},
		{"a client", namesOf(exceptions.clientKeys("", new(policy.Terms)))},
		{"a route", namesOf(exceptions.routeKeys(new(policy.Route), new(map[string]int64)))},
	}
}

func (r *policyReader) file(root *yaml.Node) policy.Policies {
	policies := policy.Policies{}
	values := r.mapping(root, "the file", func(key, value *yaml.Node) {
		switch {
		case strings.HasPrefix(key.Value, "x-"): // a place for anchors
		case key.Value == "policies":
			r.policies(policies, value)
		default:
			r.unknown(key, "the file", []string{"policies"})
		}
	})
	if values["policies"] == nil && len(r.errs) == 0 {
		r.fail(root, "policies is missing")
	}
	return policies
}

func (r *policyReader) policies(into policy.Policies, n *yaml.Node) {
	named := r.mapping(n, "policies", func(key, value *yaml.Node) {
		if r.kindWith(key.Value) != "" && value.Kind != yaml.MappingNode {
			r.fail(key, "policy %q must be a mapping, keys with values; or if it is meant as a key of %s, check the indentation",
				key.Value, r.kindWith(key.Value))
			return
		}
		if err := counters.CheckName(key.Value); err != nil {
			r.fail(key, "policy %v", err)
			return
		}
		if slices.Contains(r.taken, key.Value) {
			r.fail(key, "the policy %q must have another name: it is that of what limits Envoy", key.Value)
			return
		}
		into[key.Value] = r.policy(key.Value, value)
	})
	if named != nil && len(named) == 0 {
		r.fail(n, "policies is empty; it needs at least one policy")
	}
}

func (r *policyReader) policy(name string, n *yaml.Node) *policy.Policy {
	p := &policy.Policy{
		Name:                 name,
		SettleWithin:         defaultSettleWithin,
		OnStoreError:         policy.StoreErrorLocal,
		Identify:             []policy.Identifier{{}},
		OnMissingClient:      policy.MissingClientDeny,
		OnMissingPath:        policy.MissingPathAllow,
		IPv4Prefix:           policy.DefaultIPv4Prefix,
		IPv6Prefix:           policy.DefaultIPv6Prefix,
		AuthDenyStatus:       429,
		AuthBadRequestStatus: 400,
	}
	name = "policy " + strconv.Quote(name)
	mode := "enforce"
	values := r.object(n, name, r.policyKeys(p, &mode)...)
	if values != nil && values["limits"] == nil {
		r.fail(n, "%s has no limits; it needs at least one", name)
	}
	queues := algorithmsThat(func(a *algorithm) bool { return a.waits })
	if p.Hold && !slices.ContainsFunc(p.Limits, func(l policy.Limit) bool { return slices.Contains(queues, l.Algorithm) }) {
		r.fail(values["hold"], "hold needs a limit that makes requests wait, a %s, and %s has none", strings.Join(queues, " or a "), name)
	}
	if i := slices.IndexFunc(p.Limits, func(l policy.Limit) bool { return l.Lease > 0 }); i >= 0 {
		for _, key := range []string{"identify", "routes"} {
			if values[key] != nil {
				r.fail(values[key], "%s is for /v1/auth, and %s has the limit %q of what is under way: a proxy doesn't tell when that ends",
					key, name, p.Limits[i].Name)
			}
		}
	}
	exceptions := exceptionReader{&r.yamlReader, p}
	if clients := values["clients"]; clients != nil {
		exceptions.clients(clients)
	}
	if routes := values["routes"]; routes != nil {
		exceptions.routes(routes)
	}
	p.Shadow = mode == "shadow"
	return p
}

// policyKeys are the keys of a policy.
func (r *policyReader) policyKeys(p *policy.Policy, mode *string) []yamlKey {
	return []yamlKey{
		r.text("description", &p.Description),
		{"limits", func(n *yaml.Node) {
			r.sequence(n, "limits", fmt.Sprintf("policy %q needs at least one limit", p.Name), func(n *yaml.Node) { r.limit(p, n) })
		}},
		r.boolean("count_denied", &p.CountDenied),
		r.boolean("hold", &p.Hold),
		r.durationWithin("settle_within", &p.SettleWithin, time.Second, 24*time.Hour),
		r.onStoreError(&p.OnStoreError),
		r.choice("mode", mode, "enforce", "shadow"),
		// Read later, as routes are: they name limits, which may follow in the
		// file.
		{"clients", func(*yaml.Node) {}},
		{"identify", func(n *yaml.Node) { r.identify(p, n) }},
		r.choice("on_missing_client", (*string)(&p.OnMissingClient), string(policy.MissingClientDeny), string(policy.MissingClientAllow)),
		r.choice("on_missing_path", (*string)(&p.OnMissingPath), string(policy.MissingPathAllow), string(policy.MissingPathDeny)),
		integer(&r.yamlReader, "ipv4_prefix", &p.IPv4Prefix, 1, 32),
		integer(&r.yamlReader, "ipv6_prefix", &p.IPv6Prefix, 1, 128),
		integer(&r.yamlReader, "auth_deny_status", &p.AuthDenyStatus, 400, 599),
		integer(&r.yamlReader, "auth_bad_request_status", &p.AuthBadRequestStatus, 400, 599),
		{"routes", func(*yaml.Node) {}},
	}
}

func (r *yamlReader) onStoreError(into *policy.OnStoreError) yamlKey {
	return r.choice("on_store_error", (*string)(into),
		string(policy.StoreErrorLocal), string(policy.StoreErrorAllow), string(policy.StoreErrorDeny))
}

// WindowAlgorithms returns the names of the algorithms whose limits have a window: all
// but concurrency.
func WindowAlgorithms() []string { return algorithmsThat(func(a *algorithm) bool { return !a.leases }) }

func allAlgorithms() []string { return algorithmsThat(func(*algorithm) bool { return true }) }

// limitKeys are the keys of a limit, whatever its algorithm.
func (r *policyReader) limitKeys(l *policy.Limit) []yamlKey {
	keys := []yamlKey{
		r.text("name", &l.Name),
		r.choice("algorithm", &l.Algorithm, allAlgorithms()...),
		integer(&r.yamlReader, "limit", &l.Limit, 1, counters.MaxLimit),
		r.duration("window", &l.Window),
		{"counts", func(n *yaml.Node) {
			var counts string
			r.choice("counts", &counts, "cost", "requests").read(n)
			l.CountsRequests = counts == "requests"
		}},
	}
	for _, a := range algorithms {
		for _, key := range a.keys(&r.yamlReader, l) {
			if !slices.Contains(namesOf(keys), key.name) {
				keys = append(keys, key)
			}
		}
	}
	return keys
}

// limit reads one limit and adds it to the policy.
func (r *policyReader) limit(p *policy.Policy, n *yaml.Node) {
	mistakes := len(r.errs)
	var l policy.Limit
	values := r.object(n, "a limit", r.limitKeys(&l)...)
	if l.Name == "" {
		l.Name = strings.ReplaceAll(l.Algorithm, "_", "-")
	}
	switch {
	case len(r.errs) > mistakes:
	case l.Algorithm == "":
		r.fail(n, "the limit has no algorithm; it must be %s", strings.Join(allAlgorithms(), " or "))
	case l.Limit == 0:
		r.fail(n, "the limit has no limit, the number that is admitted per window")
	case findAlgorithm(&l).leases && values["window"] != nil:
		r.fail(values["window"], "a %s has a lease, and no window: it limits how many are under way at once", l.Algorithm)
	case !findAlgorithm(&l).leases && values["window"] == nil:
		r.fail(n, "the limit has no window, a duration such as 1m")
	default:
		r.complete(p, &l, n, values)
	}
	// Even if it is wrong: a client that names it makes no mistake.
	p.Limits = append(p.Limits, l)
}

// complete fills in the defaults of a limit that has all it needs, and checks
// that its values, each right by itself, are right together.
func (r *policyReader) complete(p *policy.Policy, l *policy.Limit, n *yaml.Node, values map[string]*yaml.Node) {
	if err := counters.CheckName(l.Name); err != nil {
		r.fail(n, "limit %v", err)
	} else if slices.ContainsFunc(p.Limits, func(other policy.Limit) bool { return other.Name == l.Name }) {
		r.fail(n, "policy %q has a limit named %q already; give this one a name of its own", p.Name, l.Name)
	}
	a := findAlgorithm(l)
	for _, other := range algorithms {
		keys := other.keyNames()
		verb := "is"
		if len(keys) > 1 {
			verb = "are"
		}
		for _, key := range keys {
			if value := values[key]; value != nil && !slices.Contains(a.keyNames(), key) {
				takers := algorithmsThat(func(a *algorithm) bool { return slices.Contains(a.keyNames(), key) })
				r.fail(value, "%s %s for %s only, and this limit is a %s",
					strings.Join(keys, " and "), verb, strings.Join(takers, " and "), a.name)
				delete(values, key) // another algorithm may take it too
			}
		}
	}
	l.SubWindows = cmp.Or(l.SubWindows, a.subWindows)
	l.Estimate = cmp.Or(l.Estimate, a.estimate)
	if a.complete != nil {
		a.complete(l)
	}
	if a.leases && values["lease"] == nil {
		r.fail(n, "the limit has no lease, how long what is under way counts if it is neither settled nor renewed, such as 30s")
		return
	}
	o := counters.Options{Policy: p.Name, Limit: "any", CountDenied: p.CountDenied || l.CountDenied} // a mistake in the name is reported above
	if _, err := NewLimiter(memory.New(nil), l, cas.Config{Options: o}); err != nil {
		r.fail(cmp.Or(values["sub_windows"], values["window"], values["limit"]), "%v", err)
	}
}

// unsent are headers that say how one connection is used, or which weir's HTTP
// server takes out of the request: no proxy hands on what a client says in them.
var unsent = []string{
	"Host", "Connection", "Content-Length", "Expect", "Keep-Alive", "Proxy-Connection", "Te", "Trailer", "Transfer-Encoding", "Upgrade",
}

func (r *policyReader) identify(p *policy.Policy, n *yaml.Node) {
	p.Identify = nil
	add := func(n *yaml.Node, id policy.Identifier) {
		if slices.Contains(p.Identify, id) {
			r.fail(n, "identify has %q already; leave it out here", id)
			return
		}
		p.Identify = append(p.Identify, id)
	}
	r.sequence(n, "identify", "leave it out to identify clients by ip", func(n *yaml.Node) {
		header, isHeader := strings.CutPrefix(n.Value, "header:")
		canonical := textproto.CanonicalMIMEHeaderKey(header)
		switch {
		case isHeader && slices.Contains(unsent, canonical):
			r.fail(n, "identify %q: %s never arrives as clients send it; name another header, such as X-Forwarded-Host or X-Api-Key", n.Value, canonical)
		case isHeader && madeOf(header, headerCharacters):
			add(n, policy.Identifier{Header: canonical})
		case isHeader && header != "":
			r.fail(n, "identify %q names no header that can exist; its name may have letters, digits, - and _", n.Value)
		case n.Value == "ip":
			add(n, policy.Identifier{})
		default:
			r.fail(n, "identify %q must be ip or header:<name>, such as header:X-Api-Key", n.Value)
		}
	})
}

// headerCharacters are all that HTTP allows in the name of a header.
const headerCharacters = methodCharacters + "!#$%&'*+.^`|~"
