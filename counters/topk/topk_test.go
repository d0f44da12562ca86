package topk

import (
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"weir/counters/racetest"
)

// at returns the time d after the start of a slot.
func at(d time.Duration) time.Time { return time.Unix(1_749_999_600, 0).Add(d) }

func (s *Sketch) addTimes(client string, times int, now time.Time) {
	for range times {
		s.Add(client, 1, now)
	}
}

func TestTheMostComeFirst(t *testing.T) {
	t.Parallel()
	s := New()
	assert.Empty(t, s.Top(20, at(0)))
	s.addTimes("carol", 2, at(0))
	s.addTimes("alice", 5, at(0))
	s.addTimes("bob", 2, at(time.Second))
	s.addTimes("alice", 1, at(15*time.Second))
	want := []Count{{"alice", 6, 0}, {"bob", 2, 0}, {"carol", 2, 0}}
	assert.Equal(t, want, s.Top(20, at(20*time.Second)))
	assert.Equal(t, want[:1], s.Top(1, at(20*time.Second)))
}

// A slot counts as a whole for as long as a part of it is in the window.
func TestWhatIsOlderThanTheWindowIsForgotten(t *testing.T) {
	t.Parallel()
	s := New()
	s.addTimes("alice", 3, at(0))
	s.addTimes("bob", 2, at(9*time.Second))
	s.addTimes("alice", 1, at(10*time.Second))
	for _, step := range []struct {
		at   time.Duration
		want []Count
	}{
		{69 * time.Second, []Count{{"alice", 4, 0}, {"bob", 2, 0}}},
		{70 * time.Second, []Count{{"alice", 1, 0}}},
		{79 * time.Second, []Count{{"alice", 1, 0}}},
		{80 * time.Second, nil},
		{time.Hour, nil},
	} {
		assert.Equal(t, step.want, s.Top(20, at(step.at)), "at %v", step.at)
	}
	s.Add("dave", 1, at(time.Hour))
	assert.Equal(t, []Count{{"dave", 1, 0}}, s.Top(20, at(time.Hour)), "the room of old slots is used again")
}

func TestAClockThatJumpsBackCountsOn(t *testing.T) {
	t.Parallel()
	s := New()
	s.Add("alice", 1, at(time.Minute))
	s.Add("alice", 1, at(50*time.Second))
	s.Add("alice", 1, at(-10*time.Second)) // its slot holds the count of now
	s.Add("ancient", 1, time.Time{})
	assert.Equal(t, []Count{{"alice", 2, 0}}, s.Top(20, at(time.Minute)))
}

// What Space-Saving promises: no count is too low, none too high by more than
// its error, and whoever asked more often than a shard's share is counted.
func TestBusyClientsAreFoundAmongMany(t *testing.T) {
	t.Parallel()
	random := rand.New(rand.NewPCG(1, 2))
	s := New()
	asked := make(map[string]int64)
	const requests = 200_000
	zipf := rand.NewZipf(random, 1.2, 1, 1_000_000)
	for range requests {
		client := fmt.Sprint("client-", zipf.Uint64())
		asked[client]++
		s.Add(client, 1, at(0))
	}
	require.Greater(t, len(asked), 20*shardCount*shardSize)
	counts := s.Top(1_000_000, at(0))
	require.Len(t, counts, shardCount*shardSize)
	for _, c := range counts {
		assert.GreaterOrEqual(t, c.Count, asked[c.Client])
		assert.LessOrEqual(t, c.Count-c.Error, asked[c.Client])
	}
	busiest := slices.SortedFunc(maps.Keys(asked), func(a, b string) int { return int(asked[b] - asked[a]) })[:20]
	for i, c := range s.Top(20, at(0)) {
		assert.Equal(t, busiest[i], c.Client)
	}
}

// What is taken back is taken from where it was counted, and never more.
func TestWhatIsTakenBackIsNotCounted(t *testing.T) {
	t.Parallel()
	s := New()
	s.Add("alice", 6000, at(0))
	s.Add("alice", 50, at(10*time.Second))
	s.Add("bob", 100, at(10*time.Second))
	s.Add("alice", -4170, at(0))
	assert.Equal(t, []Count{{"alice", 1880, 0}, {"bob", 100, 0}}, s.Top(20, at(10*time.Second)))
	s.Add("alice", -5000, at(0)) // another process has counted the rest
	s.Add("alice", 0, at(0))
	s.Add("carol", -5, at(0))
	s.Add("carol", -5, at(20*time.Second))
	s.Add("bob", -100, at(10*time.Second))
	assert.Equal(t, []Count{{"alice", 50, 0}}, s.Top(20, at(10*time.Second)))
	s.Add("bob", 7, at(70*time.Second))
	s.Add("bob", -100, at(0)) // its slot holds the count of now
	assert.Equal(t, []Count{{"alice", 50, 0}, {"bob", 7, 0}}, s.Top(20, at(70*time.Second)))
}

