package throughput

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"time"

	"weir/api/client"
	"weir/bench/internal/algorithms"
	"weir/bench/internal/loadgen"
	"weir/bench/internal/report"
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
	size  int64 // checks of an operation
	load  func(time.Duration) (loadgen.Tally, error)
	at    func(*loadgen.Arrivals) (loadgen.Tally, error)
	close func()
}

// gather returns the crowd that asks weir by the policy of the checks.
func (w manyWorkload) gather(ctx context.Context, addr string, checks loadgen.Workload) (*crowd, error) {
	turn := &loadgen.Turn{Clients: checks.Clients}
	if w.callers == 0 {
		clients, err := loadgen.Dial(ctx, addr, loadgen.Batch(checks.Policy(), w.batch), w.connections)
		if err != nil {
			return nil, err
		}
		turn.Clients /= int64(w.batch)
		return &crowd{
			size:  int64(w.batch),
			load:  func(d time.Duration) (loadgen.Tally, error) { return clients.Drive(ctx, turn, d) },
			at:    func(due *loadgen.Arrivals) (loadgen.Tally, error) { return clients.DriveAt(ctx, turn, due) },
			close: clients.Close,
		}, nil
	}
	c, err := client.New(client.Config{URL: "http://" + addr, Timeout: 10 * time.Second})
	if err != nil {
		return nil, err
	}
	names := make([]string, turn.Clients)
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
	return &crowd{
		size:  1,
		load:  func(d time.Duration) (loadgen.Tally, error) { return loadgen.Repeat(ctx, callers, turn, d) },
		at:    func(due *loadgen.Arrivals) (loadgen.Tally, error) { return loadgen.RepeatAt(ctx, callers, turn, due) },
		close: c.Close,
	}, nil
}

// checks is load, counting checks instead of operations.
func (c *crowd) checks(d time.Duration) (loadgen.Tally, error) {
	t, err := c.load(d)
	t.Admitted *= c.size
	return t, err
}

// measure runs a row on a memcached and a weir of its own.
func (w manyWorkload) measure(ctx context.Context, cfg config, build *testbed.Build) (row manyRow, err error) {
	m, err := testbed.StartMemcached(ctx, 1024)
	if err != nil {
		return row, err
	}
	defer m.Stop()
	weir, err := build.Start(ctx, m.Addr)
	if err != nil {
		return row, err
	}
	defer weir.Stop()
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
	defer together.close()
	if err := single.meet(ctx); err != nil {
		return row, err
	}
	if _, err := single.load(ctx, cfg.warmUp); err != nil {
		return row, err
	}
	if _, err := together.load(cfg.warmUp); err != nil {
		return row, err
	}
	p := newPair()
	cpu := cpuUse{weir: &p.weirCPU, m.Process: &p.memcachedCPU}
	err = p.measure(cfg.duration,
		func(d time.Duration) (loadgen.Tally, error) { return single.load(ctx, d) },
		func(d time.Duration) (t loadgen.Tally, err error) {
			err = cpu.during(func() (err error) {
				t, err = together.checks(d)
				return err
			})
			return t, err
		})
	if err != nil {
		return row, err
	}
	number := time.Duration(p.weir.Checks())
	row = manyRow{How: w.String(), comparison: p.comparison(), Weir: p.weirCPU / number, Memcached: p.memcachedCPU / number}
	if row.Half, err = measureHalf(row.Rate/float64(together.size), cfg.duration, together.at); err != nil {
		return row, err
	}
	row.Allocations, err = allocations(ctx, weir.Addr, func() (loadgen.Tally, error) { return together.checks(cfg.warmUp) })
	return row, err
}

// cells returns the cells of a table.
func (r manyRow) cells() string {
	return fmt.Sprintf("%s\t%.0f\t%.2fx\t%.2fx\t%.2fx\t%s%s%.1f\t%.1f\t%s\t", r.How, r.Rate, r.Ratio, r.RatioMin, r.RatioMax,
		r.Percentiles.Cells(), r.Half.cells(), float64(r.Weir)/1e3, float64(r.Memcached)/1e3, strconv.FormatFloat(r.Allocations, 'f', 1, 64))
}

const manyHeader = "many at once\tchecks/s\tof single\tmin\tmax\t" + report.PercentileHeader + halfHeader + "cpu us\tmemcached\tallocs\t"
