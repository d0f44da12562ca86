package api

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"net/http/httptest"
	"slices"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"weir/api/policy"
	"weir/counters"
	"weir/counters/racetest"
)

func (s *service) batch(t require.TestingT, checks ...string) result {
	return s.do(t, http.MethodPost, "/v1/check/batch", `{"checks":[`+strings.Join(checks, ",")+`]}`)
}

func (by way) TestBatchHasAResultForEachCheck(t *testing.T) {
	t.Parallel()
	s := by.newService(newPolicy("api", fixed("per-minute", 2, time.Minute)))
	r := s.batch(t,
		`{"policy":"api","client":"alice"}`,
		`{"policy":"none","client":"alice"}`,
		`{"policy":"api","client":"alice","cost":2}`,
		`{"policy":"api"}`,
		`{"policy":"api","client":"bob","cost":3}`,
		`{"policy":"api","client":"bob","cost":2}`,
	)
	assert.Equal(t, http.StatusOK, r.Code)
	assert.Equal(t, http.Header{"Content-Type": {"application/json"}, "Content-Length": {strconv.Itoa(len(r.Body))}}, r.Header)
	assert.Equal(t, `{"results":[`+
		`{"status":200,"allowed":true,"policy":"api","client":"alice","retry_after":0,"wait":0,"degraded":false,"shadow":false,"limits":[{"name":"per-minute","algorithm":"fixed_window","allowed":true,"limit":2,"remaining":1,"reset_after":60,"retry_after":0}]},`+
		`{"type":"about:blank","title":"Not Found","status":404,"detail":"there is no policy \"none\"; GET /v1/policies lists them"},`+
		`{"status":429,"allowed":false,"policy":"api","client":"alice","retry_after":60,"wait":0,"degraded":false,"shadow":false,"limits":[{"name":"per-minute","algorithm":"fixed_window","allowed":false,"limit":2,"remaining":1,"reset_after":60,"retry_after":60}]},`+
		`{"type":"about:blank","title":"Bad Request","status":400,"detail":"client is missing; it names who is limited, in 1 to 1024 bytes"},`+
		`{"type":"about:blank","title":"Bad Request","status":400,"detail":"cost 3 is above the limit \"per-minute\", which is 2, and can never be admitted"},`+
		`{"status":200,"allowed":true,"policy":"api","client":"bob","retry_after":0,"wait":0,"degraded":false,"shadow":false,"limits":[{"name":"per-minute","algorithm":"fixed_window","allowed":true,"limit":2,"remaining":0,"reset_after":60,"retry_after":0}]}`+
		"]}\n", r.Body)
}

func (by way) TestBatchKeepsTheOrderOfAClient(t *testing.T) {
	t.Parallel()
	s := by.newService(newPolicy("api", fixed("per-minute", 40, time.Minute)))
	var checks []string
	for range 50 {
		for _, client := range []string{"alice", "bob", "carol"} {
			checks = append(checks, fmt.Sprintf(`{"policy":"api","client":%q}`, client))
		}
	}
	r := s.batch(t, checks...)
	require.Len(t, r.Results, 150)
	for i, one := range r.Results {
		turn := i/3 + 1
		require.Equal(t, []string{"alice", "bob", "carol"}[i%3], one.Client)
		require.Equal(t, turn <= 40, one.Allowed, "check %d", i)
		require.EqualValues(t, max(0, 40-turn), one.Limits[0].Remaining, "check %d", i)
	}
}

func (by way) TestBatchBounds(t *testing.T) {
	t.Parallel()
	s := by.newService(newPolicy("api", fixed("per-minute", 2000, time.Minute)))
	many := func(n int) []string {
		return strings.Split(strings.Repeat(`{"policy":"api","client":"alice"};`, n), ";")[:n]
	}
	r := s.batch(t, many(1001)...)
	requireProblem(t, r, http.StatusBadRequest, "checks: at most 1000 are possible in a batch")
	requireUntouched(t, s)

	r = s.batch(t)
	assert.Equal(t, http.StatusOK, r.Code)
	assert.Equal(t, `{"results":[]}`+"\n", r.Body)
	requireUntouched(t, s)

	r = s.batch(t, many(1000)...)
	require.Len(t, r.Results, 1000)
	assert.EqualValues(t, 1000, r.Results[999].Limits[0].Remaining)
}

