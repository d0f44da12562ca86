package memcached_test

import (
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"weir/counters"
	"weir/counters/memory"
	"weir/counters/racetest"
)

// Whatever is asked of it, one after the other, the store inside the process answers as Memcached does.
func TestTheMemoryStoreAnswersAsMemcached(t *testing.T) {
	racetest.Sequential(t)
	t.Parallel()
	type store interface {
		counters.Store
		counters.StateStore
	}
	_, m := start(t)
	ctx := within(t, time.Minute)
	run := 0
	rapid.Check(t, func(t *rapid.T) {
		run++
		stores := [2]store{m, memory.New(nil)}
		var seen [2][]counters.State // of the key of states
		state := fmt.Sprint("state", run)
		key := rapid.Map(rapid.IntRange(0, 3), func(i int) string { return fmt.Sprintf("%d-%d", run, i) })
		keys := rapid.SliceOfN(key, 0, 6) // some of them twice
		count := rapid.OneOf(rapid.Int64Range(1, 12), rapid.Int64Range(1, counters.MaxLimit), rapid.Just[int64](1<<56))
		for range rapid.IntRange(1, 40).Draw(t, "operations") {
			var ask func(i int, s store) (answer []any, err error)
			switch rapid.IntRange(0, 7).Draw(t, "operation") {
			case 0, 1:
				a := counters.Addition{Key: key.Draw(t, "key"), Delta: count.Draw(t, "delta"), TTL: time.Hour, Read: keys.Draw(t, "read")}
				known := rapid.IntRange(0, 2).Draw(t, "known")
				a.New, a.Have = known == 1, known == 2
				ask = func(_ int, s store) ([]any, error) {
					a.Counts = make([]int64, len(a.Read))
					n, err := s.Add(ctx, a)
					if err != nil {
						return nil, err
					}
					return []any{n, a.Counts}, nil
				}
			case 2:
				from, n := key.Draw(t, "key"), count.Draw(t, "delta")
				ask = func(_ int, s store) ([]any, error) { return nil, s.Subtract(ctx, from, n) }
			case 3:
				var floors []counters.Floor
				for _, k := range keys.Draw(t, "floors") {
					floors = append(floors, counters.Floor{Key: k, Count: count.Draw(t, "floor"), TTL: time.Hour})
				}
				ask = func(_ int, s store) ([]any, error) { return nil, s.Raise(ctx, floors) }
			case 4:
				gone := append(keys.Draw(t, "deleted"), state)
				ask = func(_ int, s store) ([]any, error) { return nil, s.Delete(ctx, gone) }
			case 5:
				all := keys.Draw(t, "read")
				ask = func(_ int, s store) ([]any, error) {
					counts := make([]int64, len(all))
					return []any{counts}, s.Read(ctx, all, counts)
				}
			case 6:
				value := rapid.SliceOfN(rapid.Byte(), 0, 40).Draw(t, "value")
				ask = func(_ int, s store) ([]any, error) { return nil, s.Put(ctx, state, value, time.Hour) }
			default:
				value := rapid.SliceOfN(rapid.Byte(), 0, 40).Draw(t, "value")
				old := rapid.IntRange(0, len(seen[0])).Draw(t, "old") // the last is none
				ask = func(i int, s store) ([]any, error) {
					now, swapped, err := s.Swap(ctx, state, append(seen[i], counters.State{})[old], value, time.Hour)
					return []any{string(now.Value), now.Exists(), swapped}, err
				}
			}
			var answers [2][]any
			for i, s := range stores {
				answer, err := ask(i, s)
				if err != nil {
					require.ErrorIs(t, err, counters.ErrLost)
					answer = []any{counters.ErrLost}
				}
				now, err := s.Load(ctx, state)
				require.NoError(t, err)
				seen[i] = append(seen[i], now)
				answers[i] = append(answer, string(now.Value), now.Exists())
			}
			require.Equal(t, answers[0], answers[1])
		}
	})
}
