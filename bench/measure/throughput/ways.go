package throughput

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"time"

	"weir/api/client"
	"weir/bench/internal/algorithms"
	"weir/bench/internal/loadgen"
	"weir/bench/internal/testbed"
)

// A way is one by which checks come to weir: over some connections, one by one or
// in batches, or from callers, whose checks the Go client puts together or gRPC
// sends. Or each is settled, or takes a place and releases it, before the next.
type way struct {
	name               string
	connections, batch int
	callers            int
	grpc, net          bool
	settles, releases  bool
	algorithm          string // "" for sliding windows of ten slots
}

// places are what is taken and released.
var places = loadgen.Workload{Algorithm: algorithms.Leases, Traffic: loadgen.Traffic{Clients: loadgen.Distinct.Clients, Limit: 8}}

// checks returns what is checked.
func (w way) checks() loadgen.Workload {
	return loadgen.Workload{Algorithm: algorithms.Named(cmp.Or(w.algorithm, algorithms.Sliding10)), Traffic: loadgen.Distinct}
}

func (w way) String() string { return w.name }

// ways returns all that are compared with single checks.
func ways() []way {
	const sixty, token = algorithms.Sliding60, algorithms.Token
	return []way{
		{name: "single, -http net", net: true},
		{name: "sliding N=60, single, -http net", net: true, algorithm: sixty},
		{name: "batches of 10, 16 connections", batch: 10, connections: 16},
		{name: "batches of 100, 16 connections", batch: 100, connections: 16},
		{name: "batches of 1000, 16 connections", batch: 1000, connections: 16},
		{name: "batches of 1000, 1 connection", batch: 1000, connections: 1},
		{name: "sliding N=60, batches of 10, 16 connections", batch: 10, connections: 16, algorithm: sixty},
		{name: "sliding N=60, batches of 100, 16 connections", batch: 100, connections: 16, algorithm: sixty},
		{name: "sliding N=60, batches of 1000, 16 connections", batch: 1000, connections: 16, algorithm: sixty},
		{name: "token, batches of 100, 16 connections", batch: 100, connections: 16, algorithm: token},
		{name: "token, batches of 1000, 1 connection", batch: 1000, connections: 1, algorithm: token},
		{name: "Go client, 256 callers", callers: 256},
		{name: "Go client, 2048 callers", callers: 2048},
		{name: "gRPC, 256 callers", callers: 256, grpc: true},
		{name: "check and settle", settles: true},
		{name: "take a place and release it", releases: true, algorithm: token},
	}
}

// A wayRow is how checks did that came by a way, beside single ones.
type wayRow struct {
	How string `json:"how"`
	testbed.Comparison
	Half halfLoad `json:"half_load"`
	testbed.CPUTimes
	Allocations float64 `json:"allocations"` // per check
}

const (
	envoyDomain = "throughput"
	envoyKey    = "client"
)

// envoyFile has the limit that gRPC asks.
var envoyFile = fmt.Sprintf("domain: %s\ndescriptors: [{key: %s, rate_limit: {unit: minute, requests_per_unit: %d}}]\n", envoyDomain, envoyKey, loadgen.Never)

// A server is weir on a memcached of its own, which knows the clients, and the load
// that comes a way.
type server struct {
	testbed.Side
	started []func() // what ends it, in the order of the beginnings
}

func (s *server) stop() {
	for _, end := range slices.Backward(s.started) {
		end()
	}
}

