package architectures

import (
	"context"
	"fmt"
	"io"
	"iter"
	"time"

	"weir/bench/internal/algorithms"
	"weir/bench/internal/report"
	"weir/bench/internal/traffic"
)

// sharedLimit is the documents' 100 calls a minute.
var sharedLimit = Limit{Requests: 100, Window: time.Minute}

// The situation that is changed in one respect at a time.
const (
	usualInstances = 8
	usualLag       = 100 * time.Millisecond
	attackRate     = 1000 // requests per second

	// busyRate is three times the limit.
	busyRate = 5
	// consumerRate is how many events per second the stream's consumer can do.
	consumerRate = 2000
	// Sticky sessions scale out half a minute into the run, so fast that all of
	// it is in one window.
	scaleStart, scaleEvery = 30 * time.Second, 5 * time.Second
)

func usual(client string) scenario {
	s := scenario{client, usualInstances, usualLag, attackRate}
	if client == busyName {
		s.Rate = busyRate
	}
	return s
}

func (s scenario) scaleOut() ScaleOut {
	return ScaleOut{To: s.Instances, Start: scaleStart, Every: scaleEvery}
}

// client is the one that each step of the scale-out moves.
func (s scenario) client() int { return s.Instances - 1 }

// A contender is an architecture and how it is called.
type contender struct {
	name  string
	build func(scenario) (Architecture, error)
}

func contenders() []contender {
	weir := func(name string) func(scenario) (Architecture, error) {
		return func(s scenario) (Architecture, error) {
			return NewWeir(algorithms.Named(name), sharedLimit, s.Instances, s.Lag)
		}
	}
	rival := func(build func(scenario) Architecture) func(scenario) (Architecture, error) {
		return func(s scenario) (Architecture, error) { return build(s), nil }
	}
	return []contender{
		{stickyName, rival(func(s scenario) Architecture { return NewSticky(sharedLimit, s.scaleOut(), true) })},
		{stayName, rival(func(s scenario) Architecture { return NewSticky(sharedLimit, s.scaleOut(), false) })},
		{chattyName, rival(func(s scenario) Architecture { return NewChatty(sharedLimit, s.Instances, s.Lag) })},
		{streamName, rival(func(s scenario) Architecture { return NewStream(sharedLimit, s.Instances, s.Lag, consumerRate) })},
		{laterName, rival(func(s scenario) Architecture { return NewLater(sharedLimit, s.Lag) })},
		{fixedName, weir(algorithms.Fixed)},
		{strictName, weir(algorithms.Strict60)},
	}
}

type config struct {
	seed      uint64
	instances []int // powers of two
	lags      []time.Duration
	rates     []float64 // of the attacker
}

// Run simulates all architectures, prints what they admit as tables and draws
// it. The error says which of them did something else than its model says.
func Run(ctx context.Context, args []string, out io.Writer) error {
	const ms = time.Millisecond
	cfg := config{
		instances: []int{1, 2, 4, 8, 16, 32},
		lags:      []time.Duration{ms, 3 * ms, 10 * ms, 30 * ms, 100 * ms, 300 * ms, time.Second, 3 * time.Second, 10 * time.Second},
		rates:     []float64{100, 300, 1000, 3000, 10_000},
	}
	flags := report.NewFlags("architectures")
	quick := flags.Quick("a few columns of each table")
	flags.Uint64Var(&cfg.seed, "seed", 1, "what the random arrivals depend on")
	if err := flags.Parse(args, out); err != nil {
		return err
	}
	if *quick {
		cfg.instances, cfg.lags, cfg.rates = []int{1, 8}, []time.Duration{10 * ms, time.Second}, []float64{100, 3000}
	}
	r, err := simulateAll(ctx, cfg)
	return flags.Publish(out, "architectures", r, err)
}

// simulateAll runs the situations that cfg selects.
func simulateAll(ctx context.Context, cfg config) (*Report, error) {
	r := &Report{
		Machine: report.ThisMachine(""), Seed: cfg.seed, Limit: sharedLimit.Requests, Window: sharedLimit.Window,
		Attacker: usual(attackerName), Busy: usual(busyName),
		ScaleStart: scaleStart, ScaleEvery: scaleEvery, ConsumerRate: consumerRate, Clients: manyClients,
	}
	var err error
	run := func(rows *[]runRow, s scenario) {
		if err == nil {
			err = simulate(ctx, cfg.seed, s, rows)
		}
	}
	for _, client := range []string{attackerName, busyName} {
		for _, instances := range cfg.instances {
			s := usual(client)
			s.Instances = instances
			run(&r.Instances, s)
		}
		for _, lag := range cfg.lags {
			s := usual(client)
			s.Lag = lag
			run(&r.Lag, s)
		}
	}
	for _, rate := range cfg.rates {
		s := usual(attackerName)
		s.Rate = rate
		run(&r.Load, s)
	}
	for _, instances := range cfg.instances {
		r.Balance = append(r.Balance, balance(cfg.seed, instances))
	}
	return r, err
}

// simulate appends a row for each contender.
func simulate(ctx context.Context, seed uint64, s scenario, rows *[]runRow) error {
	for _, c := range contenders() {
		if err := ctx.Err(); err != nil {
			return err
		}
		report.Progress("%s, %v", c.name, s)
		arch, err := c.build(s)
		if err != nil {
			return err
		}
		figures, err := Measure(sharedLimit, arch, s.arrivals(seed))
		if err != nil {
			return fmt.Errorf("%s, %v: %w", c.name, s, err)
		}
		row := runRow{Architecture: c.name, scenario: s, Figures: figures}
		row.Least, row.Most = arch.Bounds(s.Rate)
		if stream, ok := arch.(*Stream); ok {
			row.WorstLag = stream.WorstLag()
		}
		*rows = append(*rows, row)
	}
	return nil
}

// arrivals returns the client's requests: an attacker's are evenly spaced, for
// three windows, and a busy client's independent, for thirty.
func (s scenario) arrivals(seed uint64) iter.Seq[traffic.Arrival] {
	name, windows := "steady", 3
	if s.Traffic == busyName {
		name, windows = "poisson", 30
	}
	return ofClient(s.client(), traffic.Named(name).Generate(seed, s.Rate, time.Duration(windows)*sharedLimit.Window))
}

// ofClient returns the arrivals as those of another client.
func ofClient(client int, arrivals iter.Seq[traffic.Arrival]) iter.Seq[traffic.Arrival] {
	return func(yield func(traffic.Arrival) bool) {
		for a := range arrivals {
			a.Client = client
			if !yield(a) {
				return
			}
		}
	}
}

// balance scales out sticky sessions of many clients, and looks at the minute
// after that.
func balance(seed uint64, instances int) balanceRow {
	scale := scenario{Instances: instances}.scaleOut()
	const settled = scaleStart + time.Minute
	busiest := func(rebinds bool) float64 {
		sticky := NewSticky(sharedLimit, scale, rebinds)
		return Busiest(sticky, instances, settled, traffic.Zipf(seed, manyClients, zipfExponent, attackRate, settled+time.Minute))
	}
	return balanceRow{Instances: instances, Rebound: busiest(true), Staying: busiest(false)}
}

// The clients of which the balance of sticky sessions is taken.
const (
	manyClients  = 10_000
	zipfExponent = 1.01
)
