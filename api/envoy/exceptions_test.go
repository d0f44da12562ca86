package envoy

import (
	"context"
	"math"
	"strings"
	"testing"
	"time"

	rls "github.com/envoyproxy/go-control-plane/envoy/service/ratelimit/v3"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"google.golang.org/protobuf/types/known/wrapperspb"

	common "github.com/envoyproxy/go-control-plane/envoy/extensions/common/ratelimit/v3"

	"weir/api/decide"
	"weir/api/policy"
	"weir/api/telemetry"
	"weir/counters"
	"weir/counters/topk"
)

// override has an exception hold for a client.
func (f *fixture) override(t *testing.T, client string, c policy.Terms) {
	t.Helper()
	key, err := policy.ParseClientKey(client)
	require.NoError(t, err)
	c.Until = epoch.Add(time.Hour)
	f.active.Load().decider.Override(map[policy.ClientKey]policy.Terms{key: c})
}

func (f *fixture) endOverrides() { f.active.Load().decider.Override(nil) }

var allAlgorithms = []string{"", "sliding_window", "token_bucket", "leaky_bucket", "sliding_log", "counting log"}

// An exempt client isn't counted, so the commit of its reservation gives back nothing that
// was used before, and counts nothing.
func TestCommitOfAnExemptReservationChangesNothing(t *testing.T) {
	t.Parallel()
	for _, algorithm := range allAlgorithms {
		for _, actual := range []int{0, 90} {
			t.Run(algorithm, func(t *testing.T) {
				t.Parallel()
				tokens := limited("tokens", "", 100)
				tokens.Rule.Limit.Algorithm = algorithm
				f := serve(t, Off, false, tokens)
				a := entries("tokens", "a")
				f.ask(t, hits(a, 50))
				require.EqualValues(t, 50, f.remains(t, a))
				f.override(t, "d|tokens=a", policy.Terms{Exempt: true})
				code, id := f.reserve(t, 60, time.Minute, a)
				require.EqualValues(t, reservedOK, code)
				f.commit(t, id, actual, a)
				f.endOverrides()
				assert.EqualValues(t, 50, f.remains(t, a), "exempt isn't counted: actual %d", actual)
			})
		}
	}
}

// The same of a commit without a reservation.
func TestCommitWithoutAReservationOfAnExemptClientCountsNothing(t *testing.T) {
	t.Parallel()
	f := serve(t, Off, false, limited("tokens", "", 100))
	a := entries("tokens", "a")
	f.override(t, "d|tokens=a", policy.Terms{Exempt: true})
	f.commit(t, "", 70, a)
	f.endOverrides()
	assert.EqualValues(t, 100, f.remains(t, a))
}

// As a charge does, one of a client that is blocked counts.
func TestCommitWithoutAReservationOfABlockedClientCounts(t *testing.T) {
	t.Parallel()
	for _, algorithm := range allAlgorithms {
		tokens := limited("tokens", "", 100)
		tokens.Rule.Limit.Algorithm = algorithm
		f := serve(t, Off, false, tokens)
		a := entries("tokens", "a")
		f.override(t, "d|tokens=a", policy.Terms{Blocked: true})
		f.commit(t, "", 70, a)
		f.endOverrides()
		assert.EqualValues(t, 30, f.remains(t, a), algorithm)
	}
}

func hits(d *common.RateLimitDescriptor, n uint64) *common.RateLimitDescriptor {
	return &common.RateLimitDescriptor{Entries: d.Entries, HitsAddend: wrapperspb.UInt64(n)}
}

func negative(d *common.RateLimitDescriptor, n uint64) *common.RateLimitDescriptor {
	return &common.RateLimitDescriptor{Entries: d.Entries, HitsAddend: wrapperspb.UInt64(n), IsNegativeHits: true}
}

// What an exempt client gives back was never counted.
func TestAnExemptClientGivesNothingBack(t *testing.T) {
	t.Parallel()
	f := serve(t, Off, false, limited("tokens", "", 100))
	a := entries("tokens", "a")
	f.ask(t, hits(a, 50))
	f.override(t, "d|tokens=a", policy.Terms{Exempt: true})
	f.ask(t, hits(a, 30)) // not counted
	f.ask(t, negative(a, 30))
	f.endOverrides()
	assert.EqualValues(t, 50, f.remains(t, a))
}

// What is given back is answered by the limit of the override.
func TestGivingBackKnowsTheOverride(t *testing.T) {
	t.Parallel()
	for _, algorithm := range []string{"", "sliding_window", "token_bucket", "leaky_bucket"} {
		t.Run(algorithm, func(t *testing.T) {
			tokens := limited("tokens", "", 10)
			tokens.Rule.Limit.Algorithm = algorithm
			f := serve(t, Off, false, tokens)
			a := entries("tokens", "a")
			name := f.active.Load().Config.Domains["d"].children["tokens"].Rule.Limit.Name
			f.override(t, "d|tokens=a", policy.Terms{Limits: map[string]int64{name: 100}})
			r := f.ask(t, hits(a, 50))
			require.Equal(t, rls.RateLimitResponse_OK, r.OverallCode)
			require.EqualValues(t, 50, r.Statuses[0].LimitRemaining)
			r = f.ask(t, negative(a, 10))
			assert.EqualValues(t, 60, f.remains(t, a))
			assert.EqualValues(t, 100, r.Statuses[0].CurrentLimit.RequestsPerUnit)
			assert.EqualValues(t, 60, r.Statuses[0].LimitRemaining)
		})
	}
}

