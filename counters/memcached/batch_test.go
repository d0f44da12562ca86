package memcached_test

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"weir/counters"
	"weir/counters/memcached"
	"weir/counters/memcachedtest"
	"weir/counters/storetest"
)

// oneOfMany adds with AddMany.
type oneOfMany struct{ *memcached.Store }

func (s oneOfMany) Add(ctx context.Context, a counters.Addition) (n int64, err error) {
	addMany(ctx, s.Store, []counters.Addition{a}, func(_ int, count int64, failure error) { n, err = count, failure })
	return n, err
}

func (s oneOfMany) Subtract(ctx context.Context, key string, delta int64) (err error) {
	addMany(ctx, s.Store, []counters.Addition{{Key: key, Delta: -delta}}, func(_ int, _ int64, failure error) { err = failure })
	return err
}

// addMany does the additions together, and those that can't be one by one.
func addMany(ctx context.Context, m *memcached.Store, additions []counters.Addition, done func(i int, n int64, err error)) {
	keys := make([]string, len(additions))
	for i, a := range additions {
		keys[i] = a.Key
	}
	var adding sync.WaitGroup
	defer adding.Wait()
	m.AddMany(ctx, keys, func(i int, to []counters.Addition) ([]counters.Addition, counters.Turn) {
		return append(to, additions[i]), counters.Now
	}, func(i int, added []counters.Added, err error) bool {
		n, err := only(added, err)
		if !errors.Is(err, counters.ErrNotAdded) {
			done(i, n, err)
			return false
		}
		adding.Go(func() {
			n, err := m.Add(ctx, additions[i])
			done(i, n, err)
		})
		return false
	})
}

// only returns what has become of the one addition of a key.
func only(added []counters.Added, err error) (int64, error) {
	if err != nil {
		return 0, err
	}
	return added[0].Count, added[0].Err
}

func TestAddManyAddsAsAdd(t *testing.T) {
	t.Parallel()
	_, m := start(t)
	storetest.Run(t, oneOfMany{m})
}

// clientKey is a key of the i-th client.
func clientKey(i int) string {
	return counters.CounterNamespace("weir", "p", "l", time.Second).Client(fmt.Sprint("client-", i)) + "_7"
}

// Sixty-one thousand keys come back to those who asked for them, over many
// pieces and several servers, those that are lost or foreign included.
func TestAddManyDealsOutTheReplies(t *testing.T) {
	t.Parallel()
	var servers []string
	for range 3 {
		servers = append(servers, memcachedtest.Start(t).Addr)
	}
	m := open(t, memcached.Config{Servers: servers, Timeout: 5 * time.Second})
	ctx := within(t, time.Minute)
	const clients, reads = 1000, 60
	foreign := clientKey(500)
	require.NoError(t, m.Put(ctx, foreign, []byte("apple"), time.Minute))
	additions := make([]counters.Addition, clients)
	for i := range additions {
		key := clientKey(i)
		a := counters.Addition{Key: key, Delta: int64(i + 1), TTL: time.Minute, New: i%2 == 0, Have: i%10 == 9}
		for j := range reads {
			a.Read = append(a.Read, fmt.Sprintf("%s.%d", key, j))
		}
		a.Counts = make([]int64, reads)
		additions[i] = a
		_, err := m.Add(ctx, counters.Addition{Key: a.Read[i%reads], Delta: int64(7 * (i + 1)), TTL: time.Minute})
		require.NoError(t, err)
	}
	require.NoError(t, m.Put(ctx, additions[400].Read[5], []byte("apple"), time.Minute))
	var told sync.Map
	addMany(ctx, m, additions, func(i int, n int64, err error) {
		_, twice := told.LoadOrStore(i, true)
		assert.False(t, twice)
		switch {
		case i == 400 || i == 500:
			assert.ErrorIs(t, err, counters.ErrForeignValue)
		case i%10 == 9:
			assert.ErrorIs(t, err, counters.ErrLost)
		default:
			assert.NoError(t, err)
			assert.EqualValues(t, i+1, n)
			for j, count := range additions[i].Counts {
				if j == i%reads {
					assert.EqualValues(t, 7*(i+1), count)
				} else {
					assert.EqualValues(t, counters.Absent, count)
				}
			}
		}
	})
	for i := range additions {
		_, ok := told.Load(i)
		assert.True(t, ok, "addition %d", i)
	}
}

