package policyfile

import (
	"fmt"
	"regexp"
	"slices"
	"strings"
	"time"

	"go.yaml.in/yaml/v3"

	"weir/api/policy"
)

// A yamlReader reads the nodes of a YAML file into Go values, and collects all
// mistakes. It works on nodes because only they know their lines.
type yamlReader struct {
	name string // of the file
	// within, if it isn't "", says in messages where a mistake is, in the place of the
	// line: nobody has the file.
	within string
	errs   []error
	// kinds are the kinds of mappings in the file, to tell where a key belongs
	// that is indented wrongly.
	kinds []yamlKind
}

// A yamlKind is a kind of mapping and the keys that it may have.
type yamlKind struct {
	name string // such as "a limit"
	keys []string
}

// fail notes a mistake and its line.
func (r *yamlReader) fail(n *yaml.Node, format string, args ...any) {
	message := fmt.Sprintf(format, args...)
	if n.Kind == yaml.ScalarNode && variable.MatchString(n.Value) {
		message += "; " + notExpanded
	}
	if r.within != "" {
		r.errs = append(r.errs, fmt.Errorf("%s: %s: %s", r.name, r.within, message))
	} else {
		r.errs = append(r.errs, fmt.Errorf("%s:%d: %s", r.name, n.Line, message))
	}
}

// variable is what elsewhere stands for the value of an environment variable.
var variable = regexp.MustCompile(`\$\{[^}]*\}|^\$[A-Za-z_]\w*$`)

const notExpanded = "environment variables aren't expanded"

// A yamlKey is a key that a mapping may have, with a function that reads its
// value.
type yamlKey struct {
	name string
	read func(value *yaml.Node)
}

func namesOf(keys []yamlKey) []string {
	names := make([]string, len(keys))
	for i, k := range keys {
		names[i] = k.name
	}
	return names
}

// object reads a mapping that may have only the given keys. It returns the
// values that the mapping has, or nil if n isn't a mapping. Messages call the
// mapping by name.
func (r *yamlReader) object(n *yaml.Node, name string, keys ...yamlKey) map[string]*yaml.Node {
	return r.mapping(n, name, func(key, value *yaml.Node) {
		if i := slices.IndexFunc(keys, func(k yamlKey) bool { return k.name == key.Value }); i >= 0 {
			keys[i].read(value)
		} else {
			r.unknown(key, name, namesOf(keys))
		}
	})
}

// unknown notes that the mapping called name can't have a key, only the known
// ones.
func (r *yamlReader) unknown(key *yaml.Node, name string, known []string) {
	if key.Value == "<<" {
		r.fail(key, "%s has no key %q; mappings aren't merged: use an alias for each value, such as limits: *name", name, key.Value)
		return
	}
	message := fmt.Sprintf("%s has no key %q", name, key.Value)
	if k, _, ok := strings.Cut(key.Value, ":"); ok && slices.Contains(known, k) {
		r.fail(key, "%s; a space is missing behind %q", message, k+":")
		return
	}
	other, meant := r.kindWith(key.Value), didYouMean(key.Value, known)
	if other != "" {
		message += fmt.Sprintf(", but %s has: check the indentation", other)
	}
	switch may := "it may have " + strings.Join(known, ", "); {
	case meant == "":
		r.fail(key, "%s; %s", message, may)
	case other != "":
		r.fail(key, "%s, or %s %s", message, meant, capital(may))
	default:
		r.fail(key, "%s; %s %s", message, meant, capital(may))
	}
}

// kindWith returns which kind of mapping may have a key, "" if none may.
func (r *yamlReader) kindWith(key string) string {
	for _, k := range r.kinds {
		if slices.Contains(k.keys, key) {
			return k.name
		}
	}
	return ""
}

func capital(s string) string { return strings.ToUpper(s[:1]) + s[1:] }

// mapping calls read for each key of a mapping and its value, and returns the
// values, or nil if n isn't a mapping.
func (r *yamlReader) mapping(n *yaml.Node, name string, read func(key, value *yaml.Node)) map[string]*yaml.Node {
	n = resolve(n)
	if n.Kind != yaml.MappingNode {
		empty := ""
		if n.Tag == "!!null" {
			empty = "; it is empty: indent its keys further"
		}
		r.fail(n, "%s must be a mapping, keys with values%s", name, empty)
		return nil
	}
	lines, values := make(map[string]int), make(map[string]*yaml.Node)
	for i := 0; i+1 < len(n.Content); i += 2 {
		key, value := resolve(n.Content[i]), resolve(n.Content[i+1])
		if key.Kind != yaml.ScalarNode {
			r.fail(key, "%s has a key that is no text; one that begins with [ or { has to be in quotes", name)
			continue
		}
		if line, ok := lines[key.Value]; ok {
			r.fail(key, "%s has %q already, on line %d", name, key.Value, line)
			continue
		}
		lines[key.Value], values[key.Value] = key.Line, value
		read(key, value)
	}
	return values
}

