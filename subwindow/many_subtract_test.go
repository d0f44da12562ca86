package subwindow_test

import (
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"weir/counters"
	"weir/counters/limitertest"
	"weir/subwindow"
)

// fill has another instance take what is left of the limits, which l doesn't
// learn.
func (by way) fill(t *testing.T, store *repaidStore, w subwindow.Window, asked []counters.Request, cost int64) {
	t.Helper()
	there := by.newLimiterWith(t, store.inner, w, counters.Options{ClockSkew: sameClock, Clients: 1000})
	for _, r := range asked {
		r.Cost = cost
		d, err := there.Limiter.Take(t.Context(), r)
		require.NoError(t, err)
		require.True(t, d.Allowed)
	}
}

// What was counted of many clients and then denied is given back together, as
// Take would.
func (by way) TestManyAreGivenBackTogether(t *testing.T) {
	t.Parallel()
	const clients, limit = 50, 5
	for name, w := range minuteWindows(t) {
		for _, moment := range []string{"12:00:07.1", "12:00:14.99"} { // others may settle the slot after the latter
			store, l := newRepaid(t, w, counters.Options{ClockSkew: sameClock})
			inTurn, alone := newRepaid(t, w, counters.Options{ClockSkew: sameClock})
			now := at(moment)
			asked := requests(clients, now, limit)
			takeMany(repayBy(now), l, asked)
			for _, r := range asked {
				_, err := alone.Take(repayBy(now), r)
				require.NoError(t, err)
			}
			by.fill(t, store, w, asked, limit-1)
			by.fill(t, inTurn, w, asked, limit-1)
			store.sizes, store.inner.additions, inTurn.inner.additions = nil, nil, nil
			end := now.Add(20 * time.Millisecond)
			for i, taken := range takeMany(repayBy(end), l, asked) {
				want, err := alone.Take(repayBy(end), asked[i])
				require.NoError(t, err)
				require.False(t, want.Allowed)
				assert.Equal(t, counters.Taken{Decision: want, Done: true}, taken, "%s: client %d", name, i)
			}
			assert.Equal(t, []int{2 * clients}, store.sizes, "%s: counted and given back", name)
			told := 0
			if name != "fixed" && counters.Calendar(now, w.Width).Number != counters.Calendar(end, w.Width).Number {
				told = clients
			}
			assert.Equal(t, []int{told, told}, []int{store.inner.told(), inTurn.inner.told()}, name)
			namespace := counters.CounterNamespace("weir", "p", "l", w.Width)
			for _, r := range asked {
				counted := []int64{0}
				counter := counters.CounterKey(namespace.Client(r.Client), counters.Calendar(now, w.Width).Number)
				require.NoError(t, store.inner.Read(t.Context(), []string{counter}, counted))
				assert.EqualValues(t, limit, counted[0], name)
			}
		}
	}
}

// A client that is denied is in use until what was counted is given back.
func (by way) TestManyAreHeldUntilTheyAreGivenBack(t *testing.T) {
	t.Parallel()
	w := newWindow(t, time.Minute, 10, false)
	store, l := newRepaid(t, w, counters.Options{ClockSkew: sameClock})
	asked := requests(1, at("12:00:01"), 5)
	takeMany(t.Context(), l, asked)
	by.fill(t, store, w, asked, 4)
	asks := 0
	store.ask = func([]counters.Addition) {
		asks++
		store.ask = func([]counters.Addition) {
			asks++
			assert.Equal(t, counters.Taken{}, takeMany(t.Context(), l, asked)[0])
		}
	}
	taken := takeMany(t.Context(), l, asked)
	require.True(t, taken[0].Done)
	assert.False(t, taken[0].Allowed)
	assert.Equal(t, 2, asks)
	store.ask = nil
	assert.True(t, takeMany(t.Context(), l, asked)[0].Done)
}

// However giving back fails, it is done once, or it is known that it may not have
// been; the denial stands.
func (by way) TestManyAreGivenBackLater(t *testing.T) {
	t.Parallel()
	for _, failure := range []error{limitertest.ErrUnsent, limitertest.ErrUnheard, counters.ErrNotAdded} {
		t.Run(failure.Error(), func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				w := newWindow(t, time.Minute, 10, false)
				failed := 0
				store, l := newRepaid(t, w, counters.Options{ClockSkew: sameClock, RefundFailed: func() { failed++ }})
				now := at("12:00:01")
				asked := []counters.Request{request(now, 1, 5)}
				takeMany(t.Context(), l, asked)
				by.fill(t, store, w, asked, 4)
				store.inner.subtracts = func() error {
					store.inner.subtracts = nil
					return failure
				}
				taken := takeMany(t.Context(), l, asked)
				require.True(t, taken[0].Done)
				require.NoError(t, taken[0].Err)
				require.False(t, taken[0].Allowed)
				l.Flush()
				if !errors.Is(failure, counters.ErrTimeout) {
					assert.EqualValues(t, 5, used(t, store.inner, w, now))
					assert.Zero(t, failed)
				} else {
					assert.EqualValues(t, 6, used(t, store.inner, w, now), "nobody knows")
					assert.Equal(t, 1, failed)
				}
			})
		})
	}
}
