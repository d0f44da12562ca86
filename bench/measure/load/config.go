package load

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"net"
	"net/url"
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

	sliceCount   = 5 // of each constant run
	rampSlices   = 10
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
	rate        float64 // 0 unless the run is at a constant rate
	ramp        bool
	from, to    float64       // of the ramp
	duration    time.Duration // per policy
	even        bool
	clients     int
	zipf        float64
	connections int
	bound       time.Duration
	step        time.Duration // of the search, per try
	resolution  float64       // of the search
	warmUp      time.Duration
	seed        uint64
	profiles    string // a directory, or ""
}

// parse reads args; on -help it prints the flags to out.
func parse(flags *report.Flags, args []string, out io.Writer) (config, error) {
	cfg := config{step: 1500 * time.Millisecond, resolution: 1.1, warmUp: time.Second}
	quick := flags.Quick("a few seconds in all, too short to compare versions")
	flags.Func("target", "load the server at this `address`, host:port or http://host:port, with name= before it for the report; "+
		"several servers, each with a -target, take turns (default: a weir that is started for the run)", func(s string) error {
		e, err := parseTarget(s)
		cfg.targets = append(cfg.targets, e)
		return err
	})
	var memcached [][]string
	flags.Func("memcached", "comma-separated `addresses` of the memcached servers of a -target, whose commands are then counted: "+
		"once for each -target, in their order", func(s string) error {
		memcached = append(memcached, strings.Split(s, ","))
		return nil
	})
	var formats []string
	flags.Func("format", "of the requests: weir, or ratelimit for the /json endpoint of envoyproxy/ratelimit, or envoy-grpc for the rate limit service of Envoy; "+
		"once for all, or once for each -target (default weir)", func(s string) error {
		formats = append(formats, s)
		return nil
	})
	flags.StringVar(&cfg.domain, "domain", "weir", "with -format ratelimit or envoy-grpc: the domain; the policies are the descriptors' keys and the clients their values")
	policies := flags.String("policies", "fixed,sliding-1s,token", "comma-separated `names` of the policies to load in turn")
	flags.Float64Var(&cfg.rate, "rate", 0, "checks per second; without -rate and -ramp, the highest rate under -p99 is searched for each policy, and half of the lowest of them is the rate")
	ramp := flags.String("ramp", "", "`from:to` checks per second, which grow evenly")
	flags.DurationVar(&cfg.duration, "duration", 10*time.Second, "how long each policy is loaded at the rate or by the ramp")
	arrivals := flags.String("arrivals", "poisson", "poisson, or even for evenly spaced ones")
	flags.IntVar(&cfg.clients, "clients", 100_000, "clients that are checked")
	flags.Float64Var(&cfg.zipf, "zipf", 1, "the client of rank r comes in proportion to 1/r^`s`; 0 makes all come equally often")
	flags.IntVar(&cfg.connections, "connections", 256, "connections for each policy; with -format envoy-grpc callers, of whom "+strconv.Itoa(loadgen.CallersPerConnection)+" share one")
	flags.DurationVar(&cfg.bound, "p99", 10*time.Millisecond, "the bound for the search")
	flags.Uint64Var(&cfg.seed, "seed", 1, "of arrivals and clients")
	flags.Profiles(&cfg.profiles)
	if err := flags.Parse(args, out); err != nil {
		return cfg, err
	}
	cfg.policies = strings.Split(*policies, ",")
	if len(cfg.targets) > 0 {
		flags.Guest()
	}
	if err := cfg.assign(memcached, formats); err != nil {
		return cfg, err
	}
	cfg.even = *arrivals == "even"
	if *ramp != "" {
		from, to, _ := strings.Cut(*ramp, ":")
		var errs [2]error
		cfg.ramp = true
		cfg.from, errs[0] = strconv.ParseFloat(from, 64)
		cfg.to, errs[1] = strconv.ParseFloat(to, 64)
		if err := errors.Join(errs[:]...); err != nil {
			return cfg, fmt.Errorf("load: -ramp %s: must be two rates like 1000:50000", *ramp)
		}
	}
	if *quick {
		cfg.duration, cfg.step, cfg.warmUp, cfg.resolution = time.Second, 150*time.Millisecond, 100*time.Millisecond, 1.5
	}
	return cfg, cfg.check(*arrivals)
}

