package main

import (
	"context"
	"flag"
	"fmt"
	"io"
	"iter"
	"slices"
	"time"

	"weir/bench/architecture"
	simulated "weir/bench/traffic"
)

// sharedLimit is the documents' 100 calls a minute.
var sharedLimit = architecture.Limit{Requests: 100, Window: time.Minute}

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

// The clients of the runs.
const (
	attackerName = "attacker"
	busyName     = "busy client"
)

// A situation is what an architecture has to cope with.
type situation struct {
	Traffic   string        `json:"traffic"`
	Instances int           `json:"instances"`
	Lag       time.Duration `json:"lag_ns"`
	Rate      float64       `json:"rate"` // of the client's requests, per second
}

func usual(client string) situation {
	s := situation{client, usualInstances, usualLag, attackRate}
	if client == busyName {
		s.Rate = busyRate
	}
	return s
}

func (s situation) String() string {
	return fmt.Sprintf("%s, %d instances, lag %v, %g requests/s", s.Traffic, s.Instances, s.Lag, s.Rate)
}

func (s situation) scaleOut() architecture.ScaleOut {
	return architecture.ScaleOut{To: s.Instances, Start: scaleStart, Every: scaleEvery}
}

// client is the one that each step of the scale-out moves.
func (s situation) client() int { return s.Instances - 1 }

// A contender is an architecture and how it is called.
type contender struct {
	name  string
	build func(situation) (architecture.Architecture, error)
}

const (
	stickyName = "sticky, rebound"
	stayName   = "sticky, staying"
	chattyName = "chatty"
	streamName = "stream"
	laterName  = "increment later"
	fixedName  = "weir, fixed"
	strictName = "weir, strict N=60"
)

func contenders() []contender {
	return []contender{
		{stickyName, func(s situation) (architecture.Architecture, error) {
			return architecture.NewSticky(sharedLimit, s.scaleOut(), true), nil
		}},
		{stayName, func(s situation) (architecture.Architecture, error) {
			return architecture.NewSticky(sharedLimit, s.scaleOut(), false), nil
		}},
		{chattyName, func(s situation) (architecture.Architecture, error) {
			return architecture.NewChatty(sharedLimit, s.Instances, s.Lag), nil
		}},
		{streamName, func(s situation) (architecture.Architecture, error) {
			return architecture.NewStream(sharedLimit, s.Instances, s.Lag, consumerRate), nil
		}},
		{laterName, func(s situation) (architecture.Architecture, error) {
			return architecture.NewLater(sharedLimit, s.Lag), nil
		}},
		{fixedName, func(s situation) (architecture.Architecture, error) {
			return architecture.NewFixed(sharedLimit, s.Instances, s.Lag)
		}},
		{strictName, func(s situation) (architecture.Architecture, error) {
			return architecture.NewStrict(sharedLimit, s.Instances, s.Lag)
		}},
	}
}

// architecturesConfig is what the flags of architectures say.
type architecturesConfig struct {
	seed      uint64
	dir       string // of the figures and the plots
	instances []int  // powers of two
	lags      []time.Duration
	rates     []float64 // of the attacker
}

// parseArchitectures reads the flags of architectures; on -help it prints them
// to out.
func parseArchitectures(args []string, out io.Writer) (architecturesConfig, error) {
	const ms = time.Millisecond
	cfg := architecturesConfig{
		instances: []int{1, 2, 4, 8, 16, 32},
		lags:      []time.Duration{ms, 3 * ms, 10 * ms, 30 * ms, 100 * ms, 300 * ms, time.Second, 3 * time.Second, 10 * time.Second},
		rates:     []float64{100, 300, 1000, 3000, 10_000},
	}
	flags := flag.NewFlagSet("architectures", flag.ContinueOnError)
	quick := flags.Bool("quick", false, "a few columns of each table")
	flags.Uint64Var(&cfg.seed, "seed", 1, "what the random arrivals depend on")
	outFlag(flags, &cfg.dir)
	if err := parseFlags(flags, args, out); err != nil {
		return cfg, err
	}
	if *quick {
		cfg.instances, cfg.lags, cfg.rates = []int{1, 8}, []time.Duration{10 * ms, time.Second}, []float64{100, 3000}
	}
	return cfg, nil
}

