package weirecho_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"testing"
	"time"

	"github.com/labstack/echo/v4"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	"weir/api"
	"weir/api/client"
	"weir/api/client/weirecho"
	"weir/api/decide"
	"weir/api/policy"
	"weir/api/telemetry"
	"weir/cas"
	"weir/counters"
	"weir/counters/memory"
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

// patience is how long a test waits for something that has to happen.
const patience = time.Minute

// startPlaces returns a client of a weir with a policy "jobs", by which one is under way at
// once.
func startPlaces(t *testing.T) *client.Client {
	t.Helper()
	const lease = time.Minute
	limiter, err := cas.NewConcurrency(memory.New(nil), lease, 1, cas.Config{Options: counters.Options{Policy: "jobs", Limit: "in-flight"}})
	require.NoError(t, err)
	weir := httptest.NewServer(api.NewServer(api.Config{
		Policies: policy.Policies{"jobs": {
			Name: "jobs", OnStoreError: policy.StoreErrorLocal, SettleWithin: 10 * time.Minute,
			Limits: []policy.Limit{{Name: "in-flight", Algorithm: "concurrency", Limit: 1, Window: lease, Lease: lease, Limiter: limiter}},
		}},
		Metrics: telemetry.NewMetrics(nil, "test"),
		Log:     slog.New(slog.DiscardHandler),
		Now:     time.Now,
		Claims:  decide.Claims{Store: memory.New(nil), KeyPrefix: counters.DefaultKeyPrefix, Late: new(counters.Goroutines)},
	}))
	limits, err := client.New(client.Config{URL: weir.URL, Timeout: patience})
	require.NoError(t, err)
	t.Cleanup(func() {
		limits.Close()
		weir.Close()
	})
	return limits
}

// However a handler ends, it has its place until then and no longer.
func TestAHandlerHoldsAPlace(t *testing.T) {
	t.Parallel()
	limits := startPlaces(t)
	left := func() int64 {
		a, err := limits.Peek(t.Context(), "jobs", "alice")
		require.NoError(t, err)
		return a.Limits[0].Remaining
	}
	e := echo.New()
	e.Use(weirecho.Concurrent(limits, func(echo.Context) client.Check { return client.Check{Policy: "jobs", Client: "alice"} }))
	e.GET("/returns", func(c echo.Context) error { return c.JSON(http.StatusOK, left()) })
	e.GET("/fails", func(echo.Context) error { return echo.NewHTTPError(http.StatusTeapot, left()) })
	e.GET("/panics", func(echo.Context) error { panic(left()) })
	entered, canceled := make(chan int64, 1), make(chan error, 1)
	e.GET("/waits", func(c echo.Context) error {
		entered <- left()
		<-c.Request().Context().Done()
		canceled <- c.Request().Context().Err()
		return nil
	})
	serve := func(path string) (recorder *httptest.ResponseRecorder, cause any) {
		recorder = httptest.NewRecorder()
		defer func() { cause = recover() }()
		e.ServeHTTP(recorder, httptest.NewRequest(http.MethodGet, path, nil))
		return recorder, nil
	}
	returned, _ := serve("/returns")
	assert.Equal(t, "200 0\n", fmt.Sprint(returned.Code, " ", returned.Body))
	require.EqualValues(t, 1, left())
	failed, _ := serve("/fails")
	assert.Equal(t, http.StatusTeapot, failed.Code)
	assert.Equal(t, "0\n", failed.Body.String())
	require.EqualValues(t, 1, left())
	_, cause := serve("/panics")
	assert.EqualValues(t, 0, cause)
	require.EqualValues(t, 1, left())

	server := httptest.NewServer(e)
	defer server.Close()
	ctx, hangUp := context.WithCancel(t.Context())
	gone := make(chan error, 1)
	go func() {
		r, err := http.NewRequestWithContext(ctx, http.MethodGet, server.URL+"/waits", nil)
		if err == nil {
			var answer *http.Response
			if answer, err = server.Client().Do(r); err == nil {
				_, err = io.Copy(io.Discard, answer.Body)
				_ = answer.Body.Close()
			}
		}
		gone <- err
	}()
	assert.Zero(t, <-entered)
	denied, _ := serve("/returns")
	assert.Equal(t, http.StatusTooManyRequests, denied.Code)
	assert.Equal(t, `"in-flight";q=1;qu="concurrent-requests"`, denied.Header().Get("RateLimit-Policy"))
	hangUp()
	require.ErrorIs(t, <-gone, context.Canceled)
	require.ErrorIs(t, <-canceled, context.Canceled)
	assert.Eventually(t, func() bool { return left() == 1 }, patience, time.Millisecond)
}
