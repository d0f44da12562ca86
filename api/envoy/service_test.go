package envoy

import (
	"bytes"
	"context"
	"fmt"
	"math"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	common "github.com/envoyproxy/go-control-plane/envoy/extensions/common/ratelimit/v3"
	rls "github.com/envoyproxy/go-control-plane/envoy/service/ratelimit/v3"
	typev3 "github.com/envoyproxy/go-control-plane/envoy/type/v3"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	healthpb "google.golang.org/grpc/health/grpc_health_v1"
	reflectionpb "google.golang.org/grpc/reflection/grpc_reflection_v1"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/structpb"
	"google.golang.org/protobuf/types/known/wrapperspb"

	"weir/api/decide"
	"weir/api/policy"
	"weir/api/telemetry"
	"weir/counters"
	"weir/counters/memory"
	"weir/subwindow"
)

const (
	ok   = rls.RateLimitResponse_OK
	over = rls.RateLimitResponse_OVER_LIMIT
)

func headersOf(r *rls.RateLimitResponse) map[string]string {
	m := map[string]string{}
	for _, h := range r.ResponseHeadersToAdd {
		m[h.Key] = h.Value
	}
	return m
}

// A window begins at a multiple of its unit, and its statuses say how it stands.
func TestFixedWindowOfAUnit(t *testing.T) {
	t.Parallel()
	f := serve(t, Draft11, false, limited("user", "", 2))
	f.time = epoch.Add(18 * time.Second)
	for i, want := range []struct {
		code      rls.RateLimitResponse_Code
		remaining uint32
	}{{ok, 1}, {ok, 0}, {over, 0}, {over, 0}} {
		r := f.ask(t, entries("user", "alice"))
		assert.Equal(t, want.code, r.OverallCode, i)
		at := r.Statuses[0]
		assert.Equal(t, want.code, at.Code)
		assert.Equal(t, want.remaining, at.LimitRemaining)
		assert.EqualValues(t, 42, at.DurationUntilReset.Seconds)
		assert.Equal(t, rls.RateLimitResponse_RateLimit_MINUTE, at.CurrentLimit.Unit)
		assert.EqualValues(t, 2, at.CurrentLimit.RequestsPerUnit)
	}
	assert.Equal(t, map[string]string{"RateLimit-Policy": `"user";q=2;w=60`, "RateLimit": `"user";r=0;t=42`, "Retry-After": "42"},
		headersOf(f.ask(t, entries("user", "alice"))))
	assert.Equal(t, ok, f.ask(t, entries("user", "bob")).OverallCode)
	f.mu.Lock()
	f.time = epoch.Add(time.Minute)
	f.mu.Unlock()
	assert.Equal(t, ok, f.ask(t, entries("user", "alice")).OverallCode)
}

// The three headers are those of the limit that denies, or has least remaining.
func TestLegacyHeaders(t *testing.T) {
	t.Parallel()
	f := serve(t, Legacy, false, limited("wide", "", 10), limited("narrow", "", 2))
	request := []*common.RateLimitDescriptor{entries("wide", "1"), entries("narrow", "1"), entries("none", "")}
	assert.Equal(t, map[string]string{"x-ratelimit-limit": "2", "x-ratelimit-remaining": "1", "x-ratelimit-reset": "60"},
		headersOf(f.ask(t, request...)))
	assert.Empty(t, headersOf(f.ask(t, entries("none", ""))))
}

// Of several limits that deny, the headers are those of the last, but of none that is lenient.
func TestLegacyHeadersOfSeveralThatDeny(t *testing.T) {
	t.Parallel()
	minute, hour, day, lenient := limited("minute", "", 1), limited("hour", "", 1), limited("day", "", 1), limited("lenient", "", 1)
	hour.Rule.Unit, day.Rule.Unit = "hour", "day"
	lenient.Rule.Limit.Leniency = policy.Quota
	f := serve(t, Legacy, true, minute, hour, day, lenient, limited("wide", "", 10))
	f.time = epoch.Add(9 * time.Second)
	reset := func(keys ...string) string {
		var all []*common.RateLimitDescriptor
		for _, key := range keys {
			all = append(all, entries(key, "a"))
		}
		f.ask(t, all...)
		return headersOf(f.ask(t, all...))["x-ratelimit-reset"]
	}
	assert.Equal(t, "86391", reset("minute", "hour", "day"))
	assert.Equal(t, "3591", reset("day", "hour", "wide"))
	assert.Equal(t, "3591", reset("lenient", "hour"))
	assert.Equal(t, "51", reset("hour", "minute", "lenient"))
	assert.Equal(t, "51", reset("lenient", "wide"), "nobody denies: the one with least left")
}

