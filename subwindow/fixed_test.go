package subwindow_test

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"weir/counters"
	"weir/counters/memcachedtest"
	"weir/counters/memory"
	"weir/subwindow"
)

func (by way) newFixed(t require.TestingT, store counters.Store, width time.Duration, countDenied bool) *limiter {
	w, err := subwindow.NewFixedWindow(width)
	require.NoError(t, err)
	return by.newLimiterWith(t, store, w, counters.Options{CountDenied: countDenied, Clients: 100})
}

func (by way) TestFixedWindowTimeline(t *testing.T) {
	t.Parallel()
	const limit = 5
	for _, test := range []struct {
		name        string
		countDenied bool
		steps       []step
	}{
		{"only admitted requests count", false, []step{
			{"07:10:00", 1, true, 4, 60 * time.Second, 0},
			{"07:10:20", 3, true, 1, 40 * time.Second, 0},
			{"07:10:30", 2, false, 1, 30 * time.Second, 30 * time.Second},
			{"07:10:31", 1, true, 0, 29 * time.Second, 0},
			{"07:10:32", 0, true, 0, 28 * time.Second, 0},
			{"07:10:59.999999999", 1, false, 0, 1, 1},
			{"07:11:00", 5, true, 0, 60 * time.Second, 0},
			// The clock jumped back.
			{"07:10:59", 1, false, 0, time.Second, time.Second},
			{"07:12:00", 0, true, 5, 0, 0},
		}},
		{"denied requests count too", true, []step{
			{"07:10:00", 4, true, 1, 60 * time.Second, 0},
			{"07:10:10", 2, false, 0, 50 * time.Second, 50 * time.Second},
			{"07:10:20", 1, false, 0, 40 * time.Second, 40 * time.Second},
			{"07:10:30", 0, false, 0, 30 * time.Second, 30 * time.Second},
			{"07:11:00", 1, true, 4, 60 * time.Second, 0},
		}},
	} {
		t.Run(test.name, func(t *testing.T) {
			f := by.newFixed(t, memory.New(nil), time.Minute, test.countDenied)
			for _, s := range test.steps {
				d, err := f.Take(context.Background(), counters.Request{Client: "alice", Cost: s.cost, Limit: limit, Now: at(s.at)})
				require.NoError(t, err)
				d.Local, d.FitsAfter = false, 0
				assert.Equal(t, counters.Decision{Allowed: s.allowed, Remaining: s.remaining, ResetAfter: s.reset, RetryAfter: s.retry}, d, s.at)
			}
		})
	}
}

// The documents' example: at most 3 in each second.
func (by way) TestFixedWindowDropsWhatIsOverTheLimitInEachWindow(t *testing.T) {
	t.Parallel()
	f := by.newFixed(t, memory.New(nil), time.Second, false)
	for _, second := range []string{"10:00:00", "10:00:01", "10:00:02"} {
		admitted := 0
		for i := range 5 {
			d, err := f.Take(context.Background(), counters.Request{Client: "c", Cost: 1, Limit: 3, Now: at(second).Add(time.Duration(i) * 150 * time.Millisecond)})
			require.NoError(t, err)
			if d.Allowed {
				admitted++
			}
		}
		assert.Equal(t, 3, admitted)
	}
}

// The documents' examples of the known weakness: 100 at 07:09:59 and 100 at
// 07:10:00, twice the limit in two seconds; 5 before 2:01:00 and 5 after it, 10
// between 2:00:30 and 2:01:30; 82 in the window from 00:00 and then a new
// window.
func (by way) TestFixedWindowAdmitsTwiceTheLimitAcrossABoundary(t *testing.T) {
	t.Parallel()
	for _, test := range []struct {
		limit         int64
		before, after string
	}{
		{100, "07:09:59", "07:10:00"},
		{5, "02:00:45", "02:01:15"},
		{100, "00:00:59", "00:01:01"},
	} {
		f := by.newFixed(t, memory.New(nil), time.Minute, false)
		for _, moment := range []string{test.before, test.after} {
			admitted := int64(0)
			for range 2 * test.limit {
				d, err := f.Take(context.Background(), counters.Request{Client: "c", Cost: 1, Limit: test.limit, Now: at(moment)})
				require.NoError(t, err)
				if d.Allowed {
					admitted++
				}
			}
			assert.Equal(t, test.limit, admitted, moment)
		}
	}
	f := by.newFixed(t, memory.New(nil), time.Minute, false)
	d, err := f.Take(context.Background(), counters.Request{Client: "c", Cost: 82, Limit: 100, Now: at("00:00:30")})
	require.NoError(t, err)
	assert.Equal(t, int64(18), d.Remaining)
}