// besideSilent stops a server before do begins n operations on the servers that on names, and
// lets it go on when they have ended. Those on others must have succeeded, one before the time is
// over. It returns where the outcomes of those go that the silent server was sent, by number.
func besideSilent(t *testing.T, silent *memcachedtest.Server, n int, on func(i int) string, do func(ctx context.Context, done func(i int, err error))) map[int]chan error {
	t.Helper()
	silent.Pause()
	outcomes := make([]error, n)
	var mu sync.Mutex
	var order []error
	do(within(t, 3*time.Second), func(i int, err error) {
		mu.Lock()
		defer mu.Unlock()
		outcomes[i], order = err, append(order, err)
	})
	assert.NoError(t, order[0], "while the silent server was waited for")
	told := make(map[int]chan error)
	for i, err := range outcomes {
		if on(i) != silent.Addr {
			require.NoError(t, err)
			continue
		}
		require.ErrorIs(t, err, counters.ErrTimeout)
		var unanswered *counters.Unanswered
		if errors.As(err, &unanswered) {
			told[i] = outcome(t, err)
		} else {
			require.ErrorIs(t, err, counters.ErrNotSent)
		}
	}
	require.NotEmpty(t, told)
	silent.Resume()
	return told
}

// Clients of a server that is silent hold up no others, and what became of their
// additions is told when it goes on.
func TestAddManyOnASilentServer(t *testing.T) {
	t.Parallel()
	silent, other := memcachedtest.Start(t), memcachedtest.Start(t)
	m := open(t, memcached.Config{Servers: []string{silent.Addr, other.Addr}})
	ctx := within(t, time.Minute)
	const clients = 200
	additions := make([]counters.Addition, clients)
	of := make(map[string]int)
	for i := range additions {
		additions[i] = counters.Addition{Key: clientKey(i), Delta: 1, TTL: time.Minute, New: i%2 == 0}
		of[m.Server(clientKey(i))]++
	}
	require.Greater(t, of[silent.Addr], 20)
	require.Greater(t, of[other.Addr], 20)
	var warm []counters.Addition
	for i := range 20 {
		warm = append(warm, counters.Addition{Key: clientKey(clients + i), Delta: 1, TTL: time.Minute})
	}
	addMany(ctx, m, warm, func(_ int, _ int64, err error) { assert.NoError(t, err) }) // the connections are open

	told := besideSilent(t, silent, clients, func(i int) string { return m.Server(clientKey(i)) }, func(ctx context.Context, done func(i int, err error)) {
		addMany(ctx, m, additions, func(i int, _ int64, err error) { done(i, err) })
	})
	for i, told := range told {
		err := <-told
		counts := make([]int64, 1)
		require.Eventually(t, func() bool { return m.Read(ctx, []string{clientKey(i)}, counts) == nil }, time.Minute, time.Millisecond)
		if i%2 == 0 {
			assert.NoError(t, err, "addition %d", i)
			assert.Positive(t, counts[0])
		} else { // there is no counter
			assert.ErrorIs(t, err, counters.ErrNotSent)
			assert.EqualValues(t, counters.Absent, counts[0])
		}
	}
}

// Additions begin when they are about to be sent: while none has been answered,
// no more than may be under way.
func TestAddManyBeginsWhatIsSent(t *testing.T) {
	t.Parallel()
	server, m := start(t)
	keys := make([]string, 1000)
	for i := range keys {
		keys[i] = clientKey(i)
	}
	add := func(i int) counters.Addition {
		a := counters.Addition{Key: keys[i], Delta: 1, TTL: time.Minute, New: true, Counts: make([]int64, 60)}
		for j := range a.Counts {
			a.Read = append(a.Read, fmt.Sprintf("%s.%d", a.Key, j))
		}
		return a
	}
	var begun, done atomic.Int64
	many := func(ctx context.Context, keys []string) {
		m.AddMany(ctx, keys, func(i int, to []counters.Addition) ([]counters.Addition, counters.Turn) {
			begun.Add(1)
			return append(to, add(i)), counters.Now
		}, func(_ int, added []counters.Added, err error) bool {
			if _, err := only(added, err); err == nil {
				done.Add(1)
			} else {
				assert.ErrorIs(t, err, counters.ErrTimeout)
			}
			return false
		})
	}
	many(within(t, time.Minute), keys)
	assert.EqualValues(t, 1000, begun.Load())
	assert.EqualValues(t, 1000, done.Load())
	for range 20 { // it is near
		many(within(t, time.Minute), keys[:1])
	}
	server.Pause()
	begun.Store(0)
	done.Store(0)
	many(within(t, time.Second), keys)
	bytes := 60 * len(add(0).Read[0])
	assert.Greater(t, begun.Load(), int64(48<<10/bytes), "several pieces")
	assert.Less(t, begun.Load(), int64(320<<10/bytes))
	assert.Zero(t, done.Load())
}

