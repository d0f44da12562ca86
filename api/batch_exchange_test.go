package api

import (
	"context"
	"fmt"
	"net/http"
	"runtime/debug"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"weir/api/policy"
)

// Clients who come once are decided beside those who come more often, whose
// earlier checks come first.
func (by way) TestBatchWithClientsWhoComeOnceAndMoreOften(t *testing.T) {
	t.Parallel()
	s := by.newService(newPolicy("api", sliding("per-minute", 3, time.Minute, 10, "weighted")))
	var checks []string
	for i := range 400 {
		checks = append(checks, fmt.Sprintf(`{"policy":"api","client":"once-%d"}`, i), fmt.Sprintf(`{"policy":"api","client":"often-%d"}`, i%80))
	}
	r := s.batch(t, checks...)
	require.Len(t, r.Results, 800)
	for i, one := range r.Results {
		turn := 1
		if i%2 == 1 {
			turn += i / 160
		}
		require.Equal(t, turn <= 3, one.Allowed, "check %d", i)
		require.EqualValues(t, max(0, 3-turn), one.Limits[0].Remaining, "check %d", i)
	}
}

// A check of a policy with several limits is counted by all or by none.
func (by way) TestBatchOfPoliciesWithSeveralLimits(t *testing.T) {
	t.Parallel()
	s := by.newService(
		newPolicy("windows", fixed("per-hour", 3, time.Hour), sliding("per-minute", 2, time.Minute, 10, "weighted")),
		newPolicy("mixed", sliding("per-minute", 3, time.Minute, 10, "weighted"), token("burst", 2, time.Hour, 2), fixed("per-day", 10, 24*time.Hour)),
		newPolicy("bucket", token("burst", 2, time.Hour, 2)),
	)
	const clients = 50
	for round := range 4 {
		var checks []string
		for _, policy := range []string{"windows", "mixed", "bucket"} {
			for i := range clients {
				checks = append(checks, fmt.Sprintf(`{"policy":%q,"client":"c%d"}`, policy, i))
			}
		}
		r := s.batch(t, checks...)
		require.Len(t, r.Results, 3*clients)
		for i, one := range r.Results {
			require.Equal(t, round < 2, one.Allowed, "round %d, check %d", round, i)
			used := int64(min(round+1, 2))
			for j, l := range one.Limits {
				most := map[string]int64{"per-hour": 3, "per-day": 10, "burst": 2, "per-minute": 2}[l.Name]
				if one.Policy == "mixed" && l.Name == "per-minute" {
					most = 3
				}
				require.EqualValues(t, most-used, l.Remaining, "round %d, check %d, limit %d", round, i, j)
			}
		}
	}
}

// Clients of a silent server keep no others of their batch from asking their
// further limits.
func (by way) TestBatchWithSeveralLimitsOnASilentServerHoldsUpNobodyElse(t *testing.T) {
	t.Parallel()
	var checks []string
	for i := range 1000 {
		checks = append(checks, fmt.Sprintf(`{"policy":"api","client":"%s%d"}`, map[bool]string{true: "other", false: "silent"}[i%10 == 0], i))
	}
	synctest.Test(t, func(t *testing.T) {
		s := by.newServiceWith(func(cfg *Config) { cfg.Now = nil },
			newPolicy("api", fixed("per-minute", 1000, time.Minute), fixed("per-hour", 1000, time.Hour), token("burst", 10, time.Hour, 10), fixed("per-day", 1000, 24*time.Hour)))
		var mu sync.Mutex
		var last time.Time
		s.store.onCall(func(ctx context.Context, operation, key string) error {
			if strings.Contains(key, "silent") {
				return waitForDeadline(ctx, operation, key)
			}
			time.Sleep(time.Millisecond)
			mu.Lock()
			defer mu.Unlock()
			last = time.Now()
			return nil
		})
		start := time.Now()
		r := s.batch(t, checks...)
		assert.Equal(t, 50*time.Millisecond, time.Since(start))
		assert.Less(t, last.Sub(start), 40*time.Millisecond)
		s.store.onCall(nil)
		time.Sleep(time.Minute) // until the store has counted all
		require.Len(t, r.Results, 1000)
		for i, one := range r.Results {
			require.Equal(t, i%10 != 0, one.Degraded, "check %d", i)
			require.True(t, one.Allowed)
		}
	})
}