func TestHeadersHaveTheNamesThatAreGiven(t *testing.T) {
	t.Parallel()
	f := serve(t, "RateLimit-Limit,RateLimit-Remaining,RateLimit-Reset", true, limited("user", "", 2))
	assert.Equal(t, map[string]string{"RateLimit-Limit": "2", "RateLimit-Remaining": "1", "RateLimit-Reset": "60"}, headersOf(f.ask(t, entries("user", "a"))))
	for _, wrong := range []Headers{"", "A,B", "A,B,", "A,B,C,D", "A,B,C D"} {
		assert.False(t, wrong.Valid(), wrong)
	}
}

// Filters behind this one are told what was asked, and what the files say of the limits
// that admit: of several that say something, the first.
func TestDynamicMetadata(t *testing.T) {
	t.Parallel()
	metadata := func(of map[string]any) *structpb.Struct {
		s, err := structpb.NewStruct(of)
		require.NoError(t, err)
		return s
	}
	one, two, none := limited("one", "", 1), limited("two", "", 2), limited("none", "", 3)
	one.Rule.Metadata = metadata(map[string]any{"backend": "one", "all": map[string]any{"one": true}})
	two.Rule.Metadata = metadata(map[string]any{"backend": "two", "all": map[string]any{"two": 2.0, "one": false}})
	one.Rule.Limit.Leniency, two.Rule.Limit.Leniency = policy.Quota, policy.Quota
	f := serve(t, Off, true, one, two, none)
	f.Service.metadata = true
	second := entries("two", "b")
	second.HitsAddend = wrapperspb.UInt64(1)
	own := entries("three", "c")
	own.Limit = &common.RateLimitDescriptor_RateLimitOverride{RequestsPerUnit: 9, Unit: typev3.RateLimitUnit_DAY}
	ask := func() map[string]any {
		r, err := f.RateLimitServiceClient.ShouldRateLimit(t.Context(), &rls.RateLimitRequest{
			Domain: "d", HitsAddend: 1, Descriptors: []*common.RateLimitDescriptor{entries("one", "a", "x", ""), entries("one", "a"), second, own},
		})
		require.NoError(t, err)
		return r.DynamicMetadata.AsMap()
	}
	first := ask()
	assert.Equal(t, "d", first["domain"])
	assert.EqualValues(t, 1, first["hitsAddend"])
	asked := first["descriptors"].([]any)
	assert.Equal(t, map[string]any{"entries": []any{"one=a", "x="}}, asked[0])
	assert.Equal(t, map[string]any{"entries": []any{"two=b"}, "hitsAddend": 1.0}, asked[2])
	assert.Regexp(t, `^requests_per_unit:9 +unit:DAY$`, asked[3].(map[string]any)["limit"])
	assert.Equal(t, map[string]any{"backend": "one", "all": map[string]any{"one": true, "two": 2.0}}, first["metadata"])
	assert.Equal(t, map[string]any{"backend": "two", "all": map[string]any{"two": 2.0, "one": false}}, ask()["metadata"], "the first denies")
	assert.NotContains(t, ask(), "metadata")
}

// If one descriptor denies, the others haven't been taken from.
func TestDescriptorsAreDecidedAsOne(t *testing.T) {
	t.Parallel()
	f := serve(t, Off, false, limited("wide", "", 10), limited("narrow", "", 2))
	for range 5 {
		f.ask(t, entries("wide", "1"), entries("narrow", "1"))
	}
	r := f.ask(t, entries("wide", "1"))
	assert.EqualValues(t, 7, r.Statuses[0].LimitRemaining)
	assert.Empty(t, headersOf(r))

	counting := serve(t, Off, true, limited("wide", "", 10), limited("narrow", "", 2))
	for range 5 {
		counting.ask(t, entries("wide", "1"), entries("narrow", "1"))
	}
	assert.EqualValues(t, 4, counting.ask(t, entries("wide", "1")).Statuses[0].LimitRemaining)
}