// assign gives each target its memcached servers and its format.
func (cfg *config) assign(memcached [][]string, formats []string) error {
	n := len(cfg.targets)
	if len(memcached) > 0 && len(memcached) != n {
		return errors.New("load: -memcached needs a -target, and is to be given for each or for none")
	}
	if len(formats) > 1 && len(formats) != n {
		return errors.New("load: -format is to be given once, or for each -target")
	}
	for i := range cfg.targets {
		e := &cfg.targets[i]
		e.format = weirFormat
		if len(formats) > 0 {
			e.format = formats[min(i, len(formats)-1)]
		}
		if len(memcached) > 0 {
			e.memcached = memcached[i]
		}
	}
	for _, format := range formats {
		switch {
		case !slices.Contains([]string{weirFormat, ratelimitFormat, envoyGRPCFormat}, format):
			return errors.New("load: -format must be weir, ratelimit or envoy-grpc")
		case format != weirFormat && n == 0:
			return fmt.Errorf("load: -format %s needs a -target", format)
		}
	}
	return nil
}

func (cfg config) check(arrivals string) error {
	for _, rule := range []struct {
		ok   bool
		text string
	}{
		{arrivals == "poisson" || arrivals == "even", "-arrivals must be poisson or even"},
		{!slices.Contains(cfg.policies, "") && len(slices.Compact(slices.Sorted(slices.Values(cfg.policies)))) == len(cfg.policies),
			"-policies must be names, each once"},
		{cfg.profiles == "" || len(cfg.targets) == 0, "-profiles is for the weir that is started when there is no -target"},
		{!cfg.ramp || cfg.rate == 0, "-rate and -ramp exclude each other"},
		{within(cfg.rate, 0, mostRate) && within(cfg.from, 0, mostRate) && within(cfg.to, 0, mostRate), fmt.Sprintf("rates must be from 0 to %d", mostRate)},
		{!cfg.ramp || cfg.from != cfg.to, "-ramp must be of two different rates"},
		{cfg.duration > 0 && cfg.bound > 0 && cfg.connections > 0, "-duration, -p99 and -connections must be more than 0"},
		{cfg.clients >= 1 && cfg.clients <= 10_000_000, "-clients must be from 1 to 10000000"},
		{within(cfg.zipf, 0, 100), "-zipf must be from 0 to 100"},
	} {
		if !rule.ok {
			return errors.New("load: " + rule.text)
		}
	}
	return nil
}

// within reports whether x is from least to most, which NaN is not.
func within(x, least, most float64) bool { return x >= least && x <= most }

// An endpoint is a server to load.
type endpoint struct {
	name      string // "" if nobody said
	addr      string // host:port
	format    string
	memcached []string
}

// parseTarget returns the endpoint of [name=]address or [name=]URL.
func parseTarget(s string) (e endpoint, err error) {
	if name, rest, ok := strings.Cut(s, "="); ok {
		e.name, s = name, rest
	}
	e.addr, err = parseAddress(s)
	return e, err
}

// parseAddress returns the host:port of an address or URL.
func parseAddress(s string) (string, error) {
	if strings.Contains(s, "://") {
		u, err := url.Parse(s)
		if err != nil {
			return "", err
		}
		if u.Scheme != "http" || strings.Trim(u.Path, "/") != "" || u.RawQuery != "" {
			return "", errors.New("must be like http://host:port")
		}
		s = u.Host
		if u.Port() == "" {
			s = net.JoinHostPort(u.Hostname(), "80")
		}
	}
	_, _, err := net.SplitHostPort(s)
	return s, err
}

// request returns what a check by the policy posts.
func (cfg config) request(format, policy string) loadgen.Request {
	if format == ratelimitFormat {
		body := fmt.Sprintf(`{"domain":%q,"descriptors":[{"entries":[{"key":%q,"value":%q}]}]}`, cfg.domain, policy, loadgen.ClientName(0))
		return loadgen.Request{Path: "/json", Body: body, Right: func(body []byte) bool { return bytes.Contains(body, []byte(`"currentLimit"`)) }}
	}
	return loadgen.Check(policy, 0)
}
