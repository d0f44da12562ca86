package accuracy

import (
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"weir/bench/internal/algorithms"
)

func TestAttemptsOfAnAttack(t *testing.T) {
	t.Parallel()
	const s = time.Second
	attack := attackPlan{Burst: 10 * s, Resume: 20 * s, Spacing: 25 * s}
	assert.Equal(t, []time.Duration{10 * s, 10 * s, 20 * s, 45 * s}, attack.attempts(2), "the burst leaves the window at 70 s")
	assert.Equal(t, "burst at 10s, from 20s on one each 25s", attack.String())
}

func TestEachAttackIsPlayedOnce(t *testing.T) {
	t.Parallel()
	// N=1 is attacked like fixed, strict like N=60, and all that don't count in
	// slots alike.
	for _, a := range algorithms.All {
		assert.Len(t, attacks(a, 100), 6, a.Name)
		assert.Equal(t, attackFor(a, 100), attacks(a, 100)[0], a.Name)
	}
}

// What the attack written for each algorithm gets, of a limit of 100.
func TestWrittenAttacks(t *testing.T) {
	t.Parallel()
	for name, want := range map[string]struct{ fullest, released, bound int64 }{
		// 100 just before the boundary and 100 after it, within 6 s.
		algorithms.Fixed: {200, 200, 200},
		// 100 at the end of a slot; of the next 100, as many as have faded out:
		// all of them in a minute after the burst.
		algorithms.Sliding1: {200, 200, 200}, algorithms.Sliding4: {200, 200, 200}, "N=5": {200, 200, 200}, "N=10": {200, 200, 200}, algorithms.Sliding60: {200, 200, 200},
		algorithms.Strict60: {100, 100, 100},
		// 100 at once, and one each 0.6 s: 99 in just under a minute. The leaky bucket lets one go on each 0.6 s
		// from the start.
		"token": {199, 199, 199}, algorithms.Leaky: {199, 100, 199},
		algorithms.Log: {100, 100, 100}, algorithms.Counting64: {100, 100, 100}, algorithms.Counting32: {100, 100, 100},
		// The burst, and 2/N of it, rounded up, while its slot fades out.
		algorithms.Capped10: {120, 120, 120}, algorithms.Capped60: {104, 104, 104},
	} {
		a := algorithms.Named(name)
		c, err := play(t.Context(), a, attackFor(a, 100), 100)
		require.NoError(t, err)
		assert.Equal(t, want.fullest, c.Fullest, name)
		assert.Equal(t, want.released, c.FullestReleased, name)
		assert.Equal(t, want.bound, bound(a, 100), name)
	}
}

// What an attack got stays, whatever comes after it: the last of the written
// attacks is far from the best on a fixed window.
func TestAttacksKeepTheirMaxima(t *testing.T) {
	t.Parallel()
	row, err := attackOn(t.Context(), algorithms.Named(algorithms.Fixed), 100)
	require.NoError(t, err)
	assert.Equal(t, []int64{200, 200}, []int64{row.Fullest, row.FullestReleased})
	assert.Equal(t, attackFor(algorithms.Named(algorithms.Fixed), 100), row.Attack)
}

func TestNoTimelineExceedsTheBounds(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		a := rapid.SampledFrom(algorithms.All).Draw(t, "algorithm")
		limit := rapid.Int64Range(1, 6).Draw(t, "limit")
		s, err := newSubject(a, limit, true)
		if err != nil {
			t.Fatal(err)
		}
		at := time.Duration(0)
		var admitted []time.Duration
		for _, gap := range rapid.SliceOfN(rapid.Int64Range(0, 1<<rapid.IntRange(20, 35).Draw(t, "gap bits")), 1, 80).Draw(t, "gaps") {
			at += time.Duration(gap)
			answer, err := s.ask(t.Context(), at)
			if err != nil {
				t.Fatal(err)
			}
			if answer.allowed {
				admitted = append(admitted, at)
			}
		}
		if most := fullestWindow(admitted, window); most > bound(a, limit) {
			t.Fatalf("%s admitted %d in a window, at most %d", a.Name, most, bound(a, limit))
		}
	})
}
