package weirecho_test

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"testing"
	"time"

	"github.com/labstack/echo/v4"
	"github.com/stretchr/testify/assert"
	"go.uber.org/goleak"

	"weir/api/client"
	"weir/api/client/weirecho"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// A budget is a limiter in the process that allows so many checks.
type budget int

func (b *budget) Check(_ context.Context, q client.Check) (client.Answer, error) {
	if q.Client == "" {
		return client.Answer{}, errors.New("no client")
	}
	*b--
	if *b >= 0 {
		return client.Answer{Allowed: true}, nil
	}
	return client.Answer{RetryAfter: 1500 * time.Millisecond}, nil
}

func Example() {
	e := echo.New()
	e.IPExtractor = echo.ExtractIPDirect()
	limiter := budget(1) // or a *client.Client
	e.Use(weirecho.Middleware(&limiter, func(c echo.Context) client.Check {
		return client.Check{Policy: "api", Client: c.RealIP()}
	}))
	e.GET("/", func(c echo.Context) error { return c.String(http.StatusOK, "hello") })

	for range 2 {
		w := httptest.NewRecorder()
		e.ServeHTTP(w, httptest.NewRequest(http.MethodGet, "/", nil))
		fmt.Printf("%d %q\n", w.Code, w.Header().Get("Retry-After"))
	}
	// Output:
	// 200 ""
	// 429 "2"
}

func TestMiddleware(t *testing.T) {
	limiter := budget(2)
	e := echo.New()
	e.Use(weirecho.Middleware(&limiter, func(c echo.Context) client.Check {
		return client.Check{Policy: "api", Client: c.QueryParam("client")}
	}))
	e.GET("/", func(echo.Context) error { return echo.NewHTTPError(http.StatusTeapot) })
	for _, step := range []struct {
		target string
		status int
	}{{"/?client=a", http.StatusTeapot}, {"/", http.StatusServiceUnavailable}, {"/none?client=a", http.StatusNotFound}, {"/?client=a", http.StatusTooManyRequests}} {
		w := httptest.NewRecorder()
		e.ServeHTTP(w, httptest.NewRequest(http.MethodGet, step.target, nil))
		assert.Equal(t, step.status, w.Code, step.target)
	}
}
