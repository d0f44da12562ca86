package policyfile

import (
	"cmp"
	"errors"
	"fmt"
	"math"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"go.yaml.in/yaml/v3"
	"google.golang.org/protobuf/types/known/structpb"

	"weir/api/envoy"
	"weir/api/policy"
)

// Bounds of a file: aliases could make them endless.
const (
	maxEnvoyDepth       = 32
	maxEnvoyDescriptors = 100_000
)

// An EnvoyFile is the name and content of a file in the format of
// envoyproxy/ratelimit.
type EnvoyFile struct {
	Name string
	Data []byte
	// Sent says that it came over the network, not from a file: so mistakes name the
	// descriptor, not the line.
	Sent bool
}

// ReadEnvoy returns a file, or all files of a folder and of those below it,
// as envoyproxy/ratelimit does, but for those whose names begin with a dot.
func ReadEnvoy(path string) ([]EnvoyFile, error) {
	names := []string{path}
	if info, err := os.Stat(path); err != nil {
		return nil, err
	} else if info.IsDir() {
		if names, err = filesBelow(path); err != nil {
			return nil, err
		}
		if len(names) == 0 {
			return nil, fmt.Errorf("%s has no file", path)
		}
	}
	var files []EnvoyFile
	for _, name := range names {
		data, err := os.ReadFile(name)
		if err != nil {
			return nil, err
		}
		files = append(files, EnvoyFile{Name: name, Data: data})
	}
	return files, nil
}

// filesBelow returns the files in a folder and below it, without those that a
// dot hides.
func filesBelow(folder string) (names []string, err error) {
	entries, err := os.ReadDir(folder)
	for _, entry := range entries {
		name := filepath.Join(folder, entry.Name())
		at, err := os.Stat(name) // entry may be a link, as Kubernetes mounts folders
		switch {
		case strings.HasPrefix(entry.Name(), "."):
		case err != nil:
			return nil, err
		case !at.IsDir():
			if err := CheckFile(name); err != nil {
				return nil, err
			}
			names = append(names, name)
		default:
			below, err := filesBelow(name)
			if err != nil {
				return nil, err
			}
			names = append(names, below...)
		}
	}
	return names, err
}

// EnvoyOptions say what the files don't.
type EnvoyOptions struct {
	// Algorithm is the default for limits that name none.
	Algorithm string
	// CountDenied makes denied requests count in limits that aren't a fixed_window, in
	// which they always do, as with envoyproxy/ratelimit.
	CountDenied bool
	// OnStoreError is the default for limits that don't name theirs.
	OnStoreError policy.OnStoreError
	// Mode is what becomes of denials.
	Mode EnvoyMode
}

// An EnvoyMode says what the denials of all limits do. The zero value is EnvoyEnforce.
type EnvoyMode string

// The values of EnvoyMode: a denial denies; or nothing does, as in a policy in shadow
// mode; or every limit is a quota, so that a request is denied if all its limits deny.
const (
	EnvoyEnforce EnvoyMode = "enforce"
	EnvoyShadow  EnvoyMode = "shadow"
	EnvoyQuota   EnvoyMode = "quota"
)

// ParseEnvoy returns what the files say together, without limiters. The error names each
// mistake with its line; then there is no configuration.
func ParseEnvoy(files []EnvoyFile, options EnvoyOptions) (*envoy.Config, error) {
	config := &envoy.Config{Domains: make(map[string]*envoy.Descriptor), Default: make(map[envoy.Unit]*policy.Limit)}
	var errs []error
	completed, positions := make(map[policy.Limit]policy.Limit), make(map[childOf]position)
	byRequest := &envoyReader{options: options, completed: completed} // for limits that requests bring
	for _, unit := range envoy.Units {
		l := policy.Limit{Name: string(unit), Limit: 1, Window: unit.Window()}
		if options.Mode == EnvoyQuota {
			l.Leniency = policy.Quota
		}
		byRequest.complete(&l, &yaml.Node{}, map[string]*yaml.Node{}, true)
		config.Default[unit] = &l
	}
	for _, file := range files {
		r := &envoyReader{policyReader: policyReader{yamlReader: yamlReader{name: file.Name}}, options: options, completed: completed, sent: file.Sent, positions: positions}
		r.read(config, file.Data)
		errs = append(errs, r.errs...)
	}
	if len(errs) > 0 {
		return nil, errors.Join(errs...)
	}
	return config, nil
}

