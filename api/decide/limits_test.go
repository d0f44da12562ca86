package decide

import (
	"context"
	"net/http"
	"strconv"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"weir/api/policy"
	"weir/cas"
	"weir/counters"
	"weir/counters/memory"
	"weir/subwindow"
)

// epoch begins a minute and an hour.
var epoch = time.Unix(1_749_999_600, 0)

// An unheard is an Observer that nobody listens to.
type unheard struct{}

func (unheard) Decided(*Answer, time.Time, time.Duration) {}
func (unheard) Settled(*Settlement, time.Time, error)     {}
func (unheard) Charged(string, int64, time.Time)          {}
func (unheard) Renewed(*LimitCheck, error)                {}

// newLimits returns what decides by one limit of a minute, and a check of one
// client of it.
func newLimits(t *testing.T, countDenied bool) (*Decider, func(client string, value int64, leniency policy.Leniency) LimitCheck) {
	now := func() time.Time { return epoch }
	return newLimitsOn(t, memory.New(now), now, countDenied)
}

func newLimitsOn(t *testing.T, store *memory.Store, now func() time.Time, countDenied bool) (*Decider, func(client string, value int64, leniency policy.Leniency) LimitCheck) {
	window, err := subwindow.NewFixedWindow(time.Minute)
	require.NoError(t, err)
	limiter, err := subwindow.New(store, window, counters.Options{
		Policy: "p", Limit: "minute", ClockSkew: -1, StoreTimeout: -1, CountDenied: countDenied,
	})
	require.NoError(t, err)
	p := &policy.Policy{Name: "p", OnStoreError: policy.StoreErrorLocal, CountDenied: countDenied}
	d := NewDecider(Config{StoreTimeout: counters.DefaultTimeout, Now: now}, p, unheard{})
	return d, func(client string, value int64, leniency policy.Leniency) LimitCheck {
		limit := &policy.Limit{Name: "minute", Algorithm: "fixed_window", Window: time.Minute, Limiter: limiter, Leniency: leniency}
		return LimitCheck{Limit: limit, Client: client, Cost: 1, Value: value}
	}
}

// remaining asks without consuming.
func remaining(t *testing.T, d *Decider, c LimitCheck) int64 {
	t.Helper()
	c.Cost = 0
	checks := []LimitCheck{c}
	require.True(t, d.TakeLimits(checks, nil))
	return checks[0].Remaining
}

