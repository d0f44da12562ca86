package simulate

import (
	"bytes"
	"context"
	"io"
	"math/rand/v2"
	"regexp"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"weir/bench/internal/algorithms"
	"weir/counters"
	"weir/counters/memory"
)

// What happened in a seed happens again, whatever else the machine does. Only
// where a refund or a debt goes on without its call, or callers leave a leader
// just as its own time ends, others may come before it or after; and those who
// decide alone at one moment do so in any order.
func TestReplay(t *testing.T) {
	t.Parallel()
	alone := regexp.MustCompile(`p\d {5}|(retry after 1ms|context deadline exceeded)\n`)
	seed := search(t.Context(), 1, 200, func(seed uint64) bool {
		first := timeline(seed)
		if alone.MatchString(first) {
			return false
		}
		for range 10 {
			if again := timeline(seed); first == again || alone.MatchString(again) {
				return false
			}
		}
		return true
	})
	assert.Zero(t, seed)
}

func timeline(seed uint64) string {
	var out bytes.Buffer
	simulate(seed, mutation{}, &out)
	return out.String()
}

// A timeline changes nothing about what happens.
func TestTraceIsPassive(t *testing.T) {
	t.Parallel()
	broken := wrap(func(w wrapped) limiter { return hasty{w} })
	var seen atomic.Int64
	seed := search(t.Context(), 1, 400, func(seed uint64) bool {
		if s := draw(seed, rand.New(rand.NewPCG(seed, 0))); s.width() > 0 || s.faults.refunds || s.faults.outages {
			return false // a refund or a debt may go on without its call
		}
		violations := simulate(seed, broken, io.Discard)
		if len(violations) > 0 {
			seen.Add(1)
		}
		for range 10 { // a caller may leave before its leader's time ends, or after
			if slices.Equal(violations, simulate(seed, broken, nil)) {
				return false
			}
		}
		return true
	})
	assert.Zero(t, seed)
	assert.Positive(t, seen.Load())
}

func TestReplayOfAViolation(t *testing.T) {
	t.Parallel()
	broken := wrap(func(w wrapped) limiter { return readThenCount{w} })
	seed := search(t.Context(), 1, 1000, func(seed uint64) bool {
		violations := simulate(seed, broken, nil)
		return len(violations) > 0 && violations[0].oracle == "bound"
	})
	require.NotZero(t, seed)
	var out bytes.Buffer
	err := replay(seed, broken, &out)
	require.ErrorContains(t, err, "bound: ")
	lines := strings.Split(out.String(), "\n")
	assert.Contains(t, lines[0], "faults: ")
	assert.Contains(t, out.String(), "p0 begins, its clock")
	assert.Contains(t, out.String(), "VIOLATED bound: ")
}

func TestSearchFindsTheFirst(t *testing.T) {
	t.Parallel()
	assert.Equal(t, uint64(17), search(t.Context(), 10, 100, func(seed uint64) bool { return seed >= 17 }))
	assert.Zero(t, search(t.Context(), 1, 16, func(seed uint64) bool { return seed >= 17 }), "what isn't asked for isn't found")
	ended, end := context.WithCancel(t.Context())
	end()
	assert.Zero(t, search(ended, 1, 100, func(uint64) bool { return true }))
}

func TestRunOfOneSeed(t *testing.T) {
	t.Parallel()
	var out bytes.Buffer
	err := Run(t.Context(), []string{"-seed", "1"}, &out)
	assert.Equal(t, violatesAny(1), err != nil)
	assert.Contains(t, out.String(), "seed 1: ")
	assert.Error(t, Run(t.Context(), []string{"-seed", "1", "2"}, &out))
}

// The server's clock ticks once a second, so an item lives up to a second less
// than its time.
func TestServerExpiry(t *testing.T) {
	t.Parallel()
	s := server{items: make(map[string]item), touched: func(string, bool) {}}
	at := func(ms int) time.Time { return time.UnixMilli(int64(ms)) }
	assert.Equal(t, int64(3), s.add("a", 3, at(900), 2*time.Second))
	assert.Equal(t, int64(4), s.add("a", 1, at(1900), 2*time.Second), "counting doesn't renew it")
	assert.EqualValues(t, counters.Absent, s.count("a", at(2000)))
	s.subtract("a", 1, at(2000))
	assert.Equal(t, int64(1), s.add("a", 1, at(2000), time.Second))
	s.subtract("a", 5, at(2000))
	assert.Zero(t, s.count("a", at(2000)), "it stops at 0")
}

func TestServerVersions(t *testing.T) {
	t.Parallel()
	s := server{items: make(map[string]item), touched: func(string, bool) {}}
	now := time.UnixMilli(0)
	assert.False(t, s.swap("a", 1, nil, now, time.Minute), "there is nothing to replace")
	assert.True(t, s.swap("a", 0, []byte("x"), now, time.Minute))
	assert.False(t, s.swap("a", 0, []byte("y"), now, time.Minute))
	assert.Equal(t, uint64(1), s.load("a", now).Version)
	assert.True(t, s.swap("a", 1, []byte("y"), now, time.Minute))
	s.restart()
	assert.False(t, s.load("a", now).Exists())
	assert.True(t, s.swap("a", 0, []byte("z"), now, time.Minute))
	assert.Equal(t, uint64(1), s.load("a", now).Version, "numbers begin again")
}

// What the world reads of states is what limiters write: here one that knows of
// a reset replaces what one has put back that doesn't.
func TestHeaders(t *testing.T) {
	t.Parallel()
	for _, a := range algorithms.Select(algorithms.Token, algorithms.Leaky, algorithms.Log) {
		t.Run(a.Name, func(t *testing.T) {
			store := &writesStore{Store: memory.New(nil)}
			start := func() limiter {
				o := counters.Options{Policy: policy, ClockSkew: -1}
				l, err := a.New(store, algorithms.Config{Options: o, Window: time.Minute, Limit: 10})
				require.NoError(t, err)
				return l
			}
			knows, other := start(), start()
			now := time.Now()
			take := func(l limiter) header {
				now = now.Add(time.Second)
				d, err := l.Take(t.Context(), counters.Request{Client: client, Cost: 1, Limit: 10, Now: now})
				require.NoError(t, err)
				require.True(t, d.Allowed)
				return readHeader(store.written)
			}
			first := take(other)
			began := now.UnixNano()
			assert.Equal(t, header{generation: began, size: first.size}, first)
			now = now.Add(time.Second)
			require.NoError(t, knows.Reset(t.Context(), client, now))
			reset := readHeader(store.written)
			assert.Equal(t, header{reset: now.UnixNano(), size: emptyBucket}, reset)
			require.NoError(t, store.Delete(t.Context(), []string{store.key}))
			back := take(other)
			assert.NotZero(t, back.putBack)
			assert.Equal(t, began, back.generation)
			replaced := take(knows)
			assert.Equal(t, reset.reset, replaced.reset)
			assert.Equal(t, now.UnixNano(), replaced.generation)
			assert.True(t, replaced.forgets(back))
			assert.False(t, back.forgets(first) || take(knows).forgets(replaced) || reset.forgets(first))
		})
	}
}

// A writesStore notes the last state that was written.
type writesStore struct {
	*memory.Store
	key     string
	written []byte
}

func (s *writesStore) Swap(ctx context.Context, key string, old counters.State, value []byte, ttl time.Duration) (counters.State, bool, error) {
	now, swapped, err := s.Store.Swap(ctx, key, old, value, ttl)
	if swapped {
		s.key, s.written = key, bytes.Clone(value)
	}
	return now, swapped, err
}
