package subwindow

import (
	"context"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"weir/counters"
	"weir/counters/memory"
)

// A panicking store has a bug in its Add.
type panickingStore struct {
	counters.Store
	panics bool
}

func (s *panickingStore) Add(ctx context.Context, a counters.Addition) (int64, error) {
	if s.panics {
		panic("a bug")
	}
	return s.Store.Add(ctx, a)
}

// Nobody tells what has become of an addition in which the store has panicked: it is
// forgotten when its slot has been read.
func TestTheFlightOfAPanicIsForgotten(t *testing.T) {
	t.Parallel()
	store := &panickingStore{Store: memory.New(nil)}
	window, err := NewWindow(time.Minute, 10, false)
	require.NoError(t, err)
	l, err := New(store, window, counters.Options{Policy: "p", Limit: "l", StoreTimeout: -1})
	require.NoError(t, err)
	now := time.Now()
	take := func() counters.Decision {
		now = now.Add(time.Millisecond)
		d, err := l.Take(t.Context(), counters.Request{Client: "c", Cost: 1, Limit: 5, Now: now})
		require.NoError(t, err)
		return d
	}
	assert.EqualValues(t, 4, take().Remaining)
	store.panics = true
	assert.PanicsWithValue(t, "a bug", func() { take() })
	store.panics = false
	assert.EqualValues(t, 3, take().Remaining)
	assert.EqualValues(t, 2, take().Remaining)
	l.Change("c", func(a *account) { assert.Empty(t, a.flights()) })
}
