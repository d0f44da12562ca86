package envoy

import (
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"strings"

	common "github.com/envoyproxy/go-control-plane/envoy/extensions/common/ratelimit/v3"

	"weir/counters"
)

// below returns what matches an entry among the descriptors below d, or nil:
// the one with its value, else the first wildcard, else the one with its key
// alone. byPattern says that it was a wildcard, byKey that it was the key.
func (d *Descriptor) below(key, value string) (found *Descriptor, byPattern, byKey bool) {
	if len(d.children) == 0 {
		return nil, false, false
	}
	name := key + "_" + value
	if found = d.children[name]; found != nil {
		return found, false, false
	}
	for i := range d.wildcards {
		if d.wildcards[i].matches(name) {
			return d.wildcards[i].Descriptor, true, false
		}
	}
	return d.children[key], false, true
}

// A match is what counts for the entries of a request's descriptor.
type match struct {
	rule   *Rule // nil if nothing does
	client string
	// metric is what the rule is called in metrics; "" if it has no name there.
	metric string
}

// find returns what counts for entries in a domain.
func (c *Config) find(domain string, entries []*common.RateLimitDescriptor_Entry) match {
	at := c.Domains[domain]
	if at == nil || len(entries) == 0 {
		return match{}
	}
	client := appendEscaped(make([]byte, 0, 256), domain)
	named := false // the metric has a value that no file has
	shared := false
	for _, e := range entries {
		key, value := e.GetKey(), e.GetValue()
		next, byPattern, byKey := at.below(key, value)
		if next == nil {
			return match{}
		}
		if byPattern && next.ShareThreshold {
			value, shared = next.pattern(key), true
		}
		named = named || next.ValueToMetric && (byPattern || byKey)
		client = appendEntry(client, key, value)
		at = next
	}
	if at.Rule == nil {
		return match{}
	}
	m := match{rule: at.Rule, client: asClient(client)}
	if named || at.DetailedMetric || at.Rule.Name != "" {
		m.metric = c.metric(domain, entries, at.DetailedMetric, shared)
	}
	return m
}

// pattern returns what d, which has a *, asks of the value of an entry with that
// key.
func (d *Descriptor) pattern(key string) string { return strings.TrimPrefix(d.composite(), key+"_") }

// metric returns what envoyproxy/ratelimit calls the limit of entries, which
// match, in the names of its metrics. detailed has all values of the request, and empty
// ones too unless one is shared.
func (c *Config) metric(domain string, entries []*common.RateLimitDescriptor_Entry, detailed, shared bool) string {
	b, at := []byte(domain), c.Domains[domain]
	for _, e := range entries {
		key, value := e.GetKey(), e.GetValue()
		next, byPattern, byKey := at.below(key, value)
		switch {
		case byPattern && (next.ShareThreshold || !detailed && !next.ValueToMetric):
			value = next.pattern(key)
		case byKey && !detailed && !next.ValueToMetric:
			value = ""
		}
		b = append(append(b, '.'), key...)
		if value != "" || detailed && !shared {
			b = append(append(b, '_'), value...)
		}
		at = next
	}
	return strings.ToValidUTF8(string(b), "\uFFFD")
}

// clientOf returns whom entries in a domain count for, if no descriptor shares.
func clientOf(domain string, entries []*common.RateLimitDescriptor_Entry) string {
	b := appendEscaped(make([]byte, 0, 256), domain)
	for _, e := range entries {
		b = appendEntry(b, e.GetKey(), e.GetValue())
	}
	return asClient(b)
}

// appendEntry appends an entry so that no two lists of entries read alike.
func appendEntry(b []byte, key, value string) []byte {
	b = appendEscaped(append(b, '|'), key)
	return appendEscaped(append(b, '='), value)
}

func appendEscaped(b []byte, s string) []byte {
	for i := range len(s) {
		if s[i] == '|' || s[i] == '=' || s[i] == '\\' {
			b = append(b, '\\')
		}
		b = append(b, s[i])
	}
	return b
}

// entriesOf returns the domain and the entries that clientOf makes a client of.
func entriesOf(client string) (domain string, entries []*common.RateLimitDescriptor_Entry) {
	part := make([]byte, 0, len(client))
	var e *common.RateLimitDescriptor_Entry // nil while the domain is read
	inValue := false
	end := func() {
		switch {
		case e == nil:
			domain = string(part)
		case inValue:
			e.Value = string(part)
		default:
			e.Key = string(part)
		}
		part = part[:0]
	}
	for i := 0; i < len(client); i++ {
		switch at := client[i]; {
		case at == '\\' && i+1 < len(client):
			i++
			part = append(part, client[i])
		case at == '|':
			end()
			e, inValue = new(common.RateLimitDescriptor_Entry), false
			entries = append(entries, e)
		case at == '=' && e != nil && !inValue:
			end()
			inValue = true
		default:
			part = append(part, at)
		}
	}
	end()
	return domain, entries
}

// asClient returns b as the name of a client. One that is too long is cut, so that exceptions
// still find it by its beginning, and ends with a | and a hash of the whole. No other name ends
// like that: all other parts have a =.
func asClient(b []byte) string {
	if len(b) <= counters.MaxClientBytes {
		return string(b)
	}
	sum := sha256.Sum256(b)
	end := "|sha256:" + hex.EncodeToString(sum[:])
	begin := b[:counters.MaxClientBytes-len(end)]
	return string(bytes.TrimRight(begin, "\\")) + end // no | is escaped by what was cut
}
