package footprint

import (
	"context"
	"errors"
	"fmt"
	"io"
	"runtime"
	"slices"
	"time"

	"weir/api/policyfile"
	"weir/bench/internal/algorithms"
	"weir/bench/internal/loadgen"
	"weir/bench/internal/report"
	"weir/bench/internal/testbed"
	"weir/counters"
)

const (
	limit = 100
	// horizon is that of the options, which are the defaults.
	horizon = counters.DefaultClockSkew + counters.DefaultTimeout

	// callers check clients at once.
	callers = 64
)

// priced are the algorithms whose cost is measured.
var priced = algorithms.Select(
	algorithms.Fixed, algorithms.Sliding1, algorithms.Sliding4, algorithms.Sliding10, algorithms.Sliding60,
	algorithms.Strict60, algorithms.Capped10, algorithms.Capped60, algorithms.Token, algorithms.Leaky, algorithms.Log, algorithms.Counting64,
)

// timed is how many times all clients are checked for the processor times: with
// what they were checked before, less than the limit.
const timed = 20

// A costRow is what an algorithm costs per check and per client.
type costRow struct {
	Algorithm string `json:"algorithm"`
	// Busy is a check of a client that the process has just checked, NewSlot
	// one that is the first in a slot, and Cold the first of a process.
	Busy    testbed.StoreCost `json:"busy"`
	NewSlot testbed.StoreCost `json:"new_slot"`
	Cold    testbed.StoreCost `json:"cold"`
	// Items and Bytes are what Memcached holds for a client that has been busy
	// for longer than the window, in memory that it can't use for anything
	// else; ViewBytes what a process remembers of it.
	Items     float64 `json:"items"`
	Bytes     float64 `json:"bytes"`
	ViewBytes float64 `json:"view_bytes"`
	// Weir and Memcached are the processor times of a check of a busy client; 0
	// where the system doesn't tell.
	Weir      time.Duration `json:"cpu_ns"`
	Memcached time.Duration `json:"memcached_cpu_ns"`
}

// Cost is what each algorithm costs.
type Cost struct {
	Machine report.Machine `json:"machine"`
	Clients int            `json:"clients"`
	Rows    []costRow      `json:"rows"`
}

func measureCosts(ctx context.Context, clients int) (*Cost, error) {
	rows, err := report.Each(priced, func(a algorithms.Algorithm) (row costRow, err error) {
		for end := time.Now().Add(time.Minute); ; {
			if row, err = measureCost(ctx, a, clients, time.Now()); !heldUp(err) || time.Now().After(end) {
				return row, err
			}
		}
	})
	return &Cost{Machine: report.ThisMachine(testbed.MemcachedVersion(ctx)), Clients: clients, Rows: rows}, err
}

// heldUp reports whether a busy machine may be why: it may hold up a check, or Memcached, for
// longer than that is waited for.
func heldUp(err error) bool {
	return errors.Is(err, counters.ErrTimeout) || errors.Is(err, counters.ErrUnavailable)
}

// measureCost runs the algorithm on a memcached of its own, for clients that have
// been busy until now.
func measureCost(ctx context.Context, a algorithms.Algorithm, clients int, now time.Time) (costRow, error) {
	row := costRow{Algorithm: a.Short()}
	m, err := testbed.StartMemcached(ctx, 1024)
	if err != nil {
		return row, err
	}
	defer m.Stop()
	store, err := algorithms.OpenStore(m.Addr)
	if err != nil {
		return row, err
	}
	defer store.Close()
	// The cache has shards, which aren't equally full.
	cfg := algorithms.Config{Options: counters.Options{Policy: a.Short(), Clients: 2*clients + 1000}, Window: algorithms.Window, Limit: limit}
	limiter, err := a.New(store, cfg)
	if err != nil {
		return row, err
	}
	// In the middle of a slot, before which the last one is settled.
	width := a.Width(algorithms.Window)
	now = now.Truncate(width).Add(width / 2)
	for _, at := range past(a, now) {
		if err := checkAll(ctx, limiter, clients, at); err != nil {
			return row, err
		}
	}
	held, err := m.Held()
	if err != nil {
		return row, err
	}
	row.Items, row.Bytes = held.Items/float64(clients), held.Bytes/float64(clients)

	row.ViewBytes = heapInUse() / float64(clients)
	cold, err := a.New(store, cfg)
	if err != nil {
		return row, err
	}
	runtime.KeepAlive(limiter)
	limiter = nil
	row.ViewBytes -= heapInUse() / float64(clients)
	for _, step := range []struct {
		into *testbed.StoreCost
		at   time.Time
	}{{&row.Cold, now}, {&row.Busy, now}, {&row.NewSlot, now.Add(width)}} {
		did, err := m.During(func() error { return checkAll(ctx, cold, clients, step.at) })
		if err != nil {
			return row, err
		}
		*step.into = did.Per(int64(clients))
	}
	row.Weir, row.Memcached, err = processorTimes(m, clients, func() error { return checkAll(ctx, cold, clients, now.Add(width)) })
	return row, err
}

