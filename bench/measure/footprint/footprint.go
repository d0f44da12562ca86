// Package footprint measures what checks and clients take. cost.go counts, of each
// algorithm, commands and keys per check, the processor time of one, and what
// Memcached and the process keep of a busy client; it runs the limiters in this
// process, so nothing else is in the counts. memory.go measures what a weir takes
// that meets more clients than it remembers.
//
// Run is the command. priced has the rows of cost.go, measureMemory those of memory.go.
package footprint

import (
	"context"
	"io"

	"weir/bench/internal/report"
)

// Run measures the costs and then the memory, and prints and writes both.
func Run(ctx context.Context, args []string, out io.Writer) error {
	flags := report.NewFlags("footprint")
	busy := flags.Int("busy", 5000, "clients that are busy, for the costs")
	clients := flags.Int64("clients", 1_000_000, "distinct clients, for the memory")
	quick := flags.Quick("200 busy clients, 50,000 distinct ones")
	if err := flags.Parse(args, out); err != nil {
		return err
	}
	if *quick {
		*busy, *clients = 200, 50_000
	}
	if *busy < 1 || *busy > 100_000 {
		return flags.Errorf("-busy must be from 1 to 100,000")
	}
	if *clients < 1 || *clients > 100_000_000 {
		return flags.Errorf("-clients must be from 1 to 100,000,000")
	}
	costs, err := measureCosts(ctx, *busy)
	if err := flags.Publish(out, "cost", costs, err); err != nil {
		return err
	}
	memory, err := measureMemory(ctx, *clients)
	return flags.Publish(out, "memory", memory, err)
}
