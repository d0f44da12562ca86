package architectures

import (
	"bytes"
	"cmp"
	"iter"
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
	assert.Equal(t, 3, s.steps())
	assert.Equal(t, 1, ScaleOut{To: 1}.Instances(time.Hour))
}

func TestStickySessions(t *testing.T) {
	t.Parallel()
	// Two per 10 s; one instance, two from 3 s, four from 4 s on. Client 3 is
	// on instances 0, 1 and 3, and client 0 on 0 whatever happens.
	scale := ScaleOut{To: 4, Start: 3 * time.Second, Every: time.Second}
	limit := Limit{2, 10 * time.Second}
	moved := []step{
		{"0s", true}, {"1s", true}, {"2.999s", false},
		{"3s", true}, {"3.5s", true}, {"3.9s", false},
		{"4s", true}, {"5s", true}, {"6s", false}, // six in 6 s: three limits
		{"10s", false}, {"13.999s", false}, {"14s", true}, {"14.1s", false}, {"15s", true},
	}
	staying := []step{
		{"0s", true}, {"1s", true}, {"2s", false}, {"3s", false}, {"4s", false}, {"9.999s", false}, {"10s", true}, {"10.5s", false}, {"11s", true},
	}
	play(t, NewSticky(limit, scale, true), 3, moved)
	play(t, NewSticky(limit, scale, true), 0, staying)
	play(t, NewSticky(limit, scale, false), 3, staying)
	assert.Zero(t, take(t, NewSticky(limit, scale, true), 3, "0s").Messages)

	late := NewSticky(limit, scale, false)
	assert.Equal(t, 3, late.Instance(traffic.Arrival{At: 5 * time.Second, Client: 3}), "clients that come after the scale-out are spread")

	for rebinds, want := range map[bool]float64{true: 6, false: 2} {
		assert.Equal(t, []float64{want, want}, bounds(NewSticky(limit, scale, rebinds), 1000), "rebinds: %t", rebinds)
	}
}

