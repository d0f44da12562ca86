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
			return []counters.ServerStatus{{Server: "a:11211"}, {Server: "b:11211", Err: errors.New("down"), BreakerOpen: true}}
		}
	}, newPolicy("api", fixed("per-minute", 2, time.Minute)))
	requireMetrics(t, s, `weir_store_up{server="a:11211"} 1`, `weir_store_up{server="b:11211"} 0`,
		`weir_store_breaker_open{server="a:11211"} 0`, `weir_store_breaker_open{server="b:11211"} 1`)
}
