// Package envoy is the rate limit service of Envoy, version 3, as
// envoyproxy/ratelimit answers it: over gRPC, and as JSON over HTTP.
//
// A Config has what the configuration files of envoyproxy/ratelimit say, and
// finds the limit of a request's descriptor by their rules; see match.go. The
// client of a limit is the domain and the entries of the descriptor. All
// descriptors of a request are decided together by package decide: if one denies,
// none has consumed anything, but for limits in which denied requests count.
//
// Start reading at Service.ShouldRateLimit. Package policyfile reads the files
// (ParseEnvoy) and makes one policy of all their limits (EnvoyPolicy), by which
// decide.Decider.TakeLimits decides.
package envoy

import (
	"context"
	"math"
	"net/http"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"

	core "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	common "github.com/envoyproxy/go-control-plane/envoy/extensions/common/ratelimit/v3"
	rls "github.com/envoyproxy/go-control-plane/envoy/service/ratelimit/v3"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/structpb"

	"weir/api/decide"
	"weir/api/policy"
	"weir/api/receipt"
	"weir/counters"
)

// maxDescriptors is how many descriptors a request may have.
const maxDescriptors = 10_000

// maxNamed is how many limits have a name of their own in the metrics, and
// maxNameBytes how long it may be; the others share one.
const (
	maxNamed     = 1000
	maxNameBytes = 1024
	otherNames   = "other"
)

// Headers are those that a response has Envoy add to what it answers.
type Headers string

// The values of Headers that are words. Draft11 are the headers of
// draft-ietf-httpapi-ratelimit-headers-11 and Retry-After. Legacy are x-ratelimit-limit,
// -remaining and -reset, of the last limit that denies or, if none does, of the first with the least
// remaining. Off is none. Any other value is three names, with commas between them, that are sent in
// the place of those of Legacy.
const (
	Draft11 Headers = "draft11"
	Legacy  Headers = "legacy"
	Off     Headers = "off"
)

// names returns how limit, remaining and reset are called, or nil if they aren't sent.
func (h Headers) names() []string {
	switch h {
	case Draft11, Off:
		return nil
	case Legacy:
		return []string{"x-ratelimit-limit", "x-ratelimit-remaining", "x-ratelimit-reset"}
	}
	return strings.Split(string(h), ",")
}

// Valid reports whether h are headers.
func (h Headers) Valid() bool {
	names := h.names()
	return names == nil || len(names) == 3 && !slices.ContainsFunc(names, func(name string) bool { return !headerName.MatchString(name) })
}

// headerName matches what HTTP allows in the name of a header.
var headerName = regexp.MustCompile("^[0-9A-Za-z!#$%&'*+.^_`|~-]+$")

// draft11 are the headers of Draft11, and how an http.Header writes them.
var draft11 = []struct{ name, canonical string }{
	{"RateLimit-Policy", "Ratelimit-Policy"}, {"RateLimit", "Ratelimit"}, {"Retry-After", "Retry-After"},
}

// A Service answers ShouldRateLimit. Make it with NewService. It is safe for
// concurrent use.
type Service struct {
	rls.UnimplementedRateLimitServiceServer
	headers  Headers
	legacy   []string // names of the three headers of Legacy; nil with Draft11 and Off
	metadata bool
	key      func() *receipt.Key
	active   atomic.Pointer[active]
	hits     func(limit string) func(Hits) // nil if nobody counts them

	mu    sync.Mutex
	named map[string]struct{} // limits that have a name in the metrics
}

// active is what is in force.
type active struct {
	*Config
	decider *decide.Decider
	denied  func(limit string)
}

// NewService returns a service that answers once SetConfig has given it limits: with
// headers and, if metadata is set, with dynamic metadata for Envoy. Reservations are
// receipts of the key, which may change.
func NewService(headers Headers, metadata bool, key func() *receipt.Key) *Service {
	return &Service{headers: headers, legacy: headers.names(), metadata: metadata, key: key, named: make(map[string]struct{})}
}

