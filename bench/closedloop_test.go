package main

import (
	"context"
	"errors"
	"io"
	"net/http"
	"net/http/httptest"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

func TestRepeatCounts(t *testing.T) {
	var calls atomic.Int64
	op := func(n int64) (bool, error) {
		calls.Add(1)
		return n != 0, nil
	}
	result, err := repeat(t.Context(), []operation{op, op, op}, &turn{clients: 4, last: 100}, 0)
	require.NoError(t, err)
	assert.Equal(t, int64(100), calls.Load())
	assert.Equal(t, int64(75), result.admitted)
	assert.Equal(t, int64(25), result.denied)
	assert.Equal(t, int64(100), result.latency.TotalCount())
	assert.Positive(t, result.elapsed)
}

func TestRepeatEndsWithTheDuration(t *testing.T) {
	result, err := repeat(t.Context(), []operation{func(int64) (bool, error) { return true, nil }}, &turn{clients: 1}, time.Millisecond)
	require.NoError(t, err)
	assert.Positive(t, result.admitted)
	assert.GreaterOrEqual(t, result.elapsed, time.Millisecond)
}

func TestRepeatEndsWithAFailure(t *testing.T) {
	broken := errors.New("broken")
	fine := func(int64) (bool, error) { return true, nil }
	fails := func(int64) (bool, error) { return false, broken }
	_, err := repeat(t.Context(), []operation{fine, fails, fine}, &turn{clients: 1}, 0)
	assert.ErrorIs(t, err, broken)
}

func TestTallies(t *testing.T) {
	a := tally{admitted: 6, denied: 2, elapsed: 2 * time.Second, latency: newHistogram()}
	b := tally{admitted: 1, denied: 3, elapsed: time.Second, latency: newHistogram()}
	require.NoError(t, a.latency.RecordValue(1000))
	require.NoError(t, b.latency.RecordValue(2000))

	sum := newTally()
	sum.add(a)
	sum.add(b)
	assert.Equal(t, []int64{7, 5}, []int64{sum.admitted, sum.denied})
	assert.Equal(t, 3*time.Second, sum.elapsed)
	assert.Equal(t, int64(2), sum.latency.TotalCount())
	assert.InDelta(t, 4.0, sum.rate(), 1e-9)

	a.merge(b)
	assert.Equal(t, int64(12), a.checks())
	assert.Equal(t, 2*time.Second, a.elapsed, "at the same time")
}

func TestPairComparesNeighbours(t *testing.T) {
	slice := func(checks int64, elapsed time.Duration) func() (tally, error) {
		return func() (tally, error) {
			return tally{admitted: checks, elapsed: elapsed, latency: newHistogram()}, nil
		}
	}
	p := newPair()
	require.NoError(t, p.slice(slice(100, time.Second), slice(50, time.Second)))
	require.NoError(t, p.slice(slice(300, time.Second), slice(300, time.Second)))
	c := p.comparison()
	assert.InDelta(t, 175, c.Rate, 1e-9)
	assert.InDelta(t, 200, c.Other, 1e-9)
	assert.InDelta(t, 0.875, c.Ratio, 1e-9)
	assert.InDelta(t, 0.5, c.RatioMin, 1e-9)
	assert.InDelta(t, 1.0, c.RatioMax, 1e-9)

	broken := errors.New("broken")
	fails := func() (tally, error) { return tally{}, broken }
	assert.ErrorIs(t, p.slice(fails, slice(1, 1)), broken)
	assert.ErrorIs(t, p.slice(slice(1, 1), fails), broken)
}

func TestUnexpectedStatusFails(t *testing.T) {
	w := workload{fixedWindow, hot}
	_, err := drive(t.Context(), dialedTo(t, w, noopHandler(reply{Status: 503, Body: []byte("no store")}, nil)), &turn{clients: 1, last: 10}, 0)
	assert.ErrorContains(t, err, "503: no store")
}

func TestDriveReadsDecisions(t *testing.T) {
	w := workload{fixedWindow, hot}
	for status, denied := range map[int]int64{200: 0, 429: 10} {
		clients := dialedTo(t, w, noopHandler(reply{Status: status, Body: []byte("{}")}, nil))
		result, err := drive(t.Context(), clients, &turn{clients: 1, last: 10}, 0)
		require.NoError(t, err)
		assert.Equal(t, denied, result.denied)
		assert.Equal(t, 10-denied, result.admitted)
	}
}

func TestDriveEndsWithTheContext(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	silent := http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		// Only after the body is read does the server notice a closed connection.
		_, err := io.Copy(io.Discard, r.Body)
		assert.NoError(t, err)
		cancel()
		<-r.Context().Done()
	})
	_, err := drive(ctx, dialedTo(t, workload{fixedWindow, hot}, silent), &turn{clients: 1}, 0)
	assert.ErrorIs(t, err, context.Canceled)
}

// dialedTo returns two connections to a server with the handler.
func dialedTo(t *testing.T, w workload, handler http.Handler) []*client {
	t.Helper()
	s := httptest.NewServer(handler)
	t.Cleanup(s.Close)
	clients, err := dialClients(t.Context(), s.Listener.Addr().String(), w.request(), 2)
	require.NoError(t, err)
	t.Cleanup(func() { closeClients(clients) })
	return clients
}
