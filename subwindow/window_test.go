package subwindow_test

import (
	"fmt"
	"math"
	"math/big"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"weir/counters"
	"weir/counters/memory"
	"weir/counters/racetest"
	"weir/subwindow"
)

func TestNewWindow(t *testing.T) {
	t.Parallel()
	w := newWindow(t, time.Minute, 4, true)
	assert.Equal(t, subwindow.Window{Slots: 4, Width: 15 * time.Second, Strict: true}, w)
	for _, test := range []struct {
		length time.Duration
		slots  int
		want   string
	}{
		{time.Minute, 7, "sub_windows 7 cuts 1m0s into slots that aren't whole milliseconds; use 6 or 8"},
		{100 * time.Millisecond, 101, "aren't whole milliseconds; use 100"},
		{time.Minute, 0, "sub_windows 0 must be from 1 to 3600"},
		{time.Hour, 3601, "sub_windows 3601 must be from 1 to 3600"},
		{50 * time.Millisecond, 1, "window 50ms must be whole milliseconds from 100ms"},
		{367 * 24 * time.Hour, 1, "to 366 days"},
	} {
		_, err := subwindow.NewWindow(test.length, test.slots, false)
		assert.ErrorContains(t, err, test.want)
	}
	for _, length := range []time.Duration{100 * time.Millisecond, time.Hour, counters.MaxWindow} {
		newWindow(t, length, 1, false)
		newWindow(t, length, 100, false)
	}
}

// The documents' worked examples, with their own numbers.
func TestEstimateAsDocumented(t *testing.T) {
	t.Parallel()
	for _, test := range []struct {
		name    string
		slots   int
		strict  bool
		now     string
		counts  []int64 // newest first
		want    int64
		limit   int64
		allowed bool // a request of cost 1
	}{
		{"45 this minute, 80 the last, 30 s in", 1, false, "07:10:30", []int64{45, 80}, 85, 100, true},
		{"3 this minute, 5 the last, 30% in: 6.5 rounded down, 7 allowed", 1, false, "00:01:18", []int64{3, 5}, 6, 7, true},
		{"one more, and it is full", 1, false, "00:01:18", []int64{4, 5}, 7, 7, false},
		{"at 00:01:43, 17/60 of the minute before", 1, false, "00:01:43", []int64{0, 60}, 17, 100, true},
		{"17/60 of 100 is 28.3", 1, false, "00:01:43", []int64{40, 100}, 68, 100, true},
		{"30 this minute, 80 the last, 70% overlap", 1, false, "00:01:18", []int64{30, 80}, 86, 100, true},
		{"the boundary burst: 100 at 07:09:59, one more at 07:10:00", 1, false, "07:10:00", []int64{0, 100}, 100, 100, false},
		{"five 15 s windows: four in full, the fifth by a third", 4, false, "07:10:10", []int64{5, 20, 20, 20, 30}, 75, 100, true},
		{"five 15 s windows, strict", 4, true, "07:10:10", []int64{5, 20, 20, 20, 30}, 95, 100, true},
		{"strict and full", 4, true, "07:10:14.999", []int64{5, 20, 20, 20, 35}, 100, 100, false},
		{"a slot that has begun on a faster clock", 1, false, "07:10:59.99", []int64{7, 3, 60}, 10, 11, true},
	} {
		t.Run(test.name, func(t *testing.T) {
			w := newWindow(t, time.Minute, test.slots, test.strict)
			elapsed := counters.Calendar(at(test.now), w.Width).Elapsed
			got := w.Estimate(test.counts, len(test.counts)-1-test.slots, elapsed, test.limit)
			assert.Equal(t, test.want, got)
			assert.Equal(t, test.allowed, got+1 <= test.limit)
		})
	}
}

// Capped windows admit 2/N of the limit above it, rounded up, and no window more than twice
// the limit.
func TestMost(t *testing.T) {
	t.Parallel()
	fixed, err := subwindow.NewFixedWindow(time.Minute)
	require.NoError(t, err)
	assert.EqualValues(t, 200, fixed.Most(100))
	for _, test := range []struct {
		slots          int
		strict, capped bool
		limit, want    int64
	}{
		{1, false, false, 100, 200},
		{60, false, false, 100, 200},
		{60, true, false, 100, 100},
		{1, false, true, 100, 200},
		{2, false, true, 100, 200},
		{3, false, true, 100, 167},
		{10, false, true, 100, 120},
		{10, false, true, 101, 122},
		{60, false, true, 100, 104},
		{60, false, true, 1, 2},
	} {
		w := newWindow(t, time.Minute, test.slots, test.strict)
		w.Capped = test.capped
		assert.Equal(t, test.want, w.Most(test.limit), test)
	}
}

