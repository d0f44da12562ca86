package api

import (
	"fmt"
	"math/rand/v2"
	"net/http"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"weir/api/policy"
	"weir/counters/racetest"
)

// newTwin returns another instance with the store and the clock of s.
func newTwin(s *service, policies ...*policy.Policy) *service {
	return newServiceWith(func(cfg *Config) {
		cfg.Now, cfg.Claims = s.clock.now, s.cfg.Claims
		cfg.Policies = bindLimiters(s.store, cfg.Metrics, policies...)
	})
}

// A denial says of the limits that don't deny what the instance has read of them last,
// be that by another check.
func TestADenialKnowsTheOtherLimits(t *testing.T) {
	t.Parallel()
	policy := func() *policy.Policy {
		return newPolicy("p", fixed("a", 1, 2*time.Second), fixed("b", 2, time.Minute))
	}
	one := newService(policy())
	other := newTwin(one, policy())
	for _, row := range []struct {
		at      time.Duration // after a slot of a begins, 22 s into one of b
		by      *service
		allowed bool
		retry   float64
		left    int64 // of b
	}{
		{at: -400 * time.Millisecond, by: one, allowed: true, left: 1},
		{at: -300 * time.Millisecond, by: one, retry: 0.3, left: 1},
		{at: 10 * time.Millisecond, by: other, allowed: true, left: 0},
		{at: 20 * time.Millisecond, by: one, retry: 37.98, left: 0},
		{at: 100 * time.Millisecond, by: one, retry: 37.9, left: 0},
		{at: 900 * time.Millisecond, by: one, retry: 37.1, left: 0},
		{at: 1900 * time.Millisecond, by: one, retry: 36.1, left: 0},
		{at: 2000 * time.Millisecond, by: one, retry: 36, left: 0},
	} {
		one.clock.at(22*time.Second + row.at)
		r := row.by.check(t, `{"policy":"p","client":"c"}`)
		require.Equal(t, row.allowed, r.Allowed, row.at)
		assert.Equal(t, row.retry, r.RetryAfter, "%v", row.at)
		assert.Equal(t, row.left, r.Limits[1].Remaining, "%v", row.at)
		assert.Equal(t, row.left > 0 || row.allowed, r.Limits[1].Allowed, fmt.Sprint(row.at))
	}
}

// A denial that asks no store knows what others have charged only when it is read again.
func TestADenialLearnsOfAChargeElsewhere(t *testing.T) {
	t.Parallel()
	one := newService(newPolicy("p", token("t", 60, time.Minute, 0)))
	other := newTwin(one, newPolicy("p", token("t", 60, time.Minute, 0)))
	one.admits(t, `{"policy":"p","client":"c","cost":60}`)
	charged := other.do(t, http.MethodPost, "/v1/charge", `{"policy":"p","client":"c","cost":30}`)
	require.EqualValues(t, 30, charged.RetryAfter)
	for _, row := range []struct {
		at    time.Duration
		retry float64
	}{
		{100 * time.Millisecond, 0.9},
		{900 * time.Millisecond, 0.1},
		{950 * time.Millisecond, 30.05},
		{1000 * time.Millisecond, 30},
	} {
		one.clock.at(row.at)
		assert.Equal(t, row.retry, one.denies(t, `{"policy":"p","client":"c"}`).RetryAfter, "%v", row.at)
	}
}

// Whatever two instances are asked, neither says that more is left in a window than it
// has said before.
func TestRemainingNeverRisesWithinAWindow(t *testing.T) {
	racetest.Sequential(t)
	t.Parallel()
	windows := []time.Duration{2 * time.Second, 10 * time.Second, time.Minute}
	policy := func() *policy.Policy {
		return newPolicy("p", fixed("a", 2, windows[0]), fixed("b", 6, windows[1]), fixed("c", 12, windows[2]))
	}
	random := rand.New(rand.NewPCG(1, 2))
	for range 20 {
		one := newService(policy())
		instances := []*service{one, newTwin(one, policy())}
		said := make(map[string]int64)
		now := time.Duration(0)
		for range 300 {
			now += time.Duration(random.Int64N(int64(800 * time.Millisecond)))
			one.clock.at(now)
			by := random.IntN(2)
			r := instances[by].check(t, fmt.Sprintf(`{"policy":"p","client":"c","cost":%d}`, 1+random.IntN(2)))
			for i, l := range r.Limits {
				key := fmt.Sprint(by, l.Name, now/windows[i])
				if before, ok := said[key]; ok {
					require.LessOrEqual(t, l.Remaining, before, "%s at %v: %+v", l.Name, now, r)
				}
				said[key] = l.Remaining
			}
		}
	}
}
