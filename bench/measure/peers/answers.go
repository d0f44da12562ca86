package peers

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	common "github.com/envoyproxy/go-control-plane/envoy/extensions/common/ratelimit/v3"
	rls "github.com/envoyproxy/go-control-plane/envoy/service/ratelimit/v3"
	typev3 "github.com/envoyproxy/go-control-plane/envoy/type/v3"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/structpb"
	"google.golang.org/protobuf/types/known/wrapperspb"

	"weir/bench/internal/report"
	"weir/bench/internal/testbed"
)

const (
	weirName      = "weir"
	ratelimitName = "envoyproxy/ratelimit"
)

const (
	// answersDomains are random files, each of a domain of its own.
	answersDomains = 600
	// askingAtOnce is how many domains are asked about at once.
	askingAtOnce = 4
	othersMB     = 64 // of its Memcached
	// settling is how long the other product may take to count what it has answered.
	settling = 10 * time.Second
)

// Answers say how many requests the products answered otherwise: hand-picked ones, random
// ones by the same random files, and such by files that the user brings. All are asked of weir
// as its flags have it by default, and of weir by the variables of the other.
type Answers struct {
	HandPicked int `json:"hand_picked"`
	Requests   int `json:"requests"` // random ones
	Files      int `json:"files"`    // that the user brought
	// Known are differences that deploy/envoy.md names.
	Known map[string]int `json:"known"`
	// OlderQuotas says that files with quota_mode were left out: it meant something else
	// in that version.
	OlderQuotas bool   `json:"older_quotas"`
	Other       int    `json:"other"`
	First       string `json:"first,omitempty"` // of the others

	mu sync.Mutex
}

const (
	probeDomain = "probe"

	knownReset = "duration_until_reset is 0 where nothing is in use"
	knownBan   = "a ban denies what only checks"
	knownCase  = "others, of hand-picked requests"
)

// note counts a difference that no document names.
func (a *Answers) note(format string, args ...any) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.Other++; a.First == "" {
		a.First = fmt.Sprintf(format, args...)
	}
}

func (a *Answers) know(what string) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.Known[what]++
}

// A panel is weir in both ways, and the other product if there is one, with the same files.
type panel struct {
	products []asked
	stops    []func()

	// The other has a Memcached of its own, which is asked what it has counted.
	mu    sync.Mutex
	store *testbed.MemcachedConn
	due   atomic.Int64 // counts in all
}

// An asked product is one of a panel.
type asked struct {
	name   string
	other  bool
	as     bool // it has the variables of the other, and answers with the same headers and metadata
	client rls.RateLimitServiceClient
}

// An answer is what a product answers.
type answer struct {
	response *rls.RateLimitResponse
	err      error
}

// startPanel starts the products with files, by their names. They count by the prefix, so that
// no other panel has the same counters in the store.
func (j *jury) startPanel(ctx context.Context, prefix string, files map[string]string) (_ *panel, err error) {
	root, err := os.MkdirTemp("", "weir-answers")
	if err != nil {
		return nil, err
	}
	p := &panel{stops: []func(){func() { _ = os.RemoveAll(root) }}}
	defer func() {
		if err != nil {
			p.stop()
		}
	}()
	folder := filepath.Join(root, "ratelimit", "config")
	if err := os.MkdirAll(folder, 0o755); err != nil {
		return nil, err
	}
	for name, text := range files {
		if err := os.WriteFile(filepath.Join(folder, name), []byte(text), 0o644); err != nil {
			return nil, err
		}
	}
	add := func(a asked, address string, process *testbed.Process, err error) error {
		if err != nil {
			return fmt.Errorf("%s: %w", a.name, err)
		}
		p.stops = append(p.stops, process.Stop)
		conn, err := grpc.NewClient(address, grpc.WithTransportCredentials(insecure.NewCredentials()))
		if err != nil {
			return err
		}
		p.stops = append(p.stops, func() { _ = conn.Close() })
		a.client = rls.NewRateLimitServiceClient(conn)
		p.products = append(p.products, a)
		return nil
	}
	weir, address, err := j.build.StartRLS(ctx, j.memcached, folder, "-key-prefix", prefix, "-store-timeout", "5s")
	if err := add(asked{name: weirName}, address, weir, err); err != nil {
		return nil, err
	}
	variables := []string{"LIMIT_RESPONSE_HEADERS_ENABLED=true", "RESPONSE_DYNAMIC_METADATA=true", "CACHE_KEY_PREFIX=" + prefix + "other"}
	if weir, err = j.build.StartAsRatelimit(ctx, j.memcached, root, append(variables, "WEIR_STORE_TIMEOUT=5s")...); err == nil {
		address = weir.Addr
	}
	if err := add(asked{name: weirName + " by the variables of " + ratelimitName, as: true}, address, weir, err); err != nil {
		return nil, err
	}
	if j.ratelimit == "" {
		return p, nil
	}
	m, err := testbed.StartMemcached(ctx, othersMB)
	if err != nil {
		return nil, err
	}
	p.stops = append(p.stops, m.Stop)
	if p.store, err = testbed.DialMemcached(ctx, m.Addr); err != nil {
		return nil, err
	}
	p.stops = append(p.stops, func() { _ = p.store.Conn.Close() })
	peer, err := testbed.StartRatelimit(ctx, j.ratelimit, m.Addr, root, askingAtOnce, variables...)
	if err == nil {
		address = peer.Addr
	}
	return p, add(asked{name: ratelimitName, other: true, as: true}, address, peer, err)
}

