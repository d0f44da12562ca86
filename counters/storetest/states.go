package storetest

import (
	"context"
	"encoding/binary"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"weir/counters"
)

// RunStates tests that the store keeps the contract of counters.StateStore. The
// store's key prefix is weir. It may hold keys of others, but none of a policy
// named storetest.
func RunStates(t *testing.T, store counters.StateStore) {
	for _, test := range stateTests {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			test.on(t, store)
		})
	}
}

var stateTests = []statesTester{
	{"NothingIsTheZeroState", testNothing},
	{"SwapReplacesWhatWasLoaded", testSwap},
	{"SwapOfAnOlderVersionLoses", testSwapOlder},
	{"SwapOfNothingLosesToSomething", testSwapNothing},
	{"SwapOfSomethingLostLoses", testSwapLost},
	{"PutReplacesWhateverIsThere", testPut},
	{"EqualValuesAreDifferentVersions", testEqualValues},
	{"AnyBytes", testAnyBytes},
	{"ExpiryIsThatOfTheLastSwap", testStateExpiry},
	{"ConcurrentSwapsLoseNothing", testConcurrentSwaps},
	{"CancellationEndsNothing", testStateCancellation},
}

type statesTester struct {
	name string
	run  func(*testing.T, *statesTest)
}

func (test statesTester) on(t *testing.T, store counters.StateStore) {
	ctx, cancel := context.WithTimeout(context.Background(), 30*time.Second)
	defer cancel()
	s := &statesTest{t: t, ctx: ctx, store: store}
	s.key = counters.StateNamespace("weir", "storetest", "limit", "states").StateKey(t.Name())
	test.run(t, s)
}

type statesTest struct {
	t     *testing.T
	ctx   context.Context
	store counters.StateStore
	key   string
}

func (s *statesTest) load() counters.State {
	s.t.Helper()
	state, err := s.store.Load(s.ctx, s.key)
	require.NoError(s.t, err)
	return state
}

// holds asserts that value is what is there, and returns it.
func (s *statesTest) holds(value string) counters.State {
	s.t.Helper()
	state := s.load()
	require.True(s.t, state.Exists())
	require.Equal(s.t, value, string(state.Value))
	return state
}

// swaps swaps, and asserts that it was done.
func (s *statesTest) swaps(old counters.State, value string) counters.State {
	s.t.Helper()
	now, swapped, err := s.store.Swap(s.ctx, s.key, old, []byte(value), time.Minute)
	require.NoError(s.t, err)
	require.True(s.t, swapped)
	require.Equal(s.t, s.holds(value), now, "what it returns is what is there")
	return now
}

// loses swaps, and asserts that nothing was done.
func (s *statesTest) loses(old counters.State, value string) counters.State {
	s.t.Helper()
	now, swapped, err := s.store.Swap(s.ctx, s.key, old, []byte(value), time.Minute)
	require.NoError(s.t, err)
	require.False(s.t, swapped)
	require.Equal(s.t, s.load(), now, "what it returns is what is there")
	return now
}

// lose has the store lose what is there. Every store can delete.
func (s *statesTest) lose() {
	s.t.Helper()
	store := s.store.(interface {
		Delete(ctx context.Context, keys []string) error
	})
	require.NoError(s.t, store.Delete(s.ctx, []string{s.key}))
}

func testNothing(t *testing.T, s *statesTest) {
	assert.False(t, s.load().Exists())
	assert.Equal(t, counters.State{}, s.load())
	s.lose()
	assert.Equal(t, counters.State{}, s.load())
}

func testSwap(_ *testing.T, s *statesTest) {
	s.swaps(counters.State{}, "first")
	second := s.swaps(s.load(), "second, which is longer")
	s.swaps(second, "3")
}

func testSwapOlder(t *testing.T, s *statesTest) {
	first := s.swaps(counters.State{}, "first")
	second := s.swaps(first, "second")
	assert.Equal(t, second, s.loses(first, "third"))
	s.swaps(second, "third")
}

