package cas

import (
	"math/rand/v2"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"weir/counters"
	"weir/counters/memory"
	"weir/counters/racetest"
)

// alone admits r without the store.
func alone(t *testing.T, l limiter, r counters.Request) counters.Decision {
	t.Helper()
	d, err := l.TakeLocal(r, counters.ErrTimeout)
	require.NoError(t, err)
	require.True(t, d.Allowed)
	return d
}

// A limit is lowered in an outage. What is above the smaller capacity is forgotten with the
// next that is admitted, and so it is of what the store is told.
func TestALimitLoweredInAnOutage(t *testing.T) {
	t.Parallel()
	l, err := NewTokenBucket(memory.New(nil), 10*time.Second, 0, testConfig(10))
	require.NoError(t, err)
	start := clock(t, "12:00:01")
	at := func(after time.Duration, cost, limit int64) counters.Request {
		return counters.Request{Client: "c", Cost: cost, Limit: limit, Now: start.Add(after)}
	}
	alone(t, l, at(0, 100, 1000))
	alone(t, l, at(time.Second, 1, 10))                   // the bucket is empty by then
	d, err := l.Take(unhurried, at(2*time.Second, 1, 10)) // tells, and is denied
	require.NoError(t, err)
	require.Less(t, d.RetryAfter, time.Second)
	for _, row := range []struct {
		after     time.Duration
		remaining int64
	}{{11 * time.Second, 9}, {11500 * time.Millisecond, 8}, {15 * time.Second, 9}} {
		d, err := l.Take(unhurried, at(row.after, 1, 10))
		require.NoError(t, err)
		assert.Equal(t, row.remaining, d.Remaining, "after %v", row.after)
	}
}

// A limit was raised. What is charged by the lower one, as by the receipt of an earlier check,
// makes nothing of what is in use be forgotten.
func TestAChargeByALowerLimitForgetsNothing(t *testing.T) {
	t.Parallel()
	l, err := NewTokenBucket(memory.New(nil), time.Minute, 0, testConfig(10))
	require.NoError(t, err)
	r := counters.Request{Client: "c", Cost: 100, Limit: 100, Now: clock(t, "12:00:01")}
	d, err := l.Take(unhurried, r)
	require.NoError(t, err)
	require.True(t, d.Allowed)
	charged := r
	charged.Cost, charged.Limit = 1, 60
	require.NoError(t, l.Charge(unhurried, charged))
	r.Cost = 30
	d, err = l.Take(unhurried, r)
	require.NoError(t, err)
	assert.False(t, d.Allowed)
}

// A limit is raised in an outage, by which what was in the bucket drains at once, if it drains
// beside what was admitted alone. In turn 41 are still in it, as in one that was asked all along.
func TestAReceiptFromBeforeALimitWasRaised(t *testing.T) {
	t.Parallel()
	l, err := NewTokenBucket(memory.New(nil), 10*time.Second, 60, testConfig(10))
	require.NoError(t, err)
	start := clock(t, "12:00:01")
	before := counters.Request{Client: "c", Cost: 50, Limit: 10, Now: start}
	taken, err := l.Take(unhurried, before)
	require.NoError(t, err)
	r := counters.Request{Client: "c", Cost: 1, Limit: 10, Now: start.Add(time.Second)}
	alone(t, l, r)
	r.Limit, r.Now = 1000, r.Now.Add(100*time.Millisecond)
	alone(t, l, r)
	r.Limit, r.Now = 10, r.Now.Add(100*time.Millisecond)
	d, err := l.Take(unhurried, r)
	require.NoError(t, err)
	require.EqualValues(t, 18, d.Remaining)
	require.NoError(t, l.Refund(unhurried, before, taken))
	d, err = l.Peek(unhurried, r)
	require.NoError(t, err)
	assert.EqualValues(t, 60, d.Remaining)
}