// An envoyReader reads descriptors from the nodes of a file.
type envoyReader struct {
	policyReader
	options     EnvoyOptions
	sent        bool // see EnvoyFile
	descriptors int  // that were read
	// completed has the results of complete, by the limits that it was given: most limits
	// of a file are alike. It has only limits without options of weir's.
	completed map[policy.Limit]policy.Limit
	// positions are where descriptors stand, of all files.
	positions map[childOf]position
}

// A childOf is a descriptor's key and value, and what it is below.
type childOf struct {
	parent *envoy.Descriptor
	name   string
}

// A position is a line of a file.
type position struct {
	file string
	line int
}

func (r *envoyReader) read(config *envoy.Config, data []byte) {
	node, err := document(r.name, data, "domain", "a domain has a file of its own")
	if err != nil {
		r.errs = append(r.errs, err)
		return
	}
	domain := ""
	values := r.object(node, "the file", r.anyText("domain", &domain), yamlKey{"descriptors", func(*yaml.Node) {}})
	if values == nil {
		return
	}
	if domain == "" {
		r.fail(node, "domain is missing; it is what Envoy sends as the domain of its rate limit filter")
	}
	// Files of one domain are read as one.
	root := config.Domains[domain]
	if root == nil {
		root = new(envoy.Descriptor)
		config.Domains[domain] = root
	}
	if n := values["descriptors"]; n != nil {
		r.list(n, root, nil)
	}
}

// list reads the descriptors below parent, whose keys and values are path.
func (r *envoyReader) list(n *yaml.Node, parent *envoy.Descriptor, path []string) {
	switch {
	case n.Tag == "!!null":
		return
	case n.Kind != yaml.SequenceNode:
		r.fail(n, "descriptors must be a list")
		return
	case len(path) == maxEnvoyDepth:
		r.fail(n, "descriptors are nested deeper than %d times", maxEnvoyDepth)
		return
	}
	for _, item := range n.Content {
		if r.descriptors++; r.descriptors > maxEnvoyDescriptors {
			if r.descriptors == maxEnvoyDescriptors+1 {
				r.fail(item, "the file has more than %d descriptors", maxEnvoyDescriptors)
			}
			return
		}
		r.descriptor(resolve(item), parent, path)
	}
}

func (r *envoyReader) descriptor(n *yaml.Node, parent *envoy.Descriptor, path []string) {
	d := new(envoy.Descriptor)
	var shadow, quota bool
	later := func(name string) yamlKey { return yamlKey{name, func(*yaml.Node) {}} }
	values := r.object(n, "a descriptor",
		r.anyText("key", &d.Key),
		r.anyText("value", &d.Value),
		// Read when key and value are known, in whatever order they are.
		later("rate_limit"), later("descriptors"), later("metadata"),
		r.flag("shadow_mode", &shadow),
		r.flag("quota_mode", &quota),
		r.flag("detailed_metric", &d.DetailedMetric),
		r.flag("value_to_metric", &d.ValueToMetric),
		r.flag("share_threshold", &d.ShareThreshold))
	if values == nil {
		return
	}
	name := d.Key
	if d.Value != "" {
		name += "_" + d.Value
	}
	path = append(slices.Clone(path), name)
	if r.sent {
		defer func(before string) { r.within = before }(r.within)
		r.within = fmt.Sprintf("descriptor %q", strings.Join(path, "."))
	}
	if d.Key == "" {
		r.fail(n, "the descriptor has no key")
	} else if err := parent.Add(d); err == nil {
		r.positions[childOf{parent, name}] = position{r.name, values["key"].Line}
	} else if other := r.positions[childOf{parent, name}]; r.sent {
		r.fail(values["key"], "%v; one is in %s", err, other.file)
	} else {
		r.fail(values["key"], "%v; one is on line %d of %s", err, other.line, other.file)
	}
	if d.ShareThreshold && !strings.Contains(name, "*") {
		r.fail(values["share_threshold"], "share_threshold needs a value with a *, such as files/*, and %q has none", name)
	}
	if limit := values["rate_limit"]; limit != nil && limit.Tag != "!!null" {
		d.Rule = r.rule(limit, values["metadata"], path)
		d.Rule.Metadata = r.metadata(values["metadata"])
		quota = quota || r.options.Mode == EnvoyQuota
		switch {
		case shadow && quota:
			d.Rule.Limit.Leniency = policy.ShadowQuota
		case shadow:
			d.Rule.Limit.Leniency = policy.Shadow
		case quota:
			d.Rule.Limit.Leniency = policy.Quota
		}
	} else if r.weir(values["metadata"]) != nil {
		r.fail(values["metadata"], "metadata has options of weir for a limit, and the descriptor has no rate_limit")
	}
	if below := values["descriptors"]; below != nil {
		r.list(below, d, path)
	}
}