func testSwapNothing(t *testing.T, s *statesTest) {
	first := s.swaps(counters.State{}, "first")
	assert.Equal(t, first, s.loses(counters.State{}, "another"))
}

func testPut(t *testing.T, s *statesTest) {
	put := func(value string, ttl time.Duration) {
		t.Helper()
		b := []byte(value)
		require.NoError(t, s.store.Put(s.ctx, s.key, b, ttl))
		clear(b)
		s.holds(value)
	}
	put("first", time.Minute)
	second := s.swaps(s.load(), "second")
	put("third", time.Minute)
	third := s.loses(second, "fourth")
	assert.Equal(t, "third", string(third.Value))
	put("third", 1500*time.Millisecond)
	s.loses(third, "fourth")
	require.Eventually(t, func() bool { return !s.load().Exists() }, time.Minute, 10*time.Millisecond, "it expires")
}

func testSwapLost(t *testing.T, s *statesTest) {
	first := s.swaps(counters.State{}, "first")
	s.lose()
	assert.Equal(t, counters.State{}, s.loses(first, "second"))
	again := s.swaps(counters.State{}, "first")
	assert.Equal(t, again, s.loses(first, "second"), "what was lost and made anew is another version")
}

func testEqualValues(_ *testing.T, s *statesTest) {
	first := s.swaps(counters.State{}, "same")
	s.swaps(first, "same")
	s.loses(first, "other")
}

func testAnyBytes(_ *testing.T, s *statesTest) {
	state := s.swaps(counters.State{}, "")
	state = s.swaps(state, "END\r\nVALUE x 0 1\r\n\x00\xff")
	s.swaps(state, strings.Repeat("\r\n", 50<<10))
}

// testStateExpiry waits: nothing else shows that a state goes, and that
// swapping keeps it. Memcached's clock ticks once a second, so a TTL of three
// seconds ends within two to three.
func testStateExpiry(t *testing.T, s *statesTest) {
	const ttl = 3 * time.Second
	state, _, err := s.store.Swap(s.ctx, s.key, counters.State{}, []byte("a"), ttl)
	require.NoError(t, err)
	last, late := time.Now(), 0
	for start := last; time.Since(start) < ttl+time.Second; time.Sleep(50 * time.Millisecond) {
		before := last
		last = time.Now()
		var swapped bool
		state, swapped, err = s.store.Swap(s.ctx, s.key, state, []byte("a"), ttl)
		require.NoError(t, err)
		if !swapped && time.Since(before) > ttl-1500*time.Millisecond && late < 5 {
			start, late = last, late+1 // a busy machine was too late: it begins anew
			continue
		}
		require.True(t, swapped, "it doesn't expire while it is swapped")
	}
	for s.load().Exists() {
		require.Less(t, time.Since(last), ttl+2*time.Second)
		time.Sleep(50 * time.Millisecond)
	}
	assert.Greater(t, time.Since(last), ttl-1500*time.Millisecond, "the state was gone before its time")
}

func testConcurrentSwaps(t *testing.T, s *statesTest) {
	const callers, each = 16, 20
	var wg sync.WaitGroup
	for range callers {
		wg.Go(func() {
			var state counters.State
			for done := 0; done < each; {
				n := uint64(0)
				if state.Exists() {
					n = binary.BigEndian.Uint64(state.Value)
				}
				now, swapped, err := s.store.Swap(s.ctx, s.key, state, binary.BigEndian.AppendUint64(nil, n+1), time.Minute)
				if !assert.NoError(t, err) {
					return
				}
				state = now
				if swapped {
					done++
				}
			}
		})
	}
	wg.Wait()
	assert.Equal(t, uint64(callers*each), binary.BigEndian.Uint64(s.load().Value))
}

// A caller that hangs up must not fail the others that its operation serves.
func testStateCancellation(_ *testing.T, s *statesTest) {
	cancelled, cancel := context.WithCancel(s.ctx)
	cancel()
	s.ctx = cancelled
	s.swaps(counters.State{}, "first")
	s.lose()
}
