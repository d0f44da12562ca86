package accuracy

import (
	"context"
	"fmt"
	"iter"
	"math"
	"math/rand/v2"
	"runtime"
	"sync"
	"time"

	"weir/bench/internal/algorithms"
	"weir/bench/internal/report"
	"weir/bench/internal/testbed"
	"weir/bench/internal/traffic"
)

// Populations are as large as the one in which Cloudflare measured its two
// counters in 2017.
const (
	populationRequests = 400_000_000 // on average
	populationClients  = 270_000
	populationLength   = time.Hour
)

// A crowd is the population that is hard to limit. How much the clients ask for
// follows Zipf's law, with an exponent that puts about one in forty above the
// limit, the documentLimit.
const crowdExponent = 0.7

// What is like Cloudflare's traffic: people who look at pages. How much they ask
// for is lognormal, and far below the limit; but a few ask for amounts between a
// little below it and a little above. The limit, the spread and these few are
// chosen so that N=1, and N=1 only, is about as wrong as it was at Cloudflare.
const (
	likeLimit = 2000
	likeSigma = 0.9 // of the logarithm of how much a client asks for
)

// likeFew is what the few ask for, in limits.
var likeFew = []float64{1.5, 1.24, 1.02, 0.85, 0.7}

// populationMix is how many of twenty clients of a crowd have which pattern, on
// average.
var populationMix = []struct {
	traffic.Pattern
	share int
}{
	{traffic.Steady, 4}, {traffic.Poisson, 6}, {traffic.Bursty, 4}, {traffic.Daily, 3},
	{traffic.FrontLoaded, 1}, {traffic.BackLoaded, 1}, {traffic.Boundary, 1},
}

// populationFigures are what was measured of a population.
type populationFigures struct {
	Requests int64         `json:"requests"`
	Clients  int           `json:"clients"`
	Limit    int64         `json:"limit"`
	Length   time.Duration `json:"length_ns"`
	// Above is the number of clients who ask for more than the limit on average.
	Above int `json:"above"`
	// Below is the number of clients whose requests were never more than the
	// limit in any window.
	Below int `json:"below"`
	// LogAdmitted is what an exact log admits.
	LogAdmitted int64           `json:"log_admitted"`
	Rows        []populationRow `json:"rows"`
}

// A populationRow is how one algorithm did on a population.
type populationRow struct {
	Algorithm string     `json:"algorithm"`
	Admitted  int64      `json:"admitted"`
	Feedback  difference `json:"feedback"` // see workloadRow
	// All is zero for those that don't count.
	All difference `json:"all"`
	// BelowLimited are clients of Below who were denied something. Up to its first
	// denial a limiter has counted every request: so it is the same with and
	// without feedback.
	BelowLimited int `json:"below_limited"`
}

// populated are the algorithms that populations are fed to. What a log admits is
// counted without it.
var populated = algorithms.Select(
	algorithms.Fixed, algorithms.Sliding1, algorithms.Sliding10, algorithms.Sliding60,
	algorithms.Strict60, algorithms.Capped10, algorithms.Counting64,
)

// measurePopulation feeds a population to all algorithms, client by client. The
// figures depend on the population only. The error is ctx's or a limiter's.
func measurePopulation(ctx context.Context, c population, measured []algorithms.Algorithm) (populationFigures, error) {
	sum := populationFigures{Limit: c.limit, Length: populationLength}
	for _, a := range measured {
		sum.Rows = append(sum.Rows, populationRow{Algorithm: a.Name})
	}
	var mu sync.Mutex
	clients := (populationClients - c.step/2 + c.step - 1) / c.step
	err := testbed.Parallel(clients, runtime.GOMAXPROCS(0), func(i int) error {
		k := i*c.step + c.step/2
		one, err := c.measure(ctx, k, measured)
		if err != nil {
			return fmt.Errorf("client %d: %w", k, err)
		}
		mu.Lock()
		defer mu.Unlock()
		sum.add(one)
		report.Progress("%d of about %d clients: %.1f million requests", sum.Clients, clients, float64(sum.Requests)/1e6)
		return ctx.Err()
	})
	return sum, err
}

