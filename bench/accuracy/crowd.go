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

	"weir/bench/traffic"
)

// A crowd is as large as the one in which Cloudflare measured its two counters
// in 2017. How much the clients ask for follows Zipf's law, with an exponent that
// puts about one in forty above the limit.
const (
	CrowdRequests = 400_000_000 // on average
	CrowdClients  = 270_000
	CrowdLength   = time.Hour
	CrowdExponent = 0.7
)

// CrowdMix is how many of twenty clients have which pattern, on average.
var CrowdMix = []struct {
	Pattern string
	Share   int
}{
	{"steady", 4}, {Poisson, 6}, {Bursty, 4}, {Day, 3}, {FrontLoaded, 1}, {BackLoaded, 1}, {Boundary, 1},
}

// CrowdFigures are what was measured of a crowd.
type CrowdFigures struct {
	Requests int64         `json:"requests"`
	Clients  int           `json:"clients"`
	Limit    int64         `json:"limit"`
	Length   time.Duration `json:"length_ns"`
	// Above is the number of clients who ask for more than the limit on average,
	// AboveRequests what they ask for.
	Above         int   `json:"above"`
	AboveRequests int64 `json:"above_requests"`
	// Below is the number of clients whose requests were never more than the limit
	// in any window.
	Below int        `json:"below"`
	Rows  []CrowdRow `json:"rows"`
}

