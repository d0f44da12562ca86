package subwindow_test

import (
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"weir/counters"
	"weir/counters/memory"
	"weir/subwindow"
)

// Of two instances one is told now and then that the store is out of memory, and then
// decides alone. What it admits it has counted before its next check: together they
// admit no more than the limit, or one more while that isn't counted yet.
func TestWhatTheStoreRefusesIsCountedByTheNext(t *testing.T) {
	t.Parallel()
	for _, test := range []struct {
		name  string
		more  int64
		fails func(adds int) bool
	}{
		{"the first two", 0, func(n int) bool { return n <= 2 }},
		{"every third", 1, func(n int) bool { return n%3 == 0 }},
	} {
		for _, limit := range []int64{5, 20} {
			for _, slots := range []int{1, 10} {
				inner := memory.New(nil)
				adds := 0
				store := &faultyStore{Store: inner, fault: func(operation, _ string) error {
					if operation != "add" {
						return nil
					}
					if adds++; !test.fails(adds) {
						return nil
					}
					return fmt.Errorf("%w, %w: SERVER_ERROR out of memory", counters.ErrUnavailable, counters.ErrRefused)
				}}
				open := func(s counters.Store) *subwindow.Limiter {
					l, err := subwindow.New(s, newWindow(t, time.Minute, slots, false), counters.Options{Policy: "p", Limit: "l", StoreTimeout: -1})
					require.NoError(t, err)
					return l
				}
				a, b := open(store), open(inner)
				now, admitted := at("12:00:01"), int64(0)
				for i := range 4 * limit {
					now = now.Add(time.Millisecond)
					l, r := a, counters.Request{Client: "c", Cost: 1, Limit: limit, Now: now}
					if i%2 == 1 {
						l = b
					}
					d, err := l.Take(t.Context(), r)
					if err != nil {
						require.ErrorIs(t, err, counters.ErrRefused)
						d, err = l.TakeLocal(r, err)
						require.NoError(t, err)
					}
					if d.Allowed {
						admitted++
					}
				}
				assert.LessOrEqual(t, admitted, limit+test.more, "%s, limit %d, %d slots", test.name, limit, slots)
			}
		}
	}
}
