package cas

import (
	"context"
	"fmt"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"weir/counters"
	"weir/counters/memory"
)

// A heldSwap holds the swaps of one client up, and says whether each is done, or gets no
// answer.
type heldSwap struct {
	*memory.Store
	key   string
	holds atomic.Bool
	waits chan struct{}
	done  chan bool
}

func (s *heldSwap) Swap(ctx context.Context, key string, old counters.State, value []byte, ttl time.Duration) (counters.State, bool, error) {
	if key != s.key || !s.holds.Load() {
		return s.Store.Swap(ctx, key, old, value, ttl)
	}
	s.waits <- struct{}{}
	if <-s.done {
		return s.Store.Swap(ctx, key, old, value, ttl)
	}
	return counters.State{}, false, counters.ErrTimeout
}

// A caller leaves the leader that settles, and decides alone when its client's account
// has made room for another's: what the leader goes on to write isn't the caller's any more.
// (The race detector sees if it is.)
func TestACallerOfAnAccountThatHasMadeRoom(t *testing.T) {
	t.Parallel()
	synctest.Test(t, testACallerOfAnAccountThatHasMadeRoom)
}

func testACallerOfAnAccountThatHasMadeRoom(t *testing.T) {
	inner := memory.New(nil)
	store := &heldSwap{Store: inner, waits: make(chan struct{}), done: make(chan bool)}
	cfg := testConfig(1)
	cfg.StoreTimeout = 50 * time.Millisecond
	l, err := NewTokenBucket(store, time.Hour, 0, cfg)
	require.NoError(t, err)
	other, err := NewTokenBucket(inner, time.Hour, 0, testConfig(1))
	require.NoError(t, err)
	request := func(client string, cost int64) counters.Request {
		return counters.Request{Client: client, Cost: cost, Limit: 1000, Now: time.Now()}
	}
	admitted, err := l.TakeLocal(request("c", 1), counters.ErrUnavailable)
	require.NoError(t, err)
	store.key = testKeys.StateKey("c")
	store.holds.Store(true)
	flushed := make(chan struct{})
	go func() { l.Flush(); close(flushed) }()
	<-store.waits
	_, err = other.Take(unhurried, request("c", 1)) // so the leader has to try again, with the caller
	require.NoError(t, err)
	left, r := make(chan error), request("c", 2)
	go func() {
		ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
		defer cancel()
		_, err := l.Take(ctx, r)
		left <- err
	}()
	time.Sleep(10 * time.Millisecond)
	store.done <- true
	<-store.waits
	err = <-left
	require.Error(t, err)
	for i := range 3000 { // of others, many more than are remembered
		_, err := l.Take(unhurried, request(fmt.Sprint(i), 1))
		require.NoError(t, err)
	}
	store.holds.Store(false)
	store.done <- false
	d, err := l.TakeLocal(r, err)
	require.NoError(t, err)
	assert.True(t, d.Allowed)
	require.NoError(t, l.Refund(unhurried, request("c", 1), admitted))
	<-flushed
	l.Flush()
}

// What is admitted alone is in use, though the account has made room that the call was counted
// in without an answer: the next is decided by it.
func (by way) TestWhatIsAdmittedAloneByAnAccountThatHasMadeRoom(t *testing.T) {
	by.scripts(t, func(t *testing.T, s *script) {
		s.store.late(false)
		r, _, err := s.take(60)
		require.ErrorIs(t, err, counters.ErrTimeout)
		for i := range 1000 { // of others, many more than are remembered
			other := s.request(1)
			other.Client = fmt.Sprint(i)
			require.True(t, s.alone(other, counters.ErrNotSent).Allowed)
		}
		require.True(t, s.alone(r, err).Allowed)
		assert.False(t, s.alone(s.request(60), counters.ErrNotSent).Allowed, "60 of 100 are in use")
	})
}
