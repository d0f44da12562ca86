package client_test

import (
	"context"
	"fmt"
	"net/http"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"weir/api/client"
	"weir/api/policy"
)

// asks returns how many requests a check cost, and its answer.
func asks(t *testing.T, w *weir, c *client.Client, q client.Check) (int, client.Answer) {
	t.Helper()
	w.asked()
	a := check(t, c, q)
	return len(w.asked()), a
}

func TestADenialCostsNoRequestUntilItsRetryAfter(t *testing.T) {
	t.Parallel()
	w, c := start(t, client.Config{}, newPolicy("api", fixed("api", 1)))
	alice := client.Check{Policy: "api", Client: "alice"}
	for _, step := range []struct {
		at       time.Duration
		requests int
		allowed  bool
		retry    time.Duration
	}{
		{10 * time.Second, 1, true, 0},
		{10 * time.Second, 1, false, 50 * time.Second},
		{10 * time.Second, 0, false, 50 * time.Second},
		{30 * time.Second, 0, false, 30 * time.Second},
		{5 * time.Second, 0, false, 55 * time.Second}, // a clock that jumps back
		{59*time.Second + 999*time.Millisecond, 0, false, time.Millisecond},
		{60 * time.Second, 1, true, 0},
		{60 * time.Second, 1, false, 60 * time.Second},
	} {
		w.at(step.at)
		requests, a := asks(t, w, c, alice)
		assert.Equal(t, step.requests, requests, step.at)
		assert.Equal(t, step.allowed, a.Allowed, step.at)
		assert.Equal(t, step.retry, a.RetryAfter, step.at)
		if !step.allowed {
			assert.Equal(t, step.retry, a.Limits[0].RetryAfter)
			assert.Equal(t, step.retry, a.Limits[0].ResetAfter)
			a.Limits[0].RetryAfter = 0 // it is the caller's own
		}
	}
	requests, a := asks(t, w, c, client.Check{Policy: "api", Client: "bob"})
	assert.Equal(t, 1, requests)
	assert.True(t, a.Allowed)
	w.asked()
	r := c.CheckMany(t.Context(), []client.Check{alice, {Policy: "api", Client: "carol"}, alice})
	assert.False(t, r[0].Allowed)
	assert.True(t, r[1].Allowed)
	assert.False(t, r[2].Allowed)
	assert.Equal(t, []int{1}, w.batches())
}

// A denial says something of the very same check only: of a bucket that fills
// by one a second, cost 5 fits later than cost 1, though nothing remains.
func TestADenialSaysNothingOfOtherCosts(t *testing.T) {
	t.Parallel()
	w, c := start(t, client.Config{}, newPolicy("api", tokens("api", 10)))
	of := func(cost int64) client.Check { return client.Check{Policy: "api", Client: "alice", Cost: cost} }
	for _, step := range []struct {
		at       time.Duration
		cost     int64
		requests int
		allowed  bool
		retry    time.Duration
	}{
		{0, 8, 1, true, 0},
		{0, 5, 1, false, 3 * time.Second}, // 2 remain
		{0, 1, 1, true, 0},
		{0, 1, 1, true, 0},
		{0, 1, 1, false, time.Second},
		{0, 5, 0, false, 3 * time.Second}, // by what was known first
		{0, 1, 0, false, time.Second},
		{time.Second, 1, 1, true, 0},
		{time.Second, 5, 0, false, 2 * time.Second},
		{3 * time.Second, 5, 1, false, 3 * time.Second}, // cost 1 came first
		{3 * time.Second, 6, 1, false, 4 * time.Second},
		{6 * time.Second, 5, 1, true, 0},
	} {
		w.at(step.at)
		requests, a := asks(t, w, c, of(step.cost))
		assert.Equal(t, step.requests, requests, step)
		assert.Equal(t, step.allowed, a.Allowed, step)
		assert.Equal(t, step.retry, a.RetryAfter, step)
	}
}

