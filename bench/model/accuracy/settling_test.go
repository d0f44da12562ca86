package accuracy

import (
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// Two requests of 60,000 tokens each that ask at 0 s and 5 s and end at 10 s and 15 s, and
// later ones.
func TestWaysToLimitWhatIsKnownAfterwards(t *testing.T) {
	t.Parallel()
	const s = time.Second
	type step struct {
		at       time.Duration
		estimate int64
		admitted bool
	}
	for name, steps := range map[string][]step{
		// 90,000 are reserved by 5 s; at 10 s 30,000 of the first are charged beyond them, at
		// 15 s 15,000 of the second are.
		reserveName: {{0, 30_000, true}, {5 * s, 45_000, true}, {9 * s, 26_000, false}, {9*s + 1, 25_000, true}, {11 * s, 1, false}, {60*s + 1, 1, false}},
		// Nothing counts before 10 s; from 15 s on 120,000 do, until a slot and a window later.
		chargeName: {{0, 100_000, true}, {5 * s, 100_000, true}, {14 * s, 100_000, true}, {16 * s, 1, false}, {69 * s, 1, false}},
		laterName:  {{0, 30_000, true}, {5 * s, 45_000, true}, {11 * s, 40_001, false}, {11 * s, 40_000, true}, {16 * s, 1, false}, {69 * s, 1, false}, {70 * s, 1, true}},
	} {
		w, err := newWay(name)
		require.NoError(t, err)
		var ends []func(time.Duration, int64) error
		for _, step := range steps {
			for i, at := range []time.Duration{10 * s, 15 * s} {
				if len(ends) > i && ends[i] != nil && step.at >= at {
					require.NoError(t, ends[i](at, 60_000))
					ends[i] = nil
				}
			}
			end, err := w(t.Context(), step.at, step.estimate)
			require.NoError(t, err)
			assert.Equal(t, step.admitted, end != nil, "%s at %v", name, step.at)
			ends = append(ends, end)
		}
	}
}

// What is reserved too high is back when it is settled.
func TestReservingTooMuchWastesItUntilItIsSettled(t *testing.T) {
	t.Parallel()
	w, err := newWay(reserveName)
	require.NoError(t, err)
	end, err := w(t.Context(), 0, 80_000)
	require.NoError(t, err)
	refused, err := w(t.Context(), 9*time.Second, 20_001)
	require.NoError(t, err)
	assert.Nil(t, refused)
	require.NoError(t, end(answerTime, 10_000))
	refused, err = w(t.Context(), answerTime, 90_001)
	require.NoError(t, err)
	assert.Nil(t, refused)
	fits, err := w(t.Context(), answerTime, 90_000)
	require.NoError(t, err)
	assert.NotNil(t, fits)
}

func TestWhatEstimatesAreWorth(t *testing.T) {
	t.Parallel()
	rows, err := measureSettling(t.Context(), 1, 1, 0)
	require.NoError(t, err)
	require.Len(t, rows, len(ways)*len(factors))
	for i, row := range rows {
		switch {
		case row.Way == reserveName && row.Factor == 1:
			assert.LessOrEqual(t, row.Fullest, int64(tokenLimit))
			assert.InDelta(t, 99, row.ofLog(), 2)
		case row.Way == reserveName && row.Factor > 1:
			assert.LessOrEqual(t, row.Fullest, int64(tokenLimit))
			assert.Less(t, row.ofLog(), rows[i-1].ofLog(), "the more is reserved the less fits")
			assert.Greater(t, row.ofLog(), 100/row.Factor, "but much is given back in time")
		case row.Way == reserveName:
			assert.Greater(t, row.Fullest, int64(tokenLimit))
		case row.Way == chargeName:
			assert.Greater(t, row.over(), 1.5)
			assert.Equal(t, rows[len(factors)].Fullest, row.Fullest, "it knows no estimate")
		default:
			assert.Greater(t, row.over(), 1.4)
		}
	}
}
