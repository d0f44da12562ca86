package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"runtime"
	"strconv"
	"strings"
	"sync"
	"text/tabwriter"
	"time"

	"gonum.org/v1/plot"
	"gonum.org/v1/plot/plotter"
	"gonum.org/v1/plot/vg"

	"weir/cas"
	"weir/counters"
	"weir/subwindow"
)

const (
	costLimit = 100
	costSkew  = 50 * time.Millisecond

	// costCallers check clients at once.
	costCallers = 64
)

// A priced is an algorithm whose cost is measured.
type priced struct {
	name  string
	slots int // that a check looks at besides the current one
	width time.Duration
	// fills is how many checks a client makes in the last window.
	fills   int
	limiter func(store *counters.Memcached, clients int) (taker, error)
}

// A taker is a limiter of any kind.
type taker interface {
	Take(ctx context.Context, r counters.Request) (counters.Decision, error)
}

func pricedAlgorithms() []priced {
	slots := func(name string, subWindows int, build func(*counters.Memcached, counters.SlotConfig) (taker, error)) priced {
		width := window / time.Duration(max(1, subWindows))
		return priced{name: name, slots: subWindows, width: width, limiter: func(store *counters.Memcached, clients int) (taker, error) {
			return build(store, counters.SlotConfig{
				Keys: counters.CounterNamespace(keyPrefix, name, limitName, width), ClockSkew: costSkew, Clients: clients,
			})
		}}
	}
	sliding := func(name string, subWindows int) priced {
		return slots(name, subWindows, func(store *counters.Memcached, cfg counters.SlotConfig) (taker, error) {
			w, err := subwindow.NewWindow(window, subWindows, false)
			return subwindow.New(store, w, cfg), err
		})
	}
	state := func(name string, fills int, build func(*counters.Memcached, cas.Config) (taker, error)) priced {
		return priced{name: name, width: window, fills: fills, limiter: func(store *counters.Memcached, clients int) (taker, error) {
			return build(store, cas.Config{
				Keys: counters.StateNamespace(keyPrefix, name, limitName, name), ClockSkew: costSkew, Clients: clients,
			})
		}}
	}
	return []priced{
		slots("fixed", 0, func(store *counters.Memcached, cfg counters.SlotConfig) (taker, error) {
			return counters.NewFixedWindow(store, window, cfg)
		}),
		sliding("n1", 1), sliding("n4", 4), sliding("n10", 10), sliding("n60", 60),
		state("token", 1, func(store *counters.Memcached, cfg cas.Config) (taker, error) {
			return cas.NewTokenBucket(store, window, 0, cfg)
		}),
		state("leaky", 1, func(store *counters.Memcached, cfg cas.Config) (taker, error) {
			return cas.NewLeakyBucket(store, window, 0, cfg)
		}),
		state("log", costLimit/2, func(store *counters.Memcached, cfg cas.Config) (taker, error) {
			return cas.NewSlidingLog(store, window, costLimit, cfg)
		}),
	}
}

// A costRow is what an algorithm costs per check and per client.
type costRow struct {
	Algorithm string `json:"algorithm"`
	// Busy is a check of a client that the process has just checked, NewSlot one
	// that is the first in a slot, and Cold the first of a process.
	Busy    storeCost `json:"busy"`
	NewSlot storeCost `json:"new_slot"`
	Cold    storeCost `json:"cold"`
	// Items and Bytes are what Memcached holds for a client that has been busy for
	// longer than the window, in memory that it can't use for anything else;
	// ViewBytes what a process remembers of it.
	Items     float64 `json:"items"`
	Bytes     float64 `json:"bytes"`
	ViewBytes float64 `json:"view_bytes"`
}

// A costReport is what cost found out.
type costReport struct {
	Machine machine   `json:"machine"`
	Clients int       `json:"clients"`
	Rows    []costRow `json:"rows"`
}

