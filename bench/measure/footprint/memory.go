package footprint

import (
	"context"
	"fmt"
	"io"
	"strconv"

	"weir/bench/internal/algorithms"
	"weir/bench/internal/loadgen"
	"weir/bench/internal/report"
	"weir/bench/internal/testbed"
	"weir/counters"
)

const (
	target = 300 << 20 // with as many clients as are remembered by default
	// ballast is what cmd/server keeps and never touches.
	ballast = 64 << 20
)

// Memory is what weir takes that has met many clients, each checked once, for some
// algorithms and numbers of remembered clients.
type Memory struct {
	Machine report.Machine `json:"machine"`
	Rows    []memoryRow    `json:"rows"`
}

// A memoryRow is what weir took after all clients came in batches, in bytes.
type memoryRow struct {
	Algorithm   string `json:"algorithm"`
	ViewClients int64  `json:"view_clients"`
	Views       int64  `json:"views"` // that it then remembered
	Live        int64  `json:"live"`  // heap that the last collection left
	Resident    int64  `json:"resident"`
}

// Print writes the rows, and the target.
func (r *Memory) Print(out io.Writer) {
	fmt.Fprintf(out, "%v\n", r.Machine)
	report.TableOf(out, "", "algorithm\t-view-clients\tremembered\tlive heap MB\tresident MB\t", r.Rows, func(c memoryRow) string {
		return fmt.Sprintf("%s\t%d\t%d\t%d\t%d\t", c.Algorithm, c.ViewClients, c.Views, c.Live>>20, c.Resident>>20)
	}, "target: at most %d MB with %d clients remembered\n", target>>20, counters.DefaultClients)
}

// Broken returns an error if weir took more than the target.
func (r *Memory) Broken() error {
	for _, c := range r.Rows {
		if c.ViewClients <= counters.DefaultClients && c.Resident > target {
			return fmt.Errorf("memory: %s took %d MB, which is more than the target", c.Algorithm, c.Resident>>20)
		}
	}
	return nil
}

// measureMemory measures each row with a weir of its own.
func measureMemory(ctx context.Context, clients int64) (*Memory, error) {
	var all []loadgen.Workload
	for _, a := range algorithms.Select(algorithms.Fixed, algorithms.Sliding10, algorithms.Sliding60, algorithms.Token) {
		all = append(all, loadgen.Workload{Algorithm: a, Traffic: loadgen.Traffic{Clients: clients, Limit: loadgen.Never}})
	}
	build, err := testbed.BuildWeir(ctx, loadgen.PolicyFile(all), "")
	if err != nil {
		return nil, err
	}
	defer build.Remove()
	r := &Memory{Machine: report.ThisMachine(testbed.MemcachedVersion(ctx))}
	for _, once := range all {
		for _, views := range []int64{clients / 10, clients} {
			c := memoryRow{Algorithm: once.Algorithm.Title(), ViewClients: views}
			if err := c.measure(ctx, build, once); err != nil {
				return nil, fmt.Errorf("%s, -view-clients %d: %w", c.Algorithm, views, err)
			}
			r.Rows = append(r.Rows, c)
		}
	}
	return r, nil
}

// measure checks the clients in batches.
func (c *memoryRow) measure(ctx context.Context, build *testbed.Build, once loadgen.Workload) error {
	_, weir, stop, err := build.StartOn(ctx, 16384, "-view-clients", strconv.FormatInt(c.ViewClients, 10),
		"-store-timeout", "5s") // a batch of clients that are new reads up to 64,000 keys
	if err != nil {
		return err
	}
	defer stop()
	size := min(once.Clients, 1000)
	dialed, err := loadgen.Dial(ctx, weir.Addr, loadgen.Batch(once.Policy(), int(size)), 2)
	if err != nil {
		return err
	}
	defer dialed.Close()
	batches := once.Clients / size
	t, err := dialed.Drive(ctx, &loadgen.Turn{Clients: batches, Last: batches}, 0)
	if err != nil {
		return err
	}
	if t.Admitted != batches {
		return fmt.Errorf("%d of %d batches were admitted, and all should be", t.Admitted, batches)
	}
	for metric, into := range map[string]*int64{
		"weir_views": &c.Views, "go_memstats_next_gc_bytes": &c.Live, "process_resident_memory_bytes": &c.Resident,
	} {
		value, err := loadgen.Metric(ctx, weir.Addr, metric)
		if err != nil {
			return err
		}
		*into = int64(value)
	}
	c.Live = c.Live*5/6 - ballast // the next collection begins when a fifth as much has come
	report.Progress("%s, %d clients remembered: %d MB", c.Algorithm, c.Views, c.Resident>>20)
	return nil
}
