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
	"weir/counters"
)

// sharedLimit is the documents' 100 calls a minute.
var sharedLimit = Limit{Requests: 100, Window: time.Minute}

// usual is the situation that is changed in one respect at a time.
var usual = scenario{Instances: 8, Lag: 100 * time.Millisecond, Rate: 1000}

const (
	// consumerRate is how many events per second the stream's consumer can do.
	consumerRate = 2000
	// Sticky sessions scale out half a minute into the run, so fast that all of
	// it is in one window.
	scaleStart, scaleEvery = 30 * time.Second, 5 * time.Second
)

// A contender is an architecture and how it is called.
type contender struct {
	name  string
	build func(scenario) (Architecture, error)
}

var contenders = []contender{
	{stickyName, func(s scenario) (Architecture, error) { return NewSticky(sharedLimit, s.scaleOut()), nil }},
	{chattyName, func(s scenario) (Architecture, error) { return NewChatty(sharedLimit, s.Instances, s.Lag), nil }},
	{streamName, func(s scenario) (Architecture, error) { return NewStream(sharedLimit, s.Lag, consumerRate), nil }},
	{laterName, func(s scenario) (Architecture, error) { return NewLater(sharedLimit, s.Lag), nil }},
	{fixedName, func(s scenario) (Architecture, error) {
		return NewWeir(algorithms.Named(algorithms.Fixed), sharedLimit, s.Instances, s.Lag)
	}},
	{strictName, func(s scenario) (Architecture, error) {
		return NewWeir(algorithms.Named(algorithms.Strict60), sharedLimit, s.Instances, s.Lag)
	}},
}

func (s scenario) scaleOut() ScaleOut {
	return ScaleOut{To: s.Instances, Start: scaleStart, Every: scaleEvery}
}

type config struct {
	instances []int // powers of two
	lags      []time.Duration
	rates     []float64 // of the attacker
}

// Run simulates all architectures, prints what they admit as tables and draws
// it. The error says where weir didn't keep the limit.
func Run(ctx context.Context, args []string, out io.Writer) error {
	const ms = time.Millisecond
	cfg := config{
		instances: []int{1, 2, 4, 8, 16, 32},
		lags:      []time.Duration{ms, 3 * ms, 10 * ms, 30 * ms, 100 * ms, 300 * ms, time.Second, 3 * time.Second, 10 * time.Second},
		rates:     []float64{100, 300, 1000, 3000, 10_000},
	}
	flags := report.NewFlags("architectures")
	quick := flags.Quick("a few columns of each table")
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
		Machine: report.ThisMachine(""), Limit: sharedLimit.Requests, Window: sharedLimit.Window, Usual: usual,
		ScaleStart: scaleStart, ScaleEvery: scaleEvery, ConsumerRate: consumerRate,
	}
	var err error
	run := func(rows *[]runRow, s scenario) {
		if err == nil {
			err = simulate(ctx, s, rows)
		}
	}
	for _, instances := range cfg.instances {
		run(&r.Instances, scenario{instances, usual.Lag, usual.Rate})
	}
	for _, lag := range cfg.lags {
		run(&r.Lag, scenario{usual.Instances, lag, usual.Rate})
	}
	for _, rate := range cfg.rates {
		run(&r.Load, scenario{usual.Instances, usual.Lag, rate})
	}
	return r, err
}

// simulate appends a row for each contender. The attacker's requests are evenly
// spaced, for three windows.
func simulate(ctx context.Context, s scenario, rows *[]runRow) error {
	for _, c := range contenders {
		if err := ctx.Err(); err != nil {
			return err
		}
		report.Progress("%s, %v", c.name, s)
		arch, err := c.build(s)
		if err != nil {
			return err
		}
		row := runRow{Architecture: c.name, scenario: s}
		row.Fullest, row.Calendar, err = Measure(sharedLimit, arch, traffic.Named("steady").Generate(0, s.Rate, 3*sharedLimit.Window))
		if err != nil {
			return fmt.Errorf("%s, %v: %w", c.name, s, err)
		}
		if stream, ok := arch.(*Stream); ok {
			row.WorstLag = stream.WorstLag()
		}
		*rows = append(*rows, row)
	}
	return nil
}

// Measure has an architecture decide all arrivals, and returns the most that it
// admitted in any window (t-W, t], and in any of those that follow each other from
// the Unix epoch on. The error is the architecture's.
func Measure(limit Limit, arch Architecture, arrivals iter.Seq[time.Duration]) (fullest, calendar int, err error) {
	window, admitted := traffic.NewRecent(limit.Window), make(map[int64]int)
	for at := range arrivals {
		ok, err := arch.Take(at)
		if err != nil {
			return 0, 0, err
		}
		before := int(window.Count(at))
		if !ok {
			continue
		}
		window.Add(at)
		number := counters.Calendar(begin.Add(at), limit.Window).Number
		admitted[number]++
		fullest, calendar = max(fullest, before+1), max(calendar, admitted[number])
	}
	return fullest, calendar, nil
}