// Additions that can't be told yet come after the others of their server, and are
// told of when the time is over.
func TestAddManyComesBackToWhatIsLater(t *testing.T) {
	t.Parallel()
	_, m := start(t)
	const clients = 100
	keys := make([]string, clients)
	for i := range keys {
		keys[i] = clientKey(i)
	}
	var mu sync.Mutex
	var order []int
	asked, outcomes := make([]int, clients), make(map[int][]error)
	many := func(ctx context.Context, least int) {
		m.AddMany(ctx, keys, func(i int, to []counters.Addition) ([]counters.Addition, counters.Turn) {
			mu.Lock()
			defer mu.Unlock()
			if asked[i]++; i%3 == 0 && asked[i] < least {
				return to, counters.Later
			}
			order = append(order, i)
			return append(to, counters.Addition{Key: keys[i], Delta: 1, TTL: time.Minute, New: true}), counters.Now
		}, func(i int, added []counters.Added, err error) bool {
			mu.Lock()
			defer mu.Unlock()
			_, err = only(added, err)
			outcomes[i] = append(outcomes[i], err)
			return false
		})
	}
	many(within(t, 10*time.Second), 3)
	require.Len(t, order, clients)
	for i := range keys {
		require.Equal(t, []error{nil}, outcomes[i])
	}
	for _, i := range order[len(order)-clients/3:] {
		assert.Zero(t, i%3)
		assert.Equal(t, 3, asked[i])
	}
	clear(outcomes)
	many(within(t, 100*time.Millisecond), 1<<60)
	for i := range keys {
		require.Len(t, outcomes[i], 1)
		if i%3 == 0 {
			require.ErrorIs(t, outcomes[i][0], counters.ErrNotSent)
		}
	}
}

// A panic is its caller's, also one about what was never sent.
func TestAddManyThatPanics(t *testing.T) {
	t.Parallel()
	m := open(t, memcached.Config{Servers: []string{memcachedtest.Start(t).Addr, memcachedtest.Start(t).Addr}})
	keys := make([]string, 20)
	for i := range keys {
		keys[i] = clientKey(i)
	}
	for _, turn := range []counters.Turn{counters.Now, counters.Later} {
		ctx := within(t, 100*time.Millisecond)
		assert.PanicsWithValue(t, "a bug", func() {
			m.AddMany(ctx, keys, func(i int, to []counters.Addition) ([]counters.Addition, counters.Turn) {
				if turn == counters.Later {
					<-ctx.Done() // then it is too late
				}
				return append(to, counters.Addition{Key: keys[i], Delta: 1, TTL: time.Minute, New: true}), turn
			}, func(int, []counters.Added, error) bool { panic("a bug") })
		})
	}
}

// Of additions whose connection is lost nobody will ever know.
func TestAddManyOnAServerThatDies(t *testing.T) {
	t.Parallel()
	server := memcachedtest.Start(t)
	m := open(t, memcached.Config{Servers: []string{server.Addr}, Timeout: 300 * time.Millisecond})
	ctx := within(t, time.Minute)
	additions := []counters.Addition{{Key: clientKey(1), Delta: 1, TTL: time.Minute}, {Key: clientKey(2), Delta: 1, TTL: time.Minute}}
	addMany(ctx, m, additions, func(_ int, _ int64, err error) { require.NoError(t, err) })
	server.Pause()
	var told []chan error
	addMany(within(t, 300*time.Millisecond), m, additions, func(_ int, _ int64, err error) { told = append(told, outcome(t, err)) })
	server.Kill()
	for _, told := range told {
		err := <-told
		assert.ErrorIs(t, err, counters.ErrUnavailable)
		assert.NotErrorIs(t, err, counters.ErrNotSent)
	}
	assert.Len(t, told, 2)
}