func TestUntil(t *testing.T) {
	t.Parallel()
	const second = time.Second
	for _, test := range []struct {
		name    string
		slots   int
		strict  bool
		elapsed time.Duration
		counts  []int64
		most    int64
		want    time.Duration
		limit   int64 // of capped ones
	}{
		{"nothing is used", 1, false, 10 * second, []int64{0, 0}, 0, 0, 0},
		{"it fits", 1, false, 10 * second, []int64{3, 5}, 7, 0, 0},
		{"all in this minute: the first nanosecond of the next", 1, false, 20 * second, []int64{100, 0}, 99, 40*second + 1, 0},
		{"half of the last minute has to go", 1, false, 0, []int64{0, 100}, 50, 29400*time.Millisecond + 1, 0},
		{"and is just gone", 1, false, 29400*time.Millisecond + 1, []int64{0, 100}, 50, 0, 0},
		{"a nanosecond more", 1, false, 29400 * time.Millisecond, []int64{0, 100}, 50, 1, 0},
		{"everything has to go", 1, false, 20 * second, []int64{100, 0}, 0, 40*second + 59400*time.Millisecond + 1, 0},
		{"strict: all of this minute leaves with the next", 1, true, 20 * second, []int64{100, 0}, 99, 100 * second, 0},
		{"strict: the oldest slot leaves", 4, true, 5 * second, []int64{1, 1, 1, 1, 10}, 4, 10 * second, 0},
		{"strict: two slots have to leave", 4, true, 5 * second, []int64{1, 1, 1, 1, 10}, 3, 25 * second, 0},
		{"a slot of a faster clock counts as long as its own time", 1, false, 59 * second, []int64{100, 0, 0}, 0, second + 60*second + 59400*time.Millisecond + 1, 0},
		{"capped: half of the oldest slot may go early", 4, false, 0, []int64{0, 0, 0, 0, 100}, 50, 7350*time.Millisecond + 1, 100},
		{"capped: the rest leaves with the slot", 4, false, 0, []int64{0, 0, 0, 0, 100}, 49, 15 * second, 100},
		{"capped: and half of the share is rounded up", 4, false, 0, []int64{0, 0, 0, 0, 99}, 49, 7500*time.Millisecond - 75757575, 99},
	} {
		t.Run(test.name, func(t *testing.T) {
			w := newWindow(t, time.Minute, test.slots, test.strict)
			w.Capped = test.limit > 0
			assert.Equal(t, test.want, w.Until(test.counts, len(test.counts)-1-test.slots, test.elapsed, test.limit, test.most))
		})
	}
}

// drawState draws a window, the counts of its slots and a place in the current
// one.
func drawState(t *rapid.T) (w subwindow.Window, counts []int64, ahead int, elapsed time.Duration) {
	w = subwindow.Window{
		Slots:  rapid.IntRange(1, 12).Draw(t, "slots"),
		Width:  time.Duration(rapid.Int64Range(1, 366*24*3600_000).Draw(t, "width")) * time.Millisecond,
		Strict: rapid.Bool().Draw(t, "strict"),
	}
	w.Capped = !w.Strict && rapid.Bool().Draw(t, "capped")
	w.Horizon = time.Duration(rapid.Int64Range(0, 2*int64(w.Width)).Draw(t, "horizon"))
	ahead = rapid.IntRange(0, 2).Draw(t, "ahead")
	count := rapid.OneOf(rapid.Just(int64(0)), rapid.Int64Range(0, 20), rapid.Int64Range(0, counters.MaxLimit), rapid.Int64Range(0, math.MaxInt64))
	size := ahead + 1 + w.Slots + 2
	counts = rapid.SliceOfN(count, size, size).Draw(t, "counts")
	elapsed = time.Duration(rapid.Int64Range(0, int64(w.Width)-1).Draw(t, "elapsed"))
	return w, counts, ahead, elapsed
}

func drawLimit(t *rapid.T) int64 {
	return rapid.OneOf(rapid.Int64Range(1, 50), rapid.Int64Range(1, counters.MaxLimit)).Draw(t, "limit")
}

// exactEstimate is Estimate in numbers without bounds, slot by slot from the
// time since each has ended.
func exactEstimate(w subwindow.Window, counts []int64, ahead int, elapsed time.Duration, limit int64) *big.Int {
	total := new(big.Int)
	length := w.Width * time.Duration(w.Slots)
	for i, n := range counts {
		sinceEnd := time.Duration(i-ahead-1)*w.Width + elapsed
		part := big.NewInt(n)
		switch {
		case w.Strict && sinceEnd >= length+w.Horizon, !w.Strict && sinceEnd >= length:
			continue
		case !w.Strict && sinceEnd+w.Width > length:
			part.Mul(part, big.NewInt(int64(length-sinceEnd)))
			part.Div(part, big.NewInt(int64(w.Width)))
			if w.Capped {
				off, rest := (2*limit)/int64(w.Slots), (2*limit)%int64(w.Slots)
				if rest > 0 {
					off++
				}
				if least := new(big.Int).Sub(big.NewInt(n), big.NewInt(off)); part.Cmp(least) < 0 {
					part = least
				}
			}
		}
		total.Add(total, part)
	}
	return total
}

