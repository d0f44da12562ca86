package architectures

import (
	"bytes"
	"cmp"
	"path/filepath"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"
	"pgregory.net/rapid"

	"weir/bench/internal/algorithms"
	"weir/bench/internal/benchtest"
	"weir/bench/internal/report"
	"weir/bench/internal/traffic"
)

func TestScaleOutDoubles(t *testing.T) {
	t.Parallel()
	s := ScaleOut{To: 8, Start: 30 * time.Second, Every: 5 * time.Second}
	for at, want := range map[time.Duration]int{
		0: 1, 30*time.Second - 1: 1, 30 * time.Second: 2, 35*time.Second - 1: 2, 35 * time.Second: 4, 40 * time.Second: 8, time.Hour: 8,
	} {
		assert.Equal(t, want, s.Instances(at), "%v", at)
	}
	assert.Equal(t, 1, ScaleOut{To: 1}.Instances(time.Hour))
}

func TestChattyServers(t *testing.T) {
	t.Parallel()
	// Four a minute; two instances, here called odd and even by the seconds at
	// which they are asked; what one admits the other hears 3 s later.
	c := NewChatty(Limit{4, time.Minute}, 2, 3*time.Second)
	play(t, c, []step{
		{"0s", true},
		{"1s", true},
		{"2s", true},
		{"3s", true},                  // odd has heard of 0, and knows its own 1
		{"4s", true},                  // even has heard of 1, and knows its own 0 and 2: three
		{"5s", false},                 // odd has heard of 0 and 2, and knows its own 1 and 3: four
		{"6s", false},                 // even knows five
		{"60s", false}, {"61s", true}, // of 0 to 4, 2 to 4 are left
		{"62s", true}, // even: 3, 4
		{"63s", true}, // odd: 4, 61
		{"64s", true}, // even: 61, 62
		{"65s", true}, // odd: 61, 62, 63
		{"66s", false},
	})
}

func TestChattyServersBeforeTheyHear(t *testing.T) {
	t.Parallel()
	// One a minute, three instances: each admits one before it hears of the
	// others.
	c := NewChatty(Limit{1, time.Minute}, 3, time.Second)
	play(t, c, []step{{"0s", true}, {"0s", true}, {"0s", true}, {"0s", false}, {"0s", false}, {"0s", false}, {"1s", false}, {"59.999s", false}, {"60s", true}})

	// What takes longer than a window to tell is never known elsewhere.
	c = NewChatty(Limit{1, time.Minute}, 2, 2*time.Minute)
	play(t, c, []step{{"0s", true}, {"1s", true}, {"2s", false}, {"59s", false}, {"60s", true}, {"61s", true}, {"62s", false}})

	c = NewChatty(Limit{2, time.Minute}, 2, 0)
	play(t, c, []step{{"0s", true}, {"0s", true}, {"0s", false}, {"60s", true}})
}

func TestStream(t *testing.T) {
	t.Parallel()
	// Two a minute; the consumer needs a second for an event, and another
	// second is its lag. Two events a second are too many.
	s := NewStream(Limit{2, time.Minute}, time.Second, 1)
	play(t, s, []step{
		{"0s", true},   // known at 2 s
		{"0.5s", true}, // at 3 s, as the consumer begins with it at 1 s
		{"1s", true},   // at 4 s
		{"1.5s", true}, // at 5 s
		{"2s", true},   // at 6 s; one is known
		{"2.5s", true}, // at 7 s
		{"3s", false},  // two are known; the denied one is an event too, of 7 s
	})
	assert.Equal(t, 5*time.Second, s.WorstLag(), "from 3 s to 8 s")

	// With an idle consumer, the second request's count is known 1.1 s later.
	s = NewStream(Limit{2, time.Minute}, time.Second, 10)
	play(t, s, []step{{"0s", true}, {"0.2s", true}, {"1.2s", true}, {"1.299s", true}, {"1.3s", false}})
}