func TestBannedAndUnlimited(t *testing.T) {
	t.Parallel()
	f := serve(t, Off, false, limited("user", "", 5), limited("user", "bad", 0),
		&Descriptor{Key: "free", Rule: &Rule{Unlimited: true}})
	r := f.ask(t, entries("user", "good"), entries("user", "bad"))
	assert.Equal(t, over, r.OverallCode)
	assert.Equal(t, over, r.Statuses[1].Code)
	assert.EqualValues(t, 60, r.Statuses[1].DurationUntilReset.Seconds)
	r = f.ask(t, entries("user", "good"), entries("free", "x"))
	assert.EqualValues(t, 4, r.Statuses[0].LimitRemaining)
	assert.EqualValues(t, math.MaxUint32, r.Statuses[1].LimitRemaining)
	assert.Nil(t, r.Statuses[1].CurrentLimit)

	look := entries("user", "bad")
	look.HitsAddend = wrapperspb.UInt64(0)
	assert.Equal(t, over, f.ask(t, look).OverallCode, "a request that only checks is banned too")
	look.IsNegativeHits = true
	assert.Equal(t, ok, f.ask(t, look).Statuses[0].Code)
}

// What gives back isn't denied, even if more is in use than the limit.
func TestGivingBackIsNeverDenied(t *testing.T) {
	t.Parallel()
	f := serve(t, Off, true, limited("user", "", 2))
	for range 5 {
		f.ask(t, entries("user", "a"))
	}
	back := entries("user", "a")
	back.IsNegativeHits = true
	r := f.ask(t, back)
	assert.Equal(t, ok, r.OverallCode)
	assert.Equal(t, ok, r.Statuses[0].Code)
}

// A request that is denied gives nothing back, and says what is left.
func TestDeniedRequestsGiveNothingBack(t *testing.T) {
	t.Parallel()
	f := serve(t, Legacy, false, limited("user", "", 9), limited("full", "", 1))
	f.ask(t, entries("user", "a"), entries("full", "a"))
	back := entries("user", "a")
	back.IsNegativeHits = true
	r := f.ask(t, back, entries("full", "a"))
	assert.Equal(t, over, r.OverallCode)
	assert.EqualValues(t, 8, r.Statuses[0].LimitRemaining)
	assert.Equal(t, ok, r.Statuses[0].Code)
}

func TestShadowAndQuota(t *testing.T) {
	t.Parallel()
	shadow, quota1, quota2 := limited("shadow", "", 1), limited("q1", "", 1), limited("q2", "", 2)
	shadow.Rule.Limit.Leniency, quota1.Rule.Limit.Leniency, quota2.Rule.Limit.Leniency = policy.Shadow, policy.Quota, policy.Quota
	f := serve(t, Off, false, shadow, quota1, quota2)
	f.ask(t, entries("shadow", "1"))
	r := f.ask(t, entries("shadow", "1"))
	assert.Equal(t, ok, r.OverallCode)
	assert.Equal(t, ok, r.Statuses[0].Code)
	quotas := []*common.RateLimitDescriptor{entries("q1", "1"), entries("q2", "1")}
	assert.Equal(t, ok, f.ask(t, quotas...).OverallCode)
	r = f.ask(t, quotas...)
	assert.Equal(t, ok, r.OverallCode)
	assert.Equal(t, over, r.Statuses[0].Code)
	assert.Equal(t, over, f.ask(t, quotas...).OverallCode)
}

// A quota in shadow mode is one that never denies, so no other does beside it.
func TestQuotaInShadowMode(t *testing.T) {
	t.Parallel()
	both, quota := limited("both", "", 1), limited("quota", "", 1)
	both.Rule.Limit.Leniency, quota.Rule.Limit.Leniency = policy.ShadowQuota, policy.Quota
	f := serve(t, Off, false, both, quota)
	f.ask(t, entries("both", "1"), entries("quota", "1"))
	r := f.ask(t, entries("both", "1"), entries("quota", "1"))
	assert.Equal(t, ok, r.OverallCode)
	assert.Equal(t, ok, r.Statuses[0].Code)
	assert.Equal(t, over, r.Statuses[1].Code)
	assert.Equal(t, ok, f.ask(t, entries("both", "1")).OverallCode)
	assert.Equal(t, over, f.ask(t, entries("quota", "1")).OverallCode)
}

