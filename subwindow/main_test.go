package subwindow_test

import (
	"cmp"
	"context"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	"weir/counters"
	"weir/counters/limitertest"
	"weir/counters/memcached"
	"weir/counters/storetest"
	"weir/subwindow"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func TestTake(t *testing.T)     { limitertest.Methods(t, way{}) }
func TestTakeMany(t *testing.T) { limitertest.Methods(t, way{many: true}) }

// A way is how limiters are asked: by Take, or by TakeMany for one request. Its methods
// are the tests that have to hold for both: go test -run TestTake/TestLosses runs one
// in both ways.
type way struct{ many bool }

// A limiter is one whose Take asks it in a way.
type limiter struct {
	*subwindow.Limiter
	by way
}

func (l *limiter) Take(ctx context.Context, r counters.Request) (counters.Decision, error) {
	if l.by.many {
		var taken counters.Taken
		l.TakeMany(ctx, []counters.Request{r}, func(_ int, t counters.Taken) { taken = t })
		if taken.Done {
			return taken.Decision, taken.Err
		}
	}
	return l.Limiter.Take(ctx, r)
}

// A manyStore does many additions one by one.
type manyStore struct{ counters.Store }

func (s manyStore) AddMany(ctx context.Context, keys []string, begin func(i int, to []counters.Addition) ([]counters.Addition, counters.Turn), done func(i int, added []counters.Added, err error) (more bool)) {
	var later []int
	try := func(i int) {
		for more := true; more; {
			additions, turn := begin(i, nil)
			if turn == counters.Later {
				later = append(later, i)
			}
			more = turn == counters.Now && done(i, storetest.AddEach(ctx, s, additions), nil)
		}
	}
	for i := range keys {
		try(i)
	}
	for len(later) > 0 {
		again := later
		later = nil
		time.Sleep(time.Millisecond)
		for _, i := range again {
			try(i)
		}
	}
}

// clock is a clock that a test sets.
type clock struct{ now time.Time }

func (c *clock) Now() time.Time { return c.now }

// at returns a moment on a day that begins with a slot of any width that
// divides a day.
func at(clock string) time.Time {
	moment, err := time.Parse("2006-01-02 15:04:05.999999999", "2023-07-15 "+clock)
	if err != nil {
		panic(err)
	}
	return moment
}

func newWindow(t require.TestingT, length time.Duration, slots int, strict bool) subwindow.Window {
	w, err := subwindow.NewWindow(length, slots, strict)
	require.NoError(t, err)
	return w
}

// sameClock is the skew of instances on one clock.
const sameClock = -1

// newLimiter returns a limiter that remembers many clients.
func (by way) newLimiter(t require.TestingT, store counters.Store, w subwindow.Window, skew time.Duration) *limiter {
	return by.newLimiterWith(t, store, w, counters.Options{ClockSkew: skew, Clients: 1000})
}

// newLimiterWith returns a limiter with options that need no names, on a store
// that answers at once unless they say otherwise.
func (by way) newLimiterWith(t require.TestingT, store counters.Store, w subwindow.Window, o counters.Options) *limiter {
	if o.Policy == "" {
		o.Policy = "p"
	}
	o.Limit = "l"
	o.StoreTimeout = cmp.Or(o.StoreTimeout, -1)
	if _, many := store.(counters.ManyStore); by.many && !many {
		store = manyStore{store}
	}
	l, err := subwindow.New(store, w, o)
	require.NoError(t, err)
	return &limiter{l, by}
}

// key returns the key of the counter of client c at a moment.
func key(w subwindow.Window, moment time.Time) string {
	client := counters.CounterNamespace("weir", "p", "l", w.Width).Client("c")
	return counters.CounterKey(client, counters.Calendar(moment, w.Width).Number)
}

// openMemcached returns a store whose server may be as slow as a busy machine: it
// isn't taken to be down before a caller's deadline.
func openMemcached(t testing.TB, servers ...string) *memcached.Store {
	t.Helper()
	m, err := memcached.New(memcached.Config{Servers: servers, Timeout: counters.MaxTimeout})
	require.NoError(t, err)
	t.Cleanup(func() { assert.NoError(t, m.Close()) })
	return m
}

// requireTTL asserts that an item lives for as long as it is wanted.
// Memcached's clock may be behind by a second, and more on a busy machine.
func requireTTL(t *testing.T, want float64, got int64) {
	t.Helper()
	assert.GreaterOrEqual(t, float64(got), want-2)
	assert.LessOrEqual(t, float64(got), want+10)
}

func take(t require.TestingT, l *limiter, now time.Time, cost, limit int64) counters.Decision {
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	d, err := l.Take(ctx, counters.Request{Client: "c", Cost: cost, Limit: limit, Now: now})
	require.NoError(t, err)
	d.Local, d.FitsAfter = false, 0
	return d
}