// rule reads a rate_limit of the descriptor at path.
func (r *envoyReader) rule(n, metadata *yaml.Node, path []string) *envoy.Rule {
	mistakes := len(r.errs)
	rule := new(envoy.Rule)
	unit := ""
	values := r.object(n, "rate_limit",
		r.anyText("unit", &unit),
		integer(&r.yamlReader, "requests_per_unit", &rule.Limit.Limit, 0, math.MaxUint32),
		r.flag("unlimited", &rule.Unlimited),
		r.anyText("name", &rule.Name),
		yamlKey{"replaces", func(n *yaml.Node) { r.replaces(n, rule) }})
	rule.Unit = envoy.Unit(strings.ToLower(unit))
	rule.Limit.Name, rule.Limit.Window = headerName(path), rule.Unit.Window()
	switch {
	case len(r.errs) > mistakes:
	case rule.Unlimited && rule.Limit.Window > 0:
		r.fail(values["unit"], "unit has no meaning where unlimited is true; leave one of them out")
	case rule.Unlimited:
	case rule.Limit.Window == 0:
		var names []string
		for _, u := range envoy.Units {
			names = append(names, string(u))
		}
		r.fail(cmp.Or(values["unit"], n), "unit %q must be %s", unit, oneOf(unit, names))
	case slices.Contains(rule.Replaces, rule.Name) && rule.Name != "":
		r.fail(values["replaces"], "replaces has the limit's own name, %q", rule.Name)
	default:
		options := r.weir(metadata)
		given := map[string]*yaml.Node{}
		if options != nil {
			given = r.object(options, "metadata weir", r.optionKeys(&rule.Limit)...)
		}
		if len(r.errs) == mistakes {
			given["window"], given["limit"] = values["unit"], cmp.Or(values["requests_per_unit"], n)
			r.complete(&rule.Limit, n, given, options == nil)
		}
	}
	return rule
}

// optionKeys are the keys of a limit that say how it limits. What a request counts is said by
// the hits_addend of each descriptor.
func (r *envoyReader) optionKeys(l *policy.Limit) []yamlKey {
	keys := slices.DeleteFunc(r.limitKeys(l), func(k yamlKey) bool { return slices.Contains([]string{"name", "limit", "window", "counts"}, k.name) })
	return append(keys, r.boolean("count_denied", &l.CountDenied), r.onStoreError(&l.OnStoreError))
}

// complete is policyReader.complete, with the default for the algorithm. The limit may
// be 0, which denies all. A plain one has no options of weir's.
func (r *envoyReader) complete(l *policy.Limit, n *yaml.Node, values map[string]*yaml.Node, plain bool) {
	l.Algorithm = cmp.Or(l.Algorithm, r.options.Algorithm)
	leases := findAlgorithm(l).leases
	if says := values["count_denied"]; says == nil {
		l.CountDenied = !leases && (l.Algorithm == fixedWindow || r.options.CountDenied)
	} else if leases && l.CountDenied {
		r.fail(says, "count_denied is not for a %s, as what is denied isn't under way", l.Algorithm)
	}
	requests, name, mistakes := l.Limit, l.Name, len(r.errs)
	l.Limit, l.Name = max(1, requests), "any"
	before := *l
	if known, ok := r.completed[before]; ok && plain {
		*l = known
	} else {
		r.policyReader.complete(&policy.Policy{Name: envoy.PolicyName}, l, n, values)
		if plain && len(r.errs) == mistakes {
			r.completed[before] = *l
		}
	}
	l.Limit, l.Name = requests, name
}

// weir returns the options of weir in metadata, or nil.
func (r *envoyReader) weir(metadata *yaml.Node) (options *yaml.Node) {
	if metadata == nil || metadata.Tag == "!!null" {
		return nil
	}
	r.mapping(metadata, "metadata", func(key, value *yaml.Node) {
		if key.Value == "weir" {
			options = value
		}
	})
	return options
}

// metadata returns what answers may say of a limit, or nil.
func (r *envoyReader) metadata(n *yaml.Node) *structpb.Struct {
	if n == nil || n.Tag == "!!null" {
		return nil
	}
	var value any
	err := n.Decode(&value)
	if err == nil {
		var s *structpb.Value
		if s, err = structpb.NewValue(inJSON(value)); err == nil {
			return s.GetStructValue()
		}
	}
	r.fail(n, "metadata: %v", err)
	return nil
}

