package api

import (
	"context"
	"fmt"
	"log/slog"
	"net/http"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"weir/api/policy"
	"weir/counters"
	"weir/counters/racetest"
)

// While the store is gone a client is reset here at once, and there as soon as
// it is back. What it uses in between isn't reset, where it counts in windows.
func TestAResetDuringAnOutageIsDoneLater(t *testing.T) {
	t.Parallel()
	for _, limit := range []policy.Limit{
		fixed("limit", 2, time.Hour), sliding("limit", 2, time.Hour, 60, "weighted"), sliding("limit", 2, time.Hour, 60, "strict"),
		token("limit", 2, time.Hour, 0), leaky("limit", 2, time.Hour, 0), slidingLog("limit", 2, time.Hour), countingLog("limit", 2, time.Hour, 8),
	} {
		name := limit.Algorithm + limit.Estimate
		policy := func() *policy.Policy {
			p := newPolicy("api", limit)
			p.Routes = []policy.Route{{Path: "/login", Cost: 1, Limits: []policy.Limit{limit}}}
			p.Routes[0].Limits[0].Route = "/login"
			return p
		}
		s, other := newService(policy()), newService(policy())
		other.store.Store = s.memory
		spend := func(s *service, at time.Duration) result {
			s.clock.at(at)
			return s.check(t, `{"policy":"api","client":"alice"}`)
		}
		login := func() int {
			return s.do(t, http.MethodGet, "/v1/auth/api/login", "", "X-Forwarded-For", "192.0.2.7").Code
		}
		require.True(t, spend(s, 0).Allowed)
		require.True(t, spend(s, time.Second).Allowed)
		require.False(t, spend(s, 2*time.Second).Allowed)
		require.Equal(t, []int{200, 200, 429}, []int{login(), login(), login()})

		s.store.failWith(fmt.Errorf("%w: %w", counters.ErrUnavailable, counters.ErrNotSent))
		require.False(t, spend(s, 3*time.Second).Allowed, name)
		s.clock.at(10 * time.Second)
		for _, client := range []string{"alice", "192.0.2.1"} {
			r := s.do(t, http.MethodDelete, "/v1/policies/api/clients/"+client, "")
			require.Equal(t, http.StatusAccepted, r.Code, r.Body)
			require.Empty(t, r.Body)
		}
		r := spend(s, 20*time.Second)
		assert.True(t, r.Allowed, name)
		assert.True(t, r.Degraded)
		assert.Equal(t, 200, login(), "the limits of routes, too")
		assert.Equal(t, 2, s.RetryResets(), "the store is still gone")

		s.store.failWith(nil)
		s.clock.at(30 * time.Second)
		assert.Zero(t, s.RetryResets())
		assert.True(t, spend(other, 31*time.Second).Allowed, "elsewhere: %s", name)
		assert.True(t, spend(s, 32*time.Second).Allowed, "what this process has admitted alone isn't counted: %s", name)
		assert.False(t, spend(s, 33*time.Second).Allowed, name)
		assert.Zero(t, s.RetryResets())
	}
}

// A reset that succeeds takes the place of one that waits.
func TestAResetIsNotDoneTwice(t *testing.T) {
	t.Parallel()
	s := newService(newPolicy("api", token("limit", 2, time.Hour, 0)))
	reset := func() int { return s.do(t, http.MethodDelete, "/v1/policies/api/clients/alice", "").Code }
	s.admits(t, `{"policy":"api","client":"alice","cost":2}`)
	s.store.failWith(counters.ErrTimeout)
	require.Equal(t, http.StatusAccepted, reset())
	require.Equal(t, http.StatusAccepted, reset())
	s.store.failWith(nil)
	require.Equal(t, http.StatusNoContent, reset())
	s.admits(t, `{"policy":"api","client":"alice","cost":2}`)
	assert.Zero(t, s.RetryResets())
	s.denies(t, `{"policy":"api","client":"alice"}`)
}

// Of two resets that fail at the same time the later one waits, whichever failed first.
func TestTheLatestResetWaits(t *testing.T) {
	t.Parallel()
	var l lateResets
	r, later := lateReset{"api", "alice"}, epoch.Add(time.Second)
	require.True(t, l.add(r, later))
	require.True(t, l.add(r, epoch))
	assert.Equal(t, later, l.waiting()[r])
}

