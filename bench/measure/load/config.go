package load

import (
	"errors"
	"fmt"
	"io"
	"net"
	"slices"
	"strings"
	"time"

	"weir/bench/internal/report"
)

const (
	// mostRate is the highest rate that can be asked for.
	mostRate = 1_000_000
	// clients are checked as often as Zipf's law says, with this exponent.
	clients  = 100_000
	exponent = 1

	sliceCount   = 5           // of each constant run
	firstRate    = 4000        // of the search
	stepPatience = time.Second // with late answers, in the search

	// Numbers of samples: the slices that are measured are the first, and no
	// two have the same arrivals and clients.
	firstTry     = 1_000
	warmUpNumber = 1_000_000
)

// config is what the flags of load say.
type config struct {
	target      string // host:port; "" for a weir of the bench's own
	policies    []string
	rate        float64       // 0 unless the run is at a constant rate
	duration    time.Duration // per policy
	connections int
	bound       time.Duration
	step        time.Duration // of the search, per try
	resolution  float64       // of the search
	warmUp      time.Duration
}

// parse reads args; on -help it prints the flags to out.
func parse(flags *report.Flags, args []string, out io.Writer) (config, error) {
	cfg := config{step: 1500 * time.Millisecond, resolution: 1.1, warmUp: time.Second}
	quick := flags.Quick("a few seconds in all, too short to compare versions")
	flags.Func("target", "load the weir at this `address`, host:port (default: one that is started for the run)", func(s string) error {
		cfg.target = s
		flags.Guest()
		_, _, err := net.SplitHostPort(s)
		return err
	})
	policies := flags.String("policies", "fixed,sliding-1s,token", "comma-separated `names` of the policies to load in turn")
	flags.Float64Var(&cfg.rate, "rate", 0, "checks per second; without it the highest rate under -p99 is searched for each policy, and half of the lowest of them is the rate")
	flags.DurationVar(&cfg.duration, "duration", 10*time.Second, "how long each policy is loaded at the rate")
	flags.IntVar(&cfg.connections, "connections", 256, "connections for each policy")
	flags.DurationVar(&cfg.bound, "p99", 10*time.Millisecond, "the bound for the search")
	if err := flags.Parse(args, out); err != nil {
		return cfg, err
	}
	cfg.policies = strings.Split(*policies, ",")
	if *quick {
		cfg.duration, cfg.step, cfg.warmUp, cfg.resolution = time.Second, 150*time.Millisecond, 100*time.Millisecond, 1.5
	}
	for _, rule := range []struct {
		ok   bool
		text string
	}{
		{!slices.Contains(cfg.policies, "") && unique(cfg.policies), "-policies must be names, each once"},
		{cfg.rate >= 0 && cfg.rate <= mostRate, fmt.Sprintf("-rate must be from 0 to %d", mostRate)},
		{cfg.duration > 0 && cfg.bound > 0 && cfg.connections > 0, "-duration, -p99 and -connections must be more than 0"},
	} {
		if !rule.ok {
			return cfg, errors.New("load: " + rule.text)
		}
	}
	return cfg, nil
}

func unique(names []string) bool {
	return len(slices.Compact(slices.Sorted(slices.Values(names)))) == len(names)
}