// measure feeds a client to all algorithms.
func (c population) measure(ctx context.Context, k int, measured []algorithms.Algorithm) (populationFigures, error) {
	run := newSimulation(workload{
		Limit: c.limit, Length: populationLength,
		arrivals: func(uint64, time.Duration) iter.Seq[time.Duration] { return c.arrivals(k) },
	}, c.seed)
	one := populationFigures{Requests: int64(len(run.times)), Clients: 1, LogAdmitted: run.logAdmitted}
	if c.rates[k]*window.Seconds() > float64(c.limit) {
		one.Above = 1
	}
	if fullestWindow(run.times, window) <= c.limit {
		one.Below = 1
	}
	for _, a := range measured {
		row, err := run.measure(ctx, a)
		if err != nil {
			return one, err
		}
		of := populationRow{Admitted: row.Admitted, Feedback: row.Feedback, All: row.All}
		if row.Admitted < one.Requests {
			of.BelowLimited = one.Below
		}
		one.Rows = append(one.Rows, of)
	}
	return one, nil
}

// A population is populationClients, who ask for populationRequests in
// populationLength.
type population struct {
	seed  uint64
	step  int // from one client that is measured to the next
	limit int64
	rates []float64 // what clients ask for, per second: the first asks for most
	// pattern returns the traffic of a client.
	pattern func(random *rand.Rand) traffic.Pattern
}

// newPopulation returns a crowd, or the population that is like Cloudflare's.
// With fewer requests than populationRequests it has every nth client only.
func newPopulation(like bool, requests int64, seed uint64) population {
	c := population{seed: seed, step: max(1, int(populationRequests/requests)), limit: documentLimit, pattern: mixed}
	total := populationRequests / populationLength.Seconds()
	weight := func(client int) float64 { return math.Pow(float64(1+client), -crowdExponent) }
	if like {
		c.limit = likeLimit
		c.pattern = func(*rand.Rand) traffic.Pattern { return traffic.Pages }
		for _, limits := range likeFew {
			c.rates = append(c.rates, limits*likeLimit/window.Seconds())
			total -= c.rates[len(c.rates)-1]
		}
		weight = func(client int) float64 {
			quantile := (float64(client-len(likeFew)) + 0.5) / float64(populationClients-len(likeFew))
			return math.Exp(likeSigma * math.Sqrt2 * math.Erfinv(1-2*quantile))
		}
	}
	few, weights := len(c.rates), 0.0
	for k := few; k < populationClients; k++ {
		c.rates = append(c.rates, total*weight(k))
		weights += weight(k)
	}
	for k := range c.rates[few:] {
		c.rates[few+k] /= weights
	}
	return c
}

// arrivals returns the requests of a client.
func (c population) arrivals(client int) iter.Seq[time.Duration] {
	random := rand.New(rand.NewPCG(c.seed, uint64(client)))
	return c.pattern(random).Generate(random.Uint64(), c.rates[client], populationLength)
}

// mixed returns one of the patterns of populationMix.
func mixed(random *rand.Rand) traffic.Pattern {
	share, i := random.IntN(20), 0 // all shares are twenty
	for ; share >= populationMix[i].share; i++ {
		share -= populationMix[i].share
	}
	return populationMix[i].Pattern
}

// add adds what was measured of other clients.
func (f *populationFigures) add(o populationFigures) {
	f.Requests += o.Requests
	f.Clients += o.Clients
	f.Above += o.Above
	f.Below += o.Below
	f.LogAdmitted += o.LogAdmitted
	for i, row := range o.Rows {
		f.Rows[i].Admitted += row.Admitted
		f.Rows[i].Feedback.add(row.Feedback)
		f.Rows[i].All.add(row.All)
		f.Rows[i].BelowLimited += row.BelowLimited
	}
}
