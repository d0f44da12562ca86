// Command bench measures weir: how fast it answers, what that costs, and how
// right it is.
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
)

// A command is a subcommand; one without a summary isn't listed. It writes its
// result to out, and its error says what failed or which expectation did.
type command struct {
	name    string
	summary string
	run     func(ctx context.Context, args []string, out io.Writer) error
}

func commands() []command {
	return []command{
		{"throughput", "checks per second, latency and cost of each algorithm, against a handler that does nothing", throughput},
		{"memory", "memory that weir needs for a million clients", memory},
		{"cost", "commands per check, and memory per client, of each algorithm", cost},
		{"contention", "many callers and processes on one key: speed, fairness and exactness", contention},
		{"accuracy", "what each algorithm believes and admits beside what is true, on many kinds of traffic", accuracyCommand},
		{"architectures", "what other ways to share a limit admit, beside weir", architectures},
		{"load", "open loop at a constant rate, a ramp, or the highest rate that keeps p99 under a bound", load},
		{"compare", "two results of the same command, figure by figure", compareResults},
		{"report", "REPORT.md and its pictures, from the results of the others", report},
		{noopCommand, "", noop},
		{shareCommand, "", runShare},
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

// parseFlags parses args, which must be flags only. Asked for help, it prints
// it to out and returns flag.ErrHelp.
func parseFlags(flags *flag.FlagSet, args []string, out io.Writer) error {
	flags.SetOutput(io.Discard)
	switch err := flags.Parse(args); {
	case errors.Is(err, flag.ErrHelp):
		flags.SetOutput(out)
		flags.PrintDefaults()
		return err
	case err != nil:
		return fmt.Errorf("%s: %w", flags.Name(), err)
	case flags.NArg() > 0:
		return fmt.Errorf("%s: %q is not a flag", flags.Name(), flags.Arg(0))
	}
	return nil
}
