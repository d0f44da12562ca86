package peers

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"

	common "github.com/envoyproxy/go-control-plane/envoy/extensions/common/ratelimit/v3"
	rls "github.com/envoyproxy/go-control-plane/envoy/service/ratelimit/v3"
	typev3 "github.com/envoyproxy/go-control-plane/envoy/type/v3"
	"google.golang.org/protobuf/types/known/wrapperspb"
)

// A node is a descriptor of a random file, or the root of one.
type node struct {
	key, value string
	fields     []string // of YAML
	children   []*node
}

// randomNode returns a node with random children, unless it is deep.
func randomNode(r *rand.Rand, depth int) *node {
	n := new(node)
	if depth == 3 {
		return n
	}
	chance := func(of int) bool { return r.IntN(of) == 0 }
	for i := range 1 + r.IntN(5) {
		child := randomNode(r, depth+1)
		child.key = fmt.Sprintf("k%d", r.IntN(4))
		child.value = []string{"", "", "a", "b", "w*", "wx*"}[r.IntN(6)]
		if slices.ContainsFunc(n.children, func(other *node) bool { return other.key == child.key && other.value == child.value }) {
			continue
		}
		if strings.HasSuffix(child.value, "*") && chance(2) {
			child.fields = append(child.fields, "share_threshold: true")
		}
		var limit []string
		switch {
		case chance(3):
		case chance(8):
			limit = []string{"unlimited: true"}
		default:
			limit = []string{fmt.Sprintf("requests_per_unit: %d, unit: %s", r.IntN(12), []string{"hour", "DAY"}[r.IntN(2)])}
		}
		if limit != nil {
			if chance(4) {
				limit = append(limit, fmt.Sprintf("name: n%d", i))
			}
			if chance(6) {
				limit = append(limit, fmt.Sprintf("replaces: [{name: n%d}, {name: elsewhere}]", (i+1)%5))
			}
			child.fields = append(child.fields, "rate_limit: {"+strings.Join(limit, ", ")+"}")
			if chance(6) {
				child.fields = append(child.fields, "shadow_mode: true")
			}
			if chance(8) {
				child.fields = append(child.fields, "quota_mode: true")
			}
			if chance(6) {
				child.fields = append(child.fields, "detailed_metric: true")
			}
		}
		n.children = append(n.children, child)
	}
	return n
}

// yaml returns the children as a list.
func (n *node) yaml(indent string) string {
	var b strings.Builder
	for _, child := range n.children {
		fmt.Fprintf(&b, "%s- key: %s\n", indent, child.key)
		if child.value != "" {
			fmt.Fprintf(&b, "%s  value: %q\n", indent, child.value)
		}
		for _, field := range child.fields {
			fmt.Fprintf(&b, "%s  %s\n", indent, field)
		}
		if len(child.children) > 0 {
			fmt.Fprintf(&b, "%s  descriptors:\n%s", indent, child.yaml(indent+"    "))
		}
	}
	return b.String()
}

// request returns a random request, whose descriptors have different clients.
func (n *node) request(r *rand.Rand, domain string) *rls.RateLimitRequest {
	request := &rls.RateLimitRequest{Domain: domain, HitsAddend: uint32(r.IntN(4))}
	for _, first := range r.Perm(4)[:1+r.IntN(4)] {
		d := new(common.RateLimitDescriptor)
		key, at := fmt.Sprintf("k%d", first), n
		for {
			value := []string{"a", "b", "c", "w", "wx1", "wy", ""}[r.IntN(7)]
			d.Entries = append(d.Entries, &common.RateLimitDescriptor_Entry{Key: key, Value: value})
			var below []*node
			for _, child := range at.children {
				if child.key == key {
					below = append(below, child.children...)
				}
			}
			if len(below) == 0 || r.IntN(3) == 0 {
				break
			}
			at = &node{children: below}
			key = below[r.IntN(len(below))].key
		}
		if r.IntN(4) == 0 {
			d.HitsAddend = wrapperspb.UInt64(uint64(r.IntN(4)))
		}
		if r.IntN(10) == 0 { // for entries of its own: a ban counts nothing, which a limit for the same would see
			d.Entries = []*common.RateLimitDescriptor_Entry{{Key: fmt.Sprintf("own%d", first), Value: d.Entries[0].Value}}
			d.Limit = &common.RateLimitDescriptor_RateLimitOverride{
				RequestsPerUnit: 1 + uint32(r.IntN(6)), Unit: []typev3.RateLimitUnit{typev3.RateLimitUnit_HOUR, typev3.RateLimitUnit_DAY}[r.IntN(2)],
			}
		}
		request.Descriptors = append(request.Descriptors, d)
	}
	return request
}