// Envoy's message has room for 32 bits, and an override may be larger.
func TestAnOverrideAboveWhatTheMessageCanSay(t *testing.T) {
	t.Parallel()
	for _, limit := range []int64{math.MaxUint32, math.MaxUint32 + 1, counters.MaxLimit} {
		f := serve(t, Legacy, false, limited("user", "", 10))
		f.override(t, "d|user=a", policy.Terms{Limits: map[string]int64{"user": limit}})
		r := f.ask(t, entries("user", "a"))
		assert.EqualValues(t, math.MaxUint32, r.Statuses[0].CurrentLimit.RequestsPerUnit, limit)
		assert.Equal(t, "4294967295", headersOf(r)["x-ratelimit-limit"], limit)
	}
}

// A charge without a reservation goes by the override's limit, as a check does.
func TestCommitWithoutAReservationKnowsTheOverride(t *testing.T) {
	t.Parallel()
	for _, algorithm := range allAlgorithms {
		t.Run(algorithm, func(t *testing.T) {
			tokens := limited("tokens", "", 10)
			tokens.Rule.Limit.Algorithm = algorithm
			f := serve(t, Off, false, tokens)
			a := entries("tokens", "a")
			name := f.active.Load().Config.Domains["d"].children["tokens"].Rule.Limit.Name
			f.override(t, "d|tokens=a", policy.Terms{Limits: map[string]int64{name: 100}})
			require.EqualValues(t, 100, f.remains(t, a))
			f.commit(t, "", 50, a)
			assert.EqualValues(t, 50, f.remains(t, a))
			_, id := f.reserve(t, 20, time.Minute, a)
			f.commit(t, id, 5, a)
			assert.EqualValues(t, 45, f.remains(t, a))
		})
	}
}

// What a settlement gives back is taken off, and what is charged later is added, for each
// client of the request.
func TestTopByCostOfEveryDescriptor(t *testing.T) {
	t.Parallel()
	f := serve(t, Off, false, limited("tokens", "", 1000), limited("user", "", 1000))
	a := f.active.Load()
	checks := telemetry.NewMetrics(prometheus.NewRegistry(), "x").LimitChecks(a.decider.Policy, nil, telemetry.Listeners{})
	f.SetConfig(a.Config, decide.NewDecider(a.decider.Config, a.decider.Policy, checks), a.denied)
	of := []*common.RateLimitDescriptor{entries("tokens", "a"), entries("user", "u")}
	_, id := f.reserve(t, 600, time.Minute, of...)
	require.True(t, f.commit(t, id, 100, of...))
	assert.ElementsMatch(t, []topk.Count{{Client: "d|tokens=a", Count: 100}, {Client: "d|user=u", Count: 100}}, checks.Top("cost").Top(9, f.now()))
	f.commit(t, "", 30, of...)
	assert.ElementsMatch(t, []topk.Count{{Client: "d|tokens=a", Count: 130}, {Client: "d|user=u", Count: 130}}, checks.Top("cost").Top(9, f.now()))
}

// A broken limiter is one whose store doesn't answer, and which remembers nothing.
type brokenLimiter struct{ counters.Limiter }

func (brokenLimiter) Take(context.Context, counters.Request) (counters.Decision, error) {
	return counters.Decision{}, counters.ErrTimeout
}
func (brokenLimiter) PeekLocal(counters.Request) (counters.Decision, bool) {
	return counters.Decision{}, false
}
func (brokenLimiter) Recall(counters.Request) (counters.Decision, bool) {
	return counters.Decision{}, false
}

// A request that on_store_error: deny has refused counts for no list of busiest clients.
func TestTopLeavesOutWhatTheStoreCouldNotDecide(t *testing.T) {
	t.Parallel()
	tokens := limited("tokens", "", 1000)
	f := serve(t, Off, false, tokens)
	tokens.Rule.Limit.Limiter = brokenLimiter{tokens.Rule.Limit.Limiter}
	tokens.Rule.Limit.OnStoreError = policy.StoreErrorDeny
	a := f.active.Load()
	checks := telemetry.NewMetrics(prometheus.NewRegistry(), "x").LimitChecks(a.decider.Policy, nil, telemetry.Listeners{})
	f.SetConfig(a.Config, decide.NewDecider(a.decider.Config, a.decider.Policy, checks), a.denied)
	r := f.ask(t, entries("tokens", "a"))
	require.Equal(t, rls.RateLimitResponse_OVER_LIMIT, r.OverallCode)
	assert.Empty(t, checks.Top("denied").Top(9, f.now()))
	assert.Empty(t, checks.Top("allowed").Top(9, f.now()))
}

