package subwindow_test

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"weir/counters"
	"weir/counters/limitertest"
	"weir/counters/memory"
	"weir/subwindow"
)

// What another instance gives back of what anybody may isn't taken for lost, however it was
// counted here.
func (by way) TestWhatAnotherInstanceGivesBackIsNotLost(t *testing.T) {
	t.Parallel()
	fixed, err := subwindow.NewFixedWindow(time.Minute)
	require.NoError(t, err)
	for name, w := range map[string]subwindow.Window{"fixed": fixed, "sliding": newWindow(t, time.Minute, 4, false)} {
		for how, count := range map[string]func(l *limiter, r counters.Request) error{
			"with the store": func(l *limiter, r counters.Request) error {
				_, err := l.Take(t.Context(), r)
				return err
			},
			"alone": func(l *limiter, r counters.Request) error {
				_, err := l.TakeLocal(r, limitertest.ErrUnsent)
				l.Flush()
				return err
			},
		} {
			t.Run(name+" "+how, func(t *testing.T) {
				store := memory.New(nil)
				here, there := by.newLimiter(t, store, w, 50*time.Millisecond), by.newLimiter(t, store, w, 50*time.Millisecond)
				r := request(at("12:00:02"), 10, 10)
				r.Reserved = true
				require.NoError(t, count(here, r))
				require.Equal(t, int64(10), used(t, store, w, r.Now))
				r.Cost, r.Now = 7, at("12:00:03")
				require.NoError(t, there.Refund(t.Context(), r, counters.Decision{Allowed: true}))
				there.Flush()
				require.Equal(t, int64(3), used(t, store, w, r.Now))
				assert.Equal(t, int64(6), take(t, here, at("12:00:05"), 1, 10).Remaining)
				assert.Equal(t, int64(4), used(t, store, w, r.Now))
			})
		}
	}
}

// A readStore does something once, when it has read counters and hasn't told them yet.
type readStore struct {
	counters.Store
	then func()
}

func (s *readStore) Read(ctx context.Context, keys []string, counts []int64) error {
	err := s.Store.Read(ctx, keys, counts)
	if then := s.then; then != nil {
		s.then = nil
		then()
	}
	return err
}

// What is to be given back is more than the store had when it was asked: it was counted, and
// given back, since.
func (by way) TestWhatIsCountedWhileTheStoreIsAskedIsNotLost(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWindow(t, time.Minute, 4, true)
		store := &readStore{Store: memory.New(nil)}
		here, there := by.newLimiter(t, store, w, 50*time.Millisecond), by.newLimiter(t, store.Store, w, 50*time.Millisecond)
		reserve := func(l *limiter, cost int64) {
			r := request(at("12:00:02"), cost, 100)
			r.Reserved = true
			_, err := l.Take(t.Context(), r)
			require.NoError(t, err)
		}
		giveBack := func(cost int64) {
			r := request(at("12:00:02"), cost, 100)
			assert.NoError(t, here.Refund(t.Context(), r, counters.Decision{Allowed: true}))
		}
		reserve(here, 4)
		store.then = func() {
			reserve(there, 5)
			go giveBack(4)
			synctest.Wait()
		}
		giveBack(2)
		synctest.Wait()
		assert.Equal(t, int64(4+5-4-2), used(t, store, w, at("12:00:02")))
	})
}

// A reserved cost is given back that the store has lost. Another instance has counted less
// since: that isn't of the reserved cost, and stays.
func (by way) TestWhatIsGivenBackOfALostReservationIsNoOthers(t *testing.T) {
	t.Parallel()
	for name, w := range minuteWindows(t) {
		store := memory.New(nil)
		l, other := by.newLimiter(t, store, w, sameClock), by.newLimiter(t, store, w, sameClock)
		r := request(at("12:00:01.5"), 5, 10)
		r.Reserved = true
		d, err := l.Take(t.Context(), r)
		require.NoError(t, err)
		require.True(t, d.Allowed)
		require.NoError(t, store.Delete(t.Context(), []string{key(w, r.Now)}))
		require.True(t, take(t, other, r.Now, 3, 10).Allowed)
		require.NoError(t, l.Refund(t.Context(), r, d))
		assert.Equal(t, int64(3), used(t, store, w, r.Now), name)
	}
}
