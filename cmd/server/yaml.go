package main

import (
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"go.yaml.in/yaml/v3"
)

// A yamlReader reads the nodes of a YAML file into Go values, and collects all
// mistakes. It works on nodes because only they know their lines.
type yamlReader struct {
	name string // of the file
	errs []error
}

// fail notes a mistake and its line.
func (r *yamlReader) fail(n *yaml.Node, format string, args ...any) {
	r.errs = append(r.errs, fmt.Errorf("%s:%d: %s", r.name, n.Line, fmt.Sprintf(format, args...)))
}

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
		i := slices.IndexFunc(keys, func(k yamlKey) bool { return k.name == key.Value })
		if i < 0 {
			r.fail(key, "%s has no key %q; it may have %s", name, key.Value, strings.Join(namesOf(keys), ", "))
			return
		}
		keys[i].read(value)
	})
}

// mapping calls read for each key of a mapping and its value, and returns the
// values, or nil if n isn't a mapping.
func (r *yamlReader) mapping(n *yaml.Node, name string, read func(key, value *yaml.Node)) map[string]*yaml.Node {
	n = resolve(n)
	if n.Kind != yaml.MappingNode {
		r.fail(n, "%s must be a mapping, keys with values", name)
		return nil
	}
	lines, values := make(map[string]int), make(map[string]*yaml.Node)
	for i := 0; i+1 < len(n.Content); i += 2 {
		key, value := n.Content[i], resolve(n.Content[i+1])
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
		r.fail(n, "%s must be a list", name)
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
			r.fail(n, "%s must be text", name)
			return
		}
		*into = n.Value
	}}
}

// scalar is a key whose value has to satisfy a rule. parse reads the value and
// reports whether it does.
func (r *yamlReader) scalar(name, rule string, parse func(*yaml.Node) bool) yamlKey {
	return yamlKey{name, func(n *yaml.Node) {
		if n.Kind != yaml.ScalarNode || !parse(n) {
			r.fail(n, "%s %q must be %s", name, n.Value, rule)
		}
	}}
}

func (r *yamlReader) choice(name string, into *string, choices ...string) yamlKey {
	return r.scalar(name, strings.Join(choices, " or "), func(n *yaml.Node) bool {
		if !slices.Contains(choices, n.Value) {
			return false
		}
		*into = n.Value
		return true
	})
}

func (r *yamlReader) boolean(name string, into *bool) yamlKey {
	return r.scalar(name, "true or false", func(n *yaml.Node) bool {
		return n.Tag == "!!bool" && n.Decode(into) == nil
	})
}

func integer[T int | int64](r *yamlReader, name string, into *T, least, most T) yamlKey {
	return r.scalar(name, fmt.Sprintf("a whole number from %d to %d", least, most), func(n *yaml.Node) bool {
		var value T
		if n.Tag != "!!int" || n.Decode(&value) != nil || value < least || value > most {
			return false
		}
		*into = value
		return true
	})
}

func (r *yamlReader) duration(name string, into *time.Duration) yamlKey {
	return r.scalar(name, "a duration such as 500ms, 1m, 24h or 7d", func(n *yaml.Node) bool {
		d, err := parseDuration(n.Value)
		*into = d
		return err == nil
	})
}

// parseDuration parses a Go duration that may begin with days, as in 7d or
// 1d12h.
func parseDuration(s string) (time.Duration, error) {
	days, rest, ok := strings.Cut(s, "d")
	if !ok {
		return time.ParseDuration(s)
	}
	n, err := strconv.ParseUint(days, 10, 16)
	d := time.Duration(n) * 24 * time.Hour
	if err != nil || rest == "" {
		return d, err
	}
	more, err := time.ParseDuration(rest)
	return d + more, err
}

// madeOf reports whether s has characters, and no others than these.
func madeOf(s, characters string) bool { return s != "" && strings.Trim(s, characters) == "" }
