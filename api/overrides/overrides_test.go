package overrides

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"math/rand/v2"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"weir/api/policy"
	"weir/counters"
	"weir/counters/memcached"
	"weir/counters/memcachedtest"
	"weir/counters/memory"
	"weir/counters/racetest"
)

func key(t require.TestingT, s string) policy.ClientKey {
	k, err := policy.ParseClientKey(s)
	require.NoError(t, err)
	return k
}

func block(t require.TestingT, client string, lasts time.Duration) Override {
	return Override{Policy: "api", Key: key(t, client), Terms: policy.Terms{Blocked: true, Until: time.Now().Add(lasts)}}
}

// An instance has overrides, as a process that is told of changes has.
type instance struct {
	*Overrides
	log     bytes.Buffer
	foreign int

	mu      sync.Mutex
	inForce map[string]map[policy.ClientKey]policy.Terms
}

func newInstance(on Store) *instance {
	i := new(instance)
	i.Overrides = New(Config{
		Store: on, KeyPrefix: "weir", Horizon: time.Second, Now: time.Now,
		Foreign: func() { i.foreign++ }, Log: slog.New(slog.NewTextHandler(&i.log, nil)),
	})
	i.Notify(func(all map[string]map[policy.ClientKey]policy.Terms) {
		i.mu.Lock()
		defer i.mu.Unlock()
		i.inForce = all
	})
	return i
}

// watch has the instance watch until the test, or stop, ends.
func (i *instance) watch(t *testing.T) (stop func()) {
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan struct{})
	go func() {
		i.Watch(ctx)
		close(done)
	}()
	stop = sync.OnceFunc(func() { cancel(); <-done })
	t.Cleanup(stop)
	return stop
}

// blocked returns the keys that are in force in the policy api.
func (i *instance) blocked() []string {
	i.mu.Lock()
	defer i.mu.Unlock()
	var keys []string
	for k := range i.inForce["api"] {
		keys = append(keys, k.String())
	}
	return keys
}

// A cutStore can't be asked while it is cut.
type cutStore struct {
	Store
	mu  sync.Mutex
	cut bool
}

func (s *cutStore) set(cut bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.cut = cut
}

func (s *cutStore) err() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.cut {
		return counters.ErrTimeout
	}
	return nil
}

func (s *cutStore) Read(ctx context.Context, keys []string, counts []int64) error {
	return errors.Join(s.err(), s.Store.Read(ctx, keys, counts))
}

func (s *cutStore) Load(ctx context.Context, key string) (counters.State, error) {
	if err := s.err(); err != nil {
		return counters.State{}, err
	}
	return s.Store.Load(ctx, key)
}

// Every instance agrees with a model within a second, whatever is set, removed and ends,
// and whatever the store loses.
func TestInstancesAgreeWithinASecond(t *testing.T) {
	racetest.Sequential(t)
	t.Parallel()
	for seed := range uint64(20) {
		synctest.Test(t, func(t *testing.T) {
			random := rand.New(rand.NewPCG(seed, 1))
			store := memory.New(time.Now)
			instances := []*instance{newInstance(store), newInstance(store), newInstance(store)}
			stop := make([]func(), len(instances))
			for n, i := range instances {
				stop[n] = i.watch(t)
			}
			synctest.Wait()
			model := make(map[string]time.Time)
			for range 300 {
				at := instances[random.IntN(len(instances))]
				client := fmt.Sprint("c", random.IntN(8))
				switch n := random.IntN(20); {
				case n < 9:
					o := block(t, client, time.Duration(1+random.IntN(20))*time.Second)
					_, err := at.Set(t.Context(), o, 0)
					require.NoError(t, err)
					model[client] = o.Until
				case n < 15:
					_, err := at.Remove(t.Context(), "api", key(t, client), 0)
					if model[client].After(time.Now()) {
						require.NoError(t, err)
					} else {
						require.ErrorIs(t, err, ErrNone)
					}
					delete(model, client)
				case n < 16:
					time.Sleep(time.Second) // all know the last change
					require.NoError(t, store.Delete(t.Context(), []string{"weir:overrides", "weir:overrides:version"}))
				case n < 17:
					time.Sleep(time.Second)
					k := random.IntN(len(instances))
					stop[k]()
					instances[k] = newInstance(store)
					stop[k] = instances[k].watch(t)
					synctest.Wait()
					require.True(t, instances[k].Ready())
				default:
					time.Sleep(time.Duration(random.IntN(3000)) * time.Millisecond)
				}
				if random.IntN(3) > 0 {
					continue
				}
				time.Sleep(time.Second)
				synctest.Wait()
				maps.DeleteFunc(model, func(_ string, until time.Time) bool { return !until.After(time.Now()) })
				want := make([]string, 0, len(model))
				for client := range model {
					want = append(want, client)
				}
				for n, i := range instances {
					require.ElementsMatch(t, want, i.blocked(), "instance %d, seed %d", n, seed)
					require.Less(t, i.Age(), time.Second)
				}
			}
			for _, s := range stop {
				s()
			}
		})
	}
}