// If one denies, what the others took is given back.
func TestChecksAreDecidedTogether(t *testing.T) {
	t.Parallel()
	d, check := newLimits(t, false)
	wide, narrow := check("wide", 10, policy.Strict), check("narrow", 2, policy.Strict)
	for range 2 {
		assert.True(t, d.TakeLimits([]LimitCheck{wide, narrow}, nil))
	}
	header := http.Header{}
	checks := []LimitCheck{wide, narrow}
	for range 5 {
		assert.False(t, d.TakeLimits(checks, header))
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
	d, check := newLimits(t, true)
	checks := []LimitCheck{check("narrow", 1, policy.Strict), check("wide", 10, policy.Strict)}
	for range 3 {
		d.TakeLimits(checks, nil)
	}
	assert.EqualValues(t, 7, remaining(t, d, checks[1]))
}

// A shadow denies nothing, and of quotas only all.
func TestLeniency(t *testing.T) {
	t.Parallel()
	d, check := newLimits(t, false)
	shadow := []LimitCheck{check("s", 1, policy.Shadow), check("w", 10, policy.Strict)}
	for range 3 {
		assert.True(t, d.TakeLimits(shadow, nil))
	}
	assert.False(t, shadow[0].Allowed)
	assert.EqualValues(t, 7, shadow[1].Remaining)

	quotas := []LimitCheck{check("q1", 1, policy.Quota), check("q2", 3, policy.Quota), check("w", 10, policy.Strict)}
	for range 3 {
		assert.True(t, d.TakeLimits(quotas, nil))
	}
	assert.False(t, d.TakeLimits(quotas, nil))
	assert.EqualValues(t, 4, quotas[2].Remaining, "given back")
}

// In shadow mode what is denied counts nothing, and so reserves nothing that a commit might give
// back.
func TestAReservationThatShadowModeAdmits(t *testing.T) {
	t.Parallel()
	d, check := newLimits(t, false)
	d.Policy.Shadow = true
	wide, narrow := check("wide", 10, policy.Strict), check("narrow", 2, policy.Strict)
	wide.Cost, narrow.Cost = 3, 3
	counted, admitted := d.ReserveLimits([]LimitCheck{wide}, time.Minute)
	require.True(t, admitted)
	require.Len(t, counted.Limits, 1)
	denied, admitted := d.ReserveLimits([]LimitCheck{wide, narrow}, time.Minute)
	require.True(t, admitted)
	assert.Empty(t, denied.Limits)
	assert.EqualValues(t, 7, remaining(t, d, wide))
}

// A limit that denies without the store, as the client is known to be over it, counts nothing and
// reserves nothing, also where denied requests count.
func TestReservingWithoutTheStore(t *testing.T) {
	t.Parallel()
	for _, leniency := range []policy.Leniency{policy.Strict, policy.Quota} {
		d, check := newLimits(t, true)
		d.Policy.OnStoreError = policy.StoreErrorAllow
		narrow, wide := check("narrow", 10, leniency), check("wide", 100, leniency)
		narrow.Cost, wide.Cost = 8, 8
		require.True(t, d.TakeLimits([]LimitCheck{narrow, wide}, nil))
		down := []LimitCheck{narrow, wide}
		for i := range down {
			limit := *down[i].Limit
			limit.Limiter = lost{limit.Limiter}
			down[i].Limit, down[i].Cost = &limit, 5
		}
		r, admitted := d.ReserveLimits(down, time.Minute)
		assert.Equal(t, leniency == policy.Quota, admitted)
		assert.Empty(t, r.Limits)
		assert.EqualValues(t, 2, remaining(t, d, narrow))
		assert.EqualValues(t, 92, remaining(t, d, wide))
	}
}

// What one instance has counted another gives back, and the first takes none of it for
// lost by the store.
func TestAnotherInstanceGivesBack(t *testing.T) {
	t.Parallel()
	at := epoch
	now := func() time.Time { return at }
	store := memory.New(now)
	a, check := newLimitsOn(t, store, now, false)
	b, checkOfB := newLimitsOn(t, store, now, false)
	takes := func(d *Decider, cost int64) (allowed bool) {
		c := check("c", 10, policy.Strict)
		if d == b {
			c = checkOfB("c", 10, policy.Strict)
		}
		c.Cost = cost
		return d.TakeLimits([]LimitCheck{c}, nil)
	}
	require.True(t, takes(a, 10))
	back := []LimitCheck{checkOfB("c", 10, policy.Strict)}
	back[0].Cost = 5
	b.GiveBack(back, b.Now())
	require.EqualValues(t, 5, back[0].Remaining)
	at = at.Add(time.Second) // a knows its denials for so long
	assert.True(t, takes(a, 4))
	assert.True(t, takes(b, 1))
	assert.False(t, takes(a, 1))
}

func TestGiveBack(t *testing.T) {
	t.Parallel()
	d, check := newLimits(t, false)
	c := check("c", 10, policy.Strict)
	for range 4 {
		d.TakeLimits([]LimitCheck{c}, nil)
	}
	back := func(costs ...int64) []LimitCheck {
		checks := make([]LimitCheck, len(costs))
		for i, cost := range costs {
			checks[i] = c
			checks[i].Cost = cost
		}
		d.GiveBack(checks, d.Now())
		return checks
	}
	assert.EqualValues(t, 9, back(3)[0].Remaining)
	assert.EqualValues(t, 10, back(100)[0].Remaining, "and no more than was in use")
	for range 4 {
		d.TakeLimits([]LimitCheck{c}, nil)
	}
	twice := back(1, 2)
	assert.EqualValues(t, 9, twice[0].Remaining, "together")
	assert.EqualValues(t, 9, twice[1].Remaining)
	assert.EqualValues(t, 9, back(0)[0].Remaining)
}

// What takes longer to drain than a decision can tell is given back as any other.
func TestGiveBackWhatDrainsForCenturies(t *testing.T) {
	t.Parallel()
	d, check := newLimits(t, false)
	store := memory.New(func() time.Time { return epoch })
	limiter, err := cas.NewTokenBucket(store, 365*24*time.Hour, 0, cas.Config{Options: counters.Options{Policy: "p", Limit: "year", CountDenied: true}})
	require.NoError(t, err)
	c := check("c", 10, policy.Strict)
	c.Limit.Limiter, c.Window, c.Drains = limiter, 365*24*time.Hour, true
	c.Cost = counters.MaxCost
	require.False(t, d.TakeLimits([]LimitCheck{c}, nil))
	back := []LimitCheck{c, c} // together more than a request may cost
	d.GiveBack(back, d.Now())
	assert.EqualValues(t, 10, back[0].Remaining)
	assert.True(t, back[0].Allowed)
}

// A lost limiter never reaches its store.
type lost struct{ counters.Limiter }

func (lost) Take(context.Context, counters.Request) (counters.Decision, error) {
	return counters.Decision{}, counters.ErrUnavailable
}

// A denial by on_store_error does to a request what a denial by that limit would: it depends on
// whether the limit is a quota, or in shadow mode.
func TestOnStoreErrorDeniesAsTheLimitDoes(t *testing.T) {
	t.Parallel()
	for _, test := range []struct {
		lost, other policy.Leniency
		admits      bool
		alone       bool // what the lost limit alone does
	}{
		{policy.Strict, policy.Strict, false, false},
		{policy.Strict, policy.Quota, false, false},
		{policy.Shadow, policy.Strict, true, true},
		{policy.ShadowQuota, policy.Quota, true, true},
		{policy.Quota, policy.Quota, true, false},
		{policy.Quota, policy.Strict, false, false},
	} {
		d, check := newLimits(t, true)
		c := check("c", 10, test.lost)
		c.Limit.Limiter, c.Limit.OnStoreError = lost{c.Limit.Limiter}, policy.StoreErrorDeny
		both := []LimitCheck{c, check("other", 10, test.other)}
		assert.Equal(t, test.admits, d.TakeLimits(both, nil), "%v", test)
		assert.False(t, both[0].Allowed)
		assert.True(t, both[1].Allowed)
		assert.Equal(t, test.alone, d.TakeLimits([]LimitCheck{c}, nil), "%v", test)
	}
}

// A silent store is a store whose limiters wait for as long as they may.
type silent struct{ counters.Limiter }

func (silent) Peek(ctx context.Context, _ counters.Request) (counters.Decision, error) {
	at, _ := ctx.Deadline()
	time.Sleep(time.Until(at))
	return counters.Decision{}, counters.ErrTimeout
}

// However much is given back, it takes no longer than the store may; and what
// is known says how limits stand.
func TestGivingBackWithASilentStore(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		d, check := newLimits(t, false)
		d.Now, d.StoreTimeout = time.Now, 100*time.Millisecond
		checks := make([]LimitCheck, 1000)
		for i := range checks {
			checks[i] = check(strconv.Itoa(i), 10, policy.Strict)
		}
		require.True(t, d.TakeLimits(checks[:1], nil))
		limit := *checks[0].Limit
		limit.Limiter = silent{limit.Limiter}
		for i := range checks {
			checks[i].Limit = &limit
		}
		began := time.Now()
		d.GiveBack(checks, d.Now())
		assert.Equal(t, d.StoreTimeout, time.Since(began))
		assert.EqualValues(t, 9, checks[0].Remaining)
		assert.EqualValues(t, 10, checks[1].Remaining)
		assert.True(t, checks[1].Allowed)
	})
}