func TestChattyServers(t *testing.T) {
	t.Parallel()
	// Four a minute; two instances, here called odd and even by the seconds at
	// which they are asked; what one admits the other hears 3 s later.
	c := NewChatty(Limit{4, time.Minute}, 2, 3*time.Second)
	play(t, c, 0, []step{
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
	assert.Equal(t, []float64{5.5, 5.5}, bounds(c, 1), "4 + half of the three on their way")
}

func TestChattyServersBeforeTheyHear(t *testing.T) {
	t.Parallel()
	// One a minute, three instances: each admits one before it hears of the
	// others.
	c := NewChatty(Limit{1, time.Minute}, 3, time.Second)
	play(t, c, 0, []step{{"0s", true}, {"0s", true}, {"0s", true}, {"0s", false}, {"0s", false}, {"0s", false}, {"1s", false}, {"59.999s", false}, {"60s", true}})
	assert.Equal(t, Outcome{true, 2}, take(t, c, 1, "60s"), "to two others")
	assert.Equal(t, []float64{3, 3}, bounds(c, 1000))

	// What takes longer than a window to tell is never known elsewhere.
	c = NewChatty(Limit{1, time.Minute}, 2, 2*time.Minute)
	play(t, c, 0, []step{{"0s", true}, {"1s", true}, {"2s", false}, {"59s", false}, {"60s", true}, {"61s", true}, {"62s", false}})

	c = NewChatty(Limit{2, time.Minute}, 2, 0)
	play(t, c, 0, []step{{"0s", true}, {"0s", true}, {"0s", false}, {"60s", true}})
}

func TestStream(t *testing.T) {
	t.Parallel()
	// Two a minute; the consumer needs a second for an event, and another
	// second is its lag. Two events a second are too many.
	s := NewStream(Limit{2, time.Minute}, 3, time.Second, 1)
	play(t, s, 0, []step{
		{"0s", true},   // known at 2 s
		{"0.5s", true}, // at 3 s, as the consumer begins with it at 1 s
		{"1s", true},   // at 4 s
		{"1.5s", true}, // at 5 s
		{"2s", true},   // at 6 s; one is known
		{"2.5s", true}, // at 7 s
		{"3s", false},  // two are known; the denied one is an event too, of 7 s
	})
	assert.Equal(t, 5*time.Second, s.WorstLag(), "from 3 s to 8 s")
	least, most := s.Bounds(2)
	assert.Equal(t, 120.0, most, "without bound but what is asked for")
	assert.Equal(t, 120.0, least, "a minute later it is a minute behind")

	least, most = s.Bounds(1.5)
	assert.InDelta(t, 49.5, least, 1e-9, "all in the 30 s that it is behind, and in 3 s")
	assert.InDelta(t, 90, most, 1e-9)

	// Another client's events wait too: the consumer is busy until 7 s, so that
	// the first is known at 9 s, and the second at 10.999 s.
	play(t, s, 1, []step{{"6.5s", true}, {"8.999s", true}, {"9s", true}, {"10.998s", true}, {"10.999s", false}})
	assert.Equal(t, 5, take(t, s, 1, "20s").Messages, "the event, the new count, and three deliveries")

	// With an idle consumer, the second request's count is known 1.1 s later.
	s = NewStream(Limit{2, time.Minute}, 1, time.Second, 10)
	play(t, s, 0, []step{{"0s", true}, {"0.2s", true}, {"1.2s", true}, {"1.299s", true}, {"1.3s", false}})
	least, most = s.Bounds(5)
	assert.InDelta(t, 6.5, least, 1e-9, "all in 1.3 s")
	assert.InDelta(t, 6.5, most, 1e-9)
}

func TestCheckAndIncrementLater(t *testing.T) {
	t.Parallel()
	play(t, NewLater(Limit{2, time.Minute}, time.Second), 0, []step{
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
		assert.Equal(t, Outcome{Admitted: true, Messages: 2}, take(t, l, 0, "0s"))
	}
	admitted := 99
	for range 64 { // each reads 99
		if take(t, l, 0, "1s").Admitted {
			admitted++
		}
	}
	assert.Equal(t, 163, admitted)
	assert.True(t, take(t, l, 0, "1.009s").Admitted)
	assert.Equal(t, Outcome{Messages: 1}, take(t, l, 0, "1.01s"))
	play(t, l, 0, []step{{"59.999s", false}, {"60s", true}})

	assert.Equal(t, []float64{110, 110}, bounds(l, 1000))
	assert.Equal(t, []float64{60_000, 60_000}, bounds(NewLater(Limit{100, time.Minute}, time.Hour), 1000))
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
	play(t, newWeir(t, algorithms.Fixed, limit, 2, time.Second), 0, []step{
		{"0s", true}, {"10s", true}, {"19s", true}, {"19.9s", false}, {"19.999s", false},
		{"20s", true}, {"20s", true}, {"20s", true}, {"20s", false}, {"79.999s", false}, {"80s", true},
	})
	// A slot of a second is counted in full until all of it has left.
	play(t, newWeir(t, algorithms.Strict60, limit, 2, time.Second), 0, []step{
		{"0s", true}, {"10s", true}, {"19s", true}, {"20s", false}, {"60.999s", false}, {"61s", true}, {"61s", false}, {"71s", true},
	})
	w := newWeir(t, algorithms.Fixed, Limit{1, time.Hour}, 1, 0)
	assert.Equal(t, Outcome{true, 1}, take(t, w, 0, "0s"))
	assert.Equal(t, Outcome{false, 0}, take(t, w, 0, "0.5s"), "known")
	assert.Equal(t, Outcome{false, 1}, take(t, w, 0, "1s"), "read again")

	assert.Equal(t, []float64{3, 3}, bounds(newWeir(t, algorithms.Strict60, limit, 2, 0), 1000))

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
		assert.Equal(t, Outcome{true, 1}, take(t, w, 0, "0s"))
		assert.Equal(t, Outcome{false, 2}, take(t, w, 0, "30s"), "count, and give back")
		assert.Equal(t, test.admitted, take(t, w, 0, "61s").Admitted, "%v", test.lag)
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
		arrivals := func(yield func(traffic.Arrival) bool) {
			at := time.Duration(0)
			for i, gap := range gaps {
				at += gap
				if !yield(traffic.Arrival{At: at, Client: i % 2}) {
					return
				}
			}
		}
		if f := measure(t, limit, newWeir(t, algorithms.Fixed, limit, instances, lag), arrivals); f.Calendar > limit.Requests {
			t.Fatalf("fixed: %+v", f)
		}
		if f := measure(t, limit, newWeir(t, algorithms.Strict60, limit, instances, lag), arrivals); f.Fullest > limit.Requests {
			t.Fatalf("strict: %+v", f)
		}
	})
}

func TestArchitecturesKeepToTheirBounds(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		limit := Limit{rapid.IntRange(1, 10).Draw(t, "limit"), time.Minute}
		doublings := rapid.IntRange(0, 4).Draw(t, "doublings")
		instances := 1 << doublings
		// The limit is used up in a second or less.
		rate := float64(limit.Requests) * rapid.Float64Range(1, 5).Draw(t, "rate / limit")
		lag := time.Duration(rapid.Int64Range(0, int64(5*time.Second)).Draw(t, "lag"))
		scale := ScaleOut{To: instances, Start: 30 * time.Second, Every: 5 * time.Second}
		consumer := rate * rapid.Float64Range(0.2, 5).Draw(t, "consumer / rate")
		for name, arch := range map[string]Architecture{
			"rebound": NewSticky(limit, scale, true),
			"staying": NewSticky(limit, scale, false),
			"chatty":  NewChatty(limit, instances, lag),
			"stream":  NewStream(limit, instances, lag, consumer),
			"later":   NewLater(limit, lag),
			"strict":  newWeir(t, algorithms.Strict60, limit, instances, lag),
		} {
			least, most := arch.Bounds(rate)
			f := measure(t, limit, arch, ofClient(instances-1, traffic.Named("steady").Generate(0, rate, 3*limit.Window)))
			slack := float64(instances)
			if full := float64(f.Fullest); full < least-slack || full > most+slack {
				t.Fatalf("%s: %g admitted, which is not from %g to %g", name, full, least, most)
			}
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

// play has arch decide the requests of one client.
func play(t *testing.T, arch Architecture, client int, steps []step) {
	t.Helper()
	for _, s := range steps {
		assert.Equal(t, s.admitted, take(t, arch, client, s.at).Admitted, "%s", s.at)
	}
}

func take(t *testing.T, arch Architecture, client int, at string) Outcome {
	t.Helper()
	d, err := time.ParseDuration(at)
	require.NoError(t, err)
	o, err := arch.Take(traffic.Arrival{At: d, Client: client})
	require.NoError(t, err)
	return o
}

func bounds(arch Architecture, rate float64) []float64 {
	least, most := arch.Bounds(rate)
	return []float64{least, most}
}

func measure(t require.TestingT, limit Limit, arch Architecture, arrivals iter.Seq[traffic.Arrival]) Figures {
	f, err := Measure(limit, arch, arrivals)
	require.NoError(t, err)
	return f
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
type scripted struct{ outcomes []Outcome }

func (s *scripted) Take(traffic.Arrival) (Outcome, error) {
	if len(s.outcomes) == 0 {
		return Outcome{}, assert.AnError
	}
	o := s.outcomes[0]
	s.outcomes = s.outcomes[1:]
	return o, nil
}

func (*scripted) Bounds(float64) (least, most float64) { return 0, 0 }

func TestMeasure(t *testing.T) {
	t.Parallel()
	limit := Limit{Requests: 2, Window: 10 * time.Second}
	yes, no := Outcome{Admitted: true, Messages: 3}, Outcome{Messages: 1}
	arrivals := []traffic.Arrival{
		// Runs begin with a calendar window of 10 s, so boundaries are at 10 s,
		// 20 s.
		{At: 1 * time.Second},             // admitted
		{At: 9 * time.Second},             // admitted
		{At: 10 * time.Second},            // admitted: 1, 9 and 10 are in a window
		{At: 10 * time.Second, Client: 1}, // admitted: another client's first
		{At: 10500 * ms},                  // denied, with those three
		{At: 11 * time.Second},            // admitted: 1 has left, 9, 10 and 11
		{At: 11 * time.Second, Client: 1}, // denied, with one: wrongly
		{At: 20*time.Second - 1},          // denied, with 10 and 11
		{At: 20 * time.Second},            // denied, with 11 alone: wrongly
	}
	f := measure(t, limit, &scripted{[]Outcome{yes, yes, yes, yes, no, yes, no, no, no}}, slices.Values(arrivals))
	assert.Equal(t, Figures{Requests: 9, Admitted: 5, Fullest: 3, Calendar: 2, WronglyDenied: 2, Messages: 5*3 + 4}, f)

	_, err := Measure(limit, &scripted{}, slices.Values(arrivals))
	assert.ErrorIs(t, err, assert.AnError)
}

func TestCalendarWindowsBeginTwoThirdsIntoAMinute(t *testing.T) {
	t.Parallel()
	limit := Limit{Requests: 2, Window: time.Minute}
	yes := Outcome{Admitted: true}
	// The minute ends 20 s into the run.
	arrivals := []traffic.Arrival{{At: 19 * time.Second}, {At: 20*time.Second - 1}, {At: 20 * time.Second}, {At: 80*time.Second - 1}, {At: 80 * time.Second}}
	f := measure(t, limit, &scripted{[]Outcome{yes, yes, yes, yes, yes}}, slices.Values(arrivals))
	assert.Equal(t, 2, f.Calendar)
	assert.Equal(t, 3, f.Fullest)
}

func TestBusiest(t *testing.T) {
	t.Parallel()
	// The second instance comes after 10 s. Four clients ask before and after,
	// and two of them belong to the new instance.
	var arrivals []traffic.Arrival
	for _, at := range []time.Duration{0, 20 * time.Second} {
		for client := range 4 {
			arrivals = append(arrivals, traffic.Arrival{At: at, Client: client})
		}
	}
	scale := ScaleOut{To: 2, Start: 10 * time.Second, Every: time.Second}
	for rebinds, want := range map[bool]float64{true: 1, false: 2} {
		s := NewSticky(Limit{1, time.Minute}, scale, rebinds)
		assert.InDelta(t, want, Busiest(s, 2, 10*time.Second, slices.Values(arrivals)), 1e-9, "rebinds: %t", rebinds)
	}
	s := NewSticky(Limit{1, time.Minute}, scale, true)
	assert.InDelta(t, 2.0*6/8, Busiest(s, 2, 0, slices.Values(arrivals)), 1e-9, "six of eight are instance 0's")
}

func TestArrivalsOfTheArchitectures(t *testing.T) {
	t.Parallel()
	attack := slices.Collect(scenario{attackerName, 8, time.Second, 4}.arrivals(1))
	require.Len(t, attack, 4*180)
	assert.Equal(t, traffic.Arrival{At: 250 * time.Millisecond, Client: 7}, attack[1], "the client that moves with each doubling to eight")

	busy := slices.Collect(usual(busyName).arrivals(1))
	assert.InDelta(t, 5*1800, len(busy), 5*95, "five a second for half an hour, within five standard deviations")
	assert.Equal(t, 7, busy[0].Client)
	assert.NotEqual(t, busy, slices.Collect(usual(busyName).arrivals(2)))
}

func TestAllMovesOfStickySessionsAreInOneWindow(t *testing.T) {
	t.Parallel()
	scale := scenario{Instances: 32}.scaleOut()
	assert.Equal(t, 16, scale.Instances(scaleStart+4*scaleEvery-1))
	assert.Equal(t, 32, scale.Instances(scaleStart+4*scaleEvery))
	assert.Less(t, scaleStart+4*scaleEvery+time.Second, sharedLimit.Window)
}

func TestArchitecturesThatDisagreeWithTheirModel(t *testing.T) {
	t.Parallel()
	row := func(name, client string, fullest int) runRow {
		return runRow{
			Architecture: name, scenario: usual(client), Figures: Figures{Fullest: fullest, Calendar: fullest}, Least: 100, Most: 200,
		}
	}
	fixed := row(fixedName, attackerName, 100)
	fixed.Fullest = 400
	for _, tt := range []struct {
		name string
		row  runRow
		want string
	}{
		{"within its bounds", row(chattyName, attackerName, 150), ""},
		{"eight instances, each one off", row(chattyName, attackerName, 208), ""},
		{"too many", row(chattyName, attackerName, 209), "chatty, attacker, 8 instances, lag 100ms, 1000 requests/s: 209 admitted in a window; the model says 100.0 to 200.0"},
		{"each one less", row(chattyName, attackerName, 92), ""},
		{"too few", row(chattyName, attackerName, 91), "91 admitted"},
		{"a busy client has no model", row(chattyName, busyName, 9000), ""},
		{"fixed, across a boundary", fixed, ""},
		{"fixed", row(fixedName, attackerName, 201), "weir, fixed, attacker"},
		{"strict", row(strictName, attackerName, 201), "201 admitted"},
		{"strict, too few", row(strictName, attackerName, 99), "99 admitted"},
		{"strict, of a busy client", row(strictName, busyName, 201), "201 admitted"},
		{"strict, of a less busy client", row(strictName, busyName, 10), ""},
	} {
		for _, r := range []Report{{Instances: []runRow{tt.row}}, {Lag: []runRow{tt.row}}, {Load: []runRow{tt.row}}} {
			if err := r.Broken(); tt.want == "" {
				assert.NoError(t, err, tt.name)
			} else {
				assert.ErrorContains(t, err, tt.want, tt.name)
			}
		}
	}
}

func TestABrokenRunIsWrittenAndFails(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	r := Report{Limit: 100}
	for _, instances := range []int{1, 2} {
		r.Instances = append(r.Instances, runRow{
			Architecture: strictName, scenario: scenario{Traffic: attackerName, Instances: instances}, Figures: Figures{Fullest: 101}, Least: 100, Most: 100,
		})
	}
	var out bytes.Buffer
	flags := report.NewFlags("architectures")
	require.NoError(t, flags.Parse([]string{"-out", dir}, &out))
	assert.ErrorContains(t, flags.Publish(&out, "architectures", &r, nil), "101 admitted")
	assert.Contains(t, out.String(), "1.01  1.01")
	assert.FileExists(t, filepath.Join(dir, "architectures.json"))
	assert.FileExists(t, filepath.Join(dir, "architectures.svg"))
}

func TestQuickArchitectures(t *testing.T) {
	t.Parallel()
	var r Report
	dir, printed, err := benchtest.Run(t, Run, "architectures", &r, "-quick", "-seed", "7")
	require.NoError(t, err)
	assert.Contains(t, printed, "seed 7\n")
	over := func(rows []runRow, name, client string) []float64 {
		var all []float64
		for _, row := range rows {
			if row.Architecture == name && row.Traffic == client {
				all = append(all, r.over(row))
			}
		}
		return all
	}
	for _, client := range []string{attackerName, busyName} {
		assert.Equal(t, []float64{1, 1}, over(r.Instances, strictName, client), client)
		assert.Equal(t, []float64{1, 1}, over(r.Lag, strictName, client), client)
	}
	assert.Equal(t, []float64{2, 2}, over(r.Instances, fixedName, attackerName), "across a boundary, where others are measured too")
	for _, row := range r.rows() {
		if row.Architecture == fixedName {
			assert.Equal(t, r.Limit, row.Calendar, "%v", row.scenario)
		}
	}
	assert.Equal(t, []float64{1, 4}, over(r.Instances, stickyName, attackerName), "three moves: four limits")
	assert.InDeltaSlice(t, []float64{1, 1.875}, over(r.Instances, chattyName, attackerName), 0.08, "and seven eighths of 100 on their way")
	assert.InDeltaSlice(t, []float64{1.1, 11}, over(r.Lag, laterName, attackerName), 0.02)
	assert.InDeltaSlice(t, []float64{1.1, 11}, over(r.Lag, streamName, attackerName), 0.02)
	load := over(r.Load, streamName, attackerName)
	assert.InDelta(t, 1.1, load[0], 0.02)
	assert.Greater(t, load[1], 900.0, "3000 a second are too many for its consumer")
	// The last of three minutes at 3000 a second is done after four and a half.
	slowest := slices.MaxFunc(r.rows(), func(a, b runRow) int { return cmp.Compare(a.WorstLag, b.WorstLag) })
	assert.InDelta(t, 90.1, slowest.WorstLag.Seconds(), 0.01)
	assert.Equal(t, []balanceRow{{1, 1, 1}}, r.Balance[:1])
	assert.Greater(t, r.Balance[1].Staying, 4.0)
	assert.Less(t, r.Balance[1].Rebound, 2.0)

	assert.Equal(t, printed, benchtest.Printed(&r), "the tables are made of what the file has")
	benchtest.AssertPicture(t, dir, "architectures")
}