// start starts a server with further arguments, which has to be stopped even after an error.
func (w way) start(ctx context.Context, cfg config, build *testbed.Build, checks loadgen.Workload, args ...string) (s *server, err error) {
	checks.Clients = min(checks.Clients, cfg.clients)
	s = &server{Side: testbed.Side{Turn: &loadgen.Turn{Clients: checks.Clients}, Size: 1}}
	if s.Memcached, err = testbed.StartMemcached(ctx, 1024); err != nil {
		return s, err
	}
	s.started = append(s.started, s.Memcached.Stop)
	if err := fill(s.Memcached, checks, time.Now()); err != nil {
		return s, err
	}
	switch {
	case w.grpc:
		file := filepath.Join(filepath.Dir(build.PolicyFile), "envoy.yaml")
		if err = os.WriteFile(file, []byte(envoyFile), 0o600); err == nil {
			s.Process, err = build.StartRLS(ctx, s.Memcached.Addr, file, "-envoy-algorithm", "sliding_window")
		}
	case w.net:
		s.Process, err = build.Start(ctx, s.Memcached.Addr, "-http", "net")
	default:
		s.Process, err = build.Start(ctx, s.Memcached.Addr, args...)
	}
	if err != nil {
		return s, err
	}
	s.started = append(s.started, s.Stop)
	switch {
	case w.grpc:
		s.Connections, err = loadgen.DialGRPC(s.GRPC, envoyDomain, envoyKey, w.callers)
	case w.callers > 0:
		var c *client.Client
		if c, err = client.New(client.Config{URL: "http://" + s.Addr, Timeout: 10 * time.Second}); err == nil {
			s.started = append(s.started, c.Close)
			s.Connections = w.call(ctx, c, checks)
		}
	case w.settles:
		s.Connections, err = loadgen.DialSettling(ctx, s.Addr, loadgen.Reserving(checks.Policy(), 3), `,"cost":1`, cfg.connections)
	case w.releases:
		s.Connections, err = loadgen.DialSettling(ctx, s.Addr, loadgen.Reserving(places.Policy(), 1), "", cfg.connections)
	case w.batch > 0:
		s.Connections, err = loadgen.Dial(ctx, s.Addr, loadgen.Batch(checks.Policy(), w.batch), w.connections)
		s.Size = int64(w.batch)
		s.Turn.Clients /= s.Size
	default:
		s.Connections, err = loadgen.Dial(ctx, s.Addr, checks.Request(), cfg.connections)
	}
	s.started = append(s.started, s.Connections.Close)
	return s, err
}

// call returns callers of the client.
func (w way) call(ctx context.Context, c *client.Client, checks loadgen.Workload) loadgen.Connections {
	names := make([]string, checks.Clients)
	for n := range names {
		names[n] = loadgen.ClientName(int64(n))
	}
	policy := checks.Policy()
	return loadgen.Callers(func(n int64) (bool, error) {
		a, err := c.Check(ctx, client.Check{Policy: policy, Client: names[n]})
		if err == nil && !a.Allowed {
			err = errors.New("a check of " + names[n] + " was denied, and none should be")
		}
		return a.Allowed, err
	}, w.callers)
}

// measure runs a row beside single checks of another weir.
func (w way) measure(ctx context.Context, cfg config, build *testbed.Build) (row wayRow, err error) {
	var args []string
	if w.batch >= 100 && w.algorithm == algorithms.Sliding60 { // 16 of clients that are new read 100,000 keys, or a million
		args = []string{"-store-timeout", "2s"}
	}
	single, err := way{}.start(ctx, cfg, build, w.checks(), args...)
	defer single.stop()
	if err != nil {
		return row, err
	}
	s, err := w.start(ctx, cfg, build, w.checks(), args...)
	defer s.stop()
	if err != nil {
		return row, err
	}
	p, err := testbed.Compare(ctx, cfg.warmUp, cfg.duration, &s.Side, &single.Side)
	if err != nil {
		return row, err
	}
	row = wayRow{How: w.name, Comparison: p.Comparison(), CPUTimes: p.CPU}
	if row.Half, err = half(ctx, &s.Side, row.Rate, cfg.duration); err != nil {
		return row, err
	}
	row.Allocations, err = allocations(ctx, s.Addr, func() (loadgen.Tally, error) { return s.Load(ctx, cfg.warmUp) })
	return row, err
}
