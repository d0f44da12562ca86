package main

import (
	"cmp"
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"net/url"
	"os"
	"slices"
	"strconv"
	"strings"
	"time"
)

const (
	weirFormat      = "weir"
	ratelimitFormat = "ratelimit"

	loadSlices   = 5 // of each constant run
	rampSlices   = 10
	firstRate    = 4000             // of the search
	stepPatience = time.Second      // with late answers, in the search
	patience     = 10 * time.Second // and elsewhere

	// Numbers of samples: the slices that are measured are the first, and no two
	// have the same arrivals and clients.
	firstTry     = 1_000
	warmUpNumber = 1_000_000
)

// loadConfig is what the flags of load say.
type loadConfig struct {
	target      string // host:port; empty for a weir of the bench's own
	memcached   []string
	format      string
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
	dir         string
}

// parseLoad reads the flags of load; on -help it prints them to out.
func parseLoad(args []string, out io.Writer) (loadConfig, error) {
	cfg := loadConfig{step: 1500 * time.Millisecond, resolution: 1.1, warmUp: time.Second}
	flags := flag.NewFlagSet("load", flag.ContinueOnError)
	quick := flags.Bool("quick", false, "a few seconds in all, too short to compare versions")
	flags.Func("target", "load the server at this `address`, host:port or http://host:port (default: a weir that is started for the run)", func(s string) (err error) {
		cfg.target, err = parseTarget(s)
		return err
	})
	flags.Func("memcached", "with -target: comma-separated `addresses` of its memcached servers, whose commands are then counted", func(s string) error {
		cfg.memcached = strings.Split(s, ",")
		return nil
	})
	flags.StringVar(&cfg.format, "format", weirFormat, "of the requests: weir, or ratelimit for the /json endpoint of envoyproxy/ratelimit")
	flags.StringVar(&cfg.domain, "domain", "weir", "with -format ratelimit: the domain; the policies are the descriptors' keys and the clients their values")
	policies := flags.String("policies", "fixed,sliding-1s,token", "comma-separated `names` of the policies to load in turn")
	flags.Float64Var(&cfg.rate, "rate", 0, "checks per second; without -rate and -ramp, the highest rate under -p99 is searched for each policy, and half of the lowest of them is the rate")
	ramp := flags.String("ramp", "", "`from:to` checks per second, which grow evenly")
	flags.DurationVar(&cfg.duration, "duration", 10*time.Second, "how long each policy is loaded at the rate or by the ramp")
	arrivals := flags.String("arrivals", "poisson", "poisson, or even for evenly spaced ones")
	flags.IntVar(&cfg.clients, "clients", 100_000, "clients that are checked")
	flags.Float64Var(&cfg.zipf, "zipf", 1, "the client of rank r comes in proportion to 1/r^`s`; 0 makes all come equally often")
	flags.IntVar(&cfg.connections, "connections", 256, "connections for each policy")
	flags.DurationVar(&cfg.bound, "p99", 10*time.Millisecond, "the bound for the search")
	flags.Uint64Var(&cfg.seed, "seed", 1, "of arrivals and clients")
	outFlag(flags, &cfg.dir)
	if err := parseFlags(flags, args, out); err != nil {
		return cfg, err
	}
	cfg.policies = strings.Split(*policies, ",")
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

func (cfg loadConfig) check(arrivals string) error {
	for _, rule := range []struct {
		ok   bool
		text string
	}{
		{arrivals == "poisson" || arrivals == "even", "-arrivals must be poisson or even"},
		{cfg.format == weirFormat || cfg.format == ratelimitFormat, "-format must be weir or ratelimit"},
		{cfg.format == weirFormat || cfg.target != "", "-format ratelimit needs a -target"},
		{len(cfg.memcached) == 0 || cfg.target != "", "-memcached needs a -target"},
		{!slices.Contains(cfg.policies, "") && len(slices.Compact(slices.Sorted(slices.Values(cfg.policies)))) == len(cfg.policies),
			"-policies must be names, each once"},
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

// parseTarget returns the host:port of an address or URL.
func parseTarget(s string) (string, error) {
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
func (cfg loadConfig) request(policy string) request {
	if cfg.format == ratelimitFormat {
		return request{"/json", fmt.Sprintf(`{"domain":%q,"descriptors":[{"entries":[{"key":%q,"value":%q}]}]}`, cfg.domain, policy, clientName(0))}
	}
	return request{checkPath, fmt.Sprintf(`{"policy":%q,"client":%q}`, policy, clientName(0))}
}

// load loads a server, prints what it saw as tables and draws it. The error says
// what went wrong other than slowness.
func load(ctx context.Context, args []string, out io.Writer) error {
	cfg, err := parseLoad(args, out)
	if err != nil {
		return err
	}
	r, err := measureLoad(ctx, cfg)
	say("")
	if err != nil {
		return err
	}
	return publish(out, cfg.dir, "load", r)
}

// A loadTarget is what is loaded, and the memcached servers whose commands are
// counted.
type loadTarget struct {
	addr   string
	stores []*memcachedConn
	stop   func()
}

// startTarget starts weir and memcached if cfg names no target, and connects to
// memcached.
func startTarget(ctx context.Context, cfg loadConfig) (*loadTarget, error) {
	t := &loadTarget{addr: cfg.target, stop: func() {}}
	if cfg.target != "" {
		for _, addr := range cfg.memcached {
			store, err := dialMemcached(ctx, addr)
			if err != nil {
				t.close()
				return nil, err
			}
			t.stores = append(t.stores, store)
		}
		return t, nil
	}
	dir, err := os.MkdirTemp("", "weir-bench")
	if err != nil {
		return nil, err
	}
	defer os.RemoveAll(dir)
	say("building weir")
	binary, err := buildWeir(ctx, dir)
	if err != nil {
		return nil, err
	}
	m, err := startMemcached(ctx, 1024)
	if err != nil {
		return nil, err
	}
	weir, err := startWeir(ctx, binary, "", m.addr)
	if err != nil {
		m.stop()
		return nil, err
	}
	return &loadTarget{weir.addr, []*memcachedConn{m.memcachedConn}, func() {
		weir.stop()
		m.server.stop()
	}}, nil
}

func (t *loadTarget) close() {
	for _, s := range t.stores {
		s.conn.Close()
	}
	t.stop()
}

// stats returns the sum of all memcached servers' counts.
func (t *loadTarget) stats() (storeStats, error) {
	var sum storeStats
	for _, s := range t.stores {
		stats, err := s.stats()
		if err != nil {
			return sum, err
		}
		sum = sum.plus(stats)
	}
	return sum, nil
}

// memcachedVersion returns the versions of the memcached servers; "" for none.
func (t *loadTarget) memcachedVersion() (string, error) {
	var versions []string
	for _, s := range t.stores {
		lines, err := s.do("version", "VERSION")
		if err != nil {
			return "", err
		}
		versions = append(versions, strings.TrimPrefix(lines[0], "VERSION "))
	}
	return strings.Join(slices.Compact(versions), ", "), nil
}

// A loader loads a target by policy after policy.
type loader struct {
	loadConfig
	target *loadTarget
	zipf   zipf
	sides  []*loadSide
}

// A loadSide is a policy under load, on connections of its own.
type loadSide struct {
	policy string
	loop   *openLoop // nil when it needs new connections
}

// measureLoad starts the target if need be and loads it.
func measureLoad(ctx context.Context, cfg loadConfig) (*loadReport, error) {
	target, err := startTarget(ctx, cfg)
	if err != nil {
		return nil, err
	}
	defer target.close()
	version, err := target.memcachedVersion()
	if err != nil {
		return nil, err
	}
	l := &loader{loadConfig: cfg, target: target, zipf: newZipf(cfg.clients, cfg.zipf)}
	defer l.disconnect()
	for _, policy := range cfg.policies {
		l.sides = append(l.sides, &loadSide{policy: policy})
	}
	r := &loadReport{
		Machine: thisMachine(version), Target: cfg.target, Format: cfg.format, Poisson: !cfg.even, Clients: cfg.clients, Zipf: cfg.zipf,
		Connections: cfg.connections, Duration: cfg.duration, Seed: cfg.seed,
	}
	p := pace{cfg.rate, cfg.rate, cfg.duration}
	switch {
	case cfg.ramp:
		p.from, p.to = cfg.from, cfg.to
	case cfg.rate == 0:
		p.from = firstRate
	}
	if err := l.warm(ctx, p.from); err != nil {
		return nil, err
	}
	if !cfg.ramp && cfg.rate == 0 {
		r.Bound = cfg.bound
		if r.Searches, err = l.search(ctx); err != nil {
			return nil, err
		}
		lowest := slices.MinFunc(r.Searches, func(a, b searchRow) int { return cmp.Compare(a.Highest, b.Highest) })
		if lowest.Highest == 0 {
			return r, nil
		}
		p.from = lowest.Highest / 2
		p.to = p.from
	}
	r.Ramp = cfg.ramp
	r.Rows, err = l.measure(ctx, p)
	return r, err
}

func (l *loader) disconnect() {
	for _, s := range l.sides {
		s.disconnect()
	}
}

func (s *loadSide) disconnect() {
	if s.loop == nil {
		return
	}
	for _, line := range s.loop.lines {
		line.conn.Close()
	}
	s.loop = nil
}

// warm checks once by each policy, and then at a rate, so that the samples don't
// see what is only so in the beginning.
func (l *loader) warm(ctx context.Context, rate float64) error {
	for _, s := range l.sides {
		if err := l.connect(ctx, s); err != nil {
			return err
		}
		first := s.loop.lines[0]
		if err := first.conn.SetDeadline(time.Now().Add(patience)); err != nil {
			return err
		}
		stop := context.AfterFunc(ctx, first.expire)
		status, body, err := first.check(0)
		stop()
		if err == nil {
			err = first.conn.SetDeadline(time.Time{})
		}
		if err == nil && unexpected(status) {
			err = fmt.Errorf("the first check was answered with status %d: %s", status, body)
		}
		if err != nil {
			return fmt.Errorf("%s: %w", s.policy, err)
		}
		say("%s: warming up", s.policy)
		// What goes wrong here goes wrong in the samples too.
		if _, _, err := l.sample(ctx, s, pace{max(rate, leastRate), max(rate, leastRate), l.warmUp}, warmUpNumber, stepPatience); err != nil {
			return err
		}
	}
	return nil
}

// connect gives the side connections if it has none.
func (l *loader) connect(ctx context.Context, s *loadSide) error {
	if s.loop != nil {
		return nil
	}
	connections, err := dialClients(ctx, l.target.addr, l.request(s.policy), l.connections)
	if err != nil {
		return err
	}
	s.loop = newOpenLoop(connections, l.zipf)
	return nil
}

// sample loads a side for the length of a pace, and returns what memcached did
// meanwhile. The number stands for the arrivals and clients: with the same
// number they are the same for each side.
func (l *loader) sample(ctx context.Context, s *loadSide, p pace, number uint64, patience time.Duration) (*sample, storeStats, error) {
	if err := l.connect(ctx, s); err != nil {
		return nil, storeStats{}, err
	}
	before, err := l.target.stats()
	if err != nil {
		return nil, storeStats{}, err
	}
	var gaps *rand.Rand
	if !l.even {
		gaps = rand.New(rand.NewPCG(l.seed, 2*number))
	}
	seen := s.loop.run(ctx, newArrivals(p, gaps), rand.New(rand.NewPCG(l.seed, 2*number+1)), patience)
	if err := ctx.Err(); err != nil {
		return nil, storeStats{}, err
	}
	if seen.err != nil || seen.unanswered() > 0 {
		s.disconnect()
	}
	after, err := l.target.stats()
	return seen, after.minus(before), err
}

// search finds the highest rate under the bound for each policy; the policies take
// turns.
func (l *loader) search(ctx context.Context) ([]searchRow, error) {
	rows := make([]searchRow, len(l.sides))
	searches := make([]*search, len(l.sides))
	for i, s := range l.sides {
		rows[i].Policy = s.policy
		searches[i] = newSearch(firstRate, l.resolution)
	}
	for try := uint64(firstTry); slices.ContainsFunc(searches, func(s *search) bool { return s.rate > 0 }); try++ {
		for i, s := range l.sides {
			rate := searches[i].rate
			if rate == 0 {
				continue
			}
			say("%s: %.0f checks/s", s.policy, rate)
			seen, _, err := l.sample(ctx, s, pace{rate, rate, l.step}, try, stepPatience)
			if err != nil {
				return nil, fmt.Errorf("%s: %w", s.policy, err)
			}
			step := newSearchStep(seen, l.bound)
			rows[i].Steps = append(rows[i].Steps, step)
			searches[i].vote(step.Failed == "")
		}
	}
	for i, s := range searches {
		rows[i].Highest, rows[i].Lowest = s.low, s.high
	}
	return rows, nil
}

// measure loads each policy at the pace, in slices that take turns. The policy
// that is first changes.
func (l *loader) measure(ctx context.Context, p pace) ([]loadRow, error) {
	parts := loadSlices
	if l.ramp {
		parts = rampSlices
	}
	totals := make([]*sample, len(l.sides))
	stores := make([]storeStats, len(l.sides))
	rows := make([]loadRow, len(l.sides))
	for i := range totals {
		totals[i] = newSample(p)
	}
	for part := range parts {
		for turn := range l.sides {
			i := (part + turn) % len(l.sides)
			s := l.sides[i]
			piece := p.part(part, parts)
			say("%s: %.0f checks/s, %d of %d", s.policy, (piece.from+piece.to)/2, part+1, parts)
			seen, store, err := l.sample(ctx, s, piece, uint64(part), patience)
			if err != nil {
				return nil, fmt.Errorf("%s: %w", s.policy, err)
			}
			totals[i].add(seen)
			stores[i] = stores[i].plus(store)
			rows[i].Slices = append(rows[i].Slices, newLoadFigures(seen))
		}
	}
	for i, s := range l.sides {
		rows[i] = newLoadRow(s.policy, totals[i], rows[i].Slices)
		if len(l.target.stores) > 0 {
			rows[i].Store = newStoreCost(stores[i], totals[i])
		}
	}
	return rows, nil
}