// A limit that another of the request replaces isn't asked.
func TestReplaces(t *testing.T) {
	t.Parallel()
	general, special := limited("k1", "", 5), limited("k2", "", 10)
	general.Rule.Name, special.Rule.Replaces = "general", []string{"general"}
	f := serve(t, Off, false, general, special)
	r := f.ask(t, entries("k1", "a"), entries("k2", "a"))
	assert.Nil(t, r.Statuses[0].CurrentLimit)
	assert.EqualValues(t, 9, r.Statuses[1].LimitRemaining)
	r = f.ask(t, entries("k1", "a"))
	assert.EqualValues(t, 4, r.Statuses[0].LimitRemaining)
	assert.Equal(t, "general", r.Statuses[0].CurrentLimit.Name)
}

// All values of a pattern with share_threshold are one client.
func TestShareThreshold(t *testing.T) {
	t.Parallel()
	shared, apart := limited("files", "files/*", 10), limited("files", "own/*", 10)
	shared.ShareThreshold = true
	f := serve(t, Off, false, shared, apart)
	f.ask(t, entries("files", "files/a"))
	assert.EqualValues(t, 8, f.ask(t, entries("files", "files/b")).Statuses[0].LimitRemaining)
	f.ask(t, entries("files", "own/a"))
	assert.EqualValues(t, 9, f.ask(t, entries("files", "own/b")).Statuses[0].LimitRemaining)
}

func TestHits(t *testing.T) {
	t.Parallel()
	bucket := limited("bucket", "", 10)
	bucket.Rule.Limit.Algorithm = "token_bucket"
	log := limited("log", "", 10)
	f := serve(t, Off, false, limited("user", "", 10), bucket, log)
	log.Rule.Limit.Algorithm = "sliding_log"
	for _, key := range []string{"user", "bucket"} {
		remaining := func(change func(*rls.RateLimitRequest)) uint32 {
			r := &rls.RateLimitRequest{Domain: "d", Descriptors: []*common.RateLimitDescriptor{entries(key, "a")}}
			change(r)
			answer, err := f.RateLimitServiceClient.ShouldRateLimit(context.Background(), r)
			require.NoError(t, err)
			return answer.Statuses[0].LimitRemaining
		}
		own := func(n uint64) func(*rls.RateLimitRequest) {
			return func(r *rls.RateLimitRequest) { r.Descriptors[0].HitsAddend = wrapperspb.UInt64(n) }
		}
		back := func(n uint64) func(*rls.RateLimitRequest) {
			return func(r *rls.RateLimitRequest) {
				own(n)(r)
				r.Descriptors[0].IsNegativeHits = true
			}
		}
		assert.EqualValues(t, 9, remaining(func(*rls.RateLimitRequest) {}), key)
		assert.EqualValues(t, 6, remaining(func(r *rls.RateLimitRequest) { r.HitsAddend = 3 }), key)
		assert.EqualValues(t, 4, remaining(own(2)), key)
		assert.EqualValues(t, 4, remaining(own(0)), "only checks: "+key)
		assert.EqualValues(t, 4, remaining(own(11)), "above the limit: "+key)
		assert.EqualValues(t, 7, remaining(back(3)), key)
		assert.EqualValues(t, 10, remaining(back(100)), "no more than was in use: "+key)
		assert.EqualValues(t, 10, remaining(back(1)), key)
		assert.EqualValues(t, 7, remaining(own(3)), key)
	}
	r := &rls.RateLimitRequest{Domain: "d", Descriptors: []*common.RateLimitDescriptor{entries("log", "a")}}
	r.Descriptors[0].IsNegativeHits = true
	_, err := f.RateLimitServiceClient.ShouldRateLimit(context.Background(), r)
	assert.Equal(t, codes.InvalidArgument, status.Code(err))
	assert.ErrorContains(t, err, "not possible for a sliding_log")
}

