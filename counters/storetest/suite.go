// Package storetest holds the tests that every store passes: Run for a
// counters.Store, RunStates for a counters.StateStore. They state the contract
// as checks: atomic counts, no lost swaps, expiry, deletion, any bytes.
//
// A new store calls them from its own tests. Some tests wait for an expiry, so a
// run takes a few seconds. A store that lives in the process and tells the time
// by time.Now has RunInVirtualTime instead, which takes none.
package storetest

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"weir/counters"
)

// AddEach does additions one after the other, for a counters.ManyStore that is
// made of store.
func AddEach(ctx context.Context, store counters.Store, additions []counters.Addition) []counters.Added {
	added := make([]counters.Added, len(additions))
	for i, a := range additions {
		switch {
		case a.Key == "":
			added[i].Err = store.Read(ctx, a.Read, a.Counts)
		case a.Delta < 0:
			added[i].Err = store.Subtract(ctx, a.Key, -a.Delta)
		default:
			added[i].Count, added[i].Err = store.Add(ctx, a)
		}
	}
	return added
}

// Run tests that the store keeps the contract of counters.Store. The store's
// key prefix is weir. It may hold counters of others, but none of a policy
// named storetest.
func Run(t *testing.T, store counters.Store) {
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			test.on(t, store)
		})
	}
}

// A Local is a store inside of the process.
type Local interface {
	counters.Store
	counters.StateStore
}

// RunInVirtualTime does what Run and RunStates do where nothing waits for real.
// Each test has a store of its own, as each has a time of its own.
func RunInVirtualTime(t *testing.T, newStore func() Local) {
	inside := func(name string, run func(*testing.T)) {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, run)
		})
	}
	for _, test := range tests {
		inside(test.name, func(t *testing.T) { test.on(t, newStore()) })
	}
	for _, test := range stateTests {
		inside(test.name, func(t *testing.T) { test.on(t, newStore()) })
	}
}

var tests = []storeTester{
	{"AddCreatesAndCounts", testAdd},
	{"AddReadsOthersAfterCounting", testAddReads},
	{"ReadTellsAbsentFromZero", testReadMissing},
	{"WhatIsLostIsNotCounted", testAddHave},
	{"RaiseIsIdempotent", testRaise},
	{"RaisesAndAddsTogether", testConcurrentRaises},
	{"ReadOfThousands", testReadThousands},
	{"SubtractStopsAtZero", testSubtract},
	{"SubtractCreatesNothing", testSubtractMissing},
	{"DeleteForgets", testDelete},
	{"LargeCounts", testLarge},
	{"ExpiryIsThatOfTheFirstAdd", testExpiry},
	{"ConcurrentAddsTakeEachPositionOnce", testConcurrentAdds},
	{"CancellationEndsNothing", testCancellation},
}

type storeTester struct {
	name string
	run  func(*testing.T, *storeTest)
}

func (test storeTester) on(t *testing.T, store counters.Store) {
	ctx, cancel := context.WithTimeout(context.Background(), 30*time.Second)
	defer cancel()
	test.run(t, &storeTest{t: t, ctx: ctx, store: store})
}

type storeTest struct {
	t     *testing.T
	ctx   context.Context
	store counters.Store
}

// key returns a key of the client that the test is, as a store's calls want it.
func (s *storeTest) key(name string) string {
	return counters.CounterNamespace("weir", "storetest", "limit", time.Second).Client(s.t.Name()) + name
}

func (s *storeTest) add(key string, delta int64) int64 {
	s.t.Helper()
	n, err := s.store.Add(s.ctx, counters.Addition{Key: s.key(key), Delta: delta, TTL: time.Minute})
	require.NoError(s.t, err)
	return n
}

func (s *storeTest) read(names ...string) []int64 {
	s.t.Helper()
	keys, counts := make([]string, len(names)), make([]int64, len(names))
	for i, name := range names {
		keys[i], counts[i] = s.key(name), -2
	}
	require.NoError(s.t, s.store.Read(s.ctx, keys, counts))
	return counts
}