// sequence calls read for each item of a list. An empty list is a mistake;
// advice says what to do instead.
func (r *yamlReader) sequence(n *yaml.Node, name, advice string, read func(item *yaml.Node)) {
	if n.Kind != yaml.SequenceNode {
		r.fail(n, "%s must be a list, with - in front of each item", name)
		return
	}
	if len(n.Content) == 0 {
		r.fail(n, "%s is empty; %s", name, advice)
	}
	for _, item := range n.Content {
		read(resolve(item))
	}
}

// resolve returns the node that n stands for if n is an alias, else n.
func resolve(n *yaml.Node) *yaml.Node {
	if n.Kind == yaml.AliasNode {
		return n.Alias
	}
	return n
}

// text is a key whose value is a string.
func (r *yamlReader) text(name string, into *string) yamlKey {
	return yamlKey{name, func(n *yaml.Node) {
		if n.Kind != yaml.ScalarNode || n.Tag != "!!str" {
			quote := ""
			if n.Kind == yaml.ScalarNode && n.Tag != "!!null" {
				quote = fmt.Sprintf("; write it in quotes: %q", n.Value)
			}
			r.fail(n, "%s must be text%s", name, quote)
			return
		}
		*into = n.Value
	}}
}

// scalar is a key whose value has to satisfy a rule. parse reads the value and
// reports whether it does.
func (r *yamlReader) scalar(name, rule string, parse func(*yaml.Node) bool) yamlKey {
	return yamlKey{name, func(n *yaml.Node) {
		switch {
		case n.Kind == yaml.ScalarNode && parse(n):
		case n.Kind == yaml.ScalarNode && parse(unquoted(n)):
			r.fail(n, "%s %q is text; write it without quotes", name, n.Value)
		default:
			r.fail(n, "%s %q must be %s", name, n.Value, rule)
		}
	}}
}

// unquoted returns what n would be without quotes.
func unquoted(n *yaml.Node) *yaml.Node {
	plain := &yaml.Node{Kind: yaml.ScalarNode, Value: n.Value}
	plain.Tag = plain.ShortTag()
	return plain
}

func (r *yamlReader) choice(name string, into *string, choices ...string) yamlKey {
	return yamlKey{name, func(n *yaml.Node) {
		if n.Kind == yaml.ScalarNode && slices.Contains(choices, n.Value) {
			*into = n.Value
			return
		}
		r.fail(n, "%s %q must be %s", name, n.Value, oneOf(n.Value, choices))
	}}
}

// oneOf says what s, which is none of the choices, may be, and which was probably meant.
func oneOf(s string, choices []string) string {
	rule := strings.Join(choices, " or ")
	if meant := didYouMean(s, choices); meant != "" {
		rule += "; " + meant
	}
	return rule
}

func (r *yamlReader) boolean(name string, into *bool) yamlKey {
	return r.scalar(name, "true or false", func(n *yaml.Node) bool {
		return n.Tag == "!!bool" && n.Decode(into) == nil
	})
}

func integer[T int | int64](r *yamlReader, name string, into *T, least, most T) yamlKey {
	key := r.scalar(name, fmt.Sprintf("a whole number from %d to %d", least, most), func(n *yaml.Node) bool {
		var value T
		if n.Tag != "!!int" || n.Decode(&value) != nil || value < least || value > most {
			return false
		}
		*into = value
		return true
	})
	return yamlKey{name, func(n *yaml.Node) {
		if octal.MatchString(n.Value) {
			r.fail(n, "%s %q begins with 0, by which YAML means the base 8; write it without", name, n.Value)
			return
		}
		key.read(n)
	}}
}

// octal matches a number that YAML 1.1 reads to the base 8, and YAML 1.2, like most people, to the
// base 10.
var octal = regexp.MustCompile(`^\+?0[\d_]+$`)

func (r *yamlReader) durationWithin(name string, into *time.Duration, least, most time.Duration) yamlKey {
	return r.scalar(name, fmt.Sprintf("a duration from %s to %s", inWords(least), inWords(most)), func(n *yaml.Node) bool {
		d, err := policy.ParseDuration(n.Value)
		if err != nil || d < least || d > most {
			return false
		}
		*into = d
		return true
	})
}

func (r *yamlReader) duration(name string, into *time.Duration) yamlKey {
	return r.scalar(name, "a duration such as 500ms, 1m, 24h or 7d", func(n *yaml.Node) bool {
		d, err := policy.ParseDuration(n.Value)
		*into = d
		return err == nil
	})
}

// madeOf reports whether s has characters, and no others than these.
func madeOf(s, characters string) bool { return s != "" && strings.Trim(s, characters) == "" }