// A cost that is known when the answer has been sent is counted then, exactly. Where it is
// far more than the limit the next request is denied, until a bucket has drained it.
func TestCostsAreChargedAfterwards(t *testing.T) {
	t.Parallel()
	algorithms := []string{"", "sliding_window", "token_bucket", "leaky_bucket", "sliding_log", "counting log"}
	var limits []*Descriptor
	for i, algorithm := range algorithms {
		l := limited(fmt.Sprint("limit", i), "", 1000)
		l.Rule.Limit.Algorithm = algorithm
		limits = append(limits, l)
	}
	f := serve(t, Off, true, limits...)
	for i, algorithm := range algorithms {
		ask := func(hits uint64) *rls.RateLimitResponse {
			d := entries(fmt.Sprint("limit", i), "a")
			d.HitsAddend = wrapperspb.UInt64(hits)
			return f.ask(t, d)
		}
		left := 1000
		for _, tokens := range []int{1, 300, 0, 650} {
			require.Equal(t, ok, ask(0).OverallCode, algorithm)
			left -= tokens
			assert.EqualValues(t, left, ask(uint64(tokens)).Statuses[0].LimitRemaining, algorithm)
		}
		require.Equal(t, ok, ask(0).OverallCode, algorithm)
		ask(100_000)
		for range 50 {
			require.Equal(t, over, ask(0).OverallCode, algorithm)
		}
	}
}

// Where a limit is one of what is under way, hits are places that are taken, and negative
// hits places that are free again: of those who have them longest, as nobody says whose.
func TestHitsTakePlacesAndNegativeHitsFreeThem(t *testing.T) {
	t.Parallel()
	held := limited("held", "", 5)
	held.Rule.Limit.Algorithm = "concurrency"
	f := serve(t, Draft11, false, held, limited("user", "", 7))
	hits := func(at time.Duration, n uint64, negative bool) *rls.RateLimitResponse {
		f.mu.Lock()
		f.time = epoch.Add(at)
		f.mu.Unlock()
		d := entries("held", "a")
		d.HitsAddend, d.IsNegativeHits = wrapperspb.UInt64(n), negative
		return f.ask(t, d)
	}
	take := func(at time.Duration, n uint64) *rls.RateLimitResponse { return hits(at, n, false) }
	free := func(at time.Duration, n uint64) uint32 { return hits(at, n, true).Statuses[0].LimitRemaining }

	assert.EqualValues(t, 3, take(0, 2).Statuses[0].LimitRemaining)
	assert.Equal(t, ok, take(4*time.Second, 3).OverallCode)
	denied := take(5*time.Second, 1)
	assert.Equal(t, over, denied.OverallCode)
	assert.Equal(t, map[string]string{"RateLimit-Policy": `"held";q=5;qu="concurrent-requests"`, "RateLimit": `"held";r=0;t=6`, "Retry-After": "6"}, headersOf(denied),
		"a lease is kept up to a sixteenth longer")
	assert.EqualValues(t, 3, free(6*time.Second, 3), "two that would end at 10 s, and one at 14 s")
	assert.Equal(t, ok, take(7*time.Second, 3).OverallCode)
	assert.Equal(t, over, take(13*time.Second, 1).OverallCode)
	assert.Equal(t, ok, take(15*time.Second, 2).OverallCode, "nobody has freed them")
	assert.EqualValues(t, 5, free(16*time.Second, 100), "no more than there are")
	assert.EqualValues(t, 5, free(16*time.Second, 1))

	// What another descriptor denies takes no place.
	for range 7 {
		f.ask(t, entries("user", "a"))
	}
	both := f.ask(t, entries("held", "a"), entries("user", "a"))
	assert.Equal(t, over, both.OverallCode)
	assert.EqualValues(t, 5, take(16*time.Second, 0).Statuses[0].LimitRemaining)
}

// What was charged above the limit can be given back, as far as it is in use.
func TestChargesAboveTheLimitAreGivenBack(t *testing.T) {
	t.Parallel()
	bucket := limited("bucket", "", 1000)
	bucket.Rule.Limit.Algorithm = "token_bucket"
	sliding := limited("sliding", "", 1000)
	sliding.Rule.Limit.Algorithm, sliding.Rule.Limit.SubWindows = "sliding_window", 1
	f := serve(t, Off, true, limited("fixed", "", 1000), sliding, bucket)
	for _, key := range []string{"fixed", "sliding", "bucket"} {
		d := entries(key, "a")
		d.HitsAddend = wrapperspb.UInt64(100_000)
		require.Equal(t, over, f.ask(t, d).OverallCode)
		d.IsNegativeHits = true
		d.HitsAddend = wrapperspb.UInt64(99_500)
		r := f.ask(t, d)
		assert.EqualValues(t, 500, r.Statuses[0].LimitRemaining, key)
		d.HitsAddend = wrapperspb.UInt64(99_500)
		r = f.ask(t, d)
		assert.EqualValues(t, 1000, r.Statuses[0].LimitRemaining, key)
	}
}