func TestCheckAndIncrementLater(t *testing.T) {
	t.Parallel()
	play(t, NewLater(Limit{2, time.Minute}, time.Second), []step{
		{"0s", true},
		{"0.5s", true},
		{"1.499s", true}, // the first is counted
		{"1.5s", false},  // the second is
		{"60.499s", false},
		{"60.5s", true}, // that of 1.499 s is left
	})
}

// envoyproxy/ratelimit on Memcached does so; 64 callers on a limit of 100 were
// seen to get 162.
func TestCallersBeforeTheIncrement(t *testing.T) {
	t.Parallel()
	l := NewLater(Limit{100, time.Minute}, 10*ms)
	for range 99 {
		assert.True(t, take(t, l, "0s"))
	}
	admitted := 99
	for range 64 { // each reads 99
		if take(t, l, "1s") {
			admitted++
		}
	}
	assert.Equal(t, 163, admitted)
	assert.True(t, take(t, l, "1.009s"))
	assert.False(t, take(t, l, "1.01s"))
	play(t, l, []step{{"59.999s", false}, {"60s", true}})
}

func newWeir(t require.TestingT, algorithm string, limit Limit, instances int, lag time.Duration) *Weir {
	w, err := NewWeir(algorithms.Named(algorithm), limit, instances, lag)
	require.NoError(t, err)
	return w
}

func TestWeir(t *testing.T) {
	t.Parallel()
	limit := Limit{3, time.Minute}
	// The calendar's minute ends after 20 s.
	play(t, newWeir(t, algorithms.Fixed, limit, 2, time.Second), []step{
		{"0s", true}, {"10s", true}, {"19s", true}, {"19.9s", false}, {"19.999s", false},
		{"20s", true}, {"20s", true}, {"20s", true}, {"20s", false}, {"79.999s", false}, {"80s", true},
	})
	// A slot of a second is counted in full until all of it has left.
	play(t, newWeir(t, algorithms.Strict60, limit, 2, time.Second), []step{
		{"0s", true}, {"10s", true}, {"19s", true}, {"20s", false}, {"60.999s", false}, {"61s", true}, {"61s", false}, {"71s", true},
	})
	_, err := NewWeir(algorithms.Named(algorithms.Fixed), Limit{3, time.Millisecond}, 1, 0)
	assert.ErrorContains(t, err, "window")
	_, err = NewWeir(algorithms.Named(algorithms.Strict60), Limit{3, time.Second + time.Millisecond}, 1, 0)
	assert.ErrorContains(t, err, "sub_windows")
}

func TestWeirGivesBackLate(t *testing.T) {
	t.Parallel()
	// One a minute. The second instance doesn't know of the first request: it
	// counts its own, is over the limit, and gives it back. Until that arrives,
	// it is in the way of others.
	for _, test := range []struct {
		lag      time.Duration
		admitted bool
	}{{0, true}, {31 * time.Second, true}, {31*time.Second + 1, false}} {
		w := newWeir(t, algorithms.Strict60, Limit{1, time.Minute}, 2, test.lag)
		assert.True(t, take(t, w, "0s"))
		assert.False(t, take(t, w, "30s"), "count, and give back")
		assert.Equal(t, test.admitted, take(t, w, "61s"), "%v", test.lag)
	}
}