func TestEstimateIsExact(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		w, counts, ahead, elapsed := drawState(t)
		limit := drawLimit(t)
		want := exactEstimate(w, counts, ahead, elapsed, limit)
		if !want.IsInt64() {
			want = big.NewInt(math.MaxInt64)
		}
		if got := w.Estimate(counts, ahead, elapsed, limit); got != want.Int64() {
			t.Fatalf("estimate %d, want %v", got, want)
		}
	})
}

// later returns the counts and the place as they are after d, if nothing is
// counted.
func later(w subwindow.Window, counts []int64, elapsed, d time.Duration) ([]int64, time.Duration) {
	slots := int64((elapsed + d) / w.Width)
	moved := make([]int64, min(slots, int64(2*len(counts))), 3*len(counts))
	return append(moved, counts...), (elapsed + d) % w.Width
}

func TestUntilIsTheFirstMomentThatFits(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		w, counts, ahead, elapsed := drawState(t)
		most := rapid.OneOf(rapid.Just(int64(0)), rapid.Int64Range(0, 30), rapid.Int64Range(0, counters.MaxLimit)).Draw(t, "most")
		limit := drawLimit(t)
		until := w.Until(counts, ahead, elapsed, limit, most)
		fits := func(d time.Duration) bool {
			moved, place := later(w, counts, elapsed, d)
			return w.Estimate(moved, ahead, place, limit) <= most
		}
		if !fits(until) {
			t.Fatalf("after %v it doesn't fit", until)
		}
		if until > 0 && fits(until-1) {
			t.Fatalf("before %v it fits already", until)
		}
	})
}

func TestArithmeticAllocatesNothing(t *testing.T) {
	w := newWindow(t, time.Minute, 60, false)
	counts := make([]int64, 61)
	for i := range counts {
		counts[i] = int64(i)
	}
	assert.Zero(t, testing.AllocsPerRun(100, func() {
		w.Estimate(counts, 0, 300*time.Millisecond, 100)
		w.Until(counts, 0, 300*time.Millisecond, 100, 99)
	}))
}

func BenchmarkWindow(b *testing.B) {
	for _, slots := range []int{1, 4, 60} {
		b.Run(fmt.Sprint(slots), func(b *testing.B) {
			b.ReportAllocs()
			w := subwindow.Window{Slots: slots, Width: time.Minute / time.Duration(slots)}
			counts := make([]int64, slots+1)
			for i := range counts {
				counts[i] = int64(i)
			}
			for b.Loop() {
				w.Estimate(counts, 0, 300*time.Millisecond, 100)
				w.Until(counts, 0, 300*time.Millisecond, 100, 99)
			}
		})
	}
}

// Under steady overload strict admits at least N/(N+1+h/w) of the limit, of N
// slots as wide as w, which clock skew and store timeout, h, keep in the window
// for longer. Where slots are much wider than that it is N/(N+1), and no less.
func (by way) TestStrictInNarrowSlots(t *testing.T) {
	racetest.Sequential(t)
	t.Parallel()
	const slots, limit, windows = 10, 100, 33
	const h = counters.DefaultClockSkew + counters.DefaultTimeout
	for _, tt := range []struct {
		window    time.Duration
		low, high float64
	}{
		{time.Second, 10.0 / 12, 0.86}, // 100 ms
		{2 * time.Second, 10.0 / 11.5, 0.93},
		{10 * time.Second, 10.0 / 11.1, 0.93},
		{time.Minute, 10.0 / 11, 0.93},
	} {
		w := newWindow(t, tt.window, slots, true)
		assert.InDelta(t, slots/(slots+1+float64(h)/float64(w.Width)), tt.low, 0.002)
		for _, demand := range []time.Duration{110, 150, 200, 500} {
			now := at("12:00:00")
			l := by.newLimiterWith(t, memory.New(func() time.Time { return now }), w, counters.Options{StoreTimeout: counters.DefaultTimeout})
			admitted := 0.0
			for end := now.Add(windows * tt.window); now.Before(end); now = now.Add(tt.window / (limit * demand / 100)) {
				if take(t, l, now, 1, limit).Allowed {
					admitted++
				}
			}
			assert.GreaterOrEqual(t, admitted/(windows*limit), tt.low-0.001, "%v, demand %d%%", tt.window, demand)
			assert.Less(t, admitted/(windows*limit), tt.high, "%v, demand %d%%", tt.window, demand)
		}
	}
}
