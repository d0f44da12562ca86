package peers

import (
	"context"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	common "github.com/envoyproxy/go-control-plane/envoy/extensions/common/ratelimit/v3"
	rls "github.com/envoyproxy/go-control-plane/envoy/service/ratelimit/v3"
	typev3 "github.com/envoyproxy/go-control-plane/envoy/type/v3"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/protobuf/types/known/wrapperspb"

	"weir/bench/internal/report"
	"weir/bench/internal/testbed"
)

const (
	weirName      = "weir"
	ratelimitName = "envoyproxy/ratelimit"
)

// answersDomains are random files, each of a domain of its own.
const answersDomains = 400

// Answers say in how many of the same requests, by the same random files, the products
// answered otherwise.
type Answers struct {
	Requests int `json:"requests"`
	// Known are differences that deploy/envoy.md names.
	Known map[string]int `json:"known"`
	// OlderQuotas says that files with quota_mode were left out: it meant something else
	// in that version.
	OlderQuotas bool   `json:"older_quotas"`
	Other       int    `json:"other"`
	First       string `json:"first,omitempty"` // of the others
}

const (
	probeDomain = "probe"

	knownReset = "duration_until_reset is 0 where nothing is in use"
	knownBan   = "a ban denies what only checks"
)

// compareAnswers asks both the same, one request after the other in each domain.
func compareAnswers(ctx context.Context, ratelimit string, rounds int, build *testbed.Build, m *testbed.Memcached) (*Answers, error) {
	report.Progress("comparing answers")
	if left := time.Hour - time.Since(time.Now().Truncate(time.Hour)); left < time.Minute { // all counts in one hour
		time.Sleep(left)
	}
	root, err := os.MkdirTemp("", "weir-answers")
	if err != nil {
		return nil, err
	}
	defer os.RemoveAll(root)
	folder := filepath.Join(root, "ratelimit", "config")
	if err := os.MkdirAll(folder, 0o755); err != nil {
		return nil, err
	}
	// Until April 2026 a quota never denied.
	text := fmt.Sprintf("domain: %s\ndescriptors:\n- {key: k, rate_limit: {unit: day, requests_per_unit: 0}, quota_mode: true}\n", probeDomain)
	if err := os.WriteFile(filepath.Join(folder, "probe.yaml"), []byte(text), 0o644); err != nil {
		return nil, err
	}
	random := rand.New(rand.NewPCG(1, 2))
	domains := make([]*node, answersDomains)
	for i := range domains {
		domains[i] = randomNode(random, 0)
		text := fmt.Sprintf("domain: d%d\ndescriptors:\n%s", i, domains[i].yaml("  "))
		if err := os.WriteFile(filepath.Join(folder, fmt.Sprintf("d%d.yaml", i)), []byte(text), 0o644); err != nil {
			return nil, err
		}
	}
	const three = "RateLimit-Limit,RateLimit-Remaining,RateLimit-Reset"
	weir, address, err := build.StartRLS(ctx, m.Addr, folder, "-envoy-headers", three, "-key-prefix", "answers", "-store-timeout", "5s")
	if err != nil {
		return nil, err
	}
	defer weir.Stop()
	peer, err := testbed.StartRatelimit(ctx, ratelimit, m.Addr, root, 1, "LIMIT_RESPONSE_HEADERS_ENABLED=true")
	if err != nil {
		return nil, err
	}
	defer peer.Stop()
	var clients [2]rls.RateLimitServiceClient
	for i, address := range []string{address, peer.Addr} {
		conn, err := grpc.NewClient(address, grpc.WithTransportCredentials(insecure.NewCredentials()))
		if err != nil {
			return nil, err
		}
		defer conn.Close()
		clients[i] = rls.NewRateLimitServiceClient(conn)
	}
	a := &Answers{Known: make(map[string]int)}
	probe := &rls.RateLimitRequest{Domain: probeDomain, Descriptors: []*common.RateLimitDescriptor{{Entries: []*common.RateLimitDescriptor_Entry{{Key: "k"}}}}}
	probed, err := clients[1].ShouldRateLimit(ctx, probe, grpc.WaitForReady(true))
	if err != nil {
		return nil, fmt.Errorf("%s: %w", ratelimitName, err)
	}
	a.OlderQuotas = probed.OverallCode == rls.RateLimitResponse_OK
	for range rounds {
		for i, d := range domains {
			if a.OlderQuotas && d.quotas() {
				continue
			}
			request := d.request(random, fmt.Sprintf("d%d", i))
			var answers [2]*rls.RateLimitResponse
			for i, c := range clients {
				if answers[i], err = c.ShouldRateLimit(ctx, request, grpc.WaitForReady(true)); err != nil {
					return nil, fmt.Errorf("%s: %w", []string{weirName, ratelimitName}[i], err)
				}
			}
			a.compare(request, answers[0], answers[1])
		}
		time.Sleep(20 * time.Millisecond) // the other counts after it has answered
	}
	return a, nil
}