// inJSON returns a value of YAML as one that JSON can have.
func inJSON(value any) any {
	switch v := value.(type) {
	case map[string]any:
		for key := range v {
			v[key] = inJSON(v[key])
		}
	case map[any]any:
		object := make(map[string]any, len(v))
		for key := range v {
			object[fmt.Sprint(key)] = inJSON(v[key])
		}
		return object
	case []any:
		for i := range v {
			v[i] = inJSON(v[i])
		}
	case time.Time:
		return v.Format(time.RFC3339Nano)
	}
	return value
}

func (r *envoyReader) replaces(n *yaml.Node, rule *envoy.Rule) {
	if n.Kind != yaml.SequenceNode {
		if n.Tag != "!!null" {
			r.fail(n, "replaces must be a list of names, such as [{name: other}]")
		}
		return
	}
	for _, item := range n.Content {
		item, name, mistakes := resolve(item), "", len(r.errs)
		r.object(item, "an item of replaces", r.anyText("name", &name))
		if name == "" && len(r.errs) == mistakes {
			r.fail(item, "an item of replaces has no name")
		}
		rule.Replaces = append(rule.Replaces, name)
	}
}

// anyText is a key whose value is text, written as any scalar: 404 is "404".
func (r *envoyReader) anyText(name string, into *string) yamlKey {
	return r.scalar(name, "text", func(n *yaml.Node) bool {
		if *into = n.Value; n.Tag == "!!null" {
			*into = ""
		}
		return true
	})
}

// flag is a key that is true or false, as YAML 1.1 writes them too.
func (r *envoyReader) flag(name string, into *bool) yamlKey {
	return r.scalar(name, "true or false", func(n *yaml.Node) bool { return n.Decode(into) == nil })
}

// headerName returns path as headers may name a limit.
func headerName(path []string) string {
	return strings.Map(func(c rune) rune {
		if c < ' ' || c > '~' || c == '"' || c == '\\' {
			return '_'
		}
		return c
	}, strings.Join(path, "."))
}

// EnvoyPolicy returns a policy with one limit for all rules of a configuration that
// count alike. The function gives the rules the limiters of these limits, which must
// have them by then.
func EnvoyPolicy(config *envoy.Config, options EnvoyOptions) (*policy.Policy, func()) {
	p := &policy.Policy{Name: envoy.PolicyName, OnStoreError: options.OnStoreError, Shadow: options.Mode == EnvoyShadow, Finder: config}
	config.List()
	indexes := make(map[string]int) // in p.Limits, by name
	index := func(l *policy.Limit, unit envoy.Unit) int {
		shape := *l
		shape.Name, shape.Limit, shape.Limiter = storedName(l, unit), max(1, l.Limit), nil
		shape.Pattern, shape.Leniency, shape.OnStoreError = "", policy.Strict, ""
		i, ok := indexes[shape.Name]
		if !ok {
			i = len(p.Limits)
			indexes[shape.Name] = i
			p.Limits = append(p.Limits, shape)
		}
		// By the largest, whatever order they come in, as it says how many clients are remembered.
		p.Limits[i].Limit = max(p.Limits[i].Limit, shape.Limit)
		return i
	}
	for _, unit := range envoy.Units {
		index(config.Default[unit], unit)
	}
	config.EachRule(func(r *envoy.Rule, _ string) { index(&r.Limit, r.Unit) })
	return p, func() {
		for unit, l := range config.Default {
			l.Limiter = p.Limits[index(l, unit)].Limiter
		}
		config.EachRule(func(r *envoy.Rule, _ string) { r.Bind(p.Limits[index(&r.Limit, r.Unit)].Limiter) })
	}
}

// storedName returns the name in the store of all limits that count like l.
func storedName(l *policy.Limit, unit envoy.Unit) string {
	name := strings.ReplaceAll(l.Algorithm, "_", "-") + "-" + string(unit)
	if l.SubWindows > 0 {
		name += fmt.Sprintf("-%d-%s", l.SubWindows, l.Estimate)
	}
	if size := cmp.Or(l.Burst, l.Entries, l.Lease.Milliseconds()); size > 0 {
		name += fmt.Sprintf("-%d", size)
	}
	switch {
	case l.Algorithm == fixedWindow && !l.CountDenied:
		name += "-admitted"
	case l.Algorithm != fixedWindow && l.CountDenied:
		name += "-asked"
	}
	return name
}
