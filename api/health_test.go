package api

import (
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"weir/counters"
)

func TestHealthz(t *testing.T) {
	t.Parallel()
	s := newService()
	r := s.do(t, http.MethodGet, "/healthz", "")
	assert.Equal(t, http.StatusOK, r.Code)
	assert.JSONEq(t, `{"status":"ok"}`, r.Body)

	server := httptest.NewServer(s.handler)
	defer server.Close()
	response, err := server.Client().Head(server.URL + "/healthz")
	require.NoError(t, err)
	r = decodeResult(t, response)
	assert.Equal(t, http.StatusOK, r.Code)
	assert.Empty(t, r.Body)
}

func TestReadyzNamesEachServer(t *testing.T) {
	t.Parallel()
	up := counters.ServerStatus{Server: "a:11211"}
	down := counters.ServerStatus{Server: "/run/b.sock", Err: fmt.Errorf("%w: no such file", counters.ErrUnavailable)}
	strange := counters.ServerStatus{Server: "c:11211", Err: errors.New("strange")}
	for _, test := range []struct {
		what    string
		servers []counters.ServerStatus
		status  int
		body    string
	}{
		{"all answer", []counters.ServerStatus{up}, http.StatusOK,
			`{"ready":true,"draining":false,"servers":[{"server":"a:11211","up":true}]}`},
		{"one answers", []counters.ServerStatus{down, up, strange}, http.StatusOK,
			`{"ready":true,"draining":false,"servers":[{"server":"/run/b.sock","up":false,"error":"the store is not available: no such file"},` +
				`{"server":"a:11211","up":true},{"server":"c:11211","up":false,"error":"strange"}]}`},
		{"none answers", []counters.ServerStatus{down}, http.StatusServiceUnavailable,
			`{"ready":false,"draining":false,"servers":[{"server":"/run/b.sock","up":false,"error":"the store is not available: no such file"}]}`},
	} {
		t.Run(test.what, func(t *testing.T) {
			s := newServiceWith(func(cfg *Config) {
				cfg.Health = func() []counters.ServerStatus { return test.servers }
			})
			r := s.do(t, http.MethodGet, "/readyz", "")
			assert.Equal(t, test.status, r.Code)
			assert.JSONEq(t, test.body, r.Body)
			assert.Equal(t, test.status, s.do(t, http.MethodHead, "/readyz", "").Code)
		})
	}
}

func TestMetricsSayWhichServersAreUp(t *testing.T) {
	t.Parallel()
	s := newServiceWith(func(cfg *Config) {
		cfg.Health = func() []counters.ServerStatus {
			return []counters.ServerStatus{
				{Server: "a:11211", Stats: &counters.ServerStats{Items: 7, Bytes: 700, Evictions: 3, Ahead: -1500 * time.Millisecond}},
				{Server: "b:11211", Err: errors.New("down"), BreakerOpen: true},
			}
		}
	}, newPolicy("api", fixed("per-minute", 2, time.Minute)))
	requireMetrics(t, s, `weir_store_up{server="a:11211"} 1`, `weir_store_up{server="b:11211"} 0`,
		`weir_store_breaker_open{server="a:11211"} 0`, `weir_store_breaker_open{server="b:11211"} 1`,
		`weir_memcached_items{server="a:11211"} 7`, `weir_memcached_bytes{server="a:11211"} 700`, `weir_memcached_evictions_total{server="a:11211"} 3`,
		`weir_memcached_clock_difference_seconds{server="a:11211"} -1.5`)
	assert.NotContains(t, s.do(t, http.MethodGet, "/metrics", "").Body, `weir_memcached_items{server="b:11211"}`)
}

// A server that is down says nothing of itself, which isn't that it has no items.
func TestStatusLeavesOutWhatIsNotKnown(t *testing.T) {
	t.Parallel()
	s := newServiceWith(func(cfg *Config) {
		cfg.Health = func() []counters.ServerStatus {
			return []counters.ServerStatus{
				{Server: "a:11211", Stats: &counters.ServerStats{Items: 7}}, {Server: "b:11211", Err: errors.New("dial b:11211"), BreakerOpen: true},
			}
		}
	}, newPolicy("api", fixed("per-minute", 2, time.Minute)))
	assert.Contains(t, s.do(t, http.MethodGet, "/v1/status", "").Body,
		`"servers":[{"server":"a:11211","up":true,"breaker_open":false,"items":7,"bytes":0,"evictions":0},`+
			`{"server":"b:11211","up":false,"error":"dial b:11211","breaker_open":true}]`)
}

// Who may not see /v1 doesn't learn where the servers are.
func TestServersAreNamedToThoseWithAToken(t *testing.T) {
	t.Parallel()
	s := newServiceWith(func(cfg *Config) {
		cfg.Tokens = []Token{{Secret: "secret"}}
		cfg.Health = func() []counters.ServerStatus {
			return []counters.ServerStatus{{Server: "a:11211"}, {Server: "b:11211", Err: errors.New("dial b:11211"), BreakerOpen: true}}
		}
	}, newPolicy("api", fixed("per-minute", 2, time.Minute)))
	get := func(path, authorization string) string {
		request := newRequest(http.MethodGet, path, "")
		request.Header.Set("Authorization", authorization)
		answer := httptest.NewRecorder()
		s.handler.ServeHTTP(answer, request)
		require.Equal(t, http.StatusOK, answer.Code)
		return answer.Body.String()
	}
	for _, authorization := range []string{"", "Bearer wrong", "Basic secret"} {
		assert.JSONEq(t, `{"ready":true,"draining":false,"servers":[{"up":true},{"up":false}]}`, get("/readyz", authorization))
		metrics := get("/metrics", authorization)
		assert.NotContains(t, metrics, "11211")
		assert.Contains(t, metrics, "weir_store_up{server=\"0\"} 1\nweir_store_up{server=\"1\"} 0\n")
		assert.Contains(t, metrics, "weir_store_breaker_open{server=\"0\"} 0\nweir_store_breaker_open{server=\"1\"} 1\n")
		assert.Contains(t, metrics, `weir_store_operations_total{operation="add",outcome="ok",server="1"} 0`)
		assert.Contains(t, metrics, "weir_build_info")
	}
	assert.JSONEq(t, `{"ready":true,"draining":false,"servers":[{"server":"a:11211","up":true},{"server":"b:11211","up":false,"error":"dial b:11211"}]}`,
		get("/readyz", "Bearer secret"))
	assert.Contains(t, get("/metrics", "Bearer secret"), "weir_store_up{server=\"a:11211\"} 1\nweir_store_up{server=\"b:11211\"} 0\n")
}