// Each lease that is granted is counted so, as each is that is released. Who only looks has none.
func TestLeasesOfEnvoyAreCounted(t *testing.T) {
	t.Parallel()
	tokens := limited("tokens", "", 10)
	tokens.Rule.Limit.Algorithm = "concurrency"
	f := serve(t, Off, false, tokens)
	of := []*common.RateLimitDescriptor{entries("tokens", "a")}
	_, id := f.reserve(t, 2, time.Minute, of...)
	require.EqualValues(t, 8, f.remains(t, of[0]))
	require.True(t, f.commit(t, id, 0, of...))
	families, err := f.registry.Gather()
	require.NoError(t, err)
	got := map[string]float64{}
	for _, family := range families {
		if family.GetName() == "weir_leases_total" {
			for _, m := range family.GetMetric() {
				for _, l := range m.GetLabel() {
					if l.GetName() == "outcome" {
						got[l.GetValue()] = m.GetCounter().GetValue()
					}
				}
			}
		}
	}
	assert.Equal(t, map[string]float64{"granted": 1, "released": 1}, got)
}

// A key with a * at its end holds for all names that begin so, also for those of more than
// 1024 bytes: else who is blocked so would ask with a longer value.
func TestABlockByPrefixHoldsForLongNames(t *testing.T) {
	t.Parallel()
	tenant := &Descriptor{Key: "tenant"}
	require.NoError(t, tenant.Add(limited("path", "", 100)))
	f := serve(t, Off, false, tenant)
	f.override(t, "d|tenant=evil|*", policy.Terms{Blocked: true})
	short, long := entries("tenant", "evil", "path", "/a"), entries("tenant", "evil", "path", "/"+strings.Repeat("a", 1100))
	require.Equal(t, rls.RateLimitResponse_OVER_LIMIT, f.ask(t, short).OverallCode)
	assert.Equal(t, rls.RateLimitResponse_OVER_LIMIT, f.ask(t, long).OverallCode)
}

// A limit in shadow mode admits whom an override blocks. Who blocks a client, or looks at it, is
// told that.
func TestABlockOfALimitInShadowMode(t *testing.T) {
	t.Parallel()
	for leniency, admitted := range map[policy.Leniency]bool{policy.Shadow: true, policy.ShadowQuota: true, policy.Quota: false, policy.Strict: false} {
		dry := limited("dry", "", 1)
		dry.Rule.Limit.Leniency = leniency
		f := serve(t, Off, false, dry)
		f.override(t, "d|dry=*", policy.Terms{Blocked: true})
		require.Equal(t, admitted, f.ask(t, entries("dry", "a")).OverallCode == rls.RateLimitResponse_OK)
		d := f.active.Load().decider
		a, err := d.Peek(t.Context(), "d|dry=a", epoch)
		require.NoError(t, err)
		assert.True(t, a.Blocked)
		assert.Equal(t, admitted, a.Allowed, leniency)
		assert.Equal(t, admitted, a.Retry == 0, leniency)
		for _, client := range []string{"d|dry=a", "d|dry=*"} {
			key, err := policy.ParseClientKey(client)
			require.NoError(t, err)
			note := d.NoteOn(&policy.Exception{Key: key, Terms: policy.Terms{Blocked: true}})
			assert.Equal(t, admitted, note == `the limit "dry" is in shadow mode, so it admits these requests all the same`, note)
		}
	}
}

// A client that a pattern shares has the pattern's * in its name, which is a key in quotes.
func TestOverridesOfSharedClients(t *testing.T) {
	t.Parallel()
	shared := limited("path", "/users/*/files", 100)
	shared.ShareThreshold = true
	ending := limited("path", "/static/*", 100)
	ending.ShareThreshold = true
	f := serve(t, Off, false, shared, ending, limited("path", "", 100))
	code := func(path string) rls.RateLimitResponse_Code { return f.ask(t, entries("path", path)).OverallCode }
	ok, over := rls.RateLimitResponse_OK, rls.RateLimitResponse_OVER_LIMIT
	f.override(t, `"d|path=/users/*/files"`, policy.Terms{Blocked: true})
	assert.Equal(t, []rls.RateLimitResponse_Code{over, over, ok, ok}, []rls.RateLimitResponse_Code{code("/users/a/files"), code("/users/b/files"), code("/users/a"), code("/static/a")})
	f.override(t, `"d|path=/static/*"`, policy.Terms{Blocked: true})
	assert.Equal(t, []rls.RateLimitResponse_Code{ok, over, over, ok}, []rls.RateLimitResponse_Code{code("/users/a/files"), code("/static/a"), code("/static/b"), code("/static")})
}