// A request may bring its own limit, even where the files have none.
func TestLimitOverride(t *testing.T) {
	t.Parallel()
	f := serve(t, Off, false, limited("user", "", 10))
	d := entries("other", "a")
	d.Limit = &common.RateLimitDescriptor_RateLimitOverride{RequestsPerUnit: 3, Unit: typev3.RateLimitUnit_HOUR}
	at := f.ask(t, d).Statuses[0]
	assert.EqualValues(t, 2, at.LimitRemaining)
	assert.Equal(t, rls.RateLimitResponse_RateLimit_HOUR, at.CurrentLimit.Unit)
	bare := &common.RateLimitDescriptor{Limit: &common.RateLimitDescriptor_RateLimitOverride{RequestsPerUnit: 2, Unit: typev3.RateLimitUnit_HOUR}}
	f.ask(t, bare)
	assert.EqualValues(t, 0, f.ask(t, bare).Statuses[0].LimitRemaining, "without entries it counts for the domain")
	d.Limit.RequestsPerUnit = 0
	assert.Equal(t, over, f.ask(t, d).OverallCode)
	d.Limit.Unit = typev3.RateLimitUnit_UNKNOWN
	_, err := f.RateLimitServiceClient.ShouldRateLimit(context.Background(),
		&rls.RateLimitRequest{Domain: "d", Descriptors: []*common.RateLimitDescriptor{d}})
	assert.Equal(t, codes.InvalidArgument, status.Code(err))
}

// What is wrong gets a code, and what isn't known is admitted.
func TestWrongRequests(t *testing.T) {
	t.Parallel()
	f := serve(t, Off, false, limited("user", "", 10))
	many := func(n int) []*common.RateLimitDescriptor {
		list := make([]*common.RateLimitDescriptor, n)
		for i := range list {
			list[i] = entries("user", "a")
		}
		return list
	}
	large := entries("user", "a")
	large.HitsAddend = wrapperspb.UInt64(math.MaxUint64)
	for name, test := range map[string]struct {
		request *rls.RateLimitRequest
		code    codes.Code
	}{
		"no domain":       {&rls.RateLimitRequest{Descriptors: many(1)}, codes.InvalidArgument},
		"no descriptors":  {&rls.RateLimitRequest{Domain: "d"}, codes.InvalidArgument},
		"unknown domain":  {&rls.RateLimitRequest{Domain: "other", Descriptors: many(1)}, codes.OK},
		"no entries":      {&rls.RateLimitRequest{Domain: "d", Descriptors: []*common.RateLimitDescriptor{{}}}, codes.OK},
		"too many":        {&rls.RateLimitRequest{Domain: "d", Descriptors: many(10_001)}, codes.InvalidArgument},
		"too many hits":   {&rls.RateLimitRequest{Domain: "d", Descriptors: []*common.RateLimitDescriptor{large}}, codes.InvalidArgument},
		"huge descriptor": {&rls.RateLimitRequest{Domain: "d", Descriptors: []*common.RateLimitDescriptor{entries("user", strings.Repeat("x", 1<<20))}}, codes.OK},
		"huge message":    {&rls.RateLimitRequest{Domain: "d", Descriptors: []*common.RateLimitDescriptor{entries("user", strings.Repeat("x", 5<<20))}}, codes.ResourceExhausted},
	} {
		_, err := f.RateLimitServiceClient.ShouldRateLimit(context.Background(), test.request)
		assert.Equal(t, test.code, status.Code(err), name)
	}
	cancelled, cancel := context.WithCancel(context.Background())
	cancel()
	_, err := f.Service.ShouldRateLimit(cancelled, &rls.RateLimitRequest{Domain: "d", Descriptors: many(1)})
	assert.Equal(t, codes.Canceled, status.Code(err))
	assert.EqualValues(t, 9, f.ask(t, entries("user", "a")).Statuses[0].LimitRemaining, "the wrong ones have taken nothing")
}

