package api

import (
	"net/http"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"weir/counters"
	"weir/counters/memory"
	"weir/subwindow"
)

// newTogether returns what decides by one limit of a minute, and a check of
// one client of it.
func newTogether(t *testing.T, countDenied bool) (*Together, *clock, func(client string, value int64, leniency Leniency) LimitCheck) {
	clock := &clock{time: epoch}
	window, err := subwindow.NewFixedWindow(time.Minute)
	require.NoError(t, err)
	limiter, err := subwindow.New(memory.New(clock.now), window, counters.Options{
		Policy: "p", Limit: "minute", ClockSkew: -1, StoreTimeout: -1, CountDenied: countDenied,
	})
	require.NoError(t, err)
	policy := &Policy{Name: "p", OnStoreError: StoreErrorLocal, CountDenied: countDenied}
	together := NewTogether(policy, Config{Metrics: NewMetrics(prometheus.NewRegistry(), "test"), Now: clock.now})
	limit := &Limit{Name: "minute", Algorithm: "fixed_window", Window: time.Minute, Limiter: limiter}
	return together, clock, func(client string, value int64, leniency Leniency) LimitCheck {
		return LimitCheck{Limit: limit, Client: client, Cost: 1, Value: value, Leniency: leniency}
	}
}

// remaining asks without consuming.
func remaining(t *testing.T, together *Together, c LimitCheck) int64 {
	t.Helper()
	c.Cost = 0
	checks := []LimitCheck{c}
	require.True(t, together.Check(checks, nil))
	return checks[0].Remaining
}

// If one denies, what the others took is given back.
func TestChecksAreDecidedTogether(t *testing.T) {
	t.Parallel()
	together, _, check := newTogether(t, false)
	wide, narrow := check("wide", 10, Strict), check("narrow", 2, Strict)
	for range 2 {
		assert.True(t, together.Check([]LimitCheck{wide, narrow}, nil))
	}
	header := http.Header{}
	checks := []LimitCheck{wide, narrow}
	for range 5 {
		assert.False(t, together.Check(checks, header))
		assert.True(t, checks[0].Allowed)
		assert.False(t, checks[1].Allowed)
		assert.EqualValues(t, 8, checks[0].Remaining, "not taken from")
	}
	assert.Equal(t, http.Header{
		"Ratelimit-Policy": {`"minute";q=10;w=60, "minute";q=2;w=60`},
		"Ratelimit":        {`"minute";r=8;t=60, "minute";r=0;t=60`},
		"Retry-After":      {"60"},
	}, header)
}

func TestDeniedChecksCountIfTheyShall(t *testing.T) {
	t.Parallel()
	together, _, check := newTogether(t, true)
	checks := []LimitCheck{check("narrow", 1, Strict), check("wide", 10, Strict)}
	for range 3 {
		together.Check(checks, nil)
	}
	assert.EqualValues(t, 7, remaining(t, together, checks[1]))
}

// A shadow denies nothing, and of quotas only all.
func TestLeniency(t *testing.T) {
	t.Parallel()
	together, _, check := newTogether(t, false)
	shadow := []LimitCheck{check("s", 1, Shadow), check("w", 10, Strict)}
	for range 3 {
		assert.True(t, together.Check(shadow, nil))
	}
	assert.False(t, shadow[0].Allowed)
	assert.EqualValues(t, 7, shadow[1].Remaining)

	quotas := []LimitCheck{check("q1", 1, Quota), check("q2", 3, Quota), check("w", 10, Strict)}
	for range 3 {
		assert.True(t, together.Check(quotas, nil))
	}
	assert.False(t, together.Check(quotas, nil))
	assert.EqualValues(t, 4, quotas[2].Remaining, "given back")
}

func TestGiveBack(t *testing.T) {
	t.Parallel()
	together, _, check := newTogether(t, false)
	c := check("c", 10, Strict)
	for range 4 {
		together.Check([]LimitCheck{c}, nil)
	}
	c.Cost = 3
	require.NoError(t, together.GiveBack(&c))
	assert.EqualValues(t, 9, c.Remaining)
	c.Cost = 100
	require.NoError(t, together.GiveBack(&c))
	assert.EqualValues(t, 10, c.Remaining, "and no more than was in use")
}