// SetConfig makes the service answer by c. The limits are decided by d, and denied is
// told the names of those that deny and have a name in the metrics. A request under
// way is answered by what was in force before.
func (s *Service) SetConfig(c *Config, d *decide.Decider, denied func(limit string)) {
	for domain, root := range c.Domains {
		root.eachNamed(domain, func(r *Rule, name string) { r.metric = name })
	}
	s.active.Store(&active{c, d, denied})
}

// CountHits has the hits of the limits of each name counted by what counter returns for it.
// There are at most 1001 names. It must be called before the service answers.
func (s *Service) CountHits(counter func(limit string) func(Hits)) { s.hits = counter }

// ShouldRateLimit implements the rate limit service. The error has the code
// InvalidArgument if the request is wrong; nothing has been consumed then.
func (s *Service) ShouldRateLimit(ctx context.Context, r *rls.RateLimitRequest) (*rls.RateLimitResponse, error) {
	if err := ctx.Err(); err != nil {
		return nil, status.FromContextError(err).Err()
	}
	if err := validate(r); err != nil {
		return nil, err
	}
	inForce := s.active.Load()
	q := questions.Get().(*question)
	defer questions.Put(q)
	if err := inForce.question(q, r); err != nil {
		return nil, err
	}
	var header http.Header
	if s.headers == Draft11 {
		header = q.header
	}
	now := inForce.decider.Now()
	allowed := len(q.checks) == 0 || inForce.decider.TakeLimits(q.checks, header)
	if len(q.returns) > 0 {
		for i := range q.returns {
			if !allowed { // then it only looks
				q.returns[i].Cost = 0
			}
		}
		inForce.decider.GiveBack(q.returns, now)
	}
	s.countDenials(q, inForce.denied)
	s.addHits(q)
	response := s.respond(q, allowed, header)
	if s.metadata {
		response.DynamicMetadata = metadataOf(r, q.metadata(response))
	}
	return response, nil
}

// metadata returns what the files say of the limits that admit, according to the response. Where
// several say the same key, the first counts.
func (q *question) metadata(response *rls.RateLimitResponse) *structpb.Struct {
	of := new(structpb.Struct)
	for i := range q.parts {
		rule := q.parts[i].rule
		if rule != nil && rule.Metadata != nil && !rule.Unlimited && response.Statuses[i].Code == rls.RateLimitResponse_OK {
			merge(of, proto.CloneOf(rule.Metadata))
		}
	}
	return of
}

func validate(r *rls.RateLimitRequest) error {
	switch n := len(r.GetDescriptors()); {
	case r.GetDomain() == "":
		return invalid("rate limit domain must not be empty")
	case n == 0:
		return invalid("rate limit descriptor list must not be empty")
	case n > maxDescriptors:
		return invalid("the request has %d descriptors; at most %d are possible", n, maxDescriptors)
	}
	return nil
}

func invalid(format string, args ...any) error {
	return status.Errorf(codes.InvalidArgument, format, args...)
}

// match returns what counts for a descriptor: the limit that it brings, or that
// of the files.
func (c *Config) match(domain string, d *common.RateLimitDescriptor) (match, error) {
	own := d.GetLimit()
	if own == nil || c.Domains[domain] == nil {
		return c.find(domain, d.GetEntries()), nil
	}
	unit := Unit(strings.ToLower(own.GetUnit().String()))
	limit := c.Default[unit]
	switch {
	case limit == nil:
		return match{}, invalid("the limit of a descriptor has the unit %v; it must be one from SECOND to YEAR", own.GetUnit())
	case own.GetUnitMultiplier() != nil && own.GetUnitMultiplier().GetValue() != 1:
		return match{}, invalid("the limit of a descriptor has the unit_multiplier %d; only 1 is possible", own.GetUnitMultiplier().GetValue())
	case int64(own.GetRequestsPerUnit()) > limit.LargestLimit():
		return match{}, invalid("the limit of a descriptor is %d; at most %d are possible", own.GetRequestsPerUnit(), limit.LargestLimit())
	}
	rule := &Rule{Unit: unit, Limit: *limit}
	rule.Limit.Name, rule.Limit.Limit = string(unit), int64(own.GetRequestsPerUnit())
	rule.Bind(limit.Limiter)
	return match{rule: rule, client: clientOf(domain, d.GetEntries())}, nil
}

