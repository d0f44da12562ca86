// Package limitertest holds the tests that the limiters of every algorithm pass, and
// the stores that fail or are slow for them. They state the promises as checks: what
// callers that race are admitted (Races, RacingBatches), what is admitted without the
// store (Outage, Alone, Crowd) and told to it later (Telling, Late), what becomes of
// callers who leave (Leaving) and of what the store loses (Loss).
package limitertest

import (
	"math"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"weir/counters"
)

// WrongRequests tests that what no limiter can decide is an error: no panic, no
// admission. The limiter is a new one, and admits a cost of 1 at now.
func WrongRequests(t *testing.T, l counters.Limiter, now time.Time) {
	right := counters.Request{Client: "c", Cost: 1, Limit: 1, Now: now}
	wrong := make(map[string]counters.Request)
	for name, spoil := range map[string]func(*counters.Request){
		"no client":     func(r *counters.Request) { r.Client = "" },
		"a long client": func(r *counters.Request) { r.Client = strings.Repeat("c", counters.MaxClientBytes+1) },
		"negative cost": func(r *counters.Request) { r.Cost = -1 },
		"huge cost":     func(r *counters.Request) { r.Cost = counters.MaxCost + 1 },
		"no limit":      func(r *counters.Request) { r.Limit = 0 },
		"huge limit":    func(r *counters.Request) { r.Limit = counters.MaxLimit + 1 },
		"no time":       func(r *counters.Request) { r.Now = time.Time{} },
		"a far past":    func(r *counters.Request) { r.Now = time.Unix(0, math.MinInt64) },
		"a far future":  func(r *counters.Request) { r.Now = time.Unix(0, math.MaxInt64) },
	} {
		r := right
		spoil(&r)
		_, takeErr := l.Take(t.Context(), r)
		_, peekErr := l.Peek(t.Context(), r)
		_, localErr := l.TakeLocal(r, counters.ErrTimeout)
		for _, err := range []error{takeErr, peekErr, localErr, l.Refund(t.Context(), r, counters.Decision{Allowed: true})} {
			assert.ErrorIs(t, err, counters.ErrRequest, name)
		}
		wrong[name] = r
	}
	assert.ErrorIs(t, l.Reset(t.Context(), "", right.Now), counters.ErrRequest)
	for _, never := range []time.Time{{}, time.Unix(0, math.MaxInt64)} {
		assert.ErrorIs(t, l.Reset(t.Context(), "c", never), counters.ErrRequest)
	}
	d, err := l.Take(t.Context(), right)
	require.NoError(t, err)
	assert.True(t, d.Allowed, "nothing was consumed")
	_, known := l.PeekLocal(right)
	assert.True(t, known)
	for name, r := range wrong {
		_, known := l.PeekLocal(r)
		assert.False(t, known, name)
		_, known = l.Recall(r)
		assert.False(t, known, name)
	}
}
