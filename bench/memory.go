package main

import (
	"bufio"
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"time"
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
	if err := parseFlags(flags, args, out); err != nil {
		return err
	}
	if *quick {
		*clients = 50_000
	}
	if *clients < 1 || *clients > 100_000_000 {
		return errors.New("memory: -clients must be from 1 to 100,000,000")
	}
	peak, err := measureMemory(ctx, *clients, *viewClients, out)
	say("")
	if err != nil {
		return err
	}
	fmt.Fprintf(out, "target: at most %d MB at the peak\n", memoryTarget>>20)
	if peak > memoryTarget {
		return fmt.Errorf("memory: weir took %d MB, which is more than the target", peak>>20)
	}
	return nil
}

// measureMemory returns the most memory that weir took, in bytes.
func measureMemory(ctx context.Context, clients int64, viewClients int, out io.Writer) (peak int64, err error) {
	dir, err := os.MkdirTemp("", "weir-bench")
	if err != nil {
		return 0, err
	}
	defer os.RemoveAll(dir)
	w := workload{slidingBy60, traffic{name: "each client once", clients: clients, limit: low}}
	policies := filepath.Join(dir, "policies.yaml")
	if err := os.WriteFile(policies, []byte(policyFile([]workload{w})), 0o600); err != nil {
		return 0, err
	}
	say("building weir")
	binary, err := buildWeir(ctx, dir)
	if err != nil {
		return 0, err
	}
	help, err := exec.CommandContext(ctx, binary, "-help").CombinedOutput()
	if err != nil {
		return 0, fmt.Errorf("weir -help: %w", err)
	}
	var args []string
	if strings.Contains(string(help), "-view-clients") {
		args = []string{"-view-clients", strconv.Itoa(viewClients)}
	}
	m, err := startMemcached(ctx, 4096)
	if err != nil {
		return 0, err
	}
	defer m.stop()
	weir, err := startWeir(ctx, binary, policies, m.addr, args...)
	if err != nil {
		return 0, err
	}
	defer weir.stop()
	connections, err := dialClients(ctx, weir.addr, w, memoryConnections)
	if err != nil {
		return 0, err
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
			if _, err := printMemory(out, weir, min(each.taken.Load(), clients)); err != nil {
				return 0, err
			}
		case err := <-done:
			if err != nil {
				return 0, err
			}
			if t.admitted != clients {
				return 0, fmt.Errorf("%d of %d clients were admitted, and all should be", t.admitted, clients)
			}
			return printMemory(out, weir, clients)
		}
	}
}

// printMemory prints what weir takes now and returns the most that it took, in
// bytes.
func printMemory(out io.Writer, weir *server, clients int64) (peak int64, err error) {
	status, err := os.Open(fmt.Sprintf("/proc/%d/status", weir.cmd.Process.Pid))
	if err != nil {
		return 0, err
	}
	defer status.Close()
	resident, peak, err := parseMemory(status)
	if err != nil {
		return 0, err
	}
	fmt.Fprintf(out, "%9d clients: VmRSS %4d MB, VmHWM %4d MB\n", clients, resident>>20, peak>>20)
	return peak, nil
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
