package memcached_test

import (
	"context"
	"errors"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"weir/counters"
	"weir/counters/memcached"
)

// outcome returns where the outcome goes of what ended with err.
func outcome(t *testing.T, err error) chan error {
	t.Helper()
	var unanswered *counters.Unanswered
	require.ErrorAs(t, err, &unanswered)
	told := make(chan error, 1)
	unanswered.WhenKnown(func(err error) { told <- err })
	return told
}

// outcomes does operations at the same time, which end with that error and without an answer,
// within a time, and returns where their outcomes go.
func outcomes(t *testing.T, time time.Duration, want error, operations ...func(context.Context) error) []chan error {
	t.Helper()
	errs := make([]error, len(operations))
	var asking sync.WaitGroup
	for i, operate := range operations {
		asking.Go(func() {
			errs[i] = counters.ErrNotSent
			for errors.Is(errs[i], counters.ErrNotSent) { // a busy machine may let the time pass before
				errs[i] = operate(within(t, time))
			}
		})
	}
	asking.Wait()
	told := make([]chan error, len(operations))
	for i, err := range errs {
		require.ErrorIs(t, err, want)
		told[i] = outcome(t, err)
	}
	return told
}

// What a stopped server has in its buffers it does when it goes on, be that
// before its connection is given up or after, and whoever still waits by then.
func TestOutcomesAreToldWhenTheServerGoesOn(t *testing.T) {
	t.Parallel()
	for _, when := range []struct {
		within, pause time.Duration
		want          error
	}{
		{300 * time.Millisecond, 0, counters.ErrTimeout},
		{300 * time.Millisecond, 3 * time.Second, counters.ErrTimeout},
		{time.Minute, 0, counters.ErrUnavailable},
	} {
		server, m := start(t)
		if when.within+when.pause > time.Second { // it is given up
			var err error
			m, err = memcached.New(memcached.Config{Servers: []string{server.Addr}, Timeout: counters.MaxTimeout})
			require.NoError(t, err)
			t.Cleanup(func() { assert.NoError(t, m.Close()) })
		}
		ctx := within(t, time.Minute)
		add := func(ctx context.Context, a counters.Addition) error {
			a.Delta, a.TTL = 1, time.Minute
			_, err := m.Add(ctx, a)
			return err
		}
		require.Eventually(t, func() bool { return add(ctx, counters.Addition{Key: "there"}) == nil }, time.Minute, time.Millisecond)
		state, swapped, err := m.Swap(ctx, "state", counters.State{}, []byte("1"), time.Minute)
		require.NoError(t, err)
		require.True(t, swapped)
		older := state
		state, _, err = m.Swap(ctx, "state", state, []byte("2"), time.Minute)
		require.NoError(t, err)

		server.Pause()
		adding := func(a counters.Addition) func(context.Context) error {
			return func(ctx context.Context) error { return add(ctx, a) }
		}
		swapping := func(old counters.State) func(context.Context) error {
			return func(ctx context.Context) error {
				_, _, err := m.Swap(ctx, "state", old, []byte("3"), time.Minute)
				return err
			}
		}
		// All at once: the breaker would refuse later ones.
		all := outcomes(t, when.within, when.want,
			adding(counters.Addition{Key: "there"}), adding(counters.Addition{Key: "there", New: true}),
			adding(counters.Addition{Key: "there", Read: []string{"other"}, Counts: make([]int64, 1)}),
			adding(counters.Addition{Key: "new", New: true}), swapping(state),
			adding(counters.Addition{Key: "missing"}), swapping(older))
		done, undone := all[:5], all[5:]
		time.Sleep(when.pause)
		for _, told := range all {
			require.Empty(t, told)
		}
		server.Resume()
		for _, told := range done {
			assert.NoError(t, <-told)
		}
		for _, told := range undone {
			assert.ErrorIs(t, <-told, counters.ErrNotSent)
		}
		counts := make([]int64, 3)
		require.Eventually(t, func() bool { return m.Read(ctx, []string{"there", "new", "missing"}, counts) == nil }, time.Minute, time.Millisecond)
		assert.Equal(t, []int64{4, 1, counters.Absent}, counts)
		state, err = m.Load(ctx, "state")
		require.NoError(t, err)
		assert.Equal(t, "3", string(state.Value))
	}
}

func TestOutcomesThatNobodyKnows(t *testing.T) {
	t.Parallel()
	for _, closed := range []bool{false, true} {
		err := counters.ErrNotSent
		for tries := 0; errors.Is(err, counters.ErrNotSent); tries++ { // a busy machine may send nothing before
			require.Less(t, tries, 50)
			server, m := start(t)
			add := func(ctx context.Context) error {
				_, err := m.Add(ctx, counters.Addition{Key: "a", Delta: 1, TTL: time.Minute})
				return err
			}
			require.NoError(t, add(within(t, time.Minute)))
			server.Pause()
			told := outcomes(t, 300*time.Millisecond, counters.ErrTimeout, add)[0]
			if closed {
				require.NoError(t, m.Close())
			} else {
				server.Kill()
			}
			err = <-told
		}
		assert.ErrorIs(t, err, counters.ErrUnavailable)
	}
}