// While the store can't be asked, blocks hold until their ends, and what is removed
// doesn't come back from those who have missed that.
func TestWhatIsKnownHoldsWhileTheStoreIsGone(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		store := memory.New(time.Now)
		cut := &cutStore{Store: store}
		a, b := newInstance(store), newInstance(cut)
		defer a.watch(t)()
		defer b.watch(t)()
		for client, lasts := range map[string]time.Duration{"short": time.Minute, "long": time.Hour, "removed": time.Hour, "shortened": time.Hour} {
			_, err := a.Set(t.Context(), block(t, client, lasts), 0)
			require.NoError(t, err)
		}
		time.Sleep(time.Second)
		cut.set(true)
		_, err := b.Set(t.Context(), block(t, "more", time.Hour), 0)
		require.ErrorIs(t, err, counters.ErrTimeout)
		_, err = a.Remove(t.Context(), "api", key(t, "removed"), 0)
		require.NoError(t, err)
		_, err = a.Set(t.Context(), block(t, "shortened", time.Second), 0)
		require.NoError(t, err)
		time.Sleep(10 * time.Minute)
		require.ElementsMatch(t, []string{"long", "removed", "shortened"}, b.blocked(), "it hasn't heard")
		require.Greater(t, b.Age(), 9*time.Minute)
		_, err = a.Set(t.Context(), block(t, "newest", time.Hour), 0) // which forgets what it may
		require.NoError(t, err)
		cut.set(false)
		time.Sleep(time.Second)
		for _, i := range []*instance{a, b} {
			require.ElementsMatch(t, []string{"long", "newest"}, i.blocked())
		}
		time.Sleep(time.Hour)
		require.Empty(t, a.blocked())
		require.Empty(t, b.blocked())
	})
}

// An instance waits for its first reading, but not for ever.
func TestReadiness(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		cut := &cutStore{Store: memory.New(time.Now), cut: true}
		i := newInstance(cut)
		require.False(t, i.Ready())
		defer i.watch(t)()
		time.Sleep(patience - time.Millisecond)
		require.False(t, i.Ready())
		time.Sleep(interval)
		require.True(t, i.Ready())
		j := newInstance(&cutStore{Store: memory.New(time.Now)})
		defer j.watch(t)()
		synctest.Wait()
		require.True(t, j.Ready())
	})
}

// A writer that dies before it has raised the counter is heard all the same.
func TestTheListIsReadNowAndThenAnyway(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		store := memory.New(time.Now)
		a, b := newInstance(store), newInstance(store)
		_, err := a.Set(t.Context(), block(t, "c", time.Hour), 0)
		require.NoError(t, err)
		defer b.watch(t)()
		time.Sleep(time.Second)
		dying := newInstance(struct {
			counters.StateStore
			counters.Store
		}{store, deafStore{store}})
		_, err = dying.Set(t.Context(), block(t, "d", time.Hour), 0)
		require.NoError(t, err)
		time.Sleep(readAnyway * interval)
		require.ElementsMatch(t, []string{"c", "d"}, b.blocked())
	})
}

// A deafStore adds nothing.
type deafStore struct{ counters.Store }

func (deafStore) Add(context.Context, counters.Addition) (int64, error) {
	return 0, counters.ErrTimeout
}

// What isn't a list is left alone until the next change, said once, and what is known
// holds.
func TestForeignBytesInThePlaceOfTheList(t *testing.T) {
	t.Parallel()
	store := memory.New(time.Now)
	i := newInstance(store)
	_, err := i.Set(t.Context(), block(t, "c", time.Hour), 0)
	require.NoError(t, err)
	for _, foreign := range []string{"foreign", `{"version":2}`, `[]`} {
		require.NoError(t, store.Put(t.Context(), "weir:overrides", []byte(foreign), time.Hour))
		before, blocked := i.foreign, i.blocked()
		for range 3 {
			require.NoError(t, i.Read(t.Context()))
		}
		require.Equal(t, before+1, i.foreign, foreign)
		require.ElementsMatch(t, blocked, i.blocked())
		state, err := store.Load(t.Context(), "weir:overrides")
		require.NoError(t, err)
		require.Equal(t, foreign, string(state.Value))
		_, err = i.Set(t.Context(), block(t, "d", time.Hour), 0)
		require.NoError(t, err)
		other := newInstance(store)
		require.NoError(t, other.Read(t.Context()))
		require.ElementsMatch(t, []string{"c", "d"}, other.blocked())
	}
}