func (p *panel) stop() {
	for _, stop := range slices.Backward(p.stops) {
		stop()
	}
}

// ask asks all products the same.
func (p *panel) ask(ctx context.Context, request *rls.RateLimitRequest) []answer {
	answers := make([]answer, len(p.products))
	for i, product := range p.products {
		a := &answers[i]
		a.response, a.err = product.client.ShouldRateLimit(ctx, request, grpc.WaitForReady(true))
		for _, s := range a.response.GetStatuses() {
			if product.other && s.CurrentLimit != nil {
				p.due.Add(1)
			}
		}
	}
	return answers
}

// settle waits until the other product has counted what it was asked, which it does after it
// has answered.
func (p *panel) settle(ctx context.Context) error {
	if p.store == nil {
		return nil
	}
	due := p.due.Load()
	err := testbed.Poll(ctx, settling, time.Millisecond, func() (bool, error) {
		p.mu.Lock()
		defer p.mu.Unlock()
		lines, err := p.store.Do("stats", "END")
		stats := make(map[string]int64)
		for _, line := range lines {
			if fields := strings.Fields(line); len(fields) == 3 {
				stats[fields[1]], _ = strconv.ParseInt(fields[2], 10, 64)
			}
		}
		// What isn't there to be counted is added.
		return stats["incr_hits"]+stats["incr_misses"] >= due && stats["cmd_set"] >= stats["incr_misses"], err
	})
	if err != nil {
		err = fmt.Errorf("%s has lost counts, which it does where its Memcached takes half a second; its answers can't be compared: %w", ratelimitName, err)
	}
	return err
}

// A jury has the products answer.
type jury struct {
	ratelimit string // the other; "" if it isn't there
	build     *testbed.Build
	memcached string
}

