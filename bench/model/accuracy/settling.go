package accuracy

import (
	"context"
	"fmt"
	"math/rand/v2"
	"runtime"
	"time"

	"weir/bench/internal/algorithms"
	"weir/bench/internal/report"
	"weir/bench/internal/testbed"
	"weir/bench/internal/traffic"
)

// What the costs that are known only afterwards are measured on: answers of a language
// model.
const (
	tokenLimit  = 100_000 // per window
	meanTokens  = 1000    // that an answer costs; they differ exponentially
	tokenDemand = 4       // what the client asks for, in limits
	answerTime  = 10 * time.Second
	// settledShare is how many of the requests of a workload there are, at least
	// shortestSettled.
	settledShare    = 10
	shortestSettled = 2000
)

// The ways to limit what is known only afterwards.
const (
	reserveName = "reserve and settle"
	chargeName  = "charge afterwards"
	laterName   = "check, then count"
)

var ways = []string{reserveName, chargeName, laterName}

// factors are what estimates are of the true cost.
var factors = []float64{0.125, 0.25, 0.5, 1, 2, 4, 8}

// A settledRow is what one way admitted of requests whose estimates are off by a factor,
// with all seeds together. A request's tokens are those that it costs in the end, and
// they are in a window if it was admitted in it.
type settledRow struct {
	Way      string  `json:"way"`
	Factor   float64 `json:"factor"`
	Fullest  int64   `json:"fullest"` // the most tokens in any window (t-window, t]
	Admitted int64   `json:"admitted"`
	// LogAdmitted are the tokens that an exact log admits that knows each cost
	// beforehand.
	LogAdmitted int64 `json:"log_admitted"`
}

// over returns what the fullest window has, in limits, ofLog what is admitted, in percent
// of the exact log.
func (row settledRow) over() float64  { return float64(row.Fullest) / tokenLimit }
func (row settledRow) ofLog() float64 { return 100 * ratio(row.Admitted, row.LogAdmitted) }

// A spending is a cost and when it counts.
type spending struct {
	at   time.Duration
	cost int64
}

// A way admits requests by what they are taken to cost, and is told later what they have
// cost: it returns what is to be called then.
type way func(ctx context.Context, at time.Duration, estimate int64) (end func(at time.Duration, cost int64) error, err error)

// newWay returns one. What charges afterwards and what reserves are weir's own limiter, as
// it settles. Without estimates it admits whatever finds the limit not exceeded.
func newWay(name string) (way, error) {
	if name == laterName {
		return checkThenCount(), nil
	}
	s, err := newSubject(algorithms.Named(algorithms.Strict60), tokenLimit, true)
	return func(ctx context.Context, at time.Duration, estimate int64) (func(time.Duration, int64) error, error) {
		if name == chargeName {
			estimate = 0
		}
		q := s.requestAt(at)
		q.Cost = estimate
		taken, err := s.limiter.Take(ctx, q)
		if err != nil || !taken.Allowed {
			return nil, err
		}
		return func(at time.Duration, cost int64) error {
			r := s.requestAt(at)
			if r.Cost = cost - estimate; r.Cost >= 0 {
				return s.limiter.Charge(ctx, r)
			}
			q.Cost = estimate - cost
			return s.limiter.Refund(ctx, q, taken)
		}, nil
	}, err
}

// checkThenCount looks whether the estimate fits beside all that has ended, and counts what
// ends: an exact log of that.
func checkThenCount() way {
	var counted exactLog
	return func(_ context.Context, at time.Duration, estimate int64) (func(time.Duration, int64) error, error) {
		if counted.sum(at)+estimate > tokenLimit {
			return nil, nil
		}
		return func(at time.Duration, cost int64) error {
			counted.add(at, cost)
			return nil
		}, nil
	}
}

// measureSettling measures all ways with all factors, by so many seeds from one on.
func measureSettling(ctx context.Context, seed uint64, seeds, requests int) ([]settledRow, error) {
	rows := make([]settledRow, len(ways)*len(factors))
	err := testbed.Parallel(len(rows), runtime.GOMAXPROCS(0), func(i int) error {
		row := &rows[i]
		row.Way, row.Factor = ways[i/len(factors)], factors[i%len(factors)]
		report.Progress("%s, estimates %g times the cost", row.Way, row.Factor)
		for n := range seeds {
			if err := row.run(ctx, spendings(seed+uint64(n), requests/settledShare)); err != nil {
				return fmt.Errorf("%s: %w", row.Way, err)
			}
		}
		return nil
	})
	return rows, err
}

// spendings returns about so many requests of a seed.
func spendings(seed uint64, requests int) []spending {
	rate := float64(tokenDemand) * tokenLimit / meanTokens / window.Seconds()
	length := time.Duration(float64(max(requests, shortestSettled)) / rate * float64(time.Second))
	random := rand.New(rand.NewPCG(seed, meanTokens))
	var all []spending
	for at := range traffic.Poisson.Generate(seed, rate, length) {
		all = append(all, spending{at, min(tokenLimit, 1+int64(random.ExpFloat64()*(meanTokens-1)))})
	}
	return all
}

// run adds what one seed's requests make.
func (row *settledRow) run(ctx context.Context, requests []spending) error {
	w, err := newWay(row.Way)
	if err != nil {
		return err
	}
	steps, cancel := context.WithTimeout(ctx, longestRun)
	defer cancel()
	type answering struct {
		spending
		end func(time.Duration, int64) error
	}
	var underWay []answering // in the order in which they end
	var admitted, log exactLog
	for n, r := range requests {
		if n%checkEvery == checkEvery-1 && ctx.Err() != nil {
			return ctx.Err()
		}
		for len(underWay) > 0 && underWay[0].at+answerTime <= r.at {
			a := underWay[0]
			underWay = underWay[1:]
			if err := a.end(a.at+answerTime, a.cost); err != nil {
				return err
			}
		}
		if log.sum(r.at)+r.cost <= tokenLimit {
			log.add(r.at, r.cost)
			row.LogAdmitted += r.cost
		}
		end, err := w(steps, r.at, min(tokenLimit, max(1, int64(row.Factor*float64(r.cost)))))
		if err != nil {
			return err
		}
		if end == nil {
			continue
		}
		underWay = append(underWay, answering{r, end})
		admitted.add(r.at, r.cost)
		row.Admitted += r.cost
		row.Fullest = max(row.Fullest, admitted.sum(r.at))
	}
	return nil
}