// The name of a token may have any bytes, and a list only UTF-8: an instance knows an
// override as the store has it, and puts nothing back that isn't lost.
func TestWhoMadeAnOverrideIsKnownAsTheStoreHasIt(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		i := newInstance(memory.New(time.Now))
		i.watch(t)
		synctest.Wait()
		v := block(t, "c", time.Hour)
		v.By = "caf\xff"
		v, err := i.Set(t.Context(), v, 0)
		require.NoError(t, err)
		require.Equal(t, "caf\ufffd", v.By)
		time.Sleep(time.Minute)
		require.NotContains(t, i.log.String(), "put back")
	})
}

// An override ends when the clock says so, also where that jumps: as a machine does that was
// suspended, or whose clock is corrected.
func TestOverridesEndWhenTheClockJumps(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		var jumped atomic.Int64
		i := newInstance(memory.New(time.Now))
		i.cfg.Now = func() time.Time { return time.Now().Add(time.Duration(jumped.Load())) }
		i.watch(t)
		synctest.Wait()
		_, err := i.Set(t.Context(), block(t, "c", time.Hour), 0)
		require.NoError(t, err)
		_, err = i.Set(t.Context(), block(t, "d", 3*time.Hour), 0)
		require.NoError(t, err)
		synctest.Wait()
		jumped.Store(int64(2 * time.Hour))
		time.Sleep(time.Second)
		synctest.Wait()
		require.Len(t, i.All(), 1)
		require.Equal(t, []string{"d"}, i.blocked())
		time.Sleep(time.Hour)
		synctest.Wait()
		require.Empty(t, i.blocked())
	})
}

// A timer that has run out while another change is made doesn't put that one's end off.
func TestAStaleTimerDelaysNoEnd(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		i := newInstance(memory.New(time.Now))
		i.set(t, block(t, "long", time.Hour))
		i.Overrides.mu.Lock()
		time.Sleep(interval) // the timer waits for the lock
		i.known.set(block(t, "short", interval/5), time.Now())
		i.apply()
		i.Overrides.mu.Unlock()
		time.Sleep(interval / 5)
		synctest.Wait()
		assert.Equal(t, []string{"long"}, i.blocked())
		_, err := i.Remove(t.Context(), "api", key(t, "long"), 0)
		require.NoError(t, err)
	})
}

func TestRevisions(t *testing.T) {
	t.Parallel()
	i := newInstance(memory.New(time.Now))
	o, err := i.Set(t.Context(), block(t, "c", time.Hour), 0)
	require.NoError(t, err)
	_, err = i.Set(t.Context(), block(t, "c", time.Hour), o.Revision+1)
	require.ErrorIs(t, err, ErrChanged)
	_, err = i.Set(t.Context(), block(t, "d", time.Hour), 1)
	require.ErrorIs(t, err, ErrChanged, "there is none")
	again, err := i.Set(t.Context(), block(t, "c", time.Hour), o.Revision)
	require.NoError(t, err)
	require.Greater(t, again.Revision, o.Revision)
	_, err = i.Remove(t.Context(), "api", key(t, "c"), o.Revision)
	require.ErrorIs(t, err, ErrChanged)
	_, err = i.Remove(t.Context(), "api", key(t, "c"), again.Revision)
	require.NoError(t, err)
	_, err = i.Remove(t.Context(), "api", key(t, "c"), 0)
	require.ErrorIs(t, err, ErrNone)
}

func TestThereAreOnlySoMany(t *testing.T) {
	t.Parallel()
	fill := func(i *instance, n int, name string) error {
		return i.change(t.Context(), func(l *list, now time.Time) error {
			for k := range n {
				l.set(block(t, fmt.Sprint(name, k), time.Hour), now)
			}
			return nil
		})
	}
	i := newInstance(memory.New(time.Now))
	require.NoError(t, fill(i, maxOverrides, "c"))
	_, err := i.Set(t.Context(), block(t, "one-more", time.Hour), 0)
	require.ErrorIs(t, err, ErrFull)
	_, err = i.Set(t.Context(), block(t, "c7", time.Hour), 0)
	require.NoError(t, err, "which is there")
	require.Len(t, i.All(), maxOverrides)

	long := newInstance(memory.New(time.Now))
	require.NoError(t, fill(long, 400, strings.Repeat("c", 1000)))
	require.ErrorIs(t, fill(long, 600, strings.Repeat("d", 1000)), ErrFull, "in bytes")
	require.Len(t, long.All(), 400)
}