// An error is never more than the count that it is of.
func TestAnErrorIsPartOfItsCount(t *testing.T) {
	t.Parallel()
	s := New()
	for i := range 100 * shardCount * shardSize {
		s.Add(fmt.Sprint("passer-", i), 1, at(0))
	}
	s.Add("late", 1_000_000, at(0))
	late := s.Top(1, at(0))[0]
	require.Greater(t, late.Error, int64(1))
	s.Add("late", -1_000_001, at(0))
	assert.Contains(t, s.Top(1_000_000, at(0)), Count{"late", late.Error - 1, late.Error - 1})
}

// The same holds of costs of which a part is taken back: no count is too low, even of those
// who made room and came again, and none is too high by more than its error.
func TestBigSpendersAreFoundThoughMostIsTakenBack(t *testing.T) {
	racetest.Sequential(t)
	t.Parallel()
	for seed := range uint64(20) {
		random := rand.New(rand.NewPCG(seed, 3))
		s := New()
		used, all := make(map[string]int64), int64(0)
		type reserved struct {
			client string
			n      int64
		}
		var open []reserved
		zipf := rand.NewZipf(random, 1.1, 1, 20_000)
		for range 40_000 {
			if i := len(open) - 1; i >= 0 && random.IntN(2) == 0 {
				less := random.Int64N(open[i].n + 1)
				s.Add(open[i].client, -less, at(0))
				used[open[i].client] -= less
				open = open[:i]
				continue
			}
			r := reserved{fmt.Sprint("client-", zipf.Uint64()), 1 + random.Int64N(1000)}
			s.Add(r.client, r.n, at(0))
			used[r.client] += r.n
			all += r.n
			open = append(open, r)
			k := random.IntN(len(open))
			open[k], open[len(open)-1] = open[len(open)-1], open[k]
		}
		counted := make(map[string]bool)
		for _, c := range s.Top(1_000_000, at(0)) {
			counted[c.Client] = true
			require.GreaterOrEqual(t, c.Count, used[c.Client])
			require.LessOrEqual(t, c.Count-c.Error, used[c.Client])
		}
		for client, n := range used {
			if n > all/shardSize { // more than its shard's share, whichever it is in
				require.True(t, counted[client], "%s used %d of %d", client, n, all)
			}
		}
	}
}

// Clients that come once each don't push out those who come often.
func TestAFloodOfClientsHidesNobody(t *testing.T) {
	racetest.Sequential(t)
	t.Parallel()
	s := New()
	for _, now := range []time.Time{at(0), at(time.Duration(slotCount) * slotWidth)} { // the same room
		for i := range 100_000 {
			s.Add(fmt.Sprint("passer-", i), 1, now)
			if i%100 == 0 {
				s.Add("mallory", 1, now)
			}
		}
		top := s.Top(1, now)[0]
		assert.Equal(t, "mallory", top.Client)
		assert.Equal(t, int64(1000), top.Count-top.Error)
	}
}

func TestRoomIsBounded(t *testing.T) {
	t.Parallel()
	s := New()
	for i := range 10_000 {
		for slot := range 20 {
			s.Add(fmt.Sprint(i), 1, at(time.Duration(slot)*slotWidth))
		}
	}
	for i := range s.shards {
		for _, slot := range s.shards[i].slots {
			assert.Len(t, slot.entries, shardSize)
			assert.Len(t, slot.hashes, shardSize)
		}
	}
}

// Not parallel: it counts the allocations of the whole process.
func TestAddAllocatesNothingInTheLongRun(t *testing.T) {
	s := New()
	var clients []string
	for i := range 5000 {
		clients = append(clients, fmt.Sprintf("client-%04d", i))
	}
	now := at(0)
	all := func() {
		for _, client := range clients {
			s.Add(client, 1, now)
		}
		now = now.Add(slotWidth)
	}
	for range 2 * slotCount {
		all()
	}
	assert.Zero(t, testing.AllocsPerRun(10, all))
}

func TestSketchIsSafeForConcurrentUse(t *testing.T) {
	t.Parallel()
	s := New()
	var asking sync.WaitGroup
	for range 8 {
		asking.Go(func() {
			for i := range 1000 {
				s.Add(fmt.Sprint(i%10), 1, at(0))
				if i%100 == 0 {
					s.Top(5, at(0))
				}
			}
		})
	}
	asking.Wait()
	for _, c := range s.Top(20, at(0)) {
		assert.EqualValues(t, 800, c.Count)
	}
}

func BenchmarkAdd(b *testing.B) {
	var clients []string
	for i := range 1 << 16 {
		clients = append(clients, fmt.Sprint("client-", i))
	}
	for _, benchmark := range []struct {
		name    string
		clients int
	}{{"one", 1}, {"hundred", 100}, {"65536", 1 << 16}} {
		b.Run(benchmark.name, func(b *testing.B) {
			s, now, i := New(), at(0), 0
			b.ReportAllocs()
			for b.Loop() {
				s.Add(clients[i%benchmark.clients], 1, now)
				i++
			}
		})
	}
	b.Run("long names", func(b *testing.B) {
		s, now, name := New(), at(0), strings.Repeat("x", 1024)
		for b.Loop() {
			s.Add(name, 1, now)
		}
	})
}
