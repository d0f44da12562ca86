package main

import (
	"bufio"
	"context"
	"errors"
	"flag"
	"fmt"
	"image/color"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"gonum.org/v1/plot"
	"gonum.org/v1/plot/plotter"
	"gonum.org/v1/plot/vg"
)

const (
	memoryTarget      = 300 << 20
	memoryConnections = 256
	memoryInterval    = 3 * time.Second
)

// memory checks many clients once, in the sliding window that keeps most about
// a client, and prints the memory that weir takes meanwhile.
func memory(ctx context.Context, args []string, out io.Writer) error {
	flags := flag.NewFlagSet("memory", flag.ContinueOnError)
	clients := flags.Int64("clients", 1_000_000, "distinct clients")
	viewClients := flags.Int("view-clients", 100_000, "weir's -view-clients, if it has that flag")
	quick := flags.Bool("quick", false, "50,000 clients")
	var dir string
	outFlag(flags, &dir)
	if err := parseFlags(flags, args, out); err != nil {
		return err
	}
	if *quick {
		*clients = 50_000
	}
	if *clients < 1 || *clients > 100_000_000 {
		return errors.New("memory: -clients must be from 1 to 100,000,000")
	}
	r, err := measureMemory(ctx, *clients, *viewClients)
	say("")
	if err != nil {
		return err
	}
	return publish(out, dir, "memory", r)
}

// A memoryReport is how weir grew.
type memoryReport struct {
	Machine     machine        `json:"machine"`
	ViewClients int            `json:"view_clients"`
	Samples     []memorySample `json:"samples"`
}

// A memorySample is what weir took after so many clients, in bytes.
type memorySample struct {
	Clients  int64 `json:"clients"`
	Resident int64 `json:"resident"`
	Peak     int64 `json:"peak"`
}

func (r *memoryReport) print(out io.Writer) {
	fmt.Fprintf(out, "%v; -view-clients %d\n", r.Machine, r.ViewClients)
	for _, s := range r.Samples {
		fmt.Fprintf(out, "%9d clients: VmRSS %4d MB, VmHWM %4d MB\n", s.Clients, s.Resident>>20, s.Peak>>20)
	}
	fmt.Fprintf(out, "target: at most %d MB at the peak\n", memoryTarget>>20)
}

// broken returns an error if weir took more than the target.
func (r *memoryReport) broken() error {
	for _, s := range r.Samples {
		if s.Peak > memoryTarget {
			return fmt.Errorf("memory: weir took %d MB, which is more than the target", s.Peak>>20)
		}
	}
	return nil
}

// draw draws the memory that weir took, and the target.
func (r *memoryReport) draw(dir string) ([]picture, error) {
	var resident, target plotter.XYs
	for _, s := range r.Samples {
		resident = append(resident, plotter.XY{X: float64(s.Clients), Y: float64(s.Resident >> 20)})
		target = append(target, plotter.XY{X: float64(s.Clients), Y: memoryTarget >> 20})
	}
	if len(resident) < 2 {
		return nil, nil
	}
	p := plot.New()
	p.Title.Text, p.X.Label.Text, p.Y.Label.Text = "Memory of weir", "distinct clients", "MB"
	p.Y.Min = 0
	p.Add(plotter.NewGrid())
	for name, points := range map[string]plotter.XYs{"resident": resident, "target": target} {
		line, err := plotter.NewLine(points)
		if err != nil {
			return nil, err
		}
		line.Width, line.Color = vg.Points(2), loopColors[combinedCAS]
		if name == "target" {
			line.Dashes, line.Color = []vg.Length{vg.Points(4), vg.Points(3)}, color.Black
		}
		p.Add(line)
	}
	shown := picture{"memory", "resident memory against distinct clients, and the target"}
	return []picture{shown}, drawPicture(dir, shown.name, p)
}

// measureMemory checks each client once.
func measureMemory(ctx context.Context, clients int64, viewClients int) (*memoryReport, error) {
	version, err := memcachedVersion(ctx)
	if err != nil {
		return nil, err
	}
	r := &memoryReport{Machine: thisMachine(version), ViewClients: viewClients}
	dir, err := os.MkdirTemp("", "weir-bench")
	if err != nil {
		return nil, err
	}
	defer os.RemoveAll(dir)
	w := workload{slidingBy60, traffic{name: "each client once", clients: clients, limit: low}}
	policies := filepath.Join(dir, "policies.yaml")
	if err := os.WriteFile(policies, []byte(policyFile([]workload{w})), 0o600); err != nil {
		return nil, err
	}
	say("building weir")
	binary, err := buildWeir(ctx, dir)
	if err != nil {
		return nil, err
	}
	help, err := exec.CommandContext(ctx, binary, "-help").CombinedOutput()
	if err != nil {
		return nil, fmt.Errorf("weir -help: %w", err)
	}
	var args []string
	if strings.Contains(string(help), "-view-clients") {
		args = []string{"-view-clients", strconv.Itoa(viewClients)}
	}
	m, err := startMemcached(ctx, 4096)
	if err != nil {
		return nil, err
	}
	defer m.stop()
	weir, err := startWeir(ctx, binary, policies, m.addr, args...)
	if err != nil {
		return nil, err
	}
	defer weir.stop()
	connections, err := dialClients(ctx, weir.addr, w.request(), memoryConnections)
	if err != nil {
		return nil, err
	}
	defer closeClients(connections)

	each := &turn{clients: clients, last: clients}
	var t tally
	done := make(chan error, 1)
	go func() {
		var err error
		t, err = drive(ctx, connections, each, 0)
		done <- err
	}()
	tick := time.NewTicker(memoryInterval)
	defer tick.Stop()
	for {
		select {
		case <-tick.C:
			if err := r.sample(weir, min(each.taken.Load(), clients)); err != nil {
				return nil, err
			}
		case err := <-done:
			if err != nil {
				return nil, err
			}
			if t.admitted != clients {
				return nil, fmt.Errorf("%d of %d clients were admitted, and all should be", t.admitted, clients)
			}
			return r, r.sample(weir, clients)
		}
	}
}

// sample notes what weir takes now, after so many clients.
func (r *memoryReport) sample(weir *server, clients int64) error {
	status, err := os.Open(fmt.Sprintf("/proc/%d/status", weir.cmd.Process.Pid))
	if err != nil {
		return err
	}
	defer status.Close()
	resident, peak, err := parseMemory(status)
	if err != nil {
		return err
	}
	say("%d clients: %d MB", clients, resident>>20)
	r.Samples = append(r.Samples, memorySample{clients, resident, peak})
	return nil
}

// parseMemory returns VmRSS and VmHWM of a /proc/<pid>/status, in bytes.
func parseMemory(status io.Reader) (resident, peak int64, err error) {
	for lines := bufio.NewScanner(status); lines.Scan(); {
		name, value, _ := strings.Cut(lines.Text(), ":")
		var into *int64
		switch name {
		case "VmRSS":
			into = &resident
		case "VmHWM":
			into = &peak
		default:
			continue
		}
		kilobytes, err := strconv.ParseInt(strings.TrimSuffix(strings.TrimSpace(value), " kB"), 10, 64)
		if err != nil {
			return 0, 0, fmt.Errorf("/proc status: %w", err)
		}
		*into = kilobytes << 10
	}
	if resident == 0 || peak == 0 {
		return 0, 0, errors.New("/proc status has no VmRSS or VmHWM")
	}
	return resident, peak, nil
}
