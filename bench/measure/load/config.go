package load

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"net"
	"slices"
	"strconv"
	"strings"
	"time"

	"weir/bench/internal/loadgen"
	"weir/bench/internal/report"
)

const (
	weirFormat      = "weir"
	ratelimitFormat = "ratelimit"
	envoyGRPCFormat = "envoy-grpc"

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
	targets     []endpoint // none for a weir of the bench's own
	domain      string
	policies    []string
	rate        float64       // 0 unless the run is at a constant rate
	duration    time.Duration // per policy
	connections int
	bound       time.Duration
	step        time.Duration // of the search, per try
	resolution  float64       // of the search
	warmUp      time.Duration
}

// An endpoint is a server to load.
type endpoint struct {
	name   string
	addr   string // host:port
	format string
}

// parse reads args; on -help it prints the flags to out.
func parse(flags *report.Flags, args []string, out io.Writer) (config, error) {
	cfg := config{step: 1500 * time.Millisecond, resolution: 1.1, warmUp: time.Second}
	quick := flags.Quick("a few seconds in all, too short to compare versions")
	flags.Func("target", "load the server at this `address`, host:port, with name= before it for the report; "+
		"several servers, each with a -target, take turns (default: a weir that is started for the run)", func(s string) error {
		name, addr, ok := strings.Cut(s, "=")
		if !ok {
			addr = name
		}
		cfg.targets = append(cfg.targets, endpoint{name: name, addr: addr})
		_, _, err := net.SplitHostPort(addr)
		return err
	})
	var formats []string
	flags.Func("format", "of the requests: weir, or ratelimit for the /json endpoint of envoyproxy/ratelimit, or envoy-grpc for the rate limit service of Envoy; "+
		"once for all, or once for each -target (default weir)", func(s string) error {
		formats = append(formats, s)
		return nil
	})
	flags.StringVar(&cfg.domain, "domain", "weir", "with -format ratelimit or envoy-grpc: the domain; the policies are the descriptors' keys and the clients their values")
	policies := flags.String("policies", "fixed,sliding-1s,token", "comma-separated `names` of the policies to load in turn")
	flags.Float64Var(&cfg.rate, "rate", 0, "checks per second; without it the highest rate under -p99 is searched for each policy, and half of the lowest of them is the rate")
	flags.DurationVar(&cfg.duration, "duration", 10*time.Second, "how long each policy is loaded at the rate")
	flags.IntVar(&cfg.connections, "connections", 256, "connections for each policy; with -format envoy-grpc callers, of whom "+strconv.Itoa(loadgen.CallersPerConnection)+" share one")
	flags.DurationVar(&cfg.bound, "p99", 10*time.Millisecond, "the bound for the search")
	if err := flags.Parse(args, out); err != nil {
		return cfg, err
	}
	cfg.policies = strings.Split(*policies, ",")
	if len(cfg.targets) > 0 {
		flags.Guest()
	}
	if *quick {
		cfg.duration, cfg.step, cfg.warmUp, cfg.resolution = time.Second, 150*time.Millisecond, 100*time.Millisecond, 1.5
	}
	if err := cfg.assign(formats); err != nil {
		return cfg, err
	}
	return cfg, cfg.check()
}

// assign gives each target its format.
func (cfg *config) assign(formats []string) error {
	if len(formats) > 1 && len(formats) != len(cfg.targets) {
		return errors.New("load: -format is to be given once, or for each -target")
	}
	for _, format := range formats {
		switch {
		case !slices.Contains([]string{weirFormat, ratelimitFormat, envoyGRPCFormat}, format):
			return errors.New("load: -format must be weir, ratelimit or envoy-grpc")
		case format != weirFormat && len(cfg.targets) == 0:
			return fmt.Errorf("load: -format %s needs a -target", format)
		}
	}
	for i := range cfg.targets {
		cfg.targets[i].format = weirFormat
		if len(formats) > 0 {
			cfg.targets[i].format = formats[min(i, len(formats)-1)]
		}
	}
	return nil
}

func (cfg config) check() error {
	var names []string
	for _, t := range cfg.targets {
		names = append(names, t.name)
	}
	for _, rule := range []struct {
		ok   bool
		text string
	}{
		{!slices.Contains(cfg.policies, "") && unique(cfg.policies), "-policies must be names, each once"},
		{unique(names), "each -target must have a name of its own"},
		{cfg.rate >= 0 && cfg.rate <= mostRate, fmt.Sprintf("-rate must be from 0 to %d", mostRate)},
		{cfg.duration > 0 && cfg.bound > 0 && cfg.connections > 0, "-duration, -p99 and -connections must be more than 0"},
	} {
		if !rule.ok {
			return errors.New("load: " + rule.text)
		}
	}
	return nil
}

func unique(names []string) bool {
	return len(slices.Compact(slices.Sorted(slices.Values(names)))) == len(names)
}

// request returns what a check by the policy posts.
func (cfg config) request(format, policy string) loadgen.Request {
	if format == ratelimitFormat {
		body := fmt.Sprintf(`{"domain":%q,"descriptors":[{"entries":[{"key":%q,"value":%q}]}]}`, cfg.domain, policy, loadgen.ClientName(0))
		return loadgen.Request{Path: "/json", Body: body, Right: func(body []byte) bool { return bytes.Contains(body, []byte(`"currentLimit"`)) }}
	}
	return loadgen.Check(policy, 0)
}