func TestJSON(t *testing.T) {
	t.Parallel()
	f := serve(t, Off, false, limited("user", "", 1))
	post := func(body string) *httptest.ResponseRecorder {
		w := httptest.NewRecorder()
		f.ServeHTTP(w, httptest.NewRequest(http.MethodPost, "/json", bytes.NewBufferString(body)))
		return w
	}
	const request = `{"domain":"d","descriptors":[{"entries":[{"key":"user","value":"a"}]}]}`
	w := post(request)
	assert.Equal(t, 200, w.Code)
	assert.JSONEq(t, `{"overallCode":"OK","statuses":[{"code":"OK","currentLimit":{"requestsPerUnit":1,"unit":"MINUTE"},"durationUntilReset":"60s"}]}`,
		w.Body.String())
	assert.Equal(t, 429, post(request).Code)
	for _, wrong := range []string{"", "{", `{"domain":"d"}`, `{"domian":"d"}`, "[]"} {
		assert.Equal(t, 400, post(wrong).Code, wrong)
	}
}

func TestHealthAndReflection(t *testing.T) {
	t.Parallel()
	f := serve(t, Off, false, limited("user", "", 1))
	for _, name := range []string{"", "ratelimit"} {
		r, err := healthpb.NewHealthClient(f.conn).Check(context.Background(), &healthpb.HealthCheckRequest{Service: name})
		require.NoError(t, err)
		assert.Equal(t, healthpb.HealthCheckResponse_SERVING, r.Status)
	}
	stream, err := reflectionpb.NewServerReflectionClient(f.conn).ServerReflectionInfo(context.Background())
	require.NoError(t, err)
	require.NoError(t, stream.Send(&reflectionpb.ServerReflectionRequest{
		MessageRequest: &reflectionpb.ServerReflectionRequest_ListServices{},
	}))
	r, err := stream.Recv()
	require.NoError(t, err)
	assert.Contains(t, r.String(), "envoy.service.ratelimit.v3.RateLimitService")
	require.NoError(t, stream.Send(&reflectionpb.ServerReflectionRequest{
		MessageRequest: &reflectionpb.ServerReflectionRequest_FileContainingSymbol{FileContainingSymbol: "kuadrant.service.ratelimit.v1.RateLimitService"},
	}))
	r, err = stream.Recv()
	require.NoError(t, err)
	assert.NotEmpty(t, r.GetFileDescriptorResponse().GetFileDescriptorProto(), r)
	require.NoError(t, stream.CloseSend())
	_, _ = stream.Recv()
}

// A caller that watches the health doesn't keep the server from stopping.
func TestStopEndsStreams(t *testing.T) {
	t.Parallel()
	f := serve(t, Off, false)
	watch, err := healthpb.NewHealthClient(f.conn).Watch(t.Context(), &healthpb.HealthCheckRequest{Service: "ratelimit"})
	require.NoError(t, err)
	r, err := watch.Recv()
	require.NoError(t, err)
	assert.Equal(t, healthpb.HealthCheckResponse_SERVING, r.Status)
	reflection, err := reflectionpb.NewServerReflectionClient(f.conn).ServerReflectionInfo(t.Context())
	require.NoError(t, err)
	f.server.Drain()
	r, err = watch.Recv()
	require.NoError(t, err)
	assert.Equal(t, healthpb.HealthCheckResponse_NOT_SERVING, r.Status)
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
	defer cancel()
	require.NoError(t, f.server.Stop(ctx))
	for name, stream := range map[string]grpc.ClientStream{"watch": watch, "reflection": reflection} {
		assert.Equal(t, codes.Unavailable, status.Code(stream.RecvMsg(new(healthpb.HealthCheckResponse))), name)
	}
}

// Limits with a name of their own are counted, up to a bound.
func TestMetricsAreBounded(t *testing.T) {
	t.Parallel()
	d := limited("user", "", 0)
	d.DetailedMetric = true
	f := serve(t, Off, false, d, limited("quiet", "", 0))
	f.ask(t, entries("quiet", "a"))
	for range 2 {
		f.ask(t, entries("user", strings.Repeat("x", 1<<20)))
	}
	names, err := testutil.GatherAndCount(f.registry, "weir_limit_denials_total")
	require.NoError(t, err)
	assert.Equal(t, 1, names)
	require.NoError(t, testutil.GatherAndCompare(f.registry, strings.NewReader(`
# HELP weir_limit_denials_total Checks that a limit denied, in shadow mode too. One that several limits deny counts for each of them.
# TYPE weir_limit_denials_total counter
weir_limit_denials_total{limit="other",policy="envoy"} 2
`), "weir_limit_denials_total"))
	for i := range maxNamed + 5 {
		f.ask(t, entries("user", strings.Repeat("x", i%10)+string(rune('A'+i%26))+strings.Repeat("y", i/26)))
	}
	n, err := testutil.GatherAndCount(f.registry, "weir_limit_denials_total")
	require.NoError(t, err)
	assert.Equal(t, maxNamed+1, n)
}