// A receipt that is given back token by token gives back no more than is left of it.
func TestManyDebtsAreGivenBackInParts(t *testing.T) {
	t.Parallel()
	const burst = 300
	l, err := NewTokenBucket(memory.New(nil), 100*time.Second, burst, testConfig(10))
	require.NoError(t, err)
	r := counters.Request{Client: "c", Cost: 100, Limit: burst, Now: clock(t, "12:00:10")}
	first, receipt := r, alone(t, l, r)
	r.Cost, r.Now = 1, r.Now.Add(33*time.Second) // 1 of 100 hasn't drained
	for range 2 * mostDebts {
		alone(t, l, r)
	}
	first.Cost = 1
	for range 100 {
		require.NoError(t, l.Refund(unhurried, first, receipt))
	}
	d, err := l.Peek(unhurried, r)
	require.NoError(t, err)
	assert.EqualValues(t, burst-2*mostDebts, d.Remaining)
	own := receipt.Receipt.Alone.(*debt)
	assert.Nil(t, own.into.into, "of thousands each refund would go all the way")
}

// So many are admitted alone that they become one debt. What has drained of them by then is
// given back of none that come later.
func TestWhatHasDrainedOfManyDebtsIsntGivenBack(t *testing.T) {
	t.Parallel()
	const burst, later = 130, mostDebts
	l, err := NewTokenBucket(memory.New(nil), 10*time.Second, burst, testConfig(10))
	require.NoError(t, err)
	r := counters.Request{Client: "c", Cost: 1, Limit: burst, Now: clock(t, "12:00:10")}
	first, receipts := r, make([]counters.Decision, burst)
	for i := range receipts {
		receipts[i] = alone(t, l, r)
	}
	r.Now = r.Now.Add(11 * time.Second) // all have drained
	for range later {
		alone(t, l, r)
	}
	for _, taken := range receipts {
		require.NoError(t, l.Refund(unhurried, first, taken))
	}
	d, err := l.Take(unhurried, r)
	require.NoError(t, err)
	assert.EqualValues(t, burst-later-1, d.Remaining)
}

// A process admits alone, and gives back of that: few requests or so many that they become
// fewer debts. Neither then nor when the store was told is there more room than in a bucket
// of what was admitted and not given back.
func TestNothingComesOnTopOfWhatWasAdmittedAlone(t *testing.T) {
	racetest.Sequential(t)
	t.Parallel()
	const window = 10 * time.Second
	type admission struct {
		r counters.Request
		d counters.Decision
	}
	for seed := range uint64(120) {
		random := rand.New(rand.NewPCG(seed, 7))
		limit, burst, requests := int64(10), 6+random.Int64N(20), 5+random.IntN(40)
		if seed%2 == 0 {
			limit, burst, requests = 100, 30+random.Int64N(200), 240+random.IntN(240)
		}
		l, err := NewTokenBucket(memory.New(nil), window, burst, testConfig(10))
		require.NoError(t, err)
		r := counters.Request{Client: "c", Limit: limit, Now: clock(t, "12:00:01.5")}
		var admitted []admission
		used := func() (level int64) { // rounded up
			last := clock(t, "12:00:01.5")
			for _, a := range admitted {
				level = max(0, level-int64(a.r.Now.Sub(last))*limit) + a.r.Cost*int64(window)
				last = a.r.Now
			}
			return (max(0, level-int64(r.Now.Sub(last))*limit) + int64(window) - 1) / int64(window)
		}
		for range requests {
			r.Now, r.Cost = r.Now.Add(time.Duration(random.Int64N(3*int64(window)/limit))), 1+random.Int64N(3)
			d, err := l.TakeLocal(r, counters.ErrTimeout)
			require.NoError(t, err)
			if d.Allowed {
				admitted = append(admitted, admission{r, d})
				require.LessOrEqual(t, used(), burst, "seed %d", seed)
			}
			if len(admitted) == 0 || random.IntN(3) > 0 {
				continue
			}
			if a := &admitted[random.IntN(len(admitted))]; a.r.Cost > 0 {
				given := a.r
				given.Cost = 1 + random.Int64N(a.r.Cost)
				require.NoError(t, l.Refund(unhurried, given, a.d))
				a.r.Cost -= given.Cost
			}
		}
		d, err := l.Peek(unhurried, r)
		require.NoError(t, err)
		require.LessOrEqual(t, d.Remaining, burst-used(), "seed %d", seed)
		r.Cost = 1
		d, err = l.Take(unhurried, r)
		require.NoError(t, err)
		if d.Allowed {
			admitted = append(admitted, admission{r, d})
		}
		require.LessOrEqual(t, d.Remaining, burst-used(), "seed %d", seed)
	}
}
