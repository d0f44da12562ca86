package api

import (
	"net/http"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"

	"weir/api/policy"
)

func TestPoliciesAreShown(t *testing.T) {
	t.Parallel()
	b := newPolicy("b", sliding("ten", 5, 10*time.Second, 10, "strict"), fixed("short", 3, 1500*time.Millisecond))
	b.Description, b.Shadow, b.CountDenied, b.OnStoreError = "a trial", true, true, policy.StoreErrorDeny
	b.Clients = clients(map[string]policy.Terms{"secret-1": {Exempt: true}, "secret-2": {}})
	s := newService(b, newPolicy("a", fixed("per-minute", 100, time.Minute)))
	const (
		jsonA = `{"name":"a","limits":[{"name":"per-minute","algorithm":"fixed_window","limit":100,"window":60}],` +
			`"count_denied":false,"on_store_error":"local","mode":"enforce","clients":0}`
		jsonB = `{"name":"b","description":"a trial","limits":[` +
			`{"name":"ten","algorithm":"sliding_window","limit":5,"window":10,"sub_windows":10,"estimate":"strict"},` +
			`{"name":"short","algorithm":"fixed_window","limit":3,"window":1.5}],` +
			`"count_denied":true,"on_store_error":"deny","mode":"shadow","clients":2}`
	)
	r := s.do(t, http.MethodGet, "/v1/policies", "")
	assert.Equal(t, http.StatusOK, r.Code)
	assert.JSONEq(t, `{"policies":[`+jsonA+`,`+jsonB+`]}`, r.Body)
	assert.JSONEq(t, jsonB, s.do(t, http.MethodGet, "/v1/policies/b", "").Body)
	assert.JSONEq(t, `{"policies":[]}`, newService().do(t, http.MethodGet, "/v1/policies", "").Body)
}

func TestBucketsAndLogsAreShown(t *testing.T) {
	t.Parallel()
	queue := newPolicy("queue", leaky("queue", 10, time.Second, 50), token("tokens", 5, time.Minute, 0),
		slidingLog("log", 5, time.Minute), countingLog("counting", 20_000, time.Minute, 64))
	queue.Hold = true
	s := newService(queue)
	assert.JSONEq(t, `{"name":"queue","limits":[
		{"name":"queue","algorithm":"leaky_bucket","limit":10,"window":1,"burst":50},
		{"name":"tokens","algorithm":"token_bucket","limit":5,"window":60},
		{"name":"log","algorithm":"sliding_log","limit":5,"window":60},
		{"name":"counting","algorithm":"sliding_log","limit":20000,"window":60,"entries":64}],
		"count_denied":false,"on_store_error":"local","hold":true,"mode":"enforce","clients":0}`,
		s.do(t, http.MethodGet, "/v1/policies/queue", "").Body)
}