// compare notes in what ours differs from theirs.
func (a *Answers) compare(request *rls.RateLimitRequest, ours, theirs *rls.RateLimitResponse) {
	a.Requests++
	known := make(map[string]bool)
	var other []string
	differ := func(what string, x, y any) {
		if x != y {
			other = append(other, fmt.Sprintf("%s: %v, %v there", what, x, y))
		}
	}
	for i, o := range ours.Statuses {
		t := theirs.Statuses[i]
		hits := uint64(max(1, request.GetHitsAddend()))
		if own := request.Descriptors[i].GetHitsAddend(); own != nil {
			hits = own.GetValue()
		}
		limit := o.GetCurrentLimit()
		differ("limit", limit.String(), t.GetCurrentLimit().String())
		if limit != nil && limit.RequestsPerUnit == 0 && hits == 0 && o.Code != t.Code {
			known[knownBan] = true
		} else {
			differ("code", o.Code, t.Code)
		}
		differ("remaining", o.LimitRemaining, t.LimitRemaining)
		if own := o.GetDurationUntilReset(); own != nil && own.GetSeconds() == 0 && o.LimitRemaining == limit.GetRequestsPerUnit() {
			known[knownReset] = true
		} else if d := own.GetSeconds() - t.GetDurationUntilReset().GetSeconds(); d < -1 || d > 1 {
			differ("reset", own.GetSeconds(), t.GetDurationUntilReset().GetSeconds())
		}
	}
	if !known[knownBan] {
		differ("overall", ours.OverallCode, theirs.OverallCode)
		differ("headers", len(ours.ResponseHeadersToAdd), len(theirs.ResponseHeadersToAdd))
		for i := range min(len(ours.ResponseHeadersToAdd), len(theirs.ResponseHeadersToAdd)) {
			o, t := ours.ResponseHeadersToAdd[i], theirs.ResponseHeadersToAdd[i]
			differ("header", o.Key, t.Key)
			x, _ := strconv.Atoi(o.Value)
			y, _ := strconv.Atoi(t.Value)
			if i < 2 || !known[knownReset] && (x-y < -1 || x-y > 1) { // the third is when it resets
				differ(o.Key, x, y)
			}
		}
	}
	for what := range known {
		a.Known[what]++
	}
	if len(other) > 0 {
		if a.Other++; a.First == "" {
			a.First = fmt.Sprintf("%v: %s", request, strings.Join(other, "; "))
		}
	}
}

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
				child.fields = append(child.fields, quotaMode)
			}
			if chance(6) {
				child.fields = append(child.fields, "detailed_metric: true")
			}
		}
		n.children = append(n.children, child)
	}
	return n
}

const quotaMode = "quota_mode: true"

// quotas reports whether one is below n.
func (n *node) quotas() bool {
	return slices.Contains(n.fields, quotaMode) || slices.ContainsFunc(n.children, (*node).quotas)
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