func TestWeirNeverAdmitsMoreThanTheLimit(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		limit := Limit{rapid.IntRange(1, 20).Draw(t, "limit"), time.Minute}
		instances := rapid.IntRange(1, 8).Draw(t, "instances")
		lag := time.Duration(rapid.Int64Range(0, int64(time.Minute)).Draw(t, "lag"))
		gaps := rapid.SliceOfN(rapid.Custom(func(t *rapid.T) time.Duration {
			return time.Duration(rapid.Int64Range(0, rapid.SampledFrom([]int64{1, 1e6, 1e9, 20e9}).Draw(t, "scale")).Draw(t, "gap"))
		}), 1, 200).Draw(t, "gaps")
		arrivals := func(yield func(time.Duration) bool) {
			at := time.Duration(0)
			for _, gap := range gaps {
				at += gap
				if !yield(at) {
					return
				}
			}
		}
		if _, calendar, err := Measure(limit, newWeir(t, algorithms.Fixed, limit, instances, lag), arrivals); err != nil || calendar > limit.Requests {
			t.Fatalf("fixed: %d, %v", calendar, err)
		}
		if fullest, _, err := Measure(limit, newWeir(t, algorithms.Strict60, limit, instances, lag), arrivals); err != nil || fullest > limit.Requests {
			t.Fatalf("strict: %d, %v", fullest, err)
		}
	})
}

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

const ms = time.Millisecond

// step is a request in a timeline, and what it has to be answered.
type step struct {
	at       string
	admitted bool
}

func TestNewsCountFromWhenTheyAreKnown(t *testing.T) {
	t.Parallel()
	n := news{known: traffic.NewRecent(10 * ms)}
	n.add(0, 3*ms)
	n.add(ms, 15*ms) // too late to matter
	n.add(7*ms, 15*ms)
	assert.Zero(t, n.count(3*ms-1))
	assert.Equal(t, 1, n.count(3*ms))
	assert.Zero(t, n.count(14*ms))
	assert.Equal(t, 1, n.count(15*ms))
	assert.Zero(t, n.count(17*ms))
}

// scripted is an architecture that answers as it is told.
type scripted struct{ answers []bool }

func (s *scripted) Take(time.Duration) (bool, error) {
	if len(s.answers) == 0 {
		return false, assert.AnError
	}
	answer := s.answers[0]
	s.answers = s.answers[1:]
	return answer, nil
}

func TestMeasure(t *testing.T) {
	t.Parallel()
	// The calendar's minute ends 20 s into the run.
	limit := Limit{Requests: 2, Window: time.Minute}
	arrivals := slices.Values([]time.Duration{
		0, 19 * time.Second, // of the first minute
		20 * time.Second,       // three in a window
		59 * time.Second,       // denied
		60 * time.Second,       // as the first leaves, three again
		80*time.Second - 1,     // four since 20 s, three of them in the second minute
		80 * time.Second, 1e12, // each the first of a minute
	})
	fullest, calendar, err := Measure(limit, &scripted{[]bool{true, true, true, false, true, true, true, true}}, arrivals)
	require.NoError(t, err)
	assert.Equal(t, []int{3, 3}, []int{fullest, calendar})

	_, _, err = Measure(limit, &scripted{}, arrivals)
	assert.ErrorIs(t, err, assert.AnError)
}

func TestAllMovesOfStickySessionsAreInOneWindow(t *testing.T) {
	t.Parallel()
	scale := scenario{Instances: 32}.scaleOut()
	assert.Equal(t, 16, scale.Instances(scaleStart+4*scaleEvery-1))
	assert.Equal(t, 32, scale.Instances(scaleStart+4*scaleEvery))
	assert.Less(t, scaleStart+4*scaleEvery+time.Second, sharedLimit.Window)
}

// Two per 10 s; one instance, two from 3 s, four from 4 s on. Client 3 is on
// instances 0, 1 and 3.
func TestStickySessions(t *testing.T) {
	t.Parallel()
	play(t, NewSticky(Limit{2, 10 * time.Second}, ScaleOut{To: 4, Start: 3 * time.Second, Every: time.Second}), []step{
		{"0s", true}, {"1s", true}, {"2.999s", false},
		{"3s", true}, {"3.5s", true}, {"3.9s", false},
		{"4s", true}, {"5s", true}, {"6s", false}, // six in 6 s: three limits
		{"10s", false}, {"13.999s", false}, {"14s", true}, {"14.1s", false}, {"15s", true},
	})
}

