package accuracy

import (
	"context"
	"fmt"
	"iter"
	"math"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"time"

	"weir/bench/internal/algorithms"
	"weir/bench/internal/traffic"
)

// Populations are as large as the one in which Cloudflare measured its two
// counters in 2017.
const (
	PopulationRequests = 400_000_000 // on average
	PopulationClients  = 270_000
	PopulationLength   = time.Hour
)

// A crowd is the population that is hard to limit. How much the clients ask for
// follows Zipf's law, with an exponent that puts about one in forty above the
// limit, the DocumentLimit.
const CrowdExponent = 0.7

// What is like Cloudflare's traffic: people who look at pages. How much they ask
// for is lognormal, and far below the limit; but a few ask for amounts between a
// little below it and a little above. The limit, the spread and these few are
// chosen so that N=1, and N=1 only, is about as wrong as it was at Cloudflare.
const (
	LikeLimit = 2000
	LikeSigma = 0.9 // of the logarithm of how much a client asks for
)

// LikeFew is what the few ask for, in limits.
var LikeFew = []float64{1.5, 1.24, 1.02, 0.85, 0.7}

// PopulationMix is how many of twenty clients of a crowd have which pattern, on
// average.
var PopulationMix = []struct {
	Pattern string
	Share   int
}{
	{"steady", 4}, {Poisson, 6}, {Bursty, 4}, {Day, 3}, {FrontLoaded, 1}, {BackLoaded, 1}, {Boundary, 1},
}

// PopulationFigures are what was measured of a population.
type PopulationFigures struct {
	Requests int64         `json:"requests"`
	Clients  int           `json:"clients"`
	Limit    int64         `json:"limit"`
	Length   time.Duration `json:"length_ns"`
	// Above is the number of clients who ask for more than the limit on
	// average, AboveRequests what they ask for.
	Above         int   `json:"above"`
	AboveRequests int64 `json:"above_requests"`
	// Below is the number of clients whose requests were never more than the
	// limit in any window.
	Below int `json:"below"`
	// LogAdmitted is what an exact log admits.
	LogAdmitted int64           `json:"log_admitted"`
	Rows        []PopulationRow `json:"rows"`
}

// A PopulationRow is how one algorithm did on a population.
type PopulationRow struct {
	Algorithm string     `json:"algorithm"`
	Admitted  int64      `json:"admitted"`
	Feedback  Difference `json:"feedback"` // see Row
	// All is zero for those that judge by their limit; see judgesByLimit.
	All Difference `json:"all"`
	// BelowLimited are clients of Below who were denied something,
	// OthersUnlimited the others who were denied nothing. Up to its first
	// denial a limiter has counted every request: so both are the same with and
	// without feedback.
	BelowLimited    int `json:"below_limited"`
	OthersUnlimited int `json:"others_unlimited"`
}

// populated are the algorithms that populations are fed to. What a log admits is
// counted without it.
func populated() []algorithm {
	var all []algorithm
	for _, a := range algorithms.Select(
		algorithms.Fixed, algorithms.Sliding1, algorithms.Sliding10, algorithms.Sliding60,
		algorithms.Strict60, algorithms.Capped10, algorithms.Counting64,
	) {
		all = append(all, algorithm{a})
	}
	return all
}

// measurePopulation feeds a population to all algorithms, client by client, on
// so many goroutines. Memory doesn't grow with the requests. progress is called
// by any of the goroutines, with the number of requests decided by each
// algorithm. The figures depend on the population only. The error is ctx's or a
// limiter's.
func measurePopulation(ctx context.Context, c population, measured []algorithm, workers int, progress func(requests int64)) (PopulationFigures, error) {
	ctx, cancel := context.WithTimeout(ctx, longestRun)
	defer cancel()
	var next, decided atomic.Int64
	var wait sync.WaitGroup
	all := make([]*worker, workers)
	errs := make(chan error, workers)
	for i := range all {
		w, err := newWorker(c, measured)
		if err != nil {
			return PopulationFigures{}, err
		}
		all[i] = w
	}
	for _, w := range all {
		wait.Go(func() {
			for {
				// The busiest clients come first, so that none is left at the
				// end.
				k := int(next.Add(1)-1)*c.step + c.step/2
				if k >= PopulationClients {
					return
				}
				before := w.figures.Requests
				if err := w.client(ctx, k); err != nil {
					errs <- fmt.Errorf("client %d: %w", k, err)
					cancel()
					return
				}
				progress(decided.Add(w.figures.Requests - before))
			}
		})
	}
	wait.Wait()
	if len(errs) > 0 {
		return PopulationFigures{}, <-errs
	}
	for _, w := range all[1:] {
		all[0].figures.add(w.figures)
	}
	return all[0].figures, nil
}