func testAdd(t *testing.T, s *storeTest) {
	assert.Equal(t, int64(3), s.add("a", 3), "a counter begins with its first delta")
	assert.Equal(t, int64(4), s.add("a", 1))
	assert.Equal(t, int64(4+counters.MaxCost), s.add("a", counters.MaxCost))
	assert.Equal(t, int64(1), s.add("b", 1), "keys have counters of their own")
	assert.Equal(t, []int64{4 + counters.MaxCost, 1}, s.read("a", "b"))
}

func testAddReads(t *testing.T, s *storeTest) {
	s.add("old", 7)
	counts := []int64{-2, -2, -2}
	n, err := s.store.Add(s.ctx, counters.Addition{Key: s.key("new"), Delta: 2, TTL: time.Minute, Read: []string{s.key("missing"), s.key("old"), s.key("new")}, Counts: counts})
	require.NoError(t, err)
	assert.Equal(t, int64(2), n)
	assert.Equal(t, []int64{counters.Absent, 7, 2}, counts, "what is read is read after the delta has been added")
}

func testReadMissing(t *testing.T, s *storeTest) {
	s.add("there", 5)
	require.NoError(t, s.store.Subtract(s.ctx, s.key("there"), 5))
	assert.Equal(t, []int64{counters.Absent, 0, counters.Absent}, s.read("missing", "there", "missing-too"))
	assert.NoError(t, s.store.Read(s.ctx, nil, nil))
}

func testAddHave(t *testing.T, s *storeTest) {
	counts := make([]int64, 1)
	for _, a := range []counters.Addition{
		{Key: s.key("a"), Delta: 2, TTL: time.Minute, Have: true},
		{Key: s.key("a"), Delta: 2, TTL: time.Minute, Have: true, Read: []string{s.key("b")}, Counts: counts},
	} {
		_, err := s.store.Add(s.ctx, a)
		assert.ErrorIs(t, err, counters.ErrLost)
		assert.Equal(t, []int64{counters.Absent}, s.read("a"))
	}
	s.add("a", 1)
	n, err := s.store.Add(s.ctx, counters.Addition{Key: s.key("a"), Delta: 2, TTL: time.Minute, Have: true})
	require.NoError(t, err)
	assert.Equal(t, int64(3), n)
}

func (s *storeTest) raise(floors ...counters.Floor) {
	s.t.Helper()
	for i := range floors {
		floors[i].Key, floors[i].TTL = s.key(floors[i].Key), time.Minute
	}
	require.NoError(s.t, s.store.Raise(s.ctx, floors))
}

func testRaise(t *testing.T, s *storeTest) {
	s.add("low", 3)
	s.add("high", 100)
	require.NoError(t, s.store.Subtract(s.ctx, s.key("high"), 1))
	for range 2 {
		s.raise(counters.Floor{Key: "missing", Count: 5}, counters.Floor{Key: "low", Count: 7}, counters.Floor{Key: "high", Count: 98})
		assert.Equal(t, []int64{5, 7, 99}, s.read("missing", "low", "high"))
	}
	assert.Equal(t, int64(6), s.add("missing", 1))
	s.raise(counters.Floor{Key: "low", Count: 1 << 62})
	assert.Equal(t, []int64{1 << 62}, s.read("low"))
	s.raise()
}

// No count gets lost in a raise, and none is raised twice.
func testConcurrentRaises(t *testing.T, s *storeTest) {
	const callers, each = 8, 5
	var wg sync.WaitGroup
	for range callers {
		wg.Go(func() {
			for range each {
				err := counters.ErrUnavailable
				for errors.Is(err, counters.ErrUnavailable) { // others are faster again and again
					err = s.store.Raise(s.ctx, []counters.Floor{{Key: s.key("a"), Count: 1000, TTL: time.Minute}})
				}
				assert.NoError(t, err)
				_, err = s.store.Add(s.ctx, counters.Addition{Key: s.key("a"), Delta: 1, TTL: time.Minute})
				assert.NoError(t, err)
			}
		})
	}
	wg.Wait()
	assert.Equal(t, []int64{1000 + callers*each}, s.read("a"))
}

