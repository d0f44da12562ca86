package footprint

import (
	"context"
	"fmt"
	"image/color"
	"io"
	"os"
	"strconv"
	"strings"
	"time"

	"gonum.org/v1/plot/plotter"

	"weir/bench/internal/algorithms"
	"weir/bench/internal/loadgen"
	"weir/bench/internal/report"
	"weir/bench/internal/testbed"
)

const (
	target      = 300 << 20
	connections = 256
	interval    = 3 * time.Second
	// ballast is what cmd/server keeps and never touches.
	ballast = 64 << 20
)

// Memory is how weir grew as clients came, each checked once in the sliding window
// that keeps most about a client, held against a target; and what it took in the
// end, for some algorithms and numbers of remembered clients.
type Memory struct {
	Machine     report.Machine `json:"machine"`
	ViewClients int            `json:"view_clients"`
	Samples     []sample       `json:"samples"`
	Rows        []memoryRow    `json:"rows"`
}

// A sample is what weir took after so many clients, in bytes.
type sample struct {
	Clients  int64 `json:"clients"`
	Resident int64 `json:"resident"`
	Peak     int64 `json:"peak"`
}

// A memoryRow is what weir took after all clients came in batches, in bytes.
type memoryRow struct {
	Algorithm   string `json:"algorithm"`
	ViewClients int64  `json:"view_clients"`
	Views       int64  `json:"views"` // that it then remembered
	Live        int64  `json:"live"`  // heap that the last collection left
	Resident    int64  `json:"resident"`
}

// Print writes the samples and the rows.
func (r *Memory) Print(out io.Writer) {
	fmt.Fprintf(out, "%v; -view-clients %d\n", r.Machine, r.ViewClients)
	for _, s := range r.Samples {
		fmt.Fprintf(out, "%9d clients: VmRSS %4d MB, VmHWM %4d MB\n", s.Clients, s.Resident>>20, s.Peak>>20)
	}
	fmt.Fprintf(out, "target: at most %d MB at the peak\n", target>>20)
	report.TableOf(out, "", "algorithm\t-view-clients\tremembered\tlive heap MB\tresident MB\t", r.Rows, func(c memoryRow) string {
		return fmt.Sprintf("%s\t%d\t%d\t%d\t%d\t", c.Algorithm, c.ViewClients, c.Views, c.Live>>20, c.Resident>>20)
	}, "")
}

// Broken returns an error if weir took more than the target.
func (r *Memory) Broken() error {
	for _, s := range r.Samples {
		if s.Peak > target {
			return fmt.Errorf("memory: weir took %d MB, which is more than the target", s.Peak>>20)
		}
	}
	return nil
}

// Pictures are the memory that weir took, and the target.
func (r *Memory) Pictures() []report.Picture {
	var resident, most plotter.XYs
	for _, s := range r.Samples {
		resident = append(resident, plotter.XY{X: float64(s.Clients), Y: float64(s.Resident >> 20)})
		most = append(most, plotter.XY{X: float64(s.Clients), Y: target >> 20})
	}
	if len(resident) < 2 {
		return nil
	}
	p := report.NewPlot("Memory of weir", "distinct clients", "MB")
	p.Y.Min = 0
	p.Add(plotter.NewGrid())
	p.Line(resident, 2, report.Indigo)
	p.Line(most, 2, color.Black, 4, 3)
	return []report.Picture{report.NewPicture("memory", "resident memory against distinct clients, and the target", 5, p)}
}

// measureMemory measures how weir grows, and then each row.
func measureMemory(ctx context.Context, clients int64, viewClients int) (*Memory, error) {
	r, err := measureGrowth(ctx, clients, viewClients)
	if err == nil {
		r.Rows, err = measureRows(ctx, clients)
	}
	return r, err
}