// A hearing keeps whether the last check was denied without the store.
type hearing struct {
	unheard
	local bool
}

func (h *hearing) Decided(a *Answer, _ time.Time, _ time.Duration) { h.local = a.Local }

// A denial that had to count in another limit needed the store.
func TestADenialThatCountsIsNotLocal(t *testing.T) {
	t.Parallel()
	d, check := newLimits(t, false)
	heard := new(hearing)
	d.observer = heard
	spent, counts := check("narrow", 1, policy.Strict), check("wide", 10, policy.Strict)
	counts.Limit.CountDenied = true
	require.True(t, d.TakeLimits([]LimitCheck{spent}, nil))
	require.False(t, d.TakeLimits([]LimitCheck{spent}, nil))
	assert.True(t, heard.local)
	require.False(t, d.TakeLimits([]LimitCheck{spent, counts}, nil))
	assert.False(t, heard.local)
	assert.EqualValues(t, 9, remaining(t, d, counts))
}

// What a limit in shadow mode would deny is admitted: it is no denial, without the store or with it.
func TestWhatIsAdmittedIsNoLocalDenial(t *testing.T) {
	t.Parallel()
	for _, leniency := range []policy.Leniency{policy.Shadow, policy.ShadowQuota} {
		d, check := newLimits(t, false)
		heard := new(hearing)
		d.observer = heard
		for range 3 {
			require.True(t, d.TakeLimits([]LimitCheck{check("client", 1, leniency)}, nil))
			assert.False(t, heard.local)
		}
	}
}
