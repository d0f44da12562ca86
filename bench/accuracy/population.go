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

	"weir/bench/internal/traffic"
)

// A population is as large as the one in which Cloudflare measured its two
// counters in 2017. How much the clients ask for follows Zipf's law, with an
// exponent that puts about one in forty above the limit.
const (
	PopulationRequests = 400_000_000 // on average
	PopulationClients  = 270_000
	PopulationLength   = time.Hour
	PopulationExponent = 0.7
)

// PopulationMix is how many of twenty clients have which pattern, on average.
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
	Below int             `json:"below"`
	Rows  []PopulationRow `json:"rows"`
}

// A PopulationRow is how one algorithm did on a population.
type PopulationRow struct {
	Algorithm string     `json:"algorithm"`
	Admitted  int64      `json:"admitted"`
	Feedback  Difference `json:"feedback"` // see Row
	// All is zero for the log, which is the true count, and for buckets, which
	// count no window.
	All Difference `json:"all"`
	// BelowLimited are clients of Below who were denied something,
	// OthersUnlimited the others who were denied nothing. Up to its first
	// denial a limiter has counted every request: so both are the same with and
	// without feedback.
	BelowLimited    int `json:"below_limited"`
	OthersUnlimited int `json:"others_unlimited"`
}

// A Speed is how fast an algorithm decided, the bookkeeping of the measures
// included.
type Speed struct {
	Algorithm string        `json:"algorithm"`
	Decisions int64         `json:"decisions"`
	Elapsed   time.Duration `json:"elapsed_ns"` // of one core
}

// PerSecond returns the decisions per second of one core.
func (s Speed) PerSecond() float64 { return float64(s.Decisions) / s.Elapsed.Seconds() }

// measurePopulation feeds a population to all algorithms, client by client, on
// so many goroutines. With fewer requests than PopulationRequests it is every
// so-manieth client of the population. Memory doesn't grow with the requests.
// progress is called by any of the goroutines, with the number of requests
// decided by each algorithm. The figures depend on requests and seed only. The
// error is ctx's or a limiter's.
func measurePopulation(ctx context.Context, requests int64, seed uint64, workers int, progress func(requests int64)) (PopulationFigures, []Speed, error) {
	c := population{seed: seed, step: max(1, int(PopulationRequests/requests))}
	for k := range PopulationClients {
		c.weights += weight(k)
	}
	ctx, cancel := context.WithTimeout(ctx, longestRun)
	defer cancel()
	var next, decided atomic.Int64
	var wait sync.WaitGroup
	measured := all()
	all := make([]*worker, workers)
	errs := make(chan error, workers)
	for i := range all {
		w, err := newWorker(c, measured)
		if err != nil {
			return PopulationFigures{}, nil, err
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
		return PopulationFigures{}, nil, <-errs
	}
	for _, w := range all[1:] {
		all[0].add(w)
	}
	return all[0].figures, all[0].speeds, nil
}

type population struct {
	seed    uint64
	step    int     // from one client to the next
	weights float64 // of all PopulationClients
}

func weight(client int) float64 { return math.Pow(float64(1+client), -PopulationExponent) }

// rate returns what a client asks for, per second.
func (c population) rate(client int) float64 {
	return PopulationRequests * weight(client) / c.weights / PopulationLength.Seconds()
}

// arrivals returns the requests of a client.
func (c population) arrivals(client int) iter.Seq[traffic.Arrival] {
	random := rand.New(rand.NewPCG(c.seed, uint64(client)))
	var shares int
	for _, m := range PopulationMix {
		shares += m.Share
	}
	share, i := random.IntN(shares), 0
	for ; share >= PopulationMix[i].Share; i++ {
		share -= PopulationMix[i].Share
	}
	return traffic.Named(PopulationMix[i].Pattern).Generate(random.Uint64(), c.rate(client), PopulationLength)
}

// A worker has the limiters that one client after the other is fed to, each in
// a later part of virtual time, when everything of those before has expired.
type worker struct {
	population
	subjects []*subject // with feedback
	admitted []traffic.Recent
	counting []*subject // without; nil for those whose All is zero
	all      traffic.Recent
	start    time.Duration // of the next client
	chunk    []time.Duration
	truth    []int64 // of the chunk, every request counted
	figures  PopulationFigures
	speeds   []Speed
}

func newWorker(c population, measured []algorithm) (*worker, error) {
	w := &worker{population: c, all: traffic.NewRecent(Window), chunk: make([]time.Duration, 0, checkEvery)}
	w.figures = PopulationFigures{Limit: DocumentLimit, Length: PopulationLength}
	for _, a := range measured {
		s, err := a.subject(DocumentLimit, 1, true)
		if err != nil {
			return nil, err
		}
		var counting *subject
		if a.counters() {
			if counting, err = a.subject(DocumentLimit, 1, false); err != nil {
				return nil, err
			}
		}
		w.subjects, w.counting = append(w.subjects, s), append(w.counting, counting)
		w.figures.Rows = append(w.figures.Rows, PopulationRow{Algorithm: a.Name})
		w.speeds = append(w.speeds, Speed{Algorithm: a.Name})
	}
	w.admitted = traffic.NewRecents(len(w.subjects), Window)
	return w, nil
}

// client feeds one client to all limiters.
func (w *worker) client(ctx context.Context, k int) error {
	name := fmt.Sprintf("client-%06d", k)
	feedback := make([]Difference, len(w.subjects))
	denied := make([]int64, len(w.subjects))
	var requests, fullest int64
	err := w.chunks(ctx, k, func() error {
		requests += int64(len(w.chunk))
		for _, n := range w.truth {
			fullest = max(fullest, n+1)
		}
		for i, s := range w.subjects {
			log := &w.admitted[i]
			err := w.decide(ctx, i, s, name, func(_ int, at time.Duration, a answer) {
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
				err := w.decide(ctx, i, s, name, func(j int, _ time.Duration, a answer) { all[i].observe(a, w.truth[j], s.limit) })
				if err != nil {
					return err
				}
			}
			return nil
		})
	}
	w.start += PopulationLength + 2*Window
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

// decide has algorithm i decide the chunk's arrivals of a client, by number,
// and calls each with the answers.
func (w *worker) decide(ctx context.Context, i int, s *subject, client string, each func(n int, at time.Duration, a answer)) error {
	start := time.Now()
	for n, at := range w.chunk {
		a, err := s.ask(ctx, client, at)
		if err != nil {
			return err
		}
		each(n, at, a)
	}
	w.speeds[i].Elapsed += time.Since(start)
	w.speeds[i].Decisions += int64(len(w.chunk))
	return nil
}

// add adds what another worker has measured.
func (w *worker) add(other *worker) {
	w.figures.add(other.figures)
	for i, s := range other.speeds {
		w.speeds[i].Decisions += s.Decisions
		w.speeds[i].Elapsed += s.Elapsed
	}
}

// add adds what was measured of other clients.
func (f *PopulationFigures) add(o PopulationFigures) {
	f.Requests += o.Requests
	f.Clients += o.Clients
	f.Above += o.Above
	f.AboveRequests += o.AboveRequests
	f.Below += o.Below
	for i, row := range o.Rows {
		f.Rows[i].Admitted += row.Admitted
		f.Rows[i].Feedback.Add(row.Feedback)
		f.Rows[i].All.Add(row.All)
		f.Rows[i].BelowLimited += row.BelowLimited
		f.Rows[i].OthersUnlimited += row.OthersUnlimited
	}
}
