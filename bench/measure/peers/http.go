package peers

import (
	"bytes"
	"context"
	_ "embed"
	"fmt"

	"weir/bench/internal/algorithms"
	"weir/bench/internal/loadgen"
	"weir/bench/internal/report"
	"weir/bench/internal/testbed"
)

// flexible is a service of Node's that limits by rate-limiter-flexible.
//
//go:embed flexible.js
var flexible string

// askRatelimit returns a request whose answer has to be by a limit.
func askRatelimit(key string) loadgen.Request {
	return loadgen.Request{
		Path:  "/json",
		Body:  fmt.Sprintf(`{"domain":%q,"descriptors":[{"entries":[{"key":%q,"value":%q}]}]}`, domain, key, loadgen.ClientName(0)),
		Right: func(body []byte) bool { return bytes.Contains(body, []byte(`"currentLimit"`)) },
	}
}

func askFlexible(key string) loadgen.Request {
	return loadgen.Request{Path: "/", Body: fmt.Sprintf(`{"limit":%q,"client":%q}`, key, loadgen.ClientName(0))}
}

// measureHTTP measures weir beside each other product that there is. Each has a
// Memcached of its own, so that two can be loaded at once.
func measureHTTP(ctx context.Context, cfg config, build *testbed.Build, root string) (rows []httpRow, err error) {
	var all []product
	defer func() {
		for _, p := range all {
			p.Stop()
			p.memcached.Stop()
		}
	}()
	start := func(name string, ask func(string) loadgen.Request, begin func(memcached string) (*testbed.Process, error)) error {
		m, err := testbed.StartMemcached(ctx, memcachedMB)
		if err != nil {
			return err
		}
		process, err := begin(m.Addr)
		if err != nil {
			m.Stop()
			return err
		}
		p := product{name, process, func(ctx context.Context, key string, n int) (loadgen.Connections, error) {
			return loadgen.Dial(ctx, process.Addr, ask(key), n)
		}, m}
		all = append(all, p)
		return p.awaitLimit(ctx)
	}
	err = start(weirName, func(key string) loadgen.Request { return loadgen.Check(key, 0) }, func(memcached string) (*testbed.Process, error) { return build.Start(ctx, memcached) })
	if err == nil && cfg.ratelimit != "" {
		err = start(ratelimitName, askRatelimit, func(memcached string) (*testbed.Process, error) {
			return testbed.StartRatelimit(ctx, cfg.ratelimit, memcached, root, callersEach)
		})
	}
	if err == nil && cfg.node != "" {
		err = start(flexibleName, askFlexible, func(memcached string) (*testbed.Process, error) {
			return testbed.StartNode(ctx, flexible, cfg.node, memcached)
		})
	}
	if err != nil {
		return nil, err
	}
	for _, other := range all[1:] {
		for _, t := range []loadgen.Traffic{loadgen.Distinct, loadgen.Hot, loadgen.Denied} {
			row, err := cfg.compare(ctx, all[0], other, t)
			if err != nil {
				return nil, fmt.Errorf("over HTTP, %s: %w: %s", t.Name, err, other.Log)
			}
			rows = append(rows, row)
		}
	}
	return rows, nil
}

// compare measures a row.
func (cfg config) compare(ctx context.Context, weir, other product, t loadgen.Traffic) (row httpRow, err error) {
	report.Progress("%s and %s over HTTP: %s", weir.name, other.name, t.Name)
	key := never
	if t.Limit != loadgen.Never {
		key = hundred
	}
	var sides [2]*testbed.Side
	for i, p := range []product{weir, other} {
		connections, err := p.dial(ctx, key, callersEach)
		if err != nil {
			return row, err
		}
		defer connections.Close()
		sides[i] = &testbed.Side{Process: p.Process, Memcached: p.memcached, Connections: connections, Turn: &loadgen.Turn{Clients: t.Clients}, Size: 1}
	}
	p, err := testbed.Compare(ctx, cfg.warmUp, cfg.duration, sides[0], sides[1])
	if err != nil {
		return row, err
	}
	checks := loadgen.Workload{Algorithm: algorithms.Named(algorithms.Fixed), Traffic: t}
	for _, tally := range []loadgen.Tally{p.Weir, p.Other} {
		if err := checks.Verify(tally, cfg.duration); err != nil {
			return row, err
		}
	}
	return httpRow{Traffic: t.Name, Product: other.name, Comparison: p.Comparison(), CPUTimes: p.CPU}, nil
}
