package cas

import (
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"weir/counters"
	"weir/counters/memory"
)

// A process that has never seen a client knows nothing of it, also when it is to give back
// what another one has admitted.
func TestWhoGivesBackKnowsNothingByThat(t *testing.T) {
	t.Parallel()
	store := manyStore{memory.New(nil)}
	here, err := NewTokenBucket(store, time.Minute, 0, testConfig(10))
	require.NoError(t, err)
	there, err := NewTokenBucket(store, time.Minute, 0, testConfig(10))
	require.NoError(t, err)
	r := counters.Request{Client: "c", Cost: 60, Limit: 100, Now: time.Now(), Reserved: true}
	d, err := here.Take(unhurried, r)
	require.NoError(t, err)
	r.Cost = 10
	require.NoError(t, there.RefundSoon(t.Context(), r, d, nil))
	r.Cost = 0
	stands, known := there.Recall(r)
	assert.False(t, known, "%+v", stands)
	there.Flush()
}
