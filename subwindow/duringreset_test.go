package subwindow_test

import (
	"context"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"weir/counters"
	"weir/counters/memory"
)

// A hookedStore does something before operations.
type hookedStore struct {
	counters.Store
	before func(operation string)
}

func (s *hookedStore) Delete(ctx context.Context, keys []string) error {
	s.before("delete")
	err := s.Store.Delete(ctx, keys)
	s.before("deleted")
	return err
}

func (s *hookedStore) Raise(ctx context.Context, floors []counters.Floor) error {
	s.before("raise")
	return s.Store.Raise(ctx, floors)
}

func (s *hookedStore) Read(ctx context.Context, keys []string, counts []int64) error {
	s.before("read " + strings.Join(keys, " "))
	err := s.Store.Read(ctx, keys, counts)
	return err
}

// A count comes between a reset's first generation and its delete: it is gone, and
// is taken for a loss. Until it is put back, the reset is over and another instance
// has admitted the limit: nothing was put back, and nothing is given back.
func (by way) TestNothingIsGivenBackAfterAReset(t *testing.T) {
	for _, window := range []string{"4", "strict"} {
		w := newWindow(t, 60e9, 4, window == "strict")
		const limit = 10
		now := at("12:00:01.5")
		inner := memory.New(nil)
		hereStore := &hookedStore{Store: inner, before: func(string) {}}
		resetStore := &hookedStore{Store: inner, before: func(string) {}}
		here := by.newLimiterWith(t, hereStore, w, counters.Options{ClockSkew: sameClock, Clients: 10})
		resets := by.newLimiterWith(t, resetStore, w, counters.Options{ClockSkew: sameClock, Clients: 10})
		others := by.newLimiterWith(t, inner, w, counters.Options{ClockSkew: sameClock, Clients: 10})
		require.True(t, take(t, others, now, 2, limit).Allowed)
		now = at("12:00:03.5")

		counted, deleted, goOn, over := make(chan bool), make(chan bool), make(chan bool), make(chan bool)
		resetStore.before = func(operation string) {
			if operation == "delete" { // the generation is raised, the counts are still there
				close(goOn)
				<-counted
			}
			if operation == "deleted" { // the generation isn't raised again yet
				close(deleted)
				<-over
			}
		}
		done := make(chan bool)
		go func() {
			defer close(done)
			assert.NoError(t, resets.Reset(t.Context(), "c", now))
		}()
		<-goOn
		stage := 0
		admitted := int64(0)
		hereStore.before = func(operation string) {
			switch stage++; {
			case stage == 1: // it has counted, and reads anew
				require.True(t, strings.HasPrefix(operation, "read"), operation)
				close(counted)
				<-deleted
			case operation == "raise" && admitted == 0:
				close(over)
				<-done
				for range 2 * limit { // after the reset
					if take(t, others, now.Add(2e9), 1, limit).Allowed {
						admitted++
					}
				}
			}
		}
		d := take(t, here, now, 3, limit)
		t.Logf("here: %v, admitted %d, used %d", d.Allowed, admitted, used(t, inner, w, now))
		hereStore.before = func(string) {}
		here.Flush()
		later := now.Add(4e9)
		third := by.newLimiterWith(t, inner, w, counters.Options{ClockSkew: sameClock, Clients: 10})
		for range 2 * limit {
			if take(t, third, later, 1, limit).Allowed {
				admitted++
			}
		}
		assert.LessOrEqual(t, admitted, int64(limit), "of those that came after the reset")
	}
}
