// Command bench measures weir: how fast it answers, what that costs, and how
// right it is. README.md says what the figures mean.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/signal"
	"syscall"

	"weir/bench/internal/algorithms"
	"weir/bench/internal/report"
	"weir/bench/internal/testbed"
	"weir/bench/measure/contention"
	"weir/bench/measure/footprint"
	"weir/bench/measure/load"
	"weir/bench/measure/peers"
	"weir/bench/measure/throughput"
	"weir/bench/model/accuracy"
	"weir/bench/verify/faults"
	"weir/bench/verify/simulate"
)

// A command without a summary isn't listed.
type command struct {
	name    string
	summary string
	run     report.Command
}

func commands() []command {
	return []command{
		{"throughput", "checks per second, latency and cost of each algorithm, against a handler that does nothing", throughput.Run},
		{"footprint", "commands, processor time and memory of each algorithm, and memory of weir for a million clients", footprint.Run},
		{"contention", "many callers and processes on one key: speed and fairness", contention.Run},
		{"accuracy", "each algorithm's estimates and admissions beside an exact log, on many kinds of traffic", accuracy.Run},
		{"load", "open loop: latency at a constant rate", load.Run},
		{"peers", "weir in turns with envoyproxy/ratelimit, over gRPC and HTTP, and with rate-limiter-flexible in Node", peers.Run},
		{"faults", "what callers see while Memcached, the network and weir itself fail, against what weir promises", faults.Run},
		{"simulate", "limiters over a model Memcached, in an order and with faults that a seed picks, against what the docs promise", simulate.Run},
		{"report", "REPORT.md and its pictures, from the results of the others", report.Write(sections(), report.Lines(algorithms.All, algorithms.Algorithm.String))},
		{testbed.NoopCommand, "", throughput.Noop},
		{contention.ShareCommand, "", contention.Share},
	}
}

// sections are those of REPORT.md.
func sections() []report.Section {
	return []report.Section{
		{Title: "Accuracy", File: "accuracy.json", Command: "accuracy", Empty: new(accuracy.Report)},
		{Title: "Accuracy at scale", File: "accuracy-scale.json", Command: "accuracy -scale", Empty: new(accuracy.ScaleReport)},
		{Title: "Accuracy at scale, like Cloudflare's", File: "accuracy-scale-cloudflare.json", Command: "accuracy -scale -like cloudflare", Empty: new(accuracy.ScaleReport)},
		{Title: "Throughput", File: "throughput.json", Command: "throughput", Empty: new(throughput.Report)},
		{Title: "Load", File: "load.json", Command: "load", Empty: new(load.Report)},
		{Title: "Peers", File: "peers.json", Command: "peers -ratelimit PATH -node FOLDER", Empty: new(peers.Report)},
		{Title: "Cost", File: "cost.json", Command: "footprint", Empty: new(footprint.Cost)},
		{Title: "Memory", File: "memory.json", Command: "footprint", Empty: new(footprint.Memory)},
		{Title: "Contention", File: "contention.json", Command: "contention", Empty: new(contention.Report)},
		{Title: "Faults", File: "faults.json", Command: "faults", Empty: new(faults.Report)},
	}
}

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	if err := execute(ctx, os.Args[1:], os.Stdout); err != nil && !errors.Is(err, flag.ErrHelp) {
		fmt.Fprintln(os.Stderr, "bench:", err)
		os.Exit(1)
	}
}

// execute runs the subcommand that args begins with, and without one lists
// them.
func execute(ctx context.Context, args []string, out io.Writer) error {
	if len(args) == 0 {
		fmt.Fprintln(out, "usage: go run ./bench <command> [flags]; -help lists a command's flags")
		for _, c := range commands() {
			if c.summary != "" {
				fmt.Fprintf(out, "  %-14s %s\n", c.name, c.summary)
			}
		}
		return nil
	}
	for _, c := range commands() {
		if c.name == args[0] {
			return c.run(ctx, args[1:], out)
		}
	}
	return fmt.Errorf("there is no command %q; go run ./bench lists them", args[0])
}