// A request whose clients are known, without gRPC.
func BenchmarkShouldRateLimit(b *testing.B) {
	for name, descriptors := range map[string][]*common.RateLimitDescriptor{
		"one":  {entries("user", "a")},
		"four": {entries("user", "a"), entries("user", "b"), entries("wide", "a"), entries("none", "a")},
	} {
		b.Run(name, func(b *testing.B) {
			f := serve(b, Draft11, false, limited("user", "", math.MaxUint32), limited("wide", "", math.MaxUint32))
			r := &rls.RateLimitRequest{Domain: "d", Descriptors: descriptors}
			b.ReportAllocs()
			for b.Loop() {
				if _, err := f.Service.ShouldRateLimit(b.Context(), r); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}

// As many descriptors as a request may have are decided, be they of one client or of many.
func TestAsManyDescriptorsAsThereMayBe(t *testing.T) {
	t.Parallel()
	f := serve(t, Off, true, limited("user", "", 20_000))
	var same, apart []*common.RateLimitDescriptor
	for i := range maxDescriptors {
		same, apart = append(same, entries("user", "a")), append(apart, entries("user", fmt.Sprint(i)))
	}
	for name, all := range map[string][]*common.RateLimitDescriptor{"same": same, "apart": apart} {
		began := time.Now()
		r := f.ask(t, all...)
		t.Logf("%s: %v", name, time.Since(began))
		assert.Equal(t, ok, r.OverallCode)
		least := uint32(math.MaxUint32)
		for _, s := range r.Statuses {
			least = min(least, s.LimitRemaining)
		}
		assert.EqualValues(t, map[string]int{"same": 10_000, "apart": 19_999}[name], least)
	}
}

// A silent limiter waits for its store for as long as it may.
type silent struct{ counters.Limiter }

func (silent) wait(ctx context.Context) (counters.Decision, error) {
	at, _ := ctx.Deadline()
	time.Sleep(time.Until(at))
	return counters.Decision{}, counters.ErrTimeout
}

func (s silent) Take(ctx context.Context, _ counters.Request) (counters.Decision, error) {
	return s.wait(ctx)
}

func (s silent) Peek(ctx context.Context, _ counters.Request) (counters.Decision, error) {
	return s.wait(ctx)
}

// A request that takes and gives back waits for a silent store no longer than one that takes.
func TestTakingAndGivingBackShareTheStoreTimeout(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		window, err := subwindow.NewFixedWindow(time.Minute)
		require.NoError(t, err)
		limiter, err := subwindow.New(memory.New(nil), window, counters.Options{Policy: PolicyName, Limit: "minute", ClockSkew: -1, StoreTimeout: -1})
		require.NoError(t, err)
		root := new(Descriptor)
		for _, key := range []string{"takes", "gives"} {
			d := limited(key, "", 10)
			d.Rule.Limit.Algorithm, d.Rule.Limit.Window = "fixed_window", time.Minute
			d.Rule.Bind(silent{limiter})
			require.NoError(t, root.Add(d))
		}
		shared := &policy.Policy{Name: PolicyName, OnStoreError: policy.StoreErrorLocal}
		checks := telemetry.NewMetrics(prometheus.NewRegistry(), "test").LimitChecks(shared, nil, telemetry.Listeners{})
		s := NewService(Off, false, nil)
		s.SetConfig(&Config{Domains: map[string]*Descriptor{"d": root}},
			decide.NewDecider(decide.Config{StoreTimeout: time.Second, Now: time.Now}, shared, checks), func(string) {})
		gives := entries("gives", "a")
		gives.IsNegativeHits = true
		began := time.Now()
		r, err := s.ShouldRateLimit(t.Context(), &rls.RateLimitRequest{Domain: "d", Descriptors: []*common.RateLimitDescriptor{entries("takes", "a"), gives}})
		require.NoError(t, err)
		assert.Equal(t, rls.RateLimitResponse_OK, r.GetOverallCode())
		assert.Equal(t, time.Second, time.Since(began))
	})
}