func TestADenialSaysNothingOfOtherLimits(t *testing.T) {
	t.Parallel()
	w, c := start(t, client.Config{}, newPolicy("api", fixed("api", 1)), newPolicy("web", fixed("web", 1)))
	of := func(limit int64) client.Check {
		return client.Check{Policy: "api", Client: "alice", Limits: map[string]int64{"per-minute": limit}}
	}
	plain := client.Check{Policy: "api", Client: "alice"}
	assert.True(t, check(t, c, plain).Allowed)
	assert.False(t, check(t, c, plain).Allowed)
	assert.True(t, check(t, c, of(3)).Allowed)
	assert.True(t, check(t, c, of(3)).Allowed)
	assert.False(t, check(t, c, of(3)).Allowed)
	for q, want := range map[*client.Check]int{{Policy: "api", Client: "alice", Limits: of(3).Limits}: 0, &plain: 0, {Policy: "web", Client: "alice"}: 1} {
		requests, _ := asks(t, w, c, *q)
		assert.Equal(t, want, requests, *q)
	}
	assert.True(t, check(t, c, of(4)).Allowed)
}

// Blocked clients have no Retry-After, shadow policies no denials, and what is
// degraded may be otherwise elsewhere: they always ask.
func TestWhatIsNotRemembered(t *testing.T) {
	t.Parallel()
	strict := newPolicy("api", fixed("api", 1))
	setClient(strict, "abuser", policy.Terms{Blocked: true})
	trial := newPolicy("trial", fixed("trial", 1))
	trial.Shadow = true
	w, c := start(t, client.Config{}, strict, trial)
	for range 3 {
		requests, a := asks(t, w, c, client.Check{Policy: "api", Client: "abuser"})
		assert.Equal(t, 1, requests)
		assert.False(t, a.Allowed)
		requests, a = asks(t, w, c, client.Check{Policy: "trial", Client: "alice"})
		assert.Equal(t, 1, requests)
		assert.True(t, a.Allowed)
		assert.True(t, a.Shadow)
	}
	w.answers(func(w http.ResponseWriter, _ *http.Request) bool {
		_, _ = w.Write([]byte(`{"results":[{"status":429,"allowed":false,"degraded":true,"retry_after":30}]}`))
		return true
	})
	for range 3 {
		requests, a := asks(t, w, c, client.Check{Policy: "api", Client: "alice"})
		assert.Equal(t, 1, requests)
		assert.True(t, a.Degraded)
	}
	assert.Zero(t, c.Remembered())
}

// A reset elsewhere, or another policy, is seen within a minute.
func TestALongDenialIsRememberedForAMinute(t *testing.T) {
	t.Parallel()
	w, c := start(t, client.Config{})
	w.answers(func(w http.ResponseWriter, _ *http.Request) bool {
		_, _ = w.Write([]byte(`{"results":[{"status":429,"allowed":false,"retry_after":86400}]}`))
		return true
	})
	alice := client.Check{Policy: "api", Client: "alice"}
	for _, step := range []struct {
		at       time.Duration
		requests int
	}{{0, 1}, {client.LongestMemory - 1, 0}, {client.LongestMemory, 1}, {client.LongestMemory + 1, 0}} {
		w.at(step.at)
		requests, a := asks(t, w, c, alice)
		assert.Equal(t, step.requests, requests, step.at)
		assert.InDelta(t, 24*time.Hour, a.RetryAfter, float64(client.LongestMemory))
	}
}

func TestAResetEndsADenial(t *testing.T) {
	t.Parallel()
	w, c := start(t, client.Config{}, newPolicy("api", fixed("api", 1)))
	alice, bob := client.Check{Policy: "api", Client: "alice"}, client.Check{Policy: "api", Client: "bob"}
	for _, q := range []client.Check{alice, alice, bob, bob} {
		check(t, c, q)
	}
	require.NoError(t, c.Reset(t.Context(), "api", "alice"))
	requests, _ := asks(t, w, c, bob)
	assert.Zero(t, requests, "bob's stays known")
	assert.True(t, check(t, c, alice).Allowed)

	// Another instance may deny by what it had known, for a second. That isn't
	// remembered.
	stale := func(w http.ResponseWriter, _ *http.Request) bool {
		_, _ = w.Write([]byte(`{"results":[{"status":429,"allowed":false,"retry_after":30}]}`))
		return true
	}
	w.answers(stale)
	for _, step := range []struct {
		at       time.Duration
		requests int
	}{{0, 1}, {client.ResetTime - 1, 1}, {client.ResetTime, 1}, {client.ResetTime, 0}} {
		w.at(step.at)
		requests, a := asks(t, w, c, alice)
		assert.Equal(t, step.requests, requests, step.at)
		assert.False(t, a.Allowed)
	}
}