// architectures simulates all architectures, prints what they admit as tables
// and draws it. The error says which of them did something else than its model
// says.
func architectures(ctx context.Context, args []string, out io.Writer) error {
	cfg, err := parseArchitectures(args, out)
	if err != nil {
		return err
	}
	r, err := simulateArchitectures(ctx, cfg)
	say("")
	if err != nil {
		return err
	}
	return publish(out, cfg.dir, "architectures", r)
}

// simulateArchitectures runs the situations that cfg selects.
func simulateArchitectures(ctx context.Context, cfg architecturesConfig) (*architecturesReport, error) {
	r := &architecturesReport{
		Machine: thisMachine(""), Seed: cfg.seed, Limit: sharedLimit.Requests, Window: sharedLimit.Window,
		Attacker: usual(attackerName), Busy: usual(busyName),
		ScaleStart: scaleStart, ScaleEvery: scaleEvery, ConsumerRate: consumerRate, Clients: manyClients,
	}
	var err error
	for _, client := range []string{attackerName, busyName} {
		for _, instances := range cfg.instances {
			s := usual(client)
			s.Instances = instances
			if r.Instances, err = simulate(ctx, cfg.seed, s, r.Instances); err != nil {
				return nil, err
			}
		}
		for _, lag := range cfg.lags {
			s := usual(client)
			s.Lag = lag
			if r.Lag, err = simulate(ctx, cfg.seed, s, r.Lag); err != nil {
				return nil, err
			}
		}
	}
	for _, rate := range cfg.rates {
		s := usual(attackerName)
		s.Rate = rate
		if r.Load, err = simulate(ctx, cfg.seed, s, r.Load); err != nil {
			return nil, err
		}
	}
	for _, instances := range cfg.instances {
		r.Balance = append(r.Balance, balance(cfg.seed, instances))
	}
	return r, nil
}

// simulate appends a row for each contender.
func simulate(ctx context.Context, seed uint64, s situation, rows []architectureRow) ([]architectureRow, error) {
	for _, c := range contenders() {
		if err := ctx.Err(); err != nil {
			return nil, err
		}
		say("%s, %v", c.name, s)
		arch, err := c.build(s)
		if err != nil {
			return nil, err
		}
		figures, err := architecture.Measure(sharedLimit, arch, s.arrivals(seed))
		if err != nil {
			return nil, fmt.Errorf("%s, %v: %w", c.name, s, err)
		}
		row := architectureRow{Architecture: c.name, situation: s, Figures: figures}
		row.Least, row.Most = arch.Bounds(s.Rate)
		if stream, ok := arch.(*architecture.Stream); ok {
			row.WorstLag = stream.WorstLag()
		}
		rows = append(rows, row)
	}
	return rows, nil
}

// arrivals returns the client's requests: an attacker's are evenly spaced, for
// three windows, and a busy client's independent, for thirty.
func (s situation) arrivals(seed uint64) iter.Seq[simulated.Arrival] {
	name, windows := "steady", 3
	if s.Traffic == busyName {
		name, windows = "poisson", 30
	}
	patterns := simulated.Patterns()
	pattern := patterns[slices.IndexFunc(patterns, func(p simulated.Pattern) bool { return p.Name == name })]
	return func(yield func(simulated.Arrival) bool) {
		for a := range pattern.Generate(seed, s.Rate, time.Duration(windows)*sharedLimit.Window) {
			a.Client = s.client()
			if !yield(a) {
				return
			}
		}
	}
}

// balance scales out sticky sessions of many clients, and looks at the minute
// after that.
func balance(seed uint64, instances int) balanceRow {
	scale := situation{Instances: instances}.scaleOut()
	const settled = scaleStart + time.Minute
	busiest := func(rebinds bool) float64 {
		sticky := architecture.NewSticky(sharedLimit, scale, rebinds)
		return architecture.Busiest(sticky, instances, settled, simulated.Zipf(seed, manyClients, zipfExponent, attackRate, settled+time.Minute))
	}
	return balanceRow{Instances: instances, Rebound: busiest(true), Staying: busiest(false)}
}

// The clients of which the balance of sticky sessions is taken.
const (
	manyClients  = 10_000
	zipfExponent = 1.01
)
