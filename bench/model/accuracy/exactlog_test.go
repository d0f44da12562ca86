package accuracy

import (
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"pgregory.net/rapid"
)

func TestFullestWindow(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		name       string
		admissions []int64
		want       int64
	}{
		{"none", nil, 0},
		{"one", []int64{5}, 1},
		{"exactly one window apart", []int64{0, 100}, 1},
		{"just within one window", []int64{0, 99}, 2},
		{"at the same time", []int64{7, 7, 7}, 3},
		{"across a boundary of the calendar", []int64{10, 90, 95, 105, 109, 200}, 5},
		{"the second window is fuller", []int64{0, 50, 149, 150, 151, 152}, 4},
	} {
		assert.Equal(t, tt.want, fullestWindow(tt.admissions, 100), tt.name)
	}
}

func TestExactLogIsHalfOpen(t *testing.T) {
	t.Parallel()
	var log exactLog
	assert.Zero(t, log.sum(0))
	log.add(0, 1)
	log.add(0, 1)
	log.add(time.Second, 5)
	assert.Equal(t, int64(7), log.sum(time.Minute-1))
	assert.Equal(t, int64(5), log.sum(time.Minute), "events at 0 are a window old")
	assert.Zero(t, log.sum(time.Minute+time.Second))
}

func TestExactLogAndFullestWindowCountAsALoopDoes(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		var log exactLog
		var times []time.Duration
		at, most := time.Duration(0), int64(0)
		for _, gap := range rapid.SliceOf(rapid.Int64Range(0, int64(20*time.Second))).Draw(t, "gaps") {
			at += time.Duration(gap)
			var within int64
			for _, before := range times {
				if before > at-time.Minute {
					within++
				}
			}
			if got := log.sum(at); got != within {
				t.Fatalf("at %v %d events, and not %d, are in the window", at, within, got)
			}
			most = max(most, within+1)
			log.add(at, 1)
			times = append(times, at)
		}
		if got := fullestWindow(times, time.Minute); got != most {
			t.Fatalf("the fullest window holds %d, and not %d", most, got)
		}
	})
}