// What was denied before the reset and is heard of after it isn't remembered.
func TestADenialUnderWayDuringAReset(t *testing.T) {
	t.Parallel()
	w, c := start(t, client.Config{}, newPolicy("api", fixed("api", 1)))
	alice := client.Check{Policy: "api", Client: "alice"}
	decided, release := make(chan struct{}), make(chan struct{})
	w.answers(func(w http.ResponseWriter, r *http.Request) bool {
		if r.Method != http.MethodPost {
			return false
		}
		decided <- struct{}{}
		<-release
		_, _ = w.Write([]byte(`{"results":[{"status":429,"allowed":false,"retry_after":30}]}`))
		return true
	})
	answered := make(chan client.Answer)
	go func() {
		a, err := c.Check(context.Background(), alice)
		assert.NoError(t, err)
		answered <- a
	}()
	<-decided
	require.NoError(t, c.Reset(t.Context(), "api", "alice"))
	w.at(2 * client.ResetTime) // the answer takes long
	close(release)
	assert.False(t, (<-answered).Allowed)
	w.answers(nil)
	assert.True(t, check(t, c, alice).Allowed)
}

func TestDenialsAreBounded(t *testing.T) {
	t.Parallel()
	const most = 20
	w, c := start(t, client.Config{Denials: most}, newPolicy("api", fixed("api", 1)))
	deny := func(name string) client.Check {
		q := client.Check{Policy: "api", Client: name}
		check(t, c, q)
		check(t, c, q)
		return q
	}
	w.at(30 * time.Second)
	for i := range most {
		deny(fmt.Sprint("early-", i))
	}
	assert.Equal(t, most, c.Remembered())
	w.at(90 * time.Second) // the early ones are over
	for i := range most {
		requests, _ := asks(t, w, c, deny(fmt.Sprint("late-", i)))
		assert.Zero(t, requests, "it takes the room of one that is over")
	}
	for i := range 10 * most {
		requests, _ := asks(t, w, c, deny(fmt.Sprint("more-", i)))
		assert.Zero(t, requests, "the newest is known")
		assert.LessOrEqual(t, c.Remembered(), most)
	}
	// Of one client, the last few checks are known.
	of := func(limit int64) client.Check {
		return client.Check{Policy: "api", Client: "busy", Limits: map[string]int64{"per-minute": limit}}
	}
	check(t, c, client.Check{Policy: "api", Client: "busy", Limits: map[string]int64{"per-minute": 100}, Cost: 100})
	for limit := range int64(50) {
		check(t, c, of(1+limit))
	}
	requests, _ := asks(t, w, c, of(50))
	assert.Zero(t, requests)
	requests, _ = asks(t, w, c, of(1))
	assert.Equal(t, 1, requests)
	for range 10 * most {
		require.NoError(t, c.Reset(t.Context(), "api", fmt.Sprint("reset-", time.Now().UnixNano())))
	}
	assert.LessOrEqual(t, c.Remembered(), most)
}

func TestNoDenialIsRemembered(t *testing.T) {
	t.Parallel()
	w, c := start(t, client.Config{Denials: -1}, newPolicy("api", fixed("api", 1)))
	alice := client.Check{Policy: "api", Client: "alice"}
	check(t, c, alice)
	for range 3 {
		requests, a := asks(t, w, c, alice)
		assert.Equal(t, 1, requests)
		assert.False(t, a.Allowed)
	}
	require.NoError(t, c.Reset(t.Context(), "api", "alice"))
	assert.Zero(t, c.Remembered())
}
