package main

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"text/tabwriter"
	"time"

	"github.com/labstack/echo/v4"

	"weir/counters"
)

// What an echo handler does before it answers. It bounds what any service can
// reach that has to do it.
const (
	ceilingWait = "wait" // for another goroutine
	ceilingIncr = "incr" // of one counter, through weir's store
)

var ceilings = []string{ceilingWait, ceilingIncr}

// A ceilingRow is how a handler did that does one thing and nothing of what weir
// does.
type ceilingRow struct {
	Handler string `json:"handler"`
	comparison
	cpuTimes
}

// String implements fmt.Stringer, for -rows.
func (c ceilingRow) String() string { return "ceiling, " + c.Handler }

func ceilingRows() []ceilingRow {
	var rows []ceilingRow
	for _, handler := range ceilings {
		rows = append(rows, ceilingRow{Handler: handler})
	}
	return rows
}

// work returns what a ceiling's handler does with a check's body, and what ends
// it.
func work(handler, memcached string) (do func(body []byte) error, end func() error, err error) {
	switch handler {
	case ceilingWait:
		waiting := make(chan chan struct{}, 1024)
		go func() {
			for c := range waiting {
				c <- struct{}{}
			}
		}()
		do = func([]byte) error {
			c := make(chan struct{}, 1)
			waiting <- c
			<-c
			return nil
		}
		return do, func() error { close(waiting); return nil }, nil
	case ceilingIncr:
		store, err := counters.NewMemcached(counters.MemcachedConfig{Servers: []string{memcached}, KeyPrefix: keyPrefix})
		if err != nil {
			return nil, nil, err
		}
		do = func(body []byte) error {
			i := bytes.LastIndex(body, []byte(clientPrefix))
			if i < 0 || len(body) < i+len(clientPrefix)+clientDigits {
				return fmt.Errorf("no client in %q", body)
			}
			ctx, cancel := context.WithTimeout(context.Background(), 5*time.Second)
			defer cancel()
			_, err := store.Add(ctx, counters.Addition{Key: string(body[i:][:len(clientPrefix)+clientDigits]), Delta: 1, TTL: time.Hour})
			return err
		}
		return do, store.Close, nil
	default:
		return nil, nil, fmt.Errorf("there is no handler %q", handler)
	}
}

// working returns a handler that does what do does and then answers as next.
func working(do func(body []byte) error, next echo.HandlerFunc) echo.HandlerFunc {
	return func(c echo.Context) error {
		body, err := io.ReadAll(c.Request().Body)
		if err == nil {
			err = do(body)
		}
		if err != nil {
			return err
		}
		return next(c)
	}
}

// ceiling measures a ceiling's handler, which answers 10,000 clients as weir
// does.
func (b *bed) ceiling(ctx context.Context, cfg throughputConfig, row ceilingRow) (ceilingRow, error) {
	m, err := startMemcached(ctx, 1024)
	if err != nil {
		return row, err
	}
	defer m.stop()
	w := workload{slidingBy60, distinct}
	weir, err := startWeir(ctx, b.binary, b.policyFile, m.addr)
	if err != nil {
		return row, err
	}
	answer, err := captureReply(ctx, weir.addr, w.body(0), w.status(), 1)
	weir.stop()
	if err != nil {
		return row, err
	}
	var sides [2]*side
	for i, args := range [][]string{{row.Handler, m.addr}, nil} {
		s, err := startNoop(ctx, answer, args...)
		if err != nil {
			return row, err
		}
		defer s.stop()
		if sides[i], err = newSide(ctx, s, w, cfg.connections); err != nil {
			return row, err
		}
		defer closeClients(sides[i].clients)
	}
	p, store, err := compare(ctx, cfg, m, sides[0], sides[1])
	if err != nil {
		return row, err
	}
	if incrs := p.weir.checks(); row.Handler == ceilingIncr && store.writes < incrs {
		return row, fmt.Errorf("%s: memcached counted %d of %d requests", row, store.writes, incrs)
	}
	row.comparison, row.cpuTimes = p.comparison(), p.cpuTimes()
	return row, nil
}

func (r *throughputReport) printCeilings(out io.Writer) {
	fmt.Fprintln(out)
	t := tabwriter.NewWriter(out, 0, 0, 2, ' ', tabwriter.AlignRight)
	fmt.Fprintln(t, "ceiling\trequests/s\tof no-op\tmin\tmax\tp50 ms\tp99 ms\tp999 ms\tcpu us\tmemcached\tno-op\t")
	for _, c := range r.Ceilings {
		fmt.Fprintf(t, "%s\t%.0f\t%.0f%%\t%.0f%%\t%.0f%%\t%s\t%s\t%s\t%.1f\t%.1f\t%.1f\t\n",
			c.Handler, c.Rate, 100*c.Ratio, 100*c.RatioMin, 100*c.RatioMax, milliseconds(c.P50), milliseconds(c.P99), milliseconds(c.P999),
			microseconds(c.Weir), microseconds(c.Memcached), microseconds(c.Noop))
	}
	_ = t.Flush()
	fmt.Fprint(out, `
wait        the no-op handler, if each request also waits for another goroutine of the process
incr        the no-op handler, if each request also counts in one of 10,000 counters of Memcached through weir's store
`)
}