// Those of policies that are gone have nothing to reset any more.
func TestResetsThatWaitAreBounded(t *testing.T) {
	racetest.Sequential(t)
	t.Parallel()
	s := newService(newPolicy("api", fixed("limit", 2, time.Hour)), newPolicy("gone", fixed("limit", 2, time.Hour)))
	s.store.failWith(counters.ErrTimeout)
	reset := func(policy, client string) result {
		return s.do(t, http.MethodDelete, "/v1/policies/"+policy+"/clients/"+client, "")
	}
	require.Equal(t, http.StatusAccepted, reset("gone", "c").Code)
	for i := range maxResets - 1 {
		require.Equal(t, http.StatusAccepted, reset("api", fmt.Sprint("c", i)).Code)
	}
	r := reset("api", "one-more")
	assert.Equal(t, http.StatusServiceUnavailable, r.Code)
	assert.Equal(t, typeReducedCapacity, r.Type)
	assert.Equal(t, `the client was not reset in all limits, and 1000 others wait for the store; do it again: it did not answer in time`, r.Detail)
	assert.Contains(t, s.do(t, http.MethodGet, "/v1/audit?n=1", "").Body, `"what":"client perhaps reset, in some limits"`)
	assert.Equal(t, http.StatusAccepted, reset("api", "c7").Code, "it waits already")
	assert.Equal(t, maxResets, s.RetryResets())
	s.SetPolicies(policy.Policies{"api": s.active.Load().policies["api"]})
	assert.Equal(t, maxResets-1, s.RetryResets())
	s.store.failWith(nil)
	assert.Zero(t, s.RetryResets())
}

func TestTheLogTellsWhoResets(t *testing.T) {
	t.Parallel()
	for _, show := range []bool{false, true} {
		s := newServiceWith(func(cfg *Config) {
			cfg.Tokens, cfg.LogClients = []Token{{Secret: "first-token"}, {Secret: "second-token", Name: "alice of ops"}}, show
		}, newPolicy("api", fixed("limit", 2, time.Hour)))
		reset := func() {
			s.do(t, http.MethodDelete, "/v1/policies/api/clients/alice", "", "Authorization", "Bearer second-token")
		}
		client := "2bd806c97f0e00af"
		if show {
			client = "alice"
		}
		reset()
		assert.Regexp(t, `level=INFO msg="client reset" policy=api client=`+client+` peer=192.0.2.1 by="alice of ops"\n$`, s.log.String())
		s.store.failWith(counters.ErrTimeout)
		reset()
		assert.Regexp(t, `level=INFO msg="client reset in this process; .*" policy=api client=`+client+` peer=192.0.2.1 by="alice of ops" error="limit .*did not answer in time"\n$`, s.log.String())
		s.clock.at(3 * time.Second)
		s.store.failWith(nil)
		s.RetryResets()
		assert.Regexp(t, `level=INFO msg="client reset, as asked before" policy=api client=`+client+` after=3s\n$`, s.log.String())
		assert.NotContains(t, s.log.String(), "second-token")
	}
	log := new(syncBuffer)
	s := newServiceWith(func(cfg *Config) { cfg.Log = slog.New(slog.NewTextHandler(log, nil)) }, newPolicy("api", fixed("limit", 2, time.Hour)))
	s.do(t, http.MethodDelete, "/v1/policies/api/clients/alice", "")
	assert.Regexp(t, ` peer=192.0.2.1\n$`, log.String(), "without tokens")
}

// All limits of a policy are reset within one store timeout, where the store is far away, too.
func TestAResetOfManyLimitsIsInTime(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		var limits []policy.Limit
		for i := range 12 {
			limits = append(limits, fixed(fmt.Sprint("limit-", i), 2, time.Hour))
		}
		s := newServiceWith(func(cfg *Config) { cfg.Now = nil }, newPolicy("api", limits...))
		s.store.onCall(func(ctx context.Context, _, _ string) error {
			time.Sleep(time.Millisecond)
			if deadline, _ := ctx.Deadline(); time.Now().After(deadline) {
				return counters.ErrTimeout
			}
			return nil
		})
		assert.Equal(t, http.StatusNoContent, s.do(t, http.MethodDelete, "/v1/policies/api/clients/alice", "").Code)
		assert.Zero(t, s.RetryResets())
	})
}

// An address and its network are names whose counts may be on different servers. While that of one
// is gone, the other is reset once, and its limits hold.
func TestAResetWaitsForOneOfTwoNames(t *testing.T) {
	t.Parallel()
	s := newService(newPolicy("api", fixed("limit", 2, time.Hour)))
	const network = `{"policy":"api","client":"2001:db8::/64"}`
	s.admits(t, network)
	s.clock.at(time.Second)
	s.store.onCall(func(_ context.Context, _, key string) error {
		if strings.Contains(key, "2001:db8::1") {
			return fmt.Errorf("%w: %w", counters.ErrUnavailable, counters.ErrNotSent)
		}
		return nil
	})
	require.Equal(t, http.StatusAccepted, s.do(t, http.MethodDelete, "/v1/policies/api/clients/2001:db8::1", "").Code)
	for i := range 2 {
		s.clock.at(time.Duration(10+i) * time.Second)
		s.admits(t, network)
		assert.Equal(t, 1, s.RetryResets())
	}
	s.clock.at(20 * time.Second)
	s.denies(t, network)
	s.store.failWith(nil)
	assert.Zero(t, s.RetryResets())
	s.denies(t, network)
}
