package accuracy

import (
	"math"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"weir/counters"
)

func testCrowd(t *testing.T, seed uint64) *crowdWorker {
	c := crowd{seed: seed, step: 1}
	for k := range CrowdClients {
		c.weights += weight(k)
	}
	w, err := newCrowdWorker(c)
	require.NoError(t, err)
	return w
}

func TestCrowdFollowsZipf(t *testing.T) {
	w := testCrowd(t, 1)
	var sum float64
	for k := range CrowdClients {
		sum += w.rate(k) * CrowdLength.Seconds()
	}
	assert.InEpsilon(t, CrowdRequests, sum, 1e-9)
	assert.InEpsilon(t, math.Pow(8, CrowdExponent), w.rate(0)/w.rate(7), 1e-9)
	// A client's arrivals are those of its number, at its rate.
	const k = 1000
	n := 0.0
	for range w.arrivals(k) {
		n++
	}
	mean := w.rate(k) * CrowdLength.Seconds()
	assert.InDelta(t, mean, n, mean/3)
}

func TestCrowdIsMixed(t *testing.T) {
	// Of 2000 clients 400 are steady, with a standard deviation of 18: their second
	// request comes after exactly the time that the third comes after it.
	w := testCrowd(t, 1)
	steady := 0.0
	for k := range 2000 {
		var times []time.Duration
		for r := range w.arrivals(100_000 + k) {
			if times = append(times, r.At); len(times) == 3 {
				break
			}
		}
		if len(times) == 3 && times[0] == 0 && math.Abs(float64(times[2]-2*times[1])) < 3 {
			steady++
		}
	}
	assert.InDelta(t, 400, steady, 90)
}

func TestCrowdClientIsMeasuredAsIfAlone(t *testing.T) {
	w := testCrowd(t, 1)
	// A client far above the limit, one near it, and one below.
	clients := []int{500, 7000, 200_000}
	for _, k := range clients {
		before := w.figures.Rows[1]
		require.NoError(t, w.client(t.Context(), k))
		after := w.figures.Rows[1]

		a := algorithm(t, Sliding1)
		feedback, err := a.subject(DocumentLimit, 1, true)
		require.NoError(t, err)
		all, err := a.subject(DocumentLimit, 1, false)
		require.NoError(t, err)
		var admitted, asked recent
		wantFeedback, wantAll := before.Feedback, before.All
		for r := range w.arrivals(k) {
			answer, err := feedback.ask(t.Context(), oneClient, r.At)
			require.NoError(t, err)
			wantFeedback.observe(answer, admitted.count(r.At), DocumentLimit)
			if answer.allowed {
				admitted.add(r.At)
			}
			answer, err = all.ask(t.Context(), oneClient, r.At)
			require.NoError(t, err)
			wantAll.observe(answer, asked.count(r.At), DocumentLimit)
			asked.add(r.At)
		}
		assert.Equal(t, wantFeedback, after.Feedback, k)
		assert.Equal(t, wantAll, after.All, k)
	}
	assert.Equal(t, 3, w.figures.Clients)
	assert.Equal(t, 1, w.figures.Above, "the sum of k^-0.7 is 139.2, so the limit is at client 6745")
}

func TestCrowdNotesClients(t *testing.T) {
	w := testCrowd(t, 1)
	n := len(w.figures.Rows)
	feedback, all, denied := make([]Difference, n), make([]Difference, n), make([]int64, n)
	feedback[0], all[0] = Difference{Requests: 10, Sum: 3}, Difference{Requests: 10, Sum: 4}
	// Below the limit, and the first algorithm denied something.
	denied[0] = 2
	w.note(CrowdClients-1, 10, DocumentLimit, feedback, all, denied)
	// Above it in a window, and only the first algorithm noticed.
	w.note(0, 20, DocumentLimit+1, feedback, all, denied)

	other := testCrowd(t, 1)
	other.note(0, 20, DocumentLimit+1, feedback, all, denied)
	w.add(other)
	f := w.figures
	assert.Equal(t, []int64{50, 40}, []int64{f.Requests, f.AboveRequests})
	assert.Equal(t, []int{3, 2, 1}, []int{f.Clients, f.Above, f.Below})
	assert.Equal(t, CrowdRow{
		Algorithm: Fixed, Admitted: 44, Feedback: Difference{Requests: 30, Sum: 9, Worst: 0}, All: Difference{Requests: 30, Sum: 12}, BelowLimited: 1,
	}, f.Rows[0])
	assert.Equal(t, CrowdRow{Algorithm: Sliding1, Admitted: 50, OthersUnlimited: 2}, f.Rows[1])
}

func TestCrowdDependsOnSeedAlone(t *testing.T) {
	const requests = 30_000
	one, _, err := MeasureCrowd(t.Context(), requests, 1, 1, func(int64) {})
	require.NoError(t, err)
	var most int64
	three, speeds, err := MeasureCrowd(t.Context(), requests, 1, 1, func(n int64) { most = max(most, n) })
	require.NoError(t, err)
	assert.Equal(t, one, three)
	assert.Equal(t, one.Requests, most)
	three, _, err = MeasureCrowd(t.Context(), requests, 1, 3, func(int64) {})
	require.NoError(t, err)
	assert.Equal(t, one, three, "however many work on it")
	other, _, err := MeasureCrowd(t.Context(), requests, 2, 3, func(int64) {})
	require.NoError(t, err)
	assert.NotEqual(t, one, other)

	// 270,000 clients in steps of 400 million / 30,000.
	assert.Equal(t, 20, one.Clients)
	assert.Equal(t, len(Algorithms()), len(one.Rows))
	for i, row := range one.Rows {
		assert.Equal(t, one.Requests, row.Feedback.Requests, row.Algorithm)
		assert.GreaterOrEqual(t, speeds[i].Decisions, one.Requests, row.Algorithm)
		switch {
		case row.Algorithm == Log:
			assert.Equal(t, CrowdRow{Algorithm: Log, Admitted: row.Admitted, Feedback: Difference{Requests: one.Requests, True: row.Feedback.True}}, row)
		case algorithm(t, row.Algorithm).Counters:
			assert.Equal(t, one.Requests, row.All.Requests, row.Algorithm)
		default:
			assert.Zero(t, row.All, row.Algorithm)
		}
	}
}

func TestCrowdKeepsNothingOfFormerClients(t *testing.T) {
	w := testCrowd(t, 1)
	for i := range 60 {
		require.NoError(t, w.client(t.Context(), 250_000+i))
	}
	for _, s := range w.subjects {
		// What one client needs, and what is still to be removed: less than what
		// the 60 have left, 3 or more counters each in an hour of minutes.
		assert.Less(t, s.store.(*counters.Memory).Len(), 250, s.algorithm.Name)
	}
}