// givesBack are the algorithms whose limits can give back at any time.
var givesBack = []string{"fixed_window", "sliding_window", "token_bucket", "leaky_bucket", "concurrency"}

// A question is a request on its way through the service.
type question struct {
	parts   []part // the descriptors, in their order
	checks  []decide.LimitCheck
	returns []decide.LimitCheck // what is given back
	header  http.Header         // that Draft11 has; empty
}

// questions are used again, which saves most of what a request allocates.
var questions = sync.Pool{New: func() any { return &question{header: make(http.Header, len(draft11))} }}

// A part is a descriptor of a request.
type part struct {
	match
	// check is in checks or returns; nil if no limit is asked.
	check *decide.LimitCheck
	gives bool // check is in returns
}

// question finds the limits of a request, and makes q, which may have been another, the
// question.
func (c *Config) question(q *question, r *rls.RateLimitRequest) (err error) {
	n := len(r.GetDescriptors())
	q.parts, q.checks, q.returns = slices.Grow(q.parts[:0], n)[:n], slices.Grow(q.checks[:0], n), q.returns[:0]
	clear(q.parts)
	clear(q.header)
	for i, d := range r.GetDescriptors() {
		if q.parts[i].match, err = c.match(r.GetDomain(), d); err != nil {
			return err
		}
	}
	q.replace()
	for i, d := range r.GetDescriptors() {
		p := &q.parts[i]
		if p.rule == nil || p.rule.Unlimited {
			continue
		}
		cost := uint64(max(1, r.GetHitsAddend()))
		if own := d.GetHitsAddend(); own != nil {
			cost = own.GetValue()
		}
		if cost > counters.MaxCost {
			return invalid("hits_addend is %d; at most %d are possible", cost, counters.MaxCost)
		}
		check := decide.LimitCheck{
			Limit: &p.rule.Limit, Client: p.client, Cost: int64(cost), Value: p.rule.Limit.Limit,
		}
		if !d.GetIsNegativeHits() {
			q.checks = append(q.checks, check)
			p.check = &q.checks[len(q.checks)-1]
			continue
		}
		if !slices.Contains(givesBack, check.Limit.Algorithm) {
			return invalid("is_negative_hits is not possible for a %s; only for %s", check.Limit.Algorithm, strings.Join(givesBack, ", "))
		}
		q.returns = slices.Grow(q.returns, n-i)
		q.returns = append(q.returns, check)
		p.check, p.gives = &q.returns[len(q.returns)-1], true
	}
	return nil
}

// replace drops the limits that others of the request replace.
func (q *question) replace() {
	var replaced []string
	for i := range q.parts {
		if r := q.parts[i].rule; r != nil {
			replaced = append(replaced, r.Replaces...)
		}
	}
	for i := range q.parts {
		if r := q.parts[i].rule; r != nil && r.Name != "" && !r.Unlimited && slices.Contains(replaced, r.Name) {
			q.parts[i].rule = nil
		}
	}
}

// countDenials counts the limits that denied and have a name in the metrics.
func (s *Service) countDenials(q *question, denied func(limit string)) {
	for i := range q.parts {
		if p := &q.parts[i]; p.metric != "" && p.check != nil && !p.check.Allowed {
			denied(s.bounded(p.metric))
		}
	}
}

// addHits counts the hits of all limits that the files name. Those that a request brings
// would be as many as there are clients.
func (s *Service) addHits(q *question) {
	if s.hits == nil {
		return
	}
	for i := range q.parts {
		p := &q.parts[i]
		if p.check == nil || p.gives || p.rule.metric == "" {
			continue
		}
		s.counterOf(&p.match)(hitsOf(p.check))
	}
}

