package decide

import (
	"context"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"weir/api/policy"
	"weir/api/receipt"
	"weir/cas"
	"weir/counters"
	"weir/counters/memory"
)

// A resetLimiter is reset after each of the requests that it takes together: where others hold
// them up, they are decided one after the other.
type resetLimiter struct{ *cas.Limiter }

func (l resetLimiter) TakesMany() bool { return true }

func (l resetLimiter) TakeMany(ctx context.Context, requests []counters.Request, done func(i int, t counters.Taken)) {
	for i, r := range requests {
		d, err := l.Take(ctx, r)
		done(i, counters.Taken{Decision: d, Err: err, Done: true})
		_ = l.Reset(ctx, r.Client, r.Now)
	}
}

// Between two checks that came at the same moment their client is reset. Each has a lease of its
// own all the same, which it renews.
func TestChecksOfAMomentHaveLeasesOfTheirOwn(t *testing.T) {
	t.Parallel()
	store := memory.New(nil)
	limiter, err := cas.NewConcurrency(store, time.Minute, 2, cas.Config{Options: counters.Options{Policy: "llm", Limit: "l", ClockSkew: -1, StoreTimeout: -1}})
	require.NoError(t, err)
	policies := policy.Policies{"llm": {Name: "llm", SettleWithin: time.Hour, Limits: []policy.Limit{
		{Name: "l", Algorithm: "concurrency", Limit: 2, Lease: time.Minute, Limiter: resetLimiter{limiter}},
	}}}
	config := Config{StoreTimeout: time.Minute, Now: time.Now, Claims: Claims{Store: store}}
	e := NewEngine(config, NewQueue(MaxBatch, time.Minute, never), policies, func(*policy.Policy) Observer { return unheard{} })
	checks := make([]Check, 2)
	for i := range checks {
		checks[i] = Check{Policy: "llm", Client: "c", Cost: 1, Settle: true}
	}
	receipts := make([]receipt.Receipt, len(checks))
	e.CheckMany(checks, time.Now(), nil, func(i int, o Outcome) {
		require.NoError(t, o.Err)
		require.True(t, o.Allowed)
		receipts[i], _ = o.Receipt(nil)
	})
	for i := range receipts {
		_, err := e.Renew(&receipts[i])
		require.NoError(t, err)
	}
	d, err := limiter.Peek(t.Context(), counters.Request{Client: "c", Cost: 1, Limit: 2, Now: time.Now()})
	require.NoError(t, err)
	assert.Zero(t, d.Remaining)
}
