package throughput

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"weir/api/client"
	"weir/bench/internal/algorithms"
	"weir/bench/internal/loadgen"
	"weir/bench/internal/testbed"
)

// A manyWorkload is checks that go to weir together: in batches over some
// connections, or as the Go client puts those of its callers together.
type manyWorkload struct {
	batch, connections, callers int
	algorithm                   string // "" for sliding windows of ten slots
}

// checks returns what is checked.
func (w manyWorkload) checks() loadgen.Workload {
	return loadgen.Workload{Algorithm: algorithms.Named(cmp.Or(w.algorithm, algorithms.Sliding10)), Traffic: loadgen.Distinct}
}

func (w manyWorkload) String() string {
	switch {
	case w.algorithm != "":
		title := w.checks().Algorithm.Title()
		w.algorithm = ""
		return title + ", " + w.String()
	case w.callers > 0:
		return fmt.Sprintf("Go client, %d callers", w.callers)
	case w.connections == 1:
		return fmt.Sprintf("batches of %d, 1 connection", w.batch)
	default:
		return fmt.Sprintf("batches of %d, %d connections", w.batch, w.connections)
	}
}

func manyWorkloads() []manyWorkload {
	return []manyWorkload{
		{batch: 10, connections: 16}, {batch: 100, connections: 16}, {batch: 1000, connections: 16}, {batch: 1000, connections: 1},
		{batch: 100, connections: 16, algorithm: algorithms.Sliding60}, {batch: 100, connections: 16, algorithm: algorithms.Token}, {batch: 1000, connections: 1, algorithm: algorithms.Token},
		{callers: 256}, {callers: 2048},
	}
}

// A manyRow is how checks that go together did, beside single ones.
type manyRow struct {
	How string `json:"how"`
	comparison
	Half halfLoad `json:"half_load"`
	// Per check.
	Weir        time.Duration `json:"cpu_ns"`
	Memcached   time.Duration `json:"memcached_cpu_ns"`
	Allocations float64       `json:"allocations"`
}

// A crowd sends the checks of a manyWorkload.
type crowd struct {
	loadgen.Connections
	turn *loadgen.Turn
	size int64 // checks of an operation
	end  func()
}

// gather returns the crowd that asks weir by the policy of the checks.
func (w manyWorkload) gather(ctx context.Context, addr string, checks loadgen.Workload) (*crowd, error) {
	if w.callers == 0 {
		connections, err := loadgen.Dial(ctx, addr, loadgen.Batch(checks.Policy(), w.batch), w.connections)
		size := int64(w.batch)
		return &crowd{connections, &loadgen.Turn{Clients: checks.Clients / size}, size, connections.Close}, err
	}
	c, err := client.New(client.Config{URL: "http://" + addr, Timeout: 10 * time.Second})
	if err != nil {
		return nil, err
	}
	names := make([]string, checks.Clients)
	for n := range names {
		names[n] = loadgen.ClientName(int64(n))
	}
	policy := checks.Policy()
	callers := slices.Repeat([]loadgen.Operation{func(n int64) (bool, error) {
		a, err := c.Check(ctx, client.Check{Policy: policy, Client: names[n]})
		if err == nil && !a.Allowed {
			err = errors.New("a check of " + names[n] + " was denied, and none should be")
		}
		return a.Allowed, err
	}}, w.callers)
	return &crowd{loadgen.Callers(callers), &loadgen.Turn{Clients: checks.Clients}, 1, c.Close}, nil
}

// load drives the crowd, and counts checks.
func (c *crowd) load(ctx context.Context, d time.Duration) (loadgen.Tally, error) {
	t, err := c.Drive(ctx, c.turn, d)
	t.Admitted *= c.size
	return t, err
}

// measure runs a row on a memcached and a weir of its own.
func (w manyWorkload) measure(ctx context.Context, cfg config, build *testbed.Build) (row manyRow, err error) {
	m, weir, stop, err := build.StartOn(ctx, 1024)
	if err != nil {
		return row, err
	}
	defer stop()
	checks := w.checks()
	if err := fill(m, checks, time.Now()); err != nil {
		return row, err
	}
	clients, err := loadgen.Dial(ctx, weir.Addr, checks.Request(), cfg.connections)
	if err != nil {
		return row, err
	}
	single := side{weir, clients, &loadgen.Turn{Clients: checks.Clients}}
	defer single.clients.Close()
	together, err := w.gather(ctx, weir.Addr, checks)
	if err != nil {
		return row, err
	}
	defer together.end()
	if err := single.meet(ctx); err != nil {
		return row, err
	}
	if _, err := single.load(ctx, cfg.warmUp); err != nil {
		return row, err
	}
	if _, err := together.load(ctx, cfg.warmUp); err != nil {
		return row, err
	}
	p := new(pair)
	cpu := cpuUse{weir: &p.weirCPU, m.Process: &p.memcachedCPU}
	err = p.measure(cfg.duration,
		func(d time.Duration) (loadgen.Tally, error) { return single.load(ctx, d) },
		func(d time.Duration) (t loadgen.Tally, err error) {
			err = cpu.during(func() (err error) {
				t, err = together.load(ctx, d)
				return err
			})
			return t, err
		})
	if err != nil {
		return row, err
	}
	number := time.Duration(p.weir.Checks())
	row = manyRow{How: w.String(), comparison: p.comparison(), Weir: p.weirCPU / number, Memcached: p.memcachedCPU / number}
	if row.Half, err = measureHalf(ctx, row.Rate/float64(together.size), cfg.duration, together.Connections, together.turn); err != nil {
		return row, err
	}
	row.Allocations, err = allocations(ctx, weir.Addr, func() (loadgen.Tally, error) { return together.load(ctx, cfg.warmUp) })
	return row, err
}
