package cas

import (
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"weir/counters"
	"weir/counters/limitertest"
	"weir/counters/memory"
)

// Leases that are taken and given back by their receipts while the store is gone leave
// nothing to be told: a check in a long outage costs no more than one in a short one.
func TestLeasesThatComeAndGoAloneLeaveNothing(t *testing.T) {
	t.Parallel()
	store := &limitertest.BrokenStore{Store: memory.New(nil)}
	l, err := NewConcurrency(store, 30*time.Second, 8, testConfig(10))
	require.NoError(t, err)
	store.Fail(limitertest.ErrUnsent)
	now := clock(t, "12:00:01.5")
	for range 500 {
		now = now.Add(100 * time.Millisecond)
		r := counters.Request{Client: "c", Cost: 1, Limit: 8, Now: now}
		d, err := l.TakeLocal(r, limitertest.ErrUnsent)
		require.NoError(t, err)
		require.True(t, d.Allowed)
		d.Receipt.Alone, d.Receipt.Client = nil, nil // as a receipt has it
		_ = l.Refund(t.Context(), r, d)
	}
	l.Change("c", func(a *account[logState]) { assert.Less(t, len(a.due), 2*mostDebts) })
	store.Fail(nil)
	l.Flush()
}