func (by way) TestLongestBatchFits(t *testing.T) {
	racetest.Sequential(t)
	t.Parallel()
	s := by.newService(newPolicy("api", fixed("per-minute", 2000, time.Minute)))
	check := `{"policy":"api","client":"` + strings.Repeat(`\u0001`, counters.MaxClientBytes) + `","cost":1,"limits":{"per-minute":2000}}`
	var checks []string
	for range 1000 {
		checks = append(checks, check)
	}
	w := httptest.NewRecorder()
	s.handler.ServeHTTP(w, newRequest(http.MethodPost, "/v1/check/batch", `{"checks":[`+strings.Join(checks, ",")+`]}`))
	assert.Equal(t, http.StatusOK, w.Code)
	assert.Equal(t, 1000, strings.Count(w.Body.String(), `{"status":200,"allowed":true,`))
}

func (by way) TestBadBatchesAreRefusedAsAWhole(t *testing.T) {
	t.Parallel()
	const good = `{"policy":"api","client":"alice"}`
	for _, test := range []struct {
		what, body, detail string
	}{
		{"empty", ``, "the body is empty"},
		{"a check", good, `unknown field "policy"; known are checks, all`},
		{"no checks", `{}`, "checks is missing"},
		{"null", `null`, "the body must be an object"},
		{"checks null", `{"checks":null}`, "checks must be an array"},
		{"checks an object", `{"checks":{}}`, "checks must be an array"},
		{"checks twice", `{"checks":[` + good + `],"checks":[]}`, "duplicate object member name"},
		{"a check that is null", `{"checks":[` + good + `,null]}`, "checks[1] must be an object"},
		{"a check that is an array", `{"checks":[` + good + `,[]]}`, "checks[1] must be an object"},
		{"unknown field", `{"checks":[` + good + `,{"polizy":"api"}]}`, `unknown field "checks[1].polizy"; known are policy, client, cost, limits`},
		{"wrong type", `{"checks":[` + good + `,{"client":7}]}`, "checks[1].client must be a string"},
		{"wrong limits", `{"checks":[{"limits":7}]}`, "checks[0].limits must be an object"},
		{"fraction", `{"checks":[` + good + `,{"cost":1.5}]}`, "checks[1].cost is 1.5 and must be a whole number"},
		{"all a number", `{"checks":[` + good + `],"all":1}`, "all must be true or false"},
		{"all null", `{"all":null,"checks":[` + good + `]}`, "all must be true or false"},
		{"all twice", `{"all":true,"checks":[` + good + `],"all":false}`, "duplicate object member name"},
		{"truncated", `{"checks":[` + good, "the body ends in the middle"},
		{"trailing data", `{"checks":[` + good + `]}[]`, "something follows"},
		{"unknown field beside", `{"checks":[` + good + `],"policy":"api"}`, `unknown field "policy"`},
	} {
		t.Run(test.what, func(t *testing.T) {
			s := by.newService(newPolicy("api", fixed("per-minute", 100, time.Minute)))
			r := s.do(t, http.MethodPost, "/v1/check/batch", test.body)
			requireProblem(t, r, http.StatusBadRequest, test.detail)
			requireUntouched(t, s)
		})
	}
}

// A thousand checks of one client take a few store operations, and are dealt
// out in order, also around one that differs.
func (by way) TestBatchOfOneBusyClientIsInTime(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s := by.newServiceWith(func(cfg *Config) { cfg.Now = nil },
			newPolicy("api", fixed("per-minute", 700, time.Minute), token("burst", 500, time.Hour, 0)))
		s.store.onCall(func(context.Context, string, string) error {
			time.Sleep(time.Millisecond) // as far as Memcached may be
			return nil
		})
		checks := slices.Repeat([]string{`{"policy":"api","client":"alice"}`}, 1000)
		checks[450] = `{"policy":"api","client":"alice","cost":40}`
		start := time.Now()
		r := s.batch(t, checks...)
		assert.Less(t, time.Since(start), 40*time.Millisecond)
		require.Len(t, r.Results, 1000)
		for i, one := range r.Results {
			require.False(t, one.Degraded)
			require.Equal(t, i < 461, one.Allowed, "check %d", i)
			if i < 450 {
				require.EqualValues(t, 699-i, one.Limits[0].Remaining, "check %d", i)
			}
		}
		assert.EqualValues(t, 200, s.check(t, `{"policy":"api","client":"alice"}`).Limits[0].Remaining, "what the bucket denied is given back")
	})
}