func TestBroken(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		row  runRow
		want string
	}{
		{runRow{Architecture: fixedName, Fullest: 200, Calendar: 100}, ""},
		{runRow{Architecture: strictName, Fullest: 100, Calendar: 100}, ""},
		{runRow{Architecture: chattyName, Fullest: 800, Calendar: 700}, ""},
		{runRow{Architecture: fixedName, Fullest: 200, Calendar: 101}, "weir, fixed, 8 instances, lag 100ms, 1000 requests/s: 101 admitted"},
		{runRow{Architecture: strictName, Fullest: 101, Calendar: 100}, "101 admitted"},
		{runRow{Architecture: strictName, Fullest: 99, Calendar: 99}, "99 admitted"},
	} {
		tt.row.scenario = usual
		for _, r := range []Report{{Instances: []runRow{tt.row}}, {Lag: []runRow{tt.row}}, {Load: []runRow{tt.row}}} {
			r.Limit = 100
			if err := r.Broken(); tt.want == "" {
				assert.NoError(t, err)
			} else {
				assert.ErrorContains(t, err, tt.want)
			}
		}
	}
}

func TestABrokenRunIsWrittenAndFails(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	r := Report{Limit: 100}
	for _, instances := range []int{1, 2} {
		r.Instances = append(r.Instances, runRow{Architecture: strictName, scenario: scenario{Instances: instances}, Fullest: 101})
	}
	var out bytes.Buffer
	flags := report.NewFlags("architectures")
	require.NoError(t, flags.Parse([]string{"-out", dir}, &out))
	assert.ErrorContains(t, flags.Publish(&out, "architectures", &r, nil), "101 admitted")
	assert.Contains(t, out.String(), "1.01  1.01")
	assert.FileExists(t, filepath.Join(dir, "architectures.json"))
	benchtest.AssertPicture(t, dir, "architectures")
}

// What each admits is worked out by hand from what its instances can't know.
func TestQuickArchitectures(t *testing.T) {
	t.Parallel()
	var r Report
	dir, _, err := benchtest.Run(t, Run, "architectures", &r, "-quick")
	require.NoError(t, err)
	over := func(rows []runRow, name string) []float64 {
		var all []float64
		for _, row := range rows {
			if row.Architecture == name {
				all = append(all, r.over(row))
			}
		}
		return all
	}
	assert.Equal(t, []float64{2, 2}, over(r.Instances, fixedName), "across a boundary, where others are measured too")
	assert.Equal(t, []float64{1, 4}, over(r.Instances, stickyName), "three moves: four limits")
	assert.InDeltaSlice(t, []float64{1, 1.875}, over(r.Instances, chattyName), 0.08, "and seven eighths of 100 on their way")
	assert.InDeltaSlice(t, []float64{1.1, 11}, over(r.Lag, laterName), 0.02)
	assert.InDeltaSlice(t, []float64{1.1, 11}, over(r.Lag, streamName), 0.02)
	load := over(r.Load, streamName)
	assert.InDelta(t, 1.1, load[0], 0.02)
	assert.Greater(t, load[1], 900.0, "3000 a second are too many for its consumer")
	// The last of three minutes at 3000 a second is done after four and a half.
	slowest := slices.MaxFunc(r.rows(), func(a, b runRow) int { return cmp.Compare(a.WorstLag, b.WorstLag) })
	assert.InDelta(t, 90.1, slowest.WorstLag.Seconds(), 0.01)
	benchtest.AssertPicture(t, dir, "architectures")
}

// play has arch decide requests.
func play(t *testing.T, arch Architecture, steps []step) {
	t.Helper()
	for _, s := range steps {
		assert.Equal(t, s.admitted, take(t, arch, s.at), "%s", s.at)
	}
}

func take(t *testing.T, arch Architecture, at string) bool {
	t.Helper()
	d, err := time.ParseDuration(at)
	require.NoError(t, err)
	admitted, err := arch.Take(d)
	require.NoError(t, err)
	return admitted
}