// cost measures what each algorithm costs, and prints, writes and draws it.
func cost(ctx context.Context, args []string, out io.Writer) error {
	flags := flag.NewFlagSet("cost", flag.ContinueOnError)
	clients := flags.Int("clients", 5000, "clients that are busy")
	quick := flags.Bool("quick", false, "200 clients")
	var dir string
	outFlag(flags, &dir)
	if err := parseFlags(flags, args, out); err != nil {
		return err
	}
	if *quick {
		*clients = 200
	}
	if *clients < 1 || *clients > 100_000 {
		return errors.New("cost: -clients must be from 1 to 100,000")
	}
	version, err := memcachedVersion(ctx)
	if err != nil {
		return err
	}
	r := &costReport{Machine: thisMachine(version), Clients: *clients}
	for _, p := range pricedAlgorithms() {
		say("%s", p.name)
		row, err := p.measure(ctx, *clients, time.Now())
		if err != nil {
			say("")
			return fmt.Errorf("%s: %w", p.name, err)
		}
		r.Rows = append(r.Rows, row)
	}
	say("")
	return publish(out, dir, "cost", r)
}

// measure runs the algorithm on a memcached of its own, for clients that have
// been busy until now.
func (p priced) measure(ctx context.Context, clients int, now time.Time) (costRow, error) {
	row := costRow{Algorithm: p.name}
	m, err := startMemcached(ctx, 1024)
	if err != nil {
		return row, err
	}
	defer m.stop()
	store, err := counters.NewMemcached(counters.MemcachedConfig{Servers: []string{m.addr}, KeyPrefix: keyPrefix})
	if err != nil {
		return row, err
	}
	defer store.Close()
	// Views are kept in shards, which aren't equally full.
	remembered := 2*clients + 1000
	limiter, err := p.limiter(store, remembered)
	if err != nil {
		return row, err
	}
	// In the middle of a slot, before which the last one is settled.
	now = now.Truncate(p.width).Add(p.width / 2)
	for _, at := range p.past(now) {
		if err := checkAll(ctx, limiter, clients, at); err != nil {
			return row, err
		}
	}
	held, err := m.held()
	if err != nil {
		return row, err
	}
	row.Items, row.Bytes = held.items/float64(clients), held.bytes/float64(clients)

	row.ViewBytes = heapInUse() / float64(clients)
	cold, err := p.limiter(store, remembered)
	if err != nil {
		return row, err
	}
	runtime.KeepAlive(limiter)
	limiter = nil
	row.ViewBytes -= heapInUse() / float64(clients)
	for _, step := range []struct {
		into *storeCost
		at   time.Time
	}{{&row.Cold, now}, {&row.Busy, now}, {&row.NewSlot, now.Add(p.width)}} {
		before, err := m.stats()
		if err != nil {
			return row, err
		}
		if err := checkAll(ctx, cold, clients, step.at); err != nil {
			return row, err
		}
		after, err := m.stats()
		if err != nil {
			return row, err
		}
		did := after.minus(before)
		*step.into = storeCost{float64(did.writes) / float64(clients), float64(did.keysRead) / float64(clients)}
	}
	return row, nil
}

// past returns when a busy client has storeCost, until now: in each slot whose
// counter may still be there, or, what has no slots, as often as fills says.
func (p priced) past(now time.Time) []time.Time {
	var times []time.Time
	if p.fills > 0 {
		for n := range p.fills {
			times = append(times, now.Add(-window*time.Duration(p.fills-1-n)/time.Duration(p.fills)))
		}
		return times
	}
	kept := counters.TTL(time.Duration(p.slots+1)*p.width, costSkew)
	for at := now.Add(-kept.Truncate(p.width)); !at.After(now); at = at.Add(p.width) {
		times = append(times, at)
	}
	return times
}

