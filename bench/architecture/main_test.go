package architecture

import (
	"iter"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	"weir/bench/traffic"
)

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

// steady yields so many requests per second of one client.
func steady(client int, rate float64, length time.Duration) iter.Seq[traffic.Arrival] {
	return func(yield func(traffic.Arrival) bool) {
		for n := 0.0; ; n++ {
			at := time.Duration(n / rate * float64(time.Second))
			if at >= length || !yield(traffic.Arrival{At: at, Client: client}) {
				return
			}
		}
	}
}

func measure(t require.TestingT, limit Limit, arch Architecture, arrivals iter.Seq[traffic.Arrival]) Figures {
	f, err := Measure(limit, arch, arrivals)
	require.NoError(t, err)
	return f
}

func TestRecentIsHalfOpen(t *testing.T) {
	r := recent{length: 10 * ms}
	r.add(0)
	r.add(ms)
	r.add(ms)
	assert.Equal(t, 3, r.count(10*ms-1))
	assert.Equal(t, 2, r.count(10*ms))
	assert.Zero(t, r.count(11*ms))
}

func TestNewsCountFromWhenTheyAreKnown(t *testing.T) {
	n := news{known: recent{length: 10 * ms}}
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
	limit := Limit{Requests: 2, Window: 10 * time.Second}
	yes, no := Outcome{Admitted: true, Messages: 3}, Outcome{Messages: 1}
	arrivals := []traffic.Arrival{
		// Runs begin with a calendar window of 10 s, so boundaries are at 10 s, 20 s.
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
	limit := Limit{Requests: 2, Window: time.Minute}
	yes := Outcome{Admitted: true}
	// The minute ends 20 s into the run.
	arrivals := []traffic.Arrival{{At: 19 * time.Second}, {At: 20*time.Second - 1}, {At: 20 * time.Second}, {At: 80*time.Second - 1}, {At: 80 * time.Second}}
	f := measure(t, limit, &scripted{[]Outcome{yes, yes, yes, yes, yes}}, slices.Values(arrivals))
	assert.Equal(t, 2, f.Calendar)
	assert.Equal(t, 3, f.Fullest)
}

func TestBusiest(t *testing.T) {
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