// compareAnswers has weir answer the hand-picked cases and, if the other is there, both answer
// those, random requests, and requests by the files of a folder.
func (j *jury) compareAnswers(ctx context.Context, rounds int, folder string) (*Answers, error) {
	report.Progress("comparing answers")
	if left := time.Hour - time.Since(time.Now().Truncate(time.Hour)); left < time.Minute { // all counts in one hour
		time.Sleep(left)
	}
	a := &Answers{Known: make(map[string]int)}
	cases, err := readCases(casesText)
	if err != nil {
		return nil, err
	}
	random := rand.New(rand.NewPCG(1, 2))
	domains := make([]*node, answersDomains)
	// Until April 2026 a quota never denied.
	files := map[string]string{"probe.yaml": fmt.Sprintf("domain: %s\ndescriptors:\n- {key: k, rate_limit: {unit: day, requests_per_unit: 0}, quota_mode: true}\n", probeDomain)}
	for i, c := range cases {
		a.HandPicked += len(c.steps)
		files[domainOf(i)+".yaml"] = fmt.Sprintf("domain: %s\ndescriptors:\n%s", domainOf(i), c.limits)
	}
	for i := range domains {
		domains[i] = randomNode(random, 0)
		files[fmt.Sprintf("d%d.yaml", i)] = fmt.Sprintf("domain: d%d\ndescriptors:\n%s", i, domains[i].yaml("  "))
	}
	p, err := j.startPanel(ctx, "answers", files)
	if err != nil {
		return nil, err
	}
	defer p.stop()
	probe := &rls.RateLimitRequest{Domain: probeDomain, Descriptors: []*common.RateLimitDescriptor{{Entries: []*common.RateLimitDescriptor_Entry{{Key: "k"}}}}}
	probed := p.ask(ctx, probe)[len(p.products)-1]
	if probed.err != nil {
		return nil, fmt.Errorf("%s: %w", p.products[len(p.products)-1].name, probed.err)
	}
	if a.OlderQuotas = probed.response.OverallCode == rls.RateLimitResponse_OK; a.OlderQuotas {
		cases = slices.DeleteFunc(cases, func(c handPicked) bool { return strings.Contains(c.limits, quotaMode) })
	}
	if err := p.play(ctx, cases, a); err != nil || j.ratelimit == "" {
		return a, err
	}
	err = p.askRandomly(ctx, domains, rounds, a)
	if err == nil && folder != "" {
		err = j.compareFiles(ctx, folder, a)
	}
	return a, err
}

// askRandomly asks all products as many random requests by each of the domains, which have
// their numbers.
func (p *panel) askRandomly(ctx context.Context, domains []*node, rounds int, a *Answers) error {
	randoms := make([]*rand.Rand, len(domains))
	for i := range randoms {
		randoms[i] = rand.New(rand.NewPCG(3, uint64(i)))
	}
	for range rounds {
		err := eachOf(len(domains), func(i int) error {
			if a.OlderQuotas && domains[i].quotas() {
				return nil
			}
			request := domains[i].request(randoms[i], fmt.Sprintf("d%d", i))
			a.compareAll(request, p.ask(ctx, request), p, false)
			a.mu.Lock()
			defer a.mu.Unlock()
			a.Requests++
			return ctx.Err()
		})
		if err == nil {
			err = p.settle(ctx)
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// eachOf calls f with each number below n, some at once.
func eachOf(n int, f func(int) error) error {
	errs := make([]error, askingAtOnce)
	var asking sync.WaitGroup
	for first := range askingAtOnce {
		asking.Go(func() {
			for i := first; i < n && errs[first] == nil; i += askingAtOnce {
				errs[first] = f(i)
			}
		})
	}
	asking.Wait()
	return errors.Join(errs...)
}

// compareAll notes where weir's answers differ from those of the other product, if there is
// one. Those that are documented are as the case has them.
func (a *Answers) compareAll(request *rls.RateLimitRequest, answers []answer, p *panel, documented bool) {
	last := len(answers) - 1
	if !p.products[last].other {
		return
	}
	if documented {
		a.know(knownCase)
		return
	}
	for i, ours := range answers[:last] {
		theirs := answers[last]
		if ours.err != nil || theirs.err != nil {
			if x, y := status.Convert(ours.err).Message(), status.Convert(theirs.err).Message(); x != y {
				a.note("%s: %v: %s, %s there", p.products[i].name, request, x, y)
			}
			continue
		}
		a.compare(p.products[i], request, ours.response, theirs.response)
	}
}

// compare notes in what ours, of a product, differs from theirs.
func (a *Answers) compare(product asked, request *rls.RateLimitRequest, ours, theirs *rls.RateLimitResponse) {
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
	}
	if !known[knownBan] && product.as {
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
		differ("metadata", written(ours.DynamicMetadata), written(theirs.DynamicMetadata))
	}
	for what := range known {
		a.know(what)
	}
	if len(other) > 0 {
		a.note("%s: %v: %s", product.name, request, strings.Join(other, "; "))
	}
}

// written returns m as text, in which each program has its own number of spaces, also where
// a value is such a text.
func written(m *structpb.Struct) string { return strings.Join(strings.Fields(m.String()), " ") }

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