// measureGrowth checks each client once.
func measureGrowth(ctx context.Context, clients int64, viewClients int) (*Memory, error) {
	version, err := testbed.MemcachedVersion(ctx)
	if err != nil {
		return nil, err
	}
	r := &Memory{Machine: report.ThisMachine(version), ViewClients: viewClients}
	once := loadgen.Traffic{Name: "each client once", Clients: clients, Limit: loadgen.Low}
	w := loadgen.Workload{Algorithm: algorithms.Named(algorithms.Sliding60), Traffic: once}
	build, err := testbed.BuildWeir(ctx, loadgen.PolicyFile([]loadgen.Workload{w}), "")
	if err != nil {
		return nil, err
	}
	defer build.Remove()
	_, weir, stop, err := build.StartOn(ctx, 4096, "-view-clients", strconv.Itoa(viewClients))
	if err != nil {
		return nil, err
	}
	defer stop()
	dialed, err := loadgen.Dial(ctx, weir.Addr, w.Request(), connections)
	if err != nil {
		return nil, err
	}
	defer dialed.Close()

	each := &loadgen.Turn{Clients: clients, Last: clients}
	var t loadgen.Tally
	done := make(chan error, 1)
	go func() {
		var err error
		t, err = dialed.Drive(ctx, each, 0)
		done <- err
	}()
	tick := time.NewTicker(interval)
	defer tick.Stop()
	for {
		select {
		case <-tick.C:
			if err := r.sample(weir, min(each.Taken.Load(), clients)); err != nil {
				return nil, err
			}
		case err := <-done:
			if err != nil {
				return nil, err
			}
			if t.Admitted != clients {
				return nil, fmt.Errorf("%d of %d clients were admitted, and all should be", t.Admitted, clients)
			}
			return r, r.sample(weir, clients)
		}
	}
}

// measureRows measures each row with a weir of its own.
func measureRows(ctx context.Context, clients int64) ([]memoryRow, error) {
	var all []loadgen.Workload
	for _, a := range algorithms.Select(algorithms.Fixed, algorithms.Sliding10, algorithms.Sliding60, algorithms.Token) {
		all = append(all, loadgen.Workload{Algorithm: a, Traffic: loadgen.Traffic{Name: "each client once", Clients: clients, Limit: loadgen.Never}})
	}
	build, err := testbed.BuildWeir(ctx, loadgen.PolicyFile(all), "")
	if err != nil {
		return nil, err
	}
	defer build.Remove()
	var rows []memoryRow
	for _, once := range all {
		for _, views := range []int64{clients / 10, clients} {
			c := memoryRow{Algorithm: once.Algorithm.Title(), ViewClients: views}
			if err := c.measure(ctx, build, once); err != nil {
				return nil, fmt.Errorf("%s, -view-clients %d: %w", c.Algorithm, views, err)
			}
			rows = append(rows, c)
		}
	}
	return rows, nil
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
	c.Live = c.Live*2/3 - ballast // the next collection begins when half as much has come
	report.Progress("%s, %d clients remembered: %d MB", c.Algorithm, c.Views, c.Resident>>20)
	return nil
}

// sample notes what weir takes now, after so many clients.
func (r *Memory) sample(weir *testbed.Process, clients int64) error {
	status, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", weir.Cmd.Process.Pid))
	if err != nil {
		return err
	}
	resident, peak, err := parseMemory(string(status))
	if err != nil {
		return err
	}
	report.Progress("%d clients: %d MB", clients, resident>>20)
	r.Samples = append(r.Samples, sample{clients, resident, peak})
	return nil
}

// parseMemory returns VmRSS and VmHWM of a /proc/<pid>/status, in bytes.
func parseMemory(status string) (resident, peak int64, err error) {
	for name, into := range map[string]*int64{"VmRSS": &resident, "VmHWM": &peak} {
		_, value, _ := strings.Cut(status, name+":")
		if _, err := fmt.Sscanf(value, "%d kB", into); err != nil {
			return 0, 0, fmt.Errorf("/proc status: %s: %w", name, err)
		}
		*into <<= 10
	}
	return resident, peak, nil
}