// A CrowdRow is how one algorithm did on a crowd.
type CrowdRow struct {
	Algorithm string     `json:"algorithm"`
	Admitted  int64      `json:"admitted"`
	Feedback  Difference `json:"feedback"` // see Row
	// All is zero for the log, which is the true count, and for buckets, which count
	// no window.
	All Difference `json:"all"`
	// BelowLimited are clients of Below who were denied something, OthersUnlimited
	// the others who were denied nothing. Up to its first denial a limiter has
	// counted every request: so both are the same with and without feedback.
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

// MeasureCrowd feeds a crowd to all algorithms, client by client, on so many
// goroutines. With fewer requests than CrowdRequests it is every so-manieth
// client of the crowd. Memory doesn't grow with the requests. progress is called
// by any of the goroutines, with the number of requests decided by each algorithm.
// The figures depend on requests and seed only. The error is ctx's or a limiter's.
func MeasureCrowd(ctx context.Context, requests int64, seed uint64, workers int, progress func(requests int64)) (CrowdFigures, []Speed, error) {
	c := crowd{seed: seed, step: max(1, int(CrowdRequests/requests))}
	for k := range CrowdClients {
		c.weights += weight(k)
	}
	ctx, cancel := context.WithTimeout(ctx, longestRun)
	defer cancel()
	var next, decided atomic.Int64
	var wait sync.WaitGroup
	all := make([]*crowdWorker, workers)
	errs := make(chan error, workers)
	for i := range all {
		w, err := newCrowdWorker(c)
		if err != nil {
			return CrowdFigures{}, nil, err
		}
		all[i] = w
	}
	for _, w := range all {
		wait.Go(func() {
			for {
				// The busiest clients come first, so that none is left at the end.
				k := int(next.Add(1)-1)*c.step + c.step/2
				if k >= CrowdClients {
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
	select {
	case err := <-errs:
		return CrowdFigures{}, nil, err
	default:
	}
	for _, w := range all[1:] {
		all[0].add(w)
	}
	return all[0].figures, all[0].speeds, nil
}

type crowd struct {
	seed    uint64
	step    int     // from one client to the next
	weights float64 // of all CrowdClients
}

func weight(client int) float64 { return math.Pow(float64(1+client), -CrowdExponent) }

// rate returns what a client asks for, per second.
func (c crowd) rate(client int) float64 {
	return CrowdRequests * weight(client) / c.weights / CrowdLength.Seconds()
}

// arrivals returns the requests of a client.
func (c crowd) arrivals(client int) iter.Seq[traffic.Arrival] {
	random := rand.New(rand.NewPCG(c.seed, uint64(client)))
	var shares int
	for _, m := range CrowdMix {
		shares += m.Share
	}
	share := random.IntN(shares)
	for _, m := range CrowdMix {
		if share -= m.Share; share < 0 {
			for _, p := range traffic.Patterns() {
				if p.Name == m.Pattern {
					return p.Generate(random.Uint64(), c.rate(client), CrowdLength)
				}
			}
		}
	}
	panic("accuracy: CrowdMix names a pattern that doesn't exist")
}

// A crowdWorker has the limiters that one client after the other is fed to, each
// in a later part of virtual time, when everything of those before has expired.
type crowdWorker struct {
	crowd
	subjects []*subject // with feedback
	admitted []recent
	counting []*subject // without; nil for those whose All is zero
	all      recent
	start    time.Duration // of the next client
	chunk    []time.Duration
	truth    []int64 // of the chunk, every request counted
	figures  CrowdFigures
	speeds   []Speed
}

func newCrowdWorker(c crowd) (*crowdWorker, error) {
	w := &crowdWorker{crowd: c, chunk: make([]time.Duration, 0, checkEvery)}
	w.figures = CrowdFigures{Limit: DocumentLimit, Length: CrowdLength}
	for _, a := range Algorithms() {
		s, err := a.subject(DocumentLimit, 1, true)
		if err != nil {
			return nil, err
		}
		var counting *subject
		if a.Counters {
			if counting, err = a.subject(DocumentLimit, 1, false); err != nil {
				return nil, err
			}
		}
		w.subjects, w.counting = append(w.subjects, s), append(w.counting, counting)
		w.figures.Rows = append(w.figures.Rows, CrowdRow{Algorithm: a.Name})
		w.speeds = append(w.speeds, Speed{Algorithm: a.Name})
	}
	w.admitted = make([]recent, len(w.subjects))
	return w, nil
}

// client feeds one client to all limiters.
func (w *crowdWorker) client(ctx context.Context, k int) error {
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
			err := w.time(i, func() error {
				for _, at := range w.chunk {
					a, err := s.ask(ctx, name, at)
					if err != nil {
						return err
					}
					feedback[i].observe(a, log.count(at), s.limit)
					if a.allowed {
						log.add(at)
					} else {
						denied[i]++
					}
				}
				return nil
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
				err := w.time(i, func() error {
					for j, at := range w.chunk {
						a, err := s.ask(ctx, name, at)
						if err != nil {
							return err
						}
						all[i].observe(a, w.truth[j], s.limit)
					}
					return nil
				})
				if err != nil {
					return err
				}
			}
			return nil
		})
	}
	w.start += CrowdLength + 2*Window
	w.note(k, requests, fullest, feedback, all, denied)
	return err
}

// note adds what was measured of a client to the figures.
func (w *crowdWorker) note(k int, requests, fullest int64, feedback, all []Difference, denied []int64) {
	f := &w.figures
	f.Requests += requests
	f.Clients++
	if w.rate(k)*Window.Seconds() > float64(f.Limit) {
		f.Above++
		f.AboveRequests += requests
	}
	below := fullest <= f.Limit
	if below {
		f.Below++
	}
	for i := range f.Rows {
		row := &f.Rows[i]
		row.Admitted += requests - denied[i]
		row.Feedback.Add(feedback[i])
		row.All.Add(all[i])
		switch {
		case below && denied[i] > 0:
			row.BelowLimited++
		case !below && denied[i] == 0:
			row.OthersUnlimited++
		}
	}
}

// chunks calls each with a client's arrivals, a chunk at a time, and their true
// counts.
func (w *crowdWorker) chunks(ctx context.Context, k int, each func() error) error {
	w.all.clear()
	flush := func() error {
		w.truth = w.truth[:0]
		for _, at := range w.chunk {
			w.truth = append(w.truth, w.all.count(at))
			w.all.add(at)
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

// time runs f, which decides the chunk by algorithm i.
func (w *crowdWorker) time(i int, f func() error) error {
	start := time.Now()
	err := f()
	w.speeds[i].Elapsed += time.Since(start)
	w.speeds[i].Decisions += int64(len(w.chunk))
	return err
}

// add adds what another worker has measured.
func (w *crowdWorker) add(other *crowdWorker) {
	f, o := &w.figures, other.figures
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
		w.speeds[i].Decisions += other.speeds[i].Decisions
		w.speeds[i].Elapsed += other.speeds[i].Elapsed
	}
}