// A panic is the outcome of its own check, whatever that needs: nothing, as it
// is exempt or blocked, or one or more limits.
func (by way) TestBatchKeepsAPanicToItsOwnCheck(t *testing.T) {
	t.Parallel()
	limits := []policy.Limit{fixed("per-minute", 1000, time.Minute), fixed("per-hour", 1000, time.Hour)}
	var checks []string
	for _, client := range []string{"exempt", "blocked", "a", "b", "c"} {
		checks = append(checks, fmt.Sprintf(`{"policy":"api","client":%q}`, client))
	}
	for _, asked := range []int{1, 2} {
		policy := func() *policy.Policy {
			p := newPolicy("api", slices.Clone(limits[:asked])...)
			p.Clients = clients(map[string]policy.Terms{"exempt": {Exempt: true}, "blocked": {Blocked: true}})
			return p
		}
		for _, operation := range []string{"add", "read"} {
			t.Run(fmt.Sprint(asked, operation), func(t *testing.T) {
				s := by.newService(policy())
				checks := slices.Clone(checks)
				if operation == "read" {
					checks[3] = `{"policy":"api","client":"b","cost":0}`
				}
				s.store.onCall(func(_ context.Context, called, key string) error {
					if strings.Contains(key, ":b_") && called == operation {
						panic("a bug")
					}
					return nil
				})
				requireStatuses(t, s.batch(t, checks...), 200, 429, 200, 500, 200)
				assert.Contains(t, s.log.String(), `error="a bug"`)
			})
		}
		t.Run(fmt.Sprint(asked, "counting"), func(t *testing.T) {
			var countdown atomic.Int64 // to the check that is counted then
			s := by.newServiceWith(func(cfg *Config) {
				now := cfg.Now
				cfg.Now = func() time.Time {
					if strings.Contains(string(debug.Stack()), "Decider).report") && countdown.Add(-1) == 0 {
						panic("a bug")
					}
					return now()
				}
			}, policy())
			for i := range checks {
				countdown.Store(int64(i + 1))
				failed := 0
				for _, one := range s.batch(t, checks...).Results {
					if one.Status == http.StatusInternalServerError {
						failed++
					}
				}
				assert.Equal(t, 1, failed)
			}
		})
	}
}

func requireStatuses(t *testing.T, r result, want ...status) {
	got := make([]status, len(r.Results))
	for i, one := range r.Results {
		got[i] = one.Status
	}
	assert.Equal(t, want, got)
}

// What has to be asked client by client takes a bounded number of goroutines.
func (by way) TestBatchAsksForABoundedNumberOfClientsOneByOne(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s := by.newServiceWith(func(cfg *Config) { cfg.Now = nil }, newPolicy("api", fixed("per-minute", 1, time.Minute), fixed("per-hour", 1, time.Hour)))
		checks := clientChecks("c", 1000)
		s.batch(t, checks...)
		var reading, most atomic.Int64
		s.store.onCall(func(ctx context.Context, _, _ string) error {
			if ctx.Value(together{}) != nil {
				return nil
			}
			if n := reading.Add(1); n > most.Load() {
				most.Store(n)
			}
			time.Sleep(50 * time.Microsecond)
			reading.Add(-1)
			return nil
		})
		time.Sleep(time.Second) // denials have to be confirmed
		r := s.batch(t, checks...)
		for _, one := range r.Results {
			require.EqualValues(t, http.StatusTooManyRequests, one.Status)
			require.False(t, one.Degraded)
		}
		assert.EqualValues(t, 128, most.Load())
	})
}

// What a panic of the store cuts short leaves nothing behind in the decisions about others.
func (by way) TestAPanicOfTheStoreTouchesNoOtherClient(t *testing.T) {
	t.Parallel()
	p := newPolicy("api", fixed("per-minute", 1000, time.Minute))
	p.OnStoreError = policy.StoreErrorAllow // what is admitted alone would be told in the background, where the store panics too
	s := by.newService(p)
	var calls atomic.Int64
	s.store.onCall(func(context.Context, string, string) error {
		if calls.Add(1)%20 == 0 {
			panic("a bug")
		}
		return nil
	})
	allAtOnce(8, func(int) {
		for range 50 {
			var checks []string
			for client := range 6 {
				checks = append(checks, fmt.Sprintf(`{"policy":"api","client":"%d"}`, client))
			}
			for _, result := range s.batch(t, checks...).Results {
				assert.Contains(t, []status{http.StatusOK, http.StatusInternalServerError}, result.Status)
			}
		}
	})
}
