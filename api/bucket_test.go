package api

import (
	"net/http"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus/testutil"
	"github.com/stretchr/testify/assert"
)

// Two limits of the same policy, one of which denies, leave no trace.
func TestDenialGivesBucketsBack(t *testing.T) {
	s := newService(newPolicy("p",
		token("tokens", 10, time.Minute, 0), leaky("queue", 10, time.Minute, 0), slidingLog("log", 10, time.Minute), fixed("few", 2, time.Minute)))
	remaining := func(r result) (left []int64) {
		for _, l := range r.Limits {
			left = append(left, l.Remaining)
		}
		return left
	}
	assert.Equal(t, []int64{9, 9, 9, 1}, remaining(s.admits(t, `{"policy":"p","client":"c"}`)))
	s.clock.at(time.Second)
	for range 3 {
		assert.Equal(t, []int64{9, 9, 9, 1}, remaining(s.denies(t, `{"policy":"p","client":"c","cost":2}`)))
	}
	r := s.admits(t, `{"policy":"p","client":"c"}`)
	assert.Equal(t, []int64{8, 8, 8, 0}, remaining(r))
	assert.Equal(t, `"tokens";q=10;w=60, "queue";q=10;w=60, "log";q=10;w=60, "few";q=2;w=60`, r.Header.Get("RateLimit-Policy"))
	assert.Equal(t, `"tokens";r=8;t=11, "queue";r=8;t=11, "log";r=8;t=60, "few";r=0;t=59`, r.Header.Get("RateLimit"))
	assert.Equal(t, 5.0, r.Wait, "a slot each 6 s, and 1 s has passed")
	assert.Equal(t, http.StatusNoContent, s.do(t, http.MethodDelete, "/v1/policies/p/clients/c", "").Code)
	assert.Equal(t, []int64{10, 10, 10, 2}, remaining(s.do(t, http.MethodGet, "/v1/policies/p/clients/c", "")))
}

func TestRetryAfterOfBucketsIsTrue(t *testing.T) {
	for name, limit := range map[string]Limit{
		"token_bucket": token("l", 7, time.Minute, 12), "leaky_bucket": leaky("l", 7, time.Minute, 12), "sliding_log": slidingLog("l", 12, time.Minute),
	} {
		t.Run(name, func(t *testing.T) {
			s := newService(newPolicy("p", limit))
			s.admits(t, `{"policy":"p","client":"c","cost":12}`)
			s.clock.at(time.Second)
			r := s.denies(t, `{"policy":"p","client":"c","cost":5}`)
			at := time.Second + r.retry()
			s.clock.at(at - 2*time.Millisecond)
			s.denies(t, `{"policy":"p","client":"c","cost":5}`)
			s.clock.at(at)
			s.admits(t, `{"policy":"p","client":"c","cost":5}`)
		})
	}
}

func TestCostsAboveTheCapacityAreRefused(t *testing.T) {
	s := newService(newPolicy("small", token("t", 100, time.Minute, 20)), newPolicy("large", token("t", 20, time.Minute, 100)),
		newPolicy("log", slidingLog("l", 20, time.Minute)))
	requireProblem(t, s.check(t, `{"policy":"small","client":"c","cost":21}`), http.StatusBadRequest,
		`cost 21 is above the burst of the limit "t", which is 20, and can never be admitted`)
	s.admits(t, `{"policy":"small","client":"c","cost":20}`)
	s.admits(t, `{"policy":"large","client":"c","cost":100}`)
	requireProblem(t, s.check(t, `{"policy":"log","client":"c","cost":21}`), http.StatusBadRequest,
		`cost 21 is above the limit "l", which is 20, and can never be admitted`)
	s.admits(t, `{"policy":"log","client":"c","cost":10000,"limits":{"l":10000}}`)
	requireProblem(t, s.check(t, `{"policy":"log","client":"c","limits":{"l":10001}}`), http.StatusBadRequest,
		`limits: "l" is 10001 and must be a whole number from 1 to 10000`)
}

func TestBucketsAreShown(t *testing.T) {
	queue := newPolicy("queue", leaky("slots", 10, time.Second, 50), token("tokens", 5, time.Minute, 0))
	queue.Hold = true
	s := newService(queue)
	assert.JSONEq(t, `{"name":"queue","limits":[
		{"name":"slots","algorithm":"leaky_bucket","limit":10,"window":1,"burst":50},
		{"name":"tokens","algorithm":"token_bucket","limit":5,"window":60}],
		"count_denied":false,"on_store_error":"allow","hold":true,"mode":"enforce","clients":0}`,
		s.do(t, http.MethodGet, "/v1/policies/queue", "").Body)
}

func TestMetricsOfBuckets(t *testing.T) {
	s := newService(newPolicy("p", token("t", 2, time.Minute, 0)))
	for range 3 {
		s.check(t, `{"policy":"p","client":"c"}`)
	}
	s.do(t, http.MethodGet, "/v1/policies/p/clients/c", "")
	m := s.cfg.Metrics
	m.Swaps(4, 2)
	m.Foreign()
	assert.Equal(t, 2.0, testutil.ToFloat64(m.operations.WithLabelValues("swap", "ok")))
	assert.Equal(t, 1.0, testutil.ToFloat64(m.operations.WithLabelValues("load", "ok")))
	assert.Equal(t, 1.0, testutil.ToFloat64(m.localDenials.WithLabelValues("p")))
	assert.Equal(t, 2.0, testutil.ToFloat64(m.casConflicts))
	assert.Equal(t, 1.0, testutil.ToFloat64(m.casForeign))
	body := s.do(t, http.MethodGet, "/metrics", "").Body
	for _, line := range []string{
		`weir_cas_attempts_bucket{le="1"} 2`, `weir_cas_attempts_bucket{le="4"} 3`, "weir_cas_attempts_count 3", "weir_cas_conflicts_total 2", "weir_cas_foreign_values_total 1",
	} {
		assert.Contains(t, body, line+"\n")
	}
}
