package accuracy

import (
	"iter"
	"math"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"weir/bench/internal/algorithms"
	"weir/bench/internal/traffic"
)

func TestPopulationFollowsZipf(t *testing.T) {
	t.Parallel()
	w := newPopulation(false, populationRequests, 1)
	var sum float64
	for k := range populationClients {
		sum += w.rates[k] * populationLength.Seconds()
	}
	assert.InEpsilon(t, populationRequests, sum, 1e-9)
	// 8 to the 0.7 is 4.29, and the sum of k^-0.7 is 139.2, so the first asks for
	// 400 million / 139.2.
	assert.InDelta(t, 4.287, w.rates[0]/w.rates[7], 0.001)
	assert.InDelta(t, 2.87e6, w.rates[0]*populationLength.Seconds(), 0.01e6)
	// A client's arrivals are those of its number, at its rate.
	const k = 1000
	n := 0.0
	for range w.arrivals(k) {
		n++
	}
	mean := w.rates[k] * populationLength.Seconds()
	assert.InDelta(t, mean, n, mean/3)
}

// The figures were chosen once, and the report says them.
func TestPopulationLikeCloudflares(t *testing.T) {
	t.Parallel()
	c := newPopulation(true, populationRequests, 1)
	assert.Equal(t, int64(2000), c.limit)
	var sum float64
	rates := make([]float64, populationClients)
	for k := range rates {
		rates[k] = c.rates[k] * window.Seconds()
		sum += rates[k] * populationLength.Minutes()
	}
	assert.InEpsilon(t, 400_000_000, sum, 1e-9)
	assert.Equal(t, []float64{3000, 2480, 2040, 1700, 1400}, rates[:5])
	// All others are below the limit. Of a lognormal the mean is e^(sigma^2/2)
	// of the median, and the quantiles 0.1587 and 0.8413 are e^-sigma and
	// e^sigma of it.
	rest := rates[5:]
	assert.Less(t, rest[0], 1200.0)
	median := rest[len(rest)/2]
	assert.InEpsilon(t, math.Exp(0.9), rest[int(0.15866*float64(len(rest)))]/median, 0.001)
	assert.InEpsilon(t, math.Exp(-0.9), rest[int(0.84134*float64(len(rest)))]/median, 0.001)
	assert.InEpsilon(t, 400_000_000.0/270_000/60/math.Exp(0.405), median, 0.01)
	assert.Equal(t, traffic.Pages.Name, c.pattern(nil).Name)
}

func TestEachTrafficHasASeedOfItsOwn(t *testing.T) {
	t.Parallel()
	// How many come in each minute is a fixed window's row.
	minutes := make(map[string][]int)
	for _, w := range documentWorkloads(4000) {
		if w.Demand != 1 {
			continue
		}
		counts := make([]int, 24)
		for a := range w.arrivals(1, 24*time.Minute) {
			counts[a/time.Minute]++
		}
		minutes[w.Name] = counts
	}
	assert.NotEqual(t, minutes["poisson"], minutes["front-loaded"])
	assert.NotEqual(t, minutes["poisson"], minutes["back-loaded"])
	assert.NotEqual(t, minutes["front-loaded"], minutes["back-loaded"])
	seeds := make(map[uint64]bool)
	for seed := range uint64(10) {
		seeds[ownSeed(seed, "poisson")] = true
		seeds[ownSeed(seed, "bursty")] = true
	}
	assert.Len(t, seeds, 20)
}

func TestPopulationIsMixed(t *testing.T) {
	t.Parallel()
	// Of 2000 clients 400 are steady, with a standard deviation of 18: their
	// second request comes after exactly the time that the third comes after
	// it.
	w := newPopulation(false, populationRequests, 1)
	steady := 0.0
	for k := range 2000 {
		var times []time.Duration
		for r := range w.arrivals(100_000 + k) {
			if times = append(times, r); len(times) == 3 {
				break
			}
		}
		if len(times) == 3 && times[0] == 0 && math.Abs(float64(times[2]-2*times[1])) < 3 {
			steady++
		}
	}
	assert.InDelta(t, 400, steady, 90)
}

// A population's figures are the sums of its clients', whoever else is measured.
func TestPopulationIsMadeOfItsClients(t *testing.T) {
	t.Parallel()
	const requests = int64(8_000)
	measure := func(like bool, seed uint64) populationFigures {
		c := newPopulation(like, requests, seed)
		sum, err := measurePopulation(t.Context(), c, algorithms.All)
		require.NoError(t, err)
		alone := populationFigures{Limit: c.limit, Length: populationLength, Rows: make([]populationRow, len(algorithms.All))}
		for i, a := range algorithms.All {
			alone.Rows[i].Algorithm = a.Name
		}
		for k := c.step / 2; k < populationClients; k += c.step {
			one, err := c.measure(t.Context(), k, algorithms.All)
			require.NoError(t, err)
			alone.add(one)
		}
		require.Equal(t, alone, sum)
		return sum
	}
	one := measure(false, 1)
	assert.NotEqual(t, one, measure(false, 2))
	assert.NotEqual(t, measure(true, 1), measure(true, 2))

	// 270,000 clients in steps of 400 million / 8,000 are 5.4.
	assert.InDelta(t, populationClients*float64(requests)/populationRequests, one.Clients, 0.5)
	for _, row := range one.Rows {
		assert.Equal(t, one.Requests, row.Feedback.Requests, row.Algorithm)
		if row.Algorithm == algorithms.Log {
			assert.Equal(t, one.LogAdmitted, row.Admitted)
			assert.Equal(t, difference{Requests: one.Requests, True: row.Feedback.True}, row.Feedback)
		}
	}
}

// With a limit of 4 a minute. N=60 denies the request of 70 s, though that of 10
// s has just left; with another at 69 s there are too many.
func TestPopulationNotesClients(t *testing.T) {
	t.Parallel()
	asking := func(perMinute float64, seconds ...int) []int {
		c := population{limit: 4, rates: []float64{perMinute / 60}, pattern: func(*rand.Rand) traffic.Pattern {
			return traffic.Pattern{Generate: func(seed uint64, _ float64, length time.Duration) iter.Seq[time.Duration] {
				return at(4, 0, seconds...).arrivals(seed, length)
			}}
		}}
		one, err := c.measure(t.Context(), 0, []algorithms.Algorithm{algorithms.Named(algorithms.Sliding60), algorithms.Named(algorithms.Log)})
		require.NoError(t, err)
		return []int{one.Above, one.Below, one.Rows[0].BelowLimited, one.Rows[1].BelowLimited}
	}
	assert.Equal(t, []int{0, 1, 0, 0}, asking(4, 10, 20, 30, 40))
	assert.Equal(t, []int{0, 1, 1, 0}, asking(4, 10, 20, 30, 40, 70))
	assert.Equal(t, []int{1, 0, 0, 0}, asking(4.1, 10, 20, 30, 40, 69, 70))
}