// processorTimes returns what each of the checks takes that run makes, of which
// there are so many: the median of timed runs.
func processorTimes(m *testbed.Memcached, checks int, run func() error) (weir, store time.Duration, err error) {
	var ofWeir, ofStore []time.Duration
	clocks := testbed.Clocks{&weir: testbed.OwnCPU, &store: m.CPU}
	for range timed {
		weir, store = 0, 0
		switch err := clocks.During(run); {
		case errors.Is(err, errors.ErrUnsupported):
			return 0, 0, nil
		case heldUp(err):
		case err != nil:
			return 0, 0, err
		default:
			ofWeir, ofStore = append(ofWeir, weir/time.Duration(checks)), append(ofStore, store/time.Duration(checks))
		}
	}
	if len(ofWeir) == 0 {
		return 0, 0, counters.ErrTimeout
	}
	slices.Sort(ofWeir)
	slices.Sort(ofStore)
	return ofWeir[len(ofWeir)/2], ofStore[len(ofStore)/2], nil
}

// past returns when a busy client has been checked, until now: in each slot
// whose counter may still be there; of what has no slots, a bucket once, and a
// log until it is half full.
func past(a algorithms.Algorithm, now time.Time) []time.Time {
	step, kept := a.Width(algorithms.Window), time.Duration(0)
	switch a.Kind {
	case algorithms.Counters:
		kept = counters.TTL(time.Duration(a.Slots+1)*step, horizon).Truncate(step)
	case algorithms.Times:
		step = 2 * algorithms.Window / limit
		kept = algorithms.Window - step
	}
	var times []time.Time
	for at := now.Add(-kept); !at.After(now); at = at.Add(step) {
		times = append(times, at)
	}
	return times
}

// checkAll checks each client once. A denial is an error.
func checkAll(ctx context.Context, limiter policyfile.Limiter, clients int, at time.Time) error {
	return testbed.Parallel(clients, callers, func(n int) error {
		bounded, cancel := context.WithTimeout(ctx, 5*time.Second)
		defer cancel()
		d, err := limiter.Take(bounded, counters.Request{Client: loadgen.ClientName(int64(n)), Cost: 1, Limit: limit, Now: at})
		if err == nil && !d.Allowed {
			err = fmt.Errorf("client %d was denied at %v", n, at)
		}
		return err
	})
}

// heapInUse returns the bytes of all objects that are alive.
func heapInUse() float64 {
	// Twice, because pools are emptied in two rounds.
	runtime.GC()
	runtime.GC()
	var stats runtime.MemStats
	runtime.ReadMemStats(&stats)
	return float64(stats.HeapAlloc)
}

// Print writes the figures as a table, and what its columns mean.
func (r *Cost) Print(out io.Writer) {
	fmt.Fprintf(out, "%v; %d busy clients, limit %d a minute, clients and policies with names of a dozen letters\n", r.Machine, r.Clients, limit)
	report.TableOf(out, "", "algorithm\tbusy\tnew slot\tcold\titems/client\tbytes/client\tview bytes\tweir us\tMemcached us\t", r.Rows, func(c costRow) string {
		return fmt.Sprintf("%s\t%v\t%v\t%v\t%.1f\t%.0f\t%.0f\t%s\t%s\t", c.Algorithm, c.Busy, c.NewSlot, c.Cold, c.Items, c.Bytes, c.ViewBytes,
			microseconds(c.Weir), microseconds(c.Memcached))
	}, `
busy          a check of a client that this process has just checked: commands that write + keys that are read, in one round trip
new slot      the first check of a busy client in a slot; buckets and logs have none, so it is one more busy check
cold          the first check of a client that is busy elsewhere; of buckets and logs in two round trips, else in one
items/client  what Memcached holds at most for a client that has been busy for longer than the window; the log is half full
bytes/client  the memory of these items, overhead and rounding included
view bytes    what a process remembers of the client
weir us       processor time of a check of a busy client, by the limiter and its store without HTTP, when 64 clients are checked at once:
              the median of 20 rounds of all clients; Memcached us is Memcached's
`)
}

func microseconds(d time.Duration) string {
	if d == 0 {
		return "-"
	}
	return fmt.Sprintf("%.1f", float64(d)/float64(time.Microsecond))
}

// Columns are those of the table of algorithms.
func (r *Cost) Columns() []report.Column {
	column := func(title, means string, cell func(row costRow) string) report.Column {
		return report.Column{Title: title, Means: means, Cell: func(name string) string {
			row, ok := report.Find(r.Rows, func(row costRow) bool { return row.Algorithm == algorithms.Plain(name) })
			if !ok {
				return ""
			}
			return cell(row)
		}}
	}
	return []report.Column{
		{Title: "time, space", Means: "with what both grow: N slots, k entries, a limit of L", Cell: func(name string) string { return algorithms.Named(name).Complexity() }},
		column("busy", "commands that write + keys that are read by a check of a client that the process has just checked", func(row costRow) string { return row.Busy.String() }),
		column("new slot", "the same by the first check in a slot", func(row costRow) string { return row.NewSlot.String() }),
		column("cold", "the same by the first check of a client that is busy elsewhere", func(row costRow) string { return row.Cold.String() }),
		column("weir us", "processor time of a busy check, without HTTP", func(row costRow) string { return microseconds(row.Weir) }),
		column("Memcached us", "Memcached's for it", func(row costRow) string { return microseconds(row.Memcached) }),
	}
}