// Additions and reads of a key go out together and are answered one by one, and
// who has more to ask comes before those who haven't begun.
func TestAddManyGoesOnWithWhoHasMore(t *testing.T) {
	t.Parallel()
	_, m := start(t)
	ctx := within(t, time.Hour)
	const clients = 5000 // of more than may be under way
	keys := make([]string, clients)
	for i := range keys {
		keys[i] = clientKey(i)
	}
	foreign := keys[7] + ".foreign"
	require.NoError(t, m.Put(ctx, foreign, []byte("apple"), time.Hour))
	var mu sync.Mutex
	asked, begun, first := make([]int, clients), 0, clients
	counts := make([][]int64, clients)
	m.AddMany(ctx, keys, func(i int, to []counters.Addition) ([]counters.Addition, counters.Turn) {
		mu.Lock()
		defer mu.Unlock()
		add := func(suffix string, have bool) counters.Addition {
			return counters.Addition{Key: keys[i] + suffix, Delta: int64(i + 1), TTL: time.Minute, New: !have, Have: have}
		}
		asked[i]++
		counts[i] = make([]int64, 2)
		read := []string{keys[i] + ".a", keys[i] + ".b"}
		switch asked[i] {
		case 1:
			begun++
			return append(to, counters.Addition{Read: read, Counts: counts[i]}), counters.Now
		case 2:
			first = min(first, begun)
			last := add(".b", false)
			last.Read, last.Counts = read, counts[i]
			return append(to, add(".a", false), add(".lost", true), counters.Addition{Key: foreign, Delta: 1}, last), counters.Now
		default:
			return to, counters.Never
		}
	}, func(i int, added []counters.Added, err error) bool {
		mu.Lock()
		defer mu.Unlock()
		assert.NoError(t, err)
		if asked[i] == 1 {
			assert.Equal(t, []counters.Added{{}}, added)
			assert.Equal(t, []int64{counters.Absent, counters.Absent}, counts[i])
			return true
		}
		n := int64(i + 1)
		if assert.Len(t, added, 4) {
			assert.Equal(t, counters.Added{Count: n}, added[0])
			assert.ErrorIs(t, added[1].Err, counters.ErrLost)
			assert.ErrorIs(t, added[2].Err, counters.ErrForeignValue)
			assert.Equal(t, counters.Added{Count: n}, added[3])
		}
		assert.Equal(t, []int64{n, n}, counts[i])
		return true
	})
	for i := range asked {
		require.Equal(t, 3, asked[i])
	}
	assert.Less(t, first, clients, "who goes on comes before those who haven't begun")
}

// Of several additions of a key each has its own late answer.
func TestAddManyTellsOfEachLateAddition(t *testing.T) {
	t.Parallel()
	server := memcachedtest.Start(t)
	m := open(t, memcached.Config{Servers: []string{server.Addr}, Timeout: 300 * time.Millisecond})
	ctx := within(t, time.Minute)
	one := counters.Addition{Key: clientKey(1), Delta: 1, TTL: time.Minute, New: true}
	_, err := m.Add(ctx, one)
	require.NoError(t, err)
	addMany(ctx, m, []counters.Addition{one}, func(_ int, _ int64, err error) { require.NoError(t, err) })
	server.Pause()
	var told []chan error
	m.AddMany(within(t, 300*time.Millisecond), []string{one.Key}, func(_ int, to []counters.Addition) ([]counters.Addition, counters.Turn) {
		read := []string{one.Key}
		return append(to,
			counters.Addition{Key: one.Key + ".new", Delta: 1, TTL: time.Minute, New: true, Read: read, Counts: make([]int64, 1)},
			counters.Addition{Key: one.Key + ".lost", Delta: 1, Have: true},
			counters.Addition{Key: one.Key, Delta: 1, Have: true},
			counters.Addition{Read: read, Counts: make([]int64, 1)},
		), counters.Now
	}, func(_ int, added []counters.Added, err error) bool {
		assert.NoError(t, err)
		for _, one := range added {
			told = append(told, outcome(t, one.Err))
		}
		return false
	})
	require.Len(t, told, 4)
	server.Resume()
	assert.NoError(t, <-told[0])
	assert.ErrorIs(t, <-told[1], counters.ErrNotSent)
	assert.NoError(t, <-told[2])
	assert.ErrorIs(t, <-told[3], counters.ErrNotSent, "it was only to be read")
}

// Who has more to ask when the time is over is told so.
func TestAddManyEndsWhoHasMoreWithItsTime(t *testing.T) {
	t.Parallel()
	m := open(t, memcached.Config{Servers: []string{memcachedtest.Start(t).Addr}, Timeout: 200 * time.Millisecond})
	addMany(within(t, time.Minute), m, []counters.Addition{{Key: clientKey(1), Delta: 1, TTL: time.Minute, New: true}}, func(_ int, _ int64, err error) {
		require.NoError(t, err)
	})
	asked, told := 0, 0
	for tries := 0; asked <= 1; tries++ { // a busy machine may let the time pass before
		require.Less(t, tries, 50)
		asked, told = 0, 0
		m.AddMany(within(t, 200*time.Millisecond), []string{clientKey(1)}, func(_ int, to []counters.Addition) ([]counters.Addition, counters.Turn) {
			asked++
			return append(to, counters.Addition{Read: []string{clientKey(1)}, Counts: make([]int64, 1)}), counters.Now
		}, func(_ int, added []counters.Added, err error) bool {
			if err == nil {
				err = added[0].Err
			}
			if told++; err != nil {
				assert.ErrorIs(t, err, counters.ErrTimeout)
			}
			return err == nil
		})
	}
	assert.LessOrEqual(t, told-asked, 1, "the last may not have begun")
}
