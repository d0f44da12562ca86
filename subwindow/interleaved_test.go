package subwindow_test

import (
	"context"
	"fmt"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"

	"weir/counters"
	"weir/counters/memory"
)

// A slowStore takes that long for each addition.
type slowStore struct {
	counters.Store
	d time.Duration
}

func (s slowStore) Add(ctx context.Context, a counters.Addition) (int64, error) {
	time.Sleep(s.d)
	return s.Store.Add(ctx, a)
}

// Calls that fall in two slots come in turns: a leader does all of them.
func TestCallsAreInterleaved(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWindow(t, time.Minute, 10, false)
		l := newLimiterWith(t, slowStore{memory.New(nil), 100 * time.Microsecond}, w, counters.Options{Clients: 10, StoreTimeout: 50 * time.Millisecond})
		boundary := time.Now().Truncate(6 * time.Second).Add(6 * time.Second)
		time.Sleep(time.Until(boundary.Add(time.Millisecond)))
		var wg sync.WaitGroup
		errs := map[string]int{}
		var mu sync.Mutex
		for i := range 200 {
			now := boundary.Add(time.Millisecond)
			if i%2 == 0 {
				now = boundary.Add(-time.Millisecond)
			}
			wg.Go(func() {
				_, err := l.Take(t.Context(), counters.Request{Client: "c", Cost: 1, Limit: 10000, Now: now})
				mu.Lock()
				defer mu.Unlock()
				errs[fmt.Sprint(err)]++
			})
			synctest.Wait()
		}
		wg.Wait()
		l.Flush()
		time.Sleep(5 * time.Second)
		l.Flush()
		assert.Len(t, errs, 1, "%v", errs)
	})
}

// Calls of short slots, some of which are late.
func TestCallsSpanManySlots(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWindow(t, 100*time.Millisecond, 100, false)
		l := newLimiterWith(t, slowStore{memory.New(nil), 100 * time.Microsecond}, w, counters.Options{Clients: 10, StoreTimeout: 50 * time.Millisecond})
		var wg sync.WaitGroup
		errs := map[string]int{}
		var mu sync.Mutex
		for i := range 70 {
			now := time.Now().Add(time.Duration(i%3-1) * time.Millisecond)
			wg.Go(func() {
				_, err := l.Take(t.Context(), counters.Request{Client: "c", Cost: 1, Limit: 10000, Now: now})
				mu.Lock()
				defer mu.Unlock()
				errs[fmt.Sprint(err)]++
			})
			synctest.Wait()
		}
		wg.Wait()
		l.Flush()
		time.Sleep(5 * time.Second)
		l.Flush()
		assert.Len(t, errs, 1, "%v", errs)
	})
}