// A silent store costs a batch one timeout, however many checks it has.
func (by way) TestBatchOnASilentStoreEnds(t *testing.T) {
	t.Parallel()
	checks := func(client func(i int) int) []string {
		var checks []string
		for i := range 1000 {
			checks = append(checks, fmt.Sprintf(`{"policy":"api","client":"c%d"}`, client(i)))
		}
		return checks
	}
	for _, test := range []struct {
		what   string
		client func(i int) int
	}{
		{"one client", func(int) int { return 0 }},
		{"a hundred clients", func(i int) int { return i % 100 }},
		{"a thousand clients", func(i int) int { return i }},
	} {
		t.Run(test.what, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				s := by.newServiceWith(func(cfg *Config) { cfg.Now = nil }, newPolicy("api", fixed("per-minute", 1000, time.Minute)))
				s.store.onCall(waitForDeadline)
				start := time.Now()
				r := s.batch(t, checks(test.client)...)
				assert.Equal(t, 50*time.Millisecond, time.Since(start))
				for _, deadline := range s.store.deadlines {
					require.Equal(t, start.Add(50*time.Millisecond), deadline)
				}
				require.Len(t, r.Results, 1000)
				for _, one := range r.Results {
					require.EqualValues(t, http.StatusOK, one.Status)
					require.True(t, one.Degraded)
				}
			})
		})
	}
}

// Clients of a silent server keep no others of their batch waiting.
func (by way) TestBatchOnASilentServerHoldsUpNobodyElse(t *testing.T) {
	t.Parallel()
	var checks []string
	for i := range 1000 {
		checks = append(checks, fmt.Sprintf(`{"policy":"api","client":"%s%d"}`, []string{"silent", "other"}[i/500], i))
	}
	synctest.Test(t, func(t *testing.T) {
		s := by.newServiceWith(func(cfg *Config) { cfg.Now = nil }, newPolicy("api", fixed("per-minute", 1000, time.Minute)))
		s.store.onCall(func(ctx context.Context, operation, key string) error {
			if strings.Contains(key, "silent") {
				return waitForDeadline(ctx, operation, key)
			}
			if deadline, _ := ctx.Deadline(); !time.Now().Before(deadline) {
				return counters.ErrTimeout
			}
			return nil
		})
		r := s.batch(t, checks...)
		s.store.onCall(nil)
		time.Sleep(time.Minute) // until the store has counted all
		require.Len(t, r.Results, 1000)
		for i, one := range r.Results {
			require.Equal(t, i < 500, one.Degraded, "check %d", i)
		}
	})
}

func (by way) TestBatchUnderDenyHasProblems(t *testing.T) {
	t.Parallel()
	p := newPolicy("api", fixed("per-minute", 2, time.Minute))
	p.OnStoreError = policy.StoreErrorDeny
	s := by.newService(p)
	s.store.failWith(counters.ErrTimeout)
	r := s.batch(t, `{"policy":"api","client":"alice"}`, `{"policy":"api","client":"bob"}`)
	require.Len(t, r.Results, 2)
	for i, client := range []string{"alice", "bob"} {
		assert.EqualValues(t, http.StatusServiceUnavailable, r.Results[i].Status)
		assert.Equal(t, typeReducedCapacity, r.Results[i].Type)
		assert.Equal(t, client, r.Results[i].Client)
		assert.True(t, r.Results[i].Degraded)
	}
}

// A check that follows a degraded one of its client asks the store again, while
// there is time.
func (by way) TestBatchRecoversWithTheStore(t *testing.T) {
	t.Parallel()
	s := by.newService(newPolicy("api", fixed("per-minute", 5, time.Minute)))
	// Not equal, so they are made one by one.
	const check, other = `{"policy":"api","client":"alice"}`, `{"policy":"api","client":"alice","limits":{"per-minute":5}}`
	var calls atomic.Int64
	s.store.onCall(func(context.Context, string, string) error {
		if calls.Add(1) <= 2 {
			return counters.ErrTimeout
		}
		return nil
	})
	r := s.batch(t, check, other, check, other)
	require.Len(t, r.Results, 4)
	for i, degraded := range []bool{true, true, false, false} {
		assert.Equal(t, degraded, r.Results[i].Degraded)
	}
	assert.EqualValues(t, 1, r.Results[3].Limits[0].Remaining, "all are counted in the end")
}

