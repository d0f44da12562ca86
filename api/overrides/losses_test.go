package overrides

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"weir/api/policy"
	"weir/counters"
	"weir/counters/memory"
)

// two has two instances that watch a store, by a clock that isn't at a whole millisecond.
func two(t *testing.T, f func(t *testing.T, s *memory.Store, a, b *instance)) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		time.Sleep(123456)
		s := memory.New(time.Now)
		a, b := newInstance(s), newInstance(s)
		defer a.watch(t)()
		defer b.watch(t)()
		synctest.Wait()
		f(t, s, a, b)
	})
}

func (i *instance) set(t *testing.T, o Override) {
	t.Helper()
	_, err := i.Set(t.Context(), o, 0)
	require.NoError(t, err)
}

func lose(t *testing.T, s *memory.Store) {
	t.Helper()
	require.NoError(t, s.Delete(t.Context(), []string{"weir:overrides", "weir:overrides:version"}))
}

func TestNothingIsPutBackThatIsThere(t *testing.T) {
	two(t, func(t *testing.T, _ *memory.Store, a, b *instance) {
		a.set(t, block(t, "c", time.Hour))
		time.Sleep(time.Minute)
		require.NotContains(t, a.log.String()+b.log.String(), "put back")
	})
}

// A key that this version doesn't know doesn't hide the others.
func TestAnUnknownKeyHidesNoOther(t *testing.T) {
	two(t, func(t *testing.T, s *memory.Store, a, b *instance) {
		for _, k := range []string{"abuser", strings.Repeat("\xff", 400), "second"} {
			a.set(t, block(t, k, time.Hour))
			time.Sleep(time.Second)
		}
		fresh := newInstance(s)
		require.NoError(t, fresh.Read(t.Context()))
		require.Contains(t, fresh.blocked(), "abuser")
		require.Contains(t, b.blocked(), "second")
	})
}

func TestEndedOverridesTakeRoomForADayAtMost(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		i := newInstance(memory.New(time.Now))
		require.NoError(t, i.change(t.Context(), func(l *list, now time.Time) error {
			for n := range 4000 {
				o := block(t, fmt.Sprintf("203.0.%d.%d", n>>8, n&255), MaxTime)
				l.set(o, now)
				o.Terms = policy.Terms{Until: time.UnixMilli(0)} // as Remove does
				l.set(o, now)
			}
			return nil
		}))
		time.Sleep(longest - time.Second)
		require.Len(t, i.remembers(time.Now()).entries, 4000)
		time.Sleep(2 * time.Second)
		require.Empty(t, i.remembers(time.Now()).entries)
	})
}

// What was set last holds, also if Memcached and the instance that sets it have forgotten
// what was there.
func TestTheLastChangeWinsAfterALoss(t *testing.T) {
	two(t, func(t *testing.T, s *memory.Store, a, _ *instance) {
		for range 3 {
			a.set(t, block(t, "c", time.Hour))
		}
		time.Sleep(1100 * time.Millisecond)
		lose(t, s)
		fresh := newInstance(s) // was restarted beside Memcached
		require.NoError(t, fresh.Read(t.Context()))
		fresh.set(t, Override{Policy: "api", Key: key(t, "c"), Terms: policy.Terms{Exempt: true, Until: time.Now().Add(2 * time.Hour)}})
		time.Sleep(2 * time.Second)
		require.Equal(t, "exempt", a.All()[0].Kind())
	})
}

// Instances agree, also on changes of which the store has lost one.
func TestInstancesAgreeAfterALoss(t *testing.T) {
	two(t, func(t *testing.T, s *memory.Store, a, b *instance) {
		a.set(t, block(t, "c", MaxTime))
		time.Sleep(1100 * time.Millisecond)
		_, err := a.Remove(t.Context(), "api", key(t, "c"), 0) // b hasn't heard
		require.NoError(t, err)
		lose(t, s)
		b.set(t, block(t, "c", 2*time.Hour))
		time.Sleep(time.Hour)
		require.Equal(t, a.blocked(), b.blocked())
	})
}

// The counter may be on a server that is down, or silent: the list is read all the same.
func TestTheCounterCannotBeRead(t *testing.T) {
	for name, unanswered := range map[string]func(ctx context.Context){
		"down":   func(context.Context) {},
		"silent": func(ctx context.Context) { <-ctx.Done() },
	} {
		t.Run(name, func(t *testing.T) {
			two(t, func(t *testing.T, s *memory.Store, a, _ *instance) {
				mute := newInstance(muteStore{s, unanswered})
				defer mute.watch(t)()
				a.set(t, block(t, "c", time.Hour))
				time.Sleep(time.Second)
				require.Equal(t, []string{"c"}, mute.blocked())
				mute.set(t, block(t, "d", time.Hour))
				require.Less(t, mute.Age(), time.Second)
			})
		})
	}
}

// A change of which the store doesn't say that it was done is in force soon all the same, if it was.
func TestAChangeThatNobodyKnowsOf(t *testing.T) {
	two(t, func(t *testing.T, s *memory.Store, a, b *instance) {
		unsure := newInstance(unsureStore{s})
		defer unsure.watch(t)()
		a.set(t, block(t, "b", time.Second))
		time.Sleep(2 * time.Second)
		_, err := unsure.Set(t.Context(), block(t, "c", time.Hour), 0)
		require.ErrorIs(t, err, counters.ErrTimeout)
		time.Sleep(2*interval + 1) // the others look after this one
		synctest.Wait()
		for _, i := range []*instance{unsure, a, b} {
			require.Equal(t, []string{"c"}, i.blocked())
		}
	})
}

// An unsureStore has swapped, but doesn't say so.
type unsureStore struct{ *memory.Store }

func (s unsureStore) Swap(ctx context.Context, key string, old counters.State, value []byte, ttl time.Duration) (counters.State, bool, error) {
	_, _, _ = s.Store.Swap(ctx, key, old, value, ttl)
	return counters.State{}, false, counters.ErrTimeout
}

// A muteStore has no counters.
type muteStore struct {
	*memory.Store
	unanswered func(ctx context.Context)
}

func (s muteStore) Add(ctx context.Context, _ counters.Addition) (int64, error) {
	s.unanswered(ctx)
	return 0, counters.ErrTimeout
}

func (s muteStore) Read(ctx context.Context, _ []string, _ []int64) error {
	s.unanswered(ctx)
	return counters.ErrTimeout
}

// Load has no time left where the store has taken it all.
func (s muteStore) Load(ctx context.Context, key string) (counters.State, error) {
	if ctx.Err() != nil {
		return counters.State{}, counters.ErrTimeout
	}
	return s.Store.Load(ctx, key)
}