// A list is what it was when it has been stored.
func TestListsAreStoredAsTheyAre(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		l := list{entries: make(map[place]entry)}
		now := time.UnixMilli(1_750_000_000_000)
		for range rapid.IntRange(0, 10).Draw(t, "entries") {
			c := policy.Terms{Until: now.Add(time.Duration(rapid.Int64Range(0, 1e6).Draw(t, "lasts")) * time.Millisecond)}
			switch rapid.IntRange(0, 2).Draw(t, "kind") {
			case 0:
				c.Blocked = true
			case 1:
				c.Exempt = true
			default:
				c.Limits = map[string]int64{"per-minute": rapid.Int64Range(1, counters.MaxLimit).Draw(t, "limit")}
			}
			l.set(Override{
				Policy: rapid.SampledFrom([]string{"api", "llm"}).Draw(t, "policy"), Terms: c,
				Key:    key(t, rapid.SampledFrom([]string{"a", "user:*", "10.0.0.0/8", "2001:db8::/32", "<b>\"\u202e"}).Draw(t, "client")),
				Reason: rapid.String().Draw(t, "reason"), By: "ops",
			}, now)
		}
		decoded, err := decode(l.encode())
		require.NoError(t, err)
		require.Equal(t, l.revision, decoded.revision)
		require.Len(t, decoded.entries, len(l.entries))
		for at, e := range l.entries {
			d := decoded.entries[at]
			require.True(t, e.kept.Equal(d.kept) && e.Until.Equal(d.Until))
			d.kept, d.Until = e.kept, e.Until
			require.Equal(t, e, d)
		}
	})
}

// However lists meet, all end with the same.
func TestMergingIsTheSameInAnyOrder(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		now := time.UnixMilli(1_750_000_000_000)
		lists := make([]list, 3)
		for i := range lists {
			lists[i] = list{entries: make(map[place]entry)}
			for range rapid.IntRange(0, 5).Draw(t, "changes") {
				client := rapid.SampledFrom([]string{"a", "b"}).Draw(t, "client")
				lists[i].set(Override{Policy: "api", Key: key(t, client), Terms: policy.Terms{
					Blocked: true, Until: now.Add(time.Duration(rapid.IntRange(0, 5000).Draw(t, "lasts")) * time.Second),
				}}, now)
			}
		}
		merged := func(order ...int) list {
			l := list{entries: make(map[place]entry)}
			for _, i := range order {
				l.merge(lists[i])
			}
			return l
		}
		want := merged(0, 1, 2)
		for _, order := range [][]int{{0, 2, 1}, {1, 0, 2}, {1, 2, 0}, {2, 0, 1}, {2, 1, 0}} {
			got := merged(order...)
			require.Equal(t, want.revision, got.revision)
			for at, e := range want.entries {
				require.Equal(t, e.Revision, got.entries[at].Revision)
			}
		}
		require.False(t, want.merge(lists[1]), "nothing is new")
	})
}

// 64 writers of four instances on Memcached: all that they set is there, everywhere.
func TestManyWritersOnMemcached(t *testing.T) {
	t.Parallel()
	server := memcachedtest.Start(t)
	var instances []*instance
	for range 4 {
		store, err := memcached.New(memcached.Config{Servers: []string{server.Addr}, Timeout: counters.MaxTimeout})
		require.NoError(t, err)
		t.Cleanup(func() { _ = store.Close() })
		i := newInstance(store)
		i.watch(t)
		instances = append(instances, i)
	}
	var writers sync.WaitGroup
	for n := range 64 {
		writers.Go(func() {
			set := func() bool { // again, where a busy machine has taken all of its time
				_, err := instances[n%4].Set(context.Background(), block(t, fmt.Sprint("c", n), time.Hour), 0)
				assert.True(t, err == nil || errors.Is(err, counters.ErrTimeout) || errors.Is(err, counters.ErrUnavailable), err)
				return err == nil
			}
			for begin := time.Now(); !set(); {
				if !assert.Less(t, time.Since(begin), time.Minute) {
					return
				}
			}
		})
	}
	writers.Wait()
	everywhere := func(n int) func() bool {
		return func() bool {
			for _, i := range instances {
				if len(i.blocked()) != n {
					return false
				}
			}
			return true
		}
	}
	require.Eventually(t, everywhere(64), time.Minute, 10*time.Millisecond)
	_, err := instances[0].Remove(t.Context(), "api", key(t, "c7"), 0)
	require.NoError(t, err)
	require.Eventually(t, everywhere(63), time.Minute, 10*time.Millisecond)
	server.Do("flush_all", "OK")
	_, err = instances[1].Set(t.Context(), block(t, "late", time.Hour), 0)
	require.NoError(t, err)
	require.Eventually(t, everywhere(64), time.Minute, 10*time.Millisecond)
	late := newInstance(instances[2].cfg.Store)
	require.NoError(t, late.Read(t.Context()))
	require.Len(t, late.blocked(), 64)
	require.NotContains(t, late.blocked(), "c7")
}