// checkAll checks each client once. A denial is an error.
func checkAll(ctx context.Context, limiter taker, clients int, at time.Time) error {
	var wait sync.WaitGroup
	errs := make([]error, costCallers)
	for i := range costCallers {
		wait.Go(func() {
			for n := i; n < clients && errs[i] == nil; n += costCallers {
				bounded, cancel := context.WithTimeout(ctx, 5*time.Second)
				d, err := limiter.Take(bounded, counters.Request{Client: clientName(int64(n)), Cost: 1, Limit: costLimit, Now: at})
				cancel()
				if err == nil && !d.Allowed {
					err = fmt.Errorf("client %d was denied at %v", n, at)
				}
				errs[i] = err
			}
		})
	}
	wait.Wait()
	return errors.Join(errs...)
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

// holdings are what memcached keeps.
type holdings struct{ items, bytes float64 }

// held returns the items that memcached keeps and the bytes of the chunks that
// they are in.
func (m *memcached) held() (holdings, error) {
	lines, err := m.do("stats slabs", "END")
	if err != nil {
		return holdings{}, err
	}
	return parseSlabs(lines)
}

func parseSlabs(lines []string) (holdings, error) {
	var h holdings
	sizes := make(map[string]float64)
	for _, line := range lines {
		name, value, _ := strings.Cut(strings.TrimPrefix(line, "STAT "), " ")
		class, field, _ := strings.Cut(name, ":")
		if field != "chunk_size" && field != "used_chunks" {
			continue
		}
		n, err := strconv.ParseFloat(value, 64)
		if err != nil {
			return h, fmt.Errorf("memcached's slabs: %w", err)
		}
		if field == "chunk_size" {
			sizes[class] = n // comes first
			continue
		}
		h.items += n
		h.bytes += n * sizes[class]
	}
	return h, nil
}

func (r *costReport) print(out io.Writer) {
	fmt.Fprintf(out, "%v; %d busy clients, limit %d a minute, clients and policies with names of a dozen letters\n\n", r.Machine, r.Clients, costLimit)
	t := tabwriter.NewWriter(out, 0, 0, 2, ' ', tabwriter.AlignRight)
	fmt.Fprintln(t, "algorithm\tbusy\tnew slot\tcold\titems/client\tbytes/client\tview bytes\t")
	for _, c := range r.Rows {
		fmt.Fprintf(t, "%s\t%v\t%v\t%v\t%.1f\t%.0f\t%.0f\t\n", c.Algorithm, c.Busy, c.NewSlot, c.Cold, c.Items, c.Bytes, c.ViewBytes)
	}
	_ = t.Flush()
	fmt.Fprint(out, `
busy          a check of a client that this process has just checked: commands that write + keys that are read, in one round trip
new slot      the first check of a busy client in a slot; buckets and logs have none, so it is one more busy check
cold          the first check of a client that is busy elsewhere; of buckets and logs in two round trips, else in one
items/client  what Memcached holds at most for a client that has been busy for longer than the window; the log is half full
bytes/client  the memory of these items, overhead and rounding included
view bytes    what a process remembers of the client
`)
}

// draw draws the bytes that a busy client takes.
func (r *costReport) draw(dir string) ([]picture, error) {
	var store, views plotter.Values
	var names []string
	for _, row := range r.Rows {
		store, views, names = append(store, row.Bytes), append(views, row.ViewBytes), append(names, row.Algorithm)
	}
	if len(names) == 0 {
		return nil, nil
	}
	p := plot.New()
	p.Title.Text, p.Y.Label.Text = "Memory for a busy client", "bytes"
	const width = 14
	for i, bars := range []struct {
		name   string
		values plotter.Values
		loop   string // whose color it has
	}{{"Memcached", store, combinedCAS}, {"weir, if it remembers the client", views, plainCAS}} {
		b, err := plotter.NewBarChart(bars.values, vg.Points(width))
		if err != nil {
			return nil, err
		}
		b.Color, b.LineStyle.Width, b.Offset = loopColors[bars.loop], 0, vg.Points(width*(float64(i)-0.5))
		p.Add(b)
		p.Legend.Add(bars.name, b)
	}
	p.Legend.Top, p.Legend.Left = true, true
	p.NominalX(names...)
	shown := picture{"cost", "memory for a busy client"}
	return []picture{shown}, drawPicture(dir, shown.name, p)
}