// A population is PopulationClients, who ask for PopulationRequests in
// PopulationLength.
type population struct {
	seed  uint64
	step  int // from one client that is measured to the next
	limit int64
	// rate returns what a client asks for, per second: the first asks for most.
	rate func(client int) float64
	// pattern returns the traffic of a client.
	pattern func(random *rand.Rand) traffic.Pattern
}

// newPopulation returns a crowd, or the population that is like Cloudflare's.
// With fewer requests than PopulationRequests it is every so-manieth client of
// it.
func newPopulation(like bool, requests int64, seed uint64) population {
	c := population{seed: seed, step: max(1, int(PopulationRequests/requests)), limit: DocumentLimit, pattern: mixed}
	total := PopulationRequests / PopulationLength.Seconds()
	weight := func(client int) float64 { return math.Pow(float64(1+client), -CrowdExponent) }
	var some []float64 // rates of the first
	if like {
		c.limit = LikeLimit
		c.pattern = func(*rand.Rand) traffic.Pattern { return traffic.Pages }
		for _, limits := range LikeFew {
			some = append(some, limits*LikeLimit/Window.Seconds())
			total -= some[len(some)-1]
		}
		weight = func(client int) float64 {
			quantile := (float64(client-len(some)) + 0.5) / float64(PopulationClients-len(some))
			return math.Exp(LikeSigma * math.Sqrt2 * math.Erfinv(1-2*quantile))
		}
	}
	weights := 0.0
	for k := len(some); k < PopulationClients; k++ {
		weights += weight(k)
	}
	c.rate = func(client int) float64 {
		if client < len(some) {
			return some[client]
		}
		return total * weight(client) / weights
	}
	return c
}

// arrivals returns the requests of a client.
func (c population) arrivals(client int) iter.Seq[traffic.Arrival] {
	random := rand.New(rand.NewPCG(c.seed, uint64(client)))
	return c.pattern(random).Generate(random.Uint64(), c.rate(client), PopulationLength)
}

// mixed returns one of the patterns of PopulationMix.
func mixed(random *rand.Rand) traffic.Pattern {
	var shares int
	for _, m := range PopulationMix {
		shares += m.Share
	}
	share, i := random.IntN(shares), 0
	for ; share >= PopulationMix[i].Share; i++ {
		share -= PopulationMix[i].Share
	}
	return traffic.Named(PopulationMix[i].Pattern)
}

// A worker has the limiters that one client after the other is fed to, each in
// a later part of virtual time, when everything of those before has expired.
// That part is the client's own: a log that counts rounds times.
type worker struct {
	population
	subjects []*subject // with feedback
	admitted []traffic.Recent
	counting []*subject // without; nil for those whose All is zero
	all      traffic.Recent
	log      traffic.Recent // of what an exact log admits
	start    time.Duration  // of the client
	chunk    []time.Duration
	truth    []int64 // of the chunk, every request counted
	figures  PopulationFigures
}

func newWorker(c population, measured []algorithm) (*worker, error) {
	w := &worker{population: c, all: traffic.NewRecent(Window), log: traffic.NewRecent(Window), chunk: make([]time.Duration, 0, checkEvery)}
	w.figures = PopulationFigures{Limit: c.limit, Length: PopulationLength}
	for _, a := range measured {
		s, err := a.subject(c.limit, 1, true)
		if err != nil {
			return nil, err
		}
		var counting *subject
		if a.counters() && !a.judgesByLimit() {
			if counting, err = a.subject(c.limit, 1, false); err != nil {
				return nil, err
			}
		}
		w.subjects, w.counting = append(w.subjects, s), append(w.counting, counting)
		w.figures.Rows = append(w.figures.Rows, PopulationRow{Algorithm: a.Name})
	}
	w.admitted = traffic.NewRecents(len(w.subjects), Window)
	return w, nil
}