func testReadThousands(t *testing.T, s *storeTest) {
	names := make([]string, 3601)
	want := make([]int64, len(names))
	for i := range names {
		names[i], want[i] = fmt.Sprintf("slot%d", i), counters.Absent
		if i%600 == 0 {
			want[i] = s.add(names[i], int64(i+1))
		}
	}
	assert.Equal(t, want, s.read(names...))
}

func testSubtract(t *testing.T, s *storeTest) {
	s.add("a", 100)
	require.NoError(t, s.store.Subtract(s.ctx, s.key("a"), 1))
	assert.Equal(t, []int64{99}, s.read("a"), "a number that got shorter is still one")
	assert.Equal(t, int64(100), s.add("a", 1))
	require.NoError(t, s.store.Subtract(s.ctx, s.key("a"), 1000))
	assert.Equal(t, []int64{0}, s.read("a"))
	assert.Equal(t, int64(2), s.add("a", 2))
}

func testSubtractMissing(t *testing.T, s *storeTest) {
	require.NoError(t, s.store.Subtract(s.ctx, s.key("a"), 5))
	assert.Equal(t, int64(1), s.add("a", 1))
}

func testDelete(t *testing.T, s *storeTest) {
	s.add("a", 9)
	s.add("b", 9)
	require.NoError(t, s.store.Delete(s.ctx, []string{s.key("a"), s.key("missing")}))
	assert.Equal(t, []int64{counters.Absent, 9}, s.read("a", "b"))
	assert.Equal(t, int64(1), s.add("a", 1))
}

func testLarge(t *testing.T, s *storeTest) {
	const large = 1 << 62
	assert.Equal(t, int64(large), s.add("a", large))
	assert.Equal(t, int64(large+1), s.add("a", 1))
	assert.Equal(t, []int64{large + 1}, s.read("a"))
}

// testExpiry waits: nothing else shows that a counter goes, and that counting
// doesn't keep it. Memcached's clock ticks once a second, and later on a busy
// machine, so a TTL of four seconds may end after less than three.
func testExpiry(t *testing.T, s *storeTest) {
	key := s.key("a")
	start := time.Now()
	for n := int64(1); ; n++ {
		got, err := s.store.Add(s.ctx, counters.Addition{Key: key, Delta: 1, TTL: 4 * time.Second})
		require.NoError(t, err)
		if got == 1 && n > 1 {
			break // it began anew
		}
		require.Equal(t, n, got)
		require.Less(t, time.Since(start), 8*time.Second, "the counter doesn't expire while it is counted in")
		time.Sleep(20 * time.Millisecond)
	}
	assert.Greater(t, time.Since(start), 900*time.Millisecond, "the counter was gone before its time")
}

func testConcurrentAdds(t *testing.T, s *storeTest) {
	const callers, each = 64, 20
	positions := make([]int64, callers*each)
	var wg sync.WaitGroup
	for caller := range callers {
		wg.Go(func() {
			for i := range each {
				n, err := s.store.Add(s.ctx, counters.Addition{Key: s.key("a"), Delta: 1, TTL: time.Minute})
				if assert.NoError(t, err) {
					positions[caller*each+i] = n
				}
			}
		})
	}
	wg.Wait()
	slices.Sort(positions)
	for i, n := range positions {
		require.Equal(t, int64(i+1), n, "each position is dealt once")
	}
}

// A caller that hangs up must not fail the others that its operation serves.
func testCancellation(t *testing.T, s *storeTest) {
	cancelled, cancel := context.WithCancel(s.ctx)
	cancel()
	s.ctx = cancelled
	assert.Equal(t, int64(3), s.add("a", 3))
	assert.Equal(t, []int64{3}, s.read("a"))
	require.NoError(t, s.store.Subtract(s.ctx, s.key("a"), 1))
	require.NoError(t, s.store.Delete(s.ctx, []string{s.key("a")}))
}
