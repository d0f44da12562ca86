package accuracy

import (
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"
)

func TestAttemptsOfAnAttack(t *testing.T) {
	const s = time.Second
	attack := Attack{Burst: 10 * s, Resume: 20 * s, Spacing: 25 * s}
	assert.Equal(t, []time.Duration{10 * s, 10 * s, 20 * s, 45 * s}, attack.attempts(2), "the burst leaves the window at 70 s")
	assert.Equal(t, "burst at 10s, from 20s on one each 25s", attack.String())
}

// What the attack written for each algorithm gets, of a limit of 100.
func TestWrittenAttacks(t *testing.T) {
	for name, want := range map[string]struct{ fullest, half, released, bound int64 }{
		// 100 just before the boundary and 100 after it, within 6 s.
		Fixed: {200, 200, 200, 200},
		// 100 at the end of a slot; of the next 100, as many as have faded out: in
		// the slot of a minute 50 in half a minute. In shorter slots all of them
		// come in a minute after the burst.
		Sliding1: {200, 150, 200, 200}, Sliding4: {200, 100, 200, 200}, "N=5": {200, 100, 200, 200}, "N=10": {200, 100, 200, 200}, Sliding60: {200, 100, 200, 200},
		Strict60: {100, 100, 100, 100},
		// 100 at once, and one each 0.6 s: 49 in just under half a minute, 99 in just
		// under a minute. The leaky bucket lets one go on each 0.6 s from the start.
		"token": {199, 149, 199, 199}, Leaky: {199, 149, 100, 199},
		Log: {100, 100, 100, 100},
	} {
		a := algorithm(t, name)
		c, err := a.suffer(t.Context(), a.attack(100), 100)
		require.NoError(t, err)
		assert.Equal(t, want.fullest, c.Fullest, name)
		assert.Equal(t, want.half, c.FullestHalf, name)
		assert.Equal(t, want.released, c.FullestReleased, name)
		assert.Equal(t, want.bound, a.Bound(100), name)
	}
}

func TestSearchFindsAttacks(t *testing.T) {
	row, err := AttackOn(t.Context(), algorithm(t, Sliding1), 20, 40, 1)
	require.NoError(t, err)
	assert.Equal(t, "N=1", row.Algorithm)
	assert.Equal(t, int64(40), row.Written.Fullest)
	assert.Equal(t, int64(40), row.Worst())
	// A burst that falls x before the boundary gets 20 * (60 s - x) / 60 s more: the
	// best of 20 random ones nearly all.
	assert.Greater(t, row.Found.Fullest, int64(34))
	assert.LessOrEqual(t, row.Found.Fullest, row.Bound)
	c, err := algorithm(t, Sliding1).suffer(t.Context(), row.Found.Attack, 20)
	require.NoError(t, err)
	assert.Equal(t, row.Found.Fullest, c.Fullest, "the attack is the one that found it")

	again, err := AttackOn(t.Context(), algorithm(t, Sliding1), 20, 40, 1)
	require.NoError(t, err)
	assert.Equal(t, row, again, "same seed")
}

func TestNoTimelineExceedsTheBounds(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		a := rapid.SampledFrom(Algorithms()).Draw(t, "algorithm")
		limit := rapid.Int64Range(1, 6).Draw(t, "limit")
		s, err := a.subject(limit, 1, true)
		if err != nil {
			t.Fatal(err)
		}
		at := time.Duration(0)
		var admitted []time.Duration
		for _, gap := range rapid.SliceOfN(rapid.Int64Range(0, 1<<rapid.IntRange(20, 35).Draw(t, "gap bits")), 1, 80).Draw(t, "gaps") {
			at += time.Duration(gap)
			answer, err := s.ask(t.Context(), oneClient, at)
			if err != nil {
				t.Fatal(err)
			}
			if answer.allowed {
				admitted = append(admitted, at)
			}
		}
		if most := fullest(admitted, Window); most > a.Bound(limit) {
			t.Fatalf("%s admitted %d in a window, at most %d", a.Name, most, a.Bound(limit))
		}
	})
}
