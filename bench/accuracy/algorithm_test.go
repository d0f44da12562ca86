package accuracy

import (
	"context"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func algorithm(t *testing.T, name string) Algorithm {
	for _, a := range Algorithms() {
		if a.Name == name {
			return a
		}
	}
	require.Fail(t, "there is no "+name)
	return Algorithm{}
}

// timeline is when one client asks, in seconds.
var timeline = []int{10, 20, 30, 40, 50, 65, 70}

// With a limit of 4 per minute: what each limiter takes to be in use before each
// request of the timeline, and whether it admits it.
func TestEstimatesAndDecisions(t *testing.T) {
	const y, n = true, false
	for _, c := range []struct {
		name      string
		feedback  bool
		estimates []int64
		allowed   []bool
	}{
		// The fifth is too many, and at 60 s all is forgotten.
		{Fixed, true, []int64{0, 1, 2, 3, 4, 0, 1}, []bool{y, y, y, y, n, y, y}},
		{Fixed, false, []int64{0, 1, 2, 3, 4, 0, 1}, []bool{y, y, y, y, n, y, y}},
		// At 65 s, 55/60 of 4 are 3.67, at 70 s, 50/60 of 4 and one more 4.33.
		{Sliding1, true, []int64{0, 1, 2, 3, 4, 3, 4}, []bool{y, y, y, y, n, y, n}},
		// 55/60 of 5 are 4.58, and 50/60 of 5 and one more 5.17.
		{Sliding1, false, []int64{0, 1, 2, 3, 4, 4, 5}, []bool{y, y, y, y, n, n, n}},
		// Slots of 15 s hold 1, 1, 2, 0. At 65 s 10/15 of the first 1 are none; at 70
		// s the one of 65 s is there too.
		{Sliding4, true, []int64{0, 1, 2, 3, 4, 3, 4}, []bool{y, y, y, y, n, y, n}},
		{Sliding4, false, []int64{0, 1, 2, 3, 4, 4, 5}, []bool{y, y, y, y, n, n, n}},
		// At 65 s all four are in the window, at 70 s the one of 10 s is in its
		// oldest slot, all of which still counts.
		{Sliding60, true, []int64{0, 1, 2, 3, 4, 4, 4}, []bool{y, y, y, y, n, n, n}},
		{Strict60, true, []int64{0, 1, 2, 3, 4, 4, 4}, []bool{y, y, y, y, n, n, n}},
		{Sliding60, false, []int64{0, 1, 2, 3, 4, 5, 6}, []bool{y, y, y, y, n, n, n}},
		// One drains each 15 s, and parts are rounded up: before the requests, 0,
		// 1/3, 2/3, 1, 4/3, 4/3 and 2 are in the bucket.
		{"token", true, []int64{0, 1, 1, 1, 2, 2, 2}, []bool{y, y, y, y, y, y, y}},
		{Leaky, false, []int64{0, 1, 1, 1, 2, 2, 2}, []bool{y, y, y, y, y, y, y}},
		// A request that is exactly a minute old doesn't count.
		{Log, true, []int64{0, 1, 2, 3, 4, 4, 3}, []bool{y, y, y, y, n, n, y}},
		{Log, false, []int64{0, 1, 2, 3, 4, 5, 5}, []bool{y, y, y, y, n, n, n}},
	} {
		s, err := algorithm(t, c.name).subject(4, 1, c.feedback)
		require.NoError(t, err)
		for i, at := range timeline {
			peeked, err := s.peek(t.Context(), oneClient, time.Duration(at)*time.Second)
			require.NoError(t, err)
			a, err := s.ask(t.Context(), oneClient, time.Duration(at)*time.Second)
			require.NoError(t, err)
			assert.Equal(t, c.estimates[i], a.estimate, "%s, feedback %v, %d s", c.name, c.feedback, at)
			assert.Equal(t, c.estimates[i], peeked, "%s, feedback %v, %d s", c.name, c.feedback, at)
			assert.Equal(t, c.allowed[i], a.allowed, "%s, feedback %v, %d s", c.name, c.feedback, at)
		}
	}
}

func TestWithoutFeedbackABucketIsFilledByWhatItDenies(t *testing.T) {
	// One per minute: the second request of a minute fills the bucket again, so
	// that the third is denied too, 60 s after the first.
	for _, feedback := range []bool{true, false} {
		s, err := algorithm(t, "token").subject(1, 1, feedback)
		require.NoError(t, err)
		var allowed []bool
		for _, at := range []time.Duration{0, 30 * time.Second, 60 * time.Second} {
			a, err := s.ask(t.Context(), oneClient, at)
			require.NoError(t, err)
			allowed = append(allowed, a.allowed)
		}
		assert.Equal(t, []bool{true, false, feedback}, allowed)
	}
}

func TestLeakyBucketWaits(t *testing.T) {
	// A third of a request in the bucket takes 5 s.
	s, err := algorithm(t, Leaky).subject(4, 1, true)
	require.NoError(t, err)
	var waits []time.Duration
	for _, at := range timeline {
		a, err := s.ask(t.Context(), oneClient, time.Duration(at)*time.Second)
		require.NoError(t, err)
		waits = append(waits, a.wait/time.Second)
	}
	assert.Equal(t, []time.Duration{0, 5, 10, 15, 20, 20, 30}, waits)
}

func TestColdKeys(t *testing.T) {
	// A window of N slots counts in one and reads N before it, and when the client
	// was reset last.
	for name, want := range map[string]int{Fixed: 1, Sliding1: 3, Sliding4: 6, "N=5": 7, "N=10": 12, Sliding60: 62, Strict60: 62, "token": 1, Leaky: 1, Log: 1} {
		keys, err := algorithm(t, name).KeysOfColdCheck(t.Context())
		require.NoError(t, err)
		assert.Equal(t, want, keys, name)
	}
}

func TestErrorsSayWhoFailed(t *testing.T) {
	s, err := algorithm(t, Log).subject(4, 1, false)
	require.NoError(t, err)
	for range 10_000 {
		_, err := s.ask(t.Context(), oneClient, 0)
		require.NoError(t, err)
	}
	_, err = s.ask(t.Context(), oneClient, 0)
	assert.EqualError(t, err, "log: more than 10000 requests in a window")

	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	_, _, err = NewRun(Workloads(0)[0], 1).Measure(ctx, algorithm(t, Fixed))
	assert.NoError(t, err, "a run this short ends before anyone looks")
	_, _, err = NewRun(Workloads(10_000)[0], 1).Measure(ctx, algorithm(t, Fixed))
	assert.ErrorIs(t, err, context.Canceled)
	_, err = AttackOn(ctx, algorithm(t, Fixed), 4, 4, 1)
	assert.ErrorIs(t, err, context.Canceled)
	_, _, err = MeasureCrowd(ctx, 10_000, 1, 2, func(int64) {})
	assert.ErrorIs(t, err, context.Canceled)
}