// client feeds one client to all limiters.
func (w *worker) client(ctx context.Context, k int) error {
	name := fmt.Sprintf("client-%06d", k)
	w.start = time.Duration(k/w.step) * (PopulationLength + 2*Window)
	feedback := make([]Difference, len(w.subjects))
	denied := make([]int64, len(w.subjects))
	var requests, fullest, logged int64
	err := w.chunks(ctx, k, func() error {
		requests += int64(len(w.chunk))
		for _, n := range w.truth {
			fullest = max(fullest, n+1)
		}
		for _, at := range w.chunk {
			if w.log.Count(at) < w.limit {
				w.log.Add(at)
				logged++
			}
		}
		for i, s := range w.subjects {
			log := &w.admitted[i]
			err := w.decide(ctx, s, name, func(_ int, at time.Duration, a answer) {
				feedback[i].observe(a, log.Count(at), s.limit)
				if a.allowed {
					log.Add(at)
				} else {
					denied[i]++
				}
			})
			if err != nil {
				return err
			}
		}
		return nil
	})
	if err != nil {
		return err
	}
	// A limiter that has denied nothing has counted every request.
	all := make([]Difference, len(w.subjects))
	again := false
	for i, s := range w.counting {
		again = again || s != nil && denied[i] > 0
		if s != nil && denied[i] == 0 {
			all[i] = feedback[i]
		}
	}
	if again {
		err = w.chunks(ctx, k, func() error {
			for i, s := range w.counting {
				if s == nil || denied[i] == 0 {
					continue
				}
				err := w.decide(ctx, s, name, func(j int, _ time.Duration, a answer) { all[i].observe(a, w.truth[j], s.limit) })
				if err != nil {
					return err
				}
			}
			return nil
		})
	}
	w.figures.LogAdmitted += logged
	w.note(k, requests, fullest, feedback, all, denied)
	return err
}

// note adds what was measured of a client to the figures.
func (w *worker) note(k int, requests, fullest int64, feedback, all []Difference, denied []int64) {
	one := PopulationFigures{Requests: requests, Clients: 1}
	limit := w.figures.Limit
	if w.rate(k)*Window.Seconds() > float64(limit) {
		one.Above, one.AboveRequests = 1, requests
	}
	if fullest <= limit {
		one.Below = 1
	}
	for i := range w.figures.Rows {
		row := PopulationRow{Admitted: requests - denied[i], Feedback: feedback[i], All: all[i]}
		switch {
		case one.Below == 1 && denied[i] > 0:
			row.BelowLimited = 1
		case one.Below == 0 && denied[i] == 0:
			row.OthersUnlimited = 1
		}
		one.Rows = append(one.Rows, row)
	}
	w.figures.add(one)
}

// chunks calls each with a client's arrivals, a chunk at a time, and their true
// counts.
func (w *worker) chunks(ctx context.Context, k int, each func() error) error {
	w.all.Clear()
	flush := func() error {
		w.truth = w.truth[:0]
		for _, at := range w.chunk {
			w.truth = append(w.truth, w.all.Count(at))
			w.all.Add(at)
		}
		err := each()
		w.chunk = w.chunk[:0]
		if err == nil {
			err = ctx.Err()
		}
		return err
	}
	for r := range w.arrivals(k) {
		w.chunk = append(w.chunk, w.start+r.At)
		if len(w.chunk) == cap(w.chunk) {
			if err := flush(); err != nil {
				return err
			}
		}
	}
	return flush()
}

// decide has a limiter decide the chunk's arrivals of a client, and calls each
// with their numbers and the answers.
func (w *worker) decide(ctx context.Context, s *subject, client string, each func(n int, at time.Duration, a answer)) error {
	for n, at := range w.chunk {
		a, err := s.ask(ctx, client, at)
		if err != nil {
			return err
		}
		each(n, at, a)
	}
	return nil
}

// add adds what was measured of other clients.
func (f *PopulationFigures) add(o PopulationFigures) {
	f.Requests += o.Requests
	f.Clients += o.Clients
	f.Above += o.Above
	f.AboveRequests += o.AboveRequests
	f.Below += o.Below
	f.LogAdmitted += o.LogAdmitted
	for i, row := range o.Rows {
		f.Rows[i].Admitted += row.Admitted
		f.Rows[i].Feedback.Add(row.Feedback)
		f.Rows[i].All.Add(row.All)
		f.Rows[i].BelowLimited += row.BelowLimited
		f.Rows[i].OthersUnlimited += row.OthersUnlimited
	}
}
