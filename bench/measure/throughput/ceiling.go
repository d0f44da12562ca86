package throughput

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"os"
	"time"

	"weir/bench/internal/algorithms"
	"weir/bench/internal/loadgen"
	"weir/bench/internal/testbed"
	"weir/counters"
)

// What an echo handler does before it answers. It bounds what any service can
// reach that has to do it.
const (
	ceilingWait = "wait" // for another goroutine
	ceilingIncr = "incr" // of one counter, through weir's store
)

var ceilings = []ceilingRow{{Handler: ceilingWait}, {Handler: ceilingIncr}}

// A ceilingRow is how a handler did that does one thing and nothing of what
// weir does.
type ceilingRow struct {
	Handler string `json:"handler"`
	comparison
	cpuTimes
}

// String implements fmt.Stringer, for -rows.
func (c ceilingRow) String() string { return "ceiling, " + c.Handler }

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
		store, err := algorithms.OpenStore(memcached)
		if err != nil {
			return nil, nil, err
		}
		do = func(body []byte) error {
			i := bytes.LastIndex(body, []byte(loadgen.ClientPrefix))
			if i < 0 || len(body) < i+len(loadgen.ClientPrefix)+loadgen.ClientDigits {
				return fmt.Errorf("no client in %q", body)
			}
			ctx, cancel := context.WithTimeout(context.Background(), 5*time.Second)
			defer cancel()
			_, err := store.Add(ctx, counters.Addition{Key: string(body[i:][:len(loadgen.ClientPrefix)+loadgen.ClientDigits]), Delta: 1, TTL: time.Hour})
			return err
		}
		return do, store.Close, nil
	default:
		return nil, nil, fmt.Errorf("there is no handler %q", handler)
	}
}

// measure measures the handler, which answers 10,000 clients as weir does.
func (c ceilingRow) measure(ctx context.Context, cfg config, build *testbed.Build) (ceilingRow, error) {
	m, err := testbed.StartMemcached(ctx, 1024)
	if err != nil {
		return c, err
	}
	defer m.Stop()
	w := loadgen.Workload{Algorithm: algorithms.Named(algorithms.Sliding60), Traffic: loadgen.Distinct}
	weir, err := build.Start(ctx, m.Addr)
	if err != nil {
		return c, err
	}
	answer, err := loadgen.CaptureReply(ctx, weir.Addr, w.Request().Body, w.Status(), 1)
	weir.Stop()
	if err != nil {
		return c, err
	}
	var sides [2]*side
	for i, args := range [][]string{{c.Handler, m.Addr}, nil} {
		process, err := testbed.StartNoop(ctx, answer, args...)
		if err != nil {
			return c, err
		}
		defer process.Stop()
		if sides[i], err = dial(ctx, process, w, cfg.connections); err != nil {
			return c, err
		}
		defer sides[i].connections.Close()
	}
	p, err := compare(ctx, cfg, m, sides[0], sides[1])
	if err != nil {
		return c, err
	}
	if incrs := p.weir.Checks(); c.Handler == ceilingIncr && p.store.Writes < incrs {
		return c, fmt.Errorf("memcached counted %d of %d requests", p.store.Writes, incrs)
	}
	c.comparison, c.cpuTimes = p.comparison(), p.cpuTimes
	return c, nil
}

// Noop serves the reply that it reads from stdin, in JSON, at the address in
// args: an echo handler that reads each request and does nothing, or what a
// ceiling and the address of memcached after it say, without middleware and
// without the timeouts of a real service.
func Noop(_ context.Context, args []string, _ io.Writer) error {
	var r loadgen.Reply
	if err := json.NewDecoder(os.Stdin).Decode(&r); err != nil {
		return fmt.Errorf("the reply on stdin: %w", err)
	}
	switch len(args) {
	case 1:
		return http.ListenAndServe(args[0], loadgen.NoopHandler(r, nil))
	case 3:
		do, end, err := work(args[1], args[2])
		if err != nil {
			return err
		}
		defer end()
		return http.ListenAndServe(args[0], loadgen.NoopHandler(r, do))
	default:
		return fmt.Errorf("%s needs an address to listen on, and possibly a ceiling and the address of memcached", testbed.NoopCommand)
	}
}