func (by way) TestFixedWindowPeekRefundReset(t *testing.T) {
	t.Parallel()
	ctx := context.Background()
	f := by.newFixed(t, memory.New(nil), time.Minute, false)
	r := counters.Request{Client: "alice", Cost: 3, Limit: 5, Now: at("07:10:15")}
	peek := func() counters.Decision {
		t.Helper()
		d, err := f.Peek(ctx, r)
		require.NoError(t, err)
		return d
	}
	assert.Equal(t, counters.Decision{Allowed: true, Remaining: 5}, peek())
	_, err := f.Take(ctx, r)
	require.NoError(t, err)
	assert.Equal(t, counters.Decision{Remaining: 2, ResetAfter: 45 * time.Second, RetryAfter: 45 * time.Second}, peek())

	require.NoError(t, f.Refund(ctx, counters.Request{Client: "alice", Cost: 0, Limit: 5, Now: r.Now}, counters.Decision{Allowed: true}))
	assert.Equal(t, int64(2), peek().Remaining, "cost 0 gives nothing back")
	require.NoError(t, f.Refund(ctx, r, counters.Decision{Allowed: true}))
	assert.Equal(t, counters.Decision{Allowed: true, Remaining: 5}, peek())

	_, err = f.Take(ctx, r)
	require.NoError(t, err)
	// An instance with a faster clock counts in the next window already.
	ahead := r
	ahead.Now = at("07:11:00")
	_, err = f.Take(ctx, ahead)
	require.NoError(t, err)
	require.NoError(t, f.Reset(ctx, "alice", at("07:10:59.98")))
	assert.Equal(t, int64(5), peek().Remaining)
	r.Now = ahead.Now
	assert.Equal(t, int64(5), peek().Remaining)
}

func (by way) TestFixedWindowLimitsThatDiffer(t *testing.T) {
	t.Parallel()
	ctx := context.Background()
	f := by.newFixed(t, memory.New(nil), time.Minute, false)
	take := func(limit int64) bool {
		d, err := f.Take(ctx, counters.Request{Client: "c", Cost: 1, Limit: limit, Now: at("00:00:00")})
		require.NoError(t, err)
		return d.Allowed
	}
	assert.True(t, take(1))
	assert.False(t, take(1))
	assert.True(t, take(2), "a larger limit on the same counter")
	assert.False(t, take(2))
}

// Whatever the costs, a window never admits more than its limit, and never
// denies what would have fitted.
func (by way) TestFixedWindowAgainstALog(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		clock := &clock{now: at("00:00:00")}
		window := time.Duration(rapid.IntRange(100, 5000).Draw(t, "ms")) * time.Millisecond
		limit := rapid.Int64Range(1, 20).Draw(t, "limit")
		f := by.newFixed(t, memory.New(clock.Now), window, false)
		used := make(map[int64]int64) // by calendar window
		for range rapid.IntRange(1, 60).Draw(t, "requests") {
			clock.now = clock.now.Add(time.Duration(rapid.Int64Range(0, int64(window)/4).Draw(t, "gap")))
			cost := rapid.Int64Range(0, limit).Draw(t, "cost")
			n := clock.now.UnixNano() / int64(window)
			d, err := f.Take(context.Background(), counters.Request{Client: "c", Cost: cost, Limit: limit, Now: clock.now})
			if err != nil {
				t.Fatal(err)
			}
			if want := used[n]+cost <= limit; d.Allowed != want {
				t.Fatalf("%d of %d are used: cost %d is allowed: %v", used[n], limit, cost, d.Allowed)
			}
			if d.Allowed {
				used[n] += cost
			}
			if d.Remaining != limit-used[n] {
				t.Fatalf("%d of %d are used: %d remain", used[n], limit, d.Remaining)
			}
		}
	})
}

func (by way) TestFixedWindowOnMemcachedWithLongWindows(t *testing.T) {
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	server := memcachedtest.Start(t)
	store := openMemcached(t, server.Addr)
	const day = 24 * time.Hour
	for _, window := range []time.Duration{100 * time.Millisecond, time.Minute, day, 31 * day, counters.MaxWindow} {
		t.Run(window.String(), func(t *testing.T) {
			f := by.newFixed(t, store, window, false)
			now := time.Now()
			d, err := f.Take(ctx, counters.Request{Client: "c", Cost: 1, Limit: 2, Now: now})
			require.NoError(t, err)
			assert.Equal(t, int64(1), d.Remaining)
			w, err := subwindow.NewFixedWindow(window)
			require.NoError(t, err)
			want := (d.ResetAfter + 50*time.Millisecond + 2*time.Second).Seconds()
			requireTTL(t, want, server.TTL(key(w, now)))
		})
	}
}

func (by way) TestFixedWindowPassesOnWhatTheStoreSays(t *testing.T) {
	t.Parallel()
	ctx, cancel := context.WithDeadline(context.Background(), time.Now().Add(-time.Second))
	defer cancel()
	server := memcachedtest.Start(t)
	f := by.newFixed(t, openMemcached(t, server.Addr), time.Minute, false)
	r := counters.Request{Client: "c", Cost: 1, Limit: 2, Now: at("00:00:00")}
	_, takeErr := f.Take(ctx, r)
	_, peekErr := f.Peek(ctx, r)
	for _, err := range []error{takeErr, peekErr, f.Refund(ctx, r, counters.Decision{Allowed: true}), f.Reset(ctx, "c", r.Now)} {
		assert.True(t, errors.Is(err, counters.ErrTimeout), "%v", err)
	}
}

func TestWindowsAreChecked(t *testing.T) {
	t.Parallel()
	for _, window := range []time.Duration{0, -time.Second, 99 * time.Millisecond, counters.MaxWindow + time.Millisecond, time.Second + time.Microsecond} {
		_, err := subwindow.NewFixedWindow(window)
		assert.ErrorContains(t, err, "must be whole milliseconds from 100ms to 366 days", window)
	}
}
