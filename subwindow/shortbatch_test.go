package subwindow_test

import (
	"context"
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"weir/counters"
	"weir/counters/memory"
	"weir/counters/storetest"
	"weir/subwindow"
)

// A shortStore has time for so many exchanges of an AddMany, as memcached.Store has
// when the deadline of its context is near: then it ends what goes on with an
// ErrNotSent, and doesn't begin it again.
type shortStore struct {
	counters.Store
	exchanges int
	silent    bool // Subtract isn't answered, and after that nothing is sent
	down      bool
}

func (s *shortStore) Subtract(ctx context.Context, key string, n int64) error {
	if s.silent {
		s.down = true
		return counters.ErrTimeout
	}
	return s.Store.Subtract(ctx, key, n)
}

func (s *shortStore) Read(ctx context.Context, keys []string, counts []int64) error {
	if s.down {
		return fmt.Errorf("%w: %w", counters.ErrTimeout, counters.ErrNotSent)
	}
	return s.Store.Read(ctx, keys, counts)
}

func (s *shortStore) AddMany(ctx context.Context, keys []string, begin func(i int, to []counters.Addition) ([]counters.Addition, counters.Turn), done func(i int, added []counters.Added, err error) (more bool)) {
	for i := range keys {
		for n, more := 0, true; more; n++ {
			if n == s.exchanges {
				done(i, nil, fmt.Errorf("%w: %w", counters.ErrTimeout, counters.ErrNotSent))
				break
			}
			additions, turn := begin(i, nil)
			more = turn == counters.Now && done(i, storetest.AddEach(ctx, s.Store, additions), nil)
		}
	}
}

// Each request of a batch is answered once, also that of a client of which others
// have still to be told that its past has changed, and time is over by then.
func TestABatchWhoseTimeIsOverIsAnswered(t *testing.T) {
	store := &shortStore{Store: memory.New(nil), exchanges: 1}
	l, err := subwindow.New(store, newWindow(t, time.Minute, 60, true), counters.Options{Policy: "p", Limit: "l", Clients: 1000})
	require.NoError(t, err)
	old := request(time.Now().Add(-5*time.Second), 5, 100)
	d, err := l.Take(t.Context(), old)
	require.NoError(t, err)
	store.silent = true
	require.ErrorIs(t, l.Refund(t.Context(), old, d), counters.ErrTimeout) // nobody knows if it was done
	l.Flush()                                                              // what goes on in the background fails too
	store.silent, store.down = false, false

	answers := 0
	l.TakeMany(t.Context(), []counters.Request{request(time.Now(), 7, 100)}, func(_ int, taken counters.Taken) {
		answers++
		t.Logf("%+v", taken)
	})
	assert.Equal(t, 1, answers)

	// What other clients ask for isn't taken for in use by this one.
	before, _ := l.Recall(request(time.Now(), 1, 100))
	for range 20 { // the pool may choose another work
		_, err = l.Take(t.Context(), counters.Request{Client: "another", Cost: 60, Limit: 1_000_000, Now: time.Now()})
		require.NoError(t, err)
	}
	after, _ := l.Recall(request(time.Now(), 1, 100))
	assert.Equal(t, before.Remaining, after.Remaining, "of c, after checks of another client")
}