// counterOf returns the function that counts hits of m. That of a rule whose name has nothing of the
// request is looked up once.
func (s *Service) counterOf(m *match) func(Hits) {
	if m.metric != "" && m.metric != m.rule.metric {
		return s.hits(s.bounded(m.metric))
	}
	if known := m.rule.hits.Load(); known != nil {
		return *known
	}
	counter := s.hits(s.bounded(m.rule.metric))
	m.rule.hits.Store(&counter)
	return counter
}

// bounded returns name, or otherNames if it is too long or there are too many
// others.
func (s *Service) bounded(name string) string {
	if len(name) > maxNameBytes {
		return otherNames
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if _, ok := s.named[name]; !ok {
		if len(s.named) >= maxNamed {
			return otherNames
		}
		s.named[name] = struct{}{}
	}
	return name
}

// A response is the messages of one, with one allocation where a request has one descriptor,
// as most have.
type response struct {
	rls.RateLimitResponse
	headers [3]*core.HeaderValue
	values  [3]core.HeaderValue
	first   [1]*rls.RateLimitResponse_DescriptorStatus
	status  [1]descriptorStatus
}

// A descriptorStatus is the messages about a descriptor.
type descriptorStatus struct {
	rls.RateLimitResponse_DescriptorStatus
	limit rls.RateLimitResponse_RateLimit
	reset durationpb.Duration
}

func (s *Service) respond(q *question, allowed bool, header http.Header) *rls.RateLimitResponse {
	r := new(response)
	r.OverallCode = rls.RateLimitResponse_OK
	if !allowed {
		r.OverallCode = rls.RateLimitResponse_OVER_LIMIT
	}
	all := r.status[:]
	if r.Statuses = r.first[:]; len(q.parts) > 1 {
		all, r.Statuses = make([]descriptorStatus, len(q.parts)), make([]*rls.RateLimitResponse_DescriptorStatus, len(q.parts))
	}
	// As with envoyproxy/ratelimit: the last that denies all, else the first with least left.
	var nearest *rls.RateLimitResponse_DescriptorStatus
	var least uint32
	for i := range q.parts {
		p, at := &q.parts[i], &all[i]
		at.Code = rls.RateLimitResponse_OK
		r.Statuses[i] = &at.RateLimitResponse_DescriptorStatus
		if p.check == nil {
			if p.rule != nil { // unlimited
				at.LimitRemaining = math.MaxUint32
			}
			continue
		}
		at.limit.Name, at.limit.RequestsPerUnit, at.limit.Unit = p.rule.Name, uint32(min(p.check.Value, math.MaxUint32)), units[p.rule.Unit].code
		at.reset.Seconds = decide.WholeSeconds(p.check.ResetAfter)
		at.CurrentLimit, at.DurationUntilReset = &at.limit, &at.reset
		at.LimitRemaining = uint32(min(p.check.Remaining, math.MaxUint32))
		if !p.check.Allowed && !p.check.Leniency.IsShadow() {
			at.Code = rls.RateLimitResponse_OVER_LIMIT
		}
		left := at.LimitRemaining
		if !p.check.Allowed { // though a smaller cost may fit
			left = 0
		}
		if nearest == nil || left < least || !p.check.Allowed && p.check.Leniency == policy.Strict {
			nearest, least = r.Statuses[i], left
		}
	}
	sent := r.headers[:0]
	add := func(name, value string) {
		h := &r.values[len(sent)]
		h.Key, h.Value = name, value
		sent = append(sent, h)
	}
	switch {
	case s.headers == Draft11:
		for _, h := range draft11 {
			if value := header[h.canonical]; len(value) > 0 {
				add(h.name, value[0])
			}
		}
	case s.legacy != nil && nearest != nil:
		for i, value := range []uint64{
			uint64(nearest.CurrentLimit.RequestsPerUnit), uint64(nearest.LimitRemaining), uint64(nearest.DurationUntilReset.Seconds),
		} {
			add(s.legacy[i], strconv.FormatUint(value, 10))
		}
	}
	r.ResponseHeadersToAdd = sent
	return &r.RateLimitResponse
}