// The caller of a batch leaves during its first check: the others aren't made.
func (by way) TestBatchEndsWithItsCaller(t *testing.T) {
	t.Parallel()
	s := by.newService(newPolicy("api", fixed("per-minute", 3, time.Minute)))
	ctx, leave := context.WithCancel(t.Context())
	s.store.onCall(func(context.Context, string, string) error {
		leave()
		return nil
	})
	check := `{"policy":"api","client":"alice"}`
	w := httptest.NewRecorder()
	s.ServeHTTP(w, newRequest(http.MethodPost, "/v1/check/batch", `{"checks":[`+check+`,`+check+`,`+check+`]}`).WithContext(ctx))
	var body struct{ Results []struct{ Status int } }
	require.NoError(t, json.Unmarshal(w.Body.Bytes(), &body))
	assert.Equal(t, []struct{ Status int }{{200}, {503}, {503}}, body.Results)
	s.store.onCall(nil)
	assert.EqualValues(t, 2, s.check(t, `{"policy":"api","client":"alice","cost":0}`).Limits[0].Remaining)
}

// A client that is known to have spent one of its limits is denied without the store, whichever of
// them that is: of a single check, in a batch, in shadow mode and while the store fails.
func (by way) TestALimitThatIsSpentIsAskedFirst(t *testing.T) {
	t.Parallel()
	for _, shadow := range []bool{false, true} {
		p := newPolicy("api", fixed("per-minute", 9, time.Minute), fixed("per-hour", 1, time.Hour), fixed("per-day", 9, 24*time.Hour))
		p.Shadow, p.OnStoreError = shadow, policy.StoreErrorDeny
		s := by.newService(p)
		const alice, bob = `{"policy":"api","client":"alice"}`, `{"policy":"api","client":"bob"}`
		s.batch(t, alice, bob)
		requireDenied := func(r result) {
			t.Helper()
			require.Equal(t, shadow, r.Allowed, r.Body)
			require.Len(t, r.Limits, 3)
			for i, left := range []int64{8, 0, 8} {
				require.Equal(t, left, r.Limits[i].Remaining)
				require.Equal(t, left > 0, r.Limits[i].Allowed)
			}
		}
		before := s.store.operations()
		requireDenied(s.check(t, alice))
		for _, r := range s.batch(t, alice, bob).Results {
			requireDenied(r)
		}
		assert.Equal(t, before, s.store.operations())
		s.store.failWith(counters.ErrUnavailable)
		requireDenied(s.check(t, alice))
		requireMetrics(t, s, `weir_local_denials_total{policy="api"} 4`)
	}
}

// While the store fails, a client that has spent one of its limits is denied however long ago that
// was read, and not refused, whichever of them that is.
func (by way) TestWhatIsKnownToBeDeniedIsNotRefused(t *testing.T) {
	t.Parallel()
	minute, hour := fixed("per-minute", 9, time.Minute), fixed("per-hour", 1, time.Hour)
	for _, limits := range [][]policy.Limit{{minute, hour}, {hour, minute}} {
		p := newPolicy("api", limits...)
		p.OnStoreError = policy.StoreErrorDeny
		s := by.newService(p)
		const alice, bob = `{"policy":"api","client":"alice"}`, `{"policy":"api","client":"bob"}`
		s.admits(t, alice)
		s.store.failWith(counters.ErrUnavailable)
		s.clock.at(5 * time.Second)
		s.denies(t, alice)
		answers := s.batch(t, alice, bob).Results
		assert.EqualValues(t, http.StatusTooManyRequests, answers[0].Status)
		assert.EqualValues(t, http.StatusServiceUnavailable, answers[1].Status)
		assert.Equal(t, http.StatusTooManyRequests, s.all(t, alice).Code)
		assert.Equal(t, http.StatusServiceUnavailable, s.all(t, alice, bob).Code)
	}
}
