package api

import (
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/labstack/echo/v4"
	"github.com/stretchr/testify/require"
)

// A parameter that a request doesn't have is a mistake, such as one of a reset that is to be of
// one limit, or what follows a ? in a client that isn't escaped. Who posts says all in the body.
func TestUnknownParametersAreMistakes(t *testing.T) {
	t.Parallel()
	s := newService(newPolicy("api", fixed("per-minute", 3, time.Minute)))
	s.admits(t, `{"policy":"api","client":"c"}`)
	known := map[string]string{
		"/v1/policies/:policy/top": "there are by, n and scope", "/v1/policies/:policy/history": "there is seconds",
		"/v1/look": "there is get", "/v1/audit": "there is n",
	}
	tried := 0
	for _, route := range s.echo.Routes() {
		if !strings.HasPrefix(route.Path, "/v1/") || route.Method == echo.RouteNotFound || route.Method == http.MethodPost {
			continue
		}
		want := known[route.Path]
		if want == "" {
			want = "this request has none"
		}
		path := strings.NewReplacer(":policy", "api", ":client", "c", ":key", "c", "*", "a/b").Replace(route.Path)
		const body = `{"blocked":true,"for":"1m"}`
		requireProblem(t, s.do(t, route.Method, path+"?limit=per-minute", body), http.StatusBadRequest, `there is no parameter "limit"; `+want)
		requireProblem(t, s.do(t, route.Method, path+"?%zz", body), http.StatusBadRequest, "the query can't be read")
		tried++
	}
	require.Equal(t, 16, tried)
	requireUsed(t, s, "api", "c", 1)
}

// A proxy may pass on the query of what it asks about, and who posts a query of its own.
func TestForwardAuthAndChecksLeaveTheQueryAlone(t *testing.T) {
	t.Parallel()
	s := newService(newPolicy("api", fixed("per-minute", 3, time.Minute)))
	for _, query := range []string{"?n=1", "?%zz", "?a;b", "?a&a"} {
		require.NotEqual(t, http.StatusBadRequest, s.do(t, http.MethodGet, "/v1/auth/api/x"+query, "").Code, query)
		require.Equal(t, http.StatusOK, s.do(t, http.MethodPost, "/v1/check"+query, `{"policy":"api","client":"c","cost":0}`).Code, query)
	}
}
