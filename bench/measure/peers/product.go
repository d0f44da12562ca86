package peers

import (
	"context"
	"fmt"
	"time"

	"weir/bench/internal/loadgen"
	"weir/bench/internal/testbed"
)

const (
	domain  = "peers"
	never   = "never"   // the key of a limit that nobody reaches
	hundred = "hundred" // and of one that everybody does

	callersEach = 256 // of whom some share a connection of gRPC
	memcachedMB = 1024
)

// file has the limits, in the form that both read over gRPC.
var file = fmt.Sprintf(`domain: %s
descriptors:
  - key: %s
    rate_limit: {unit: hour, requests_per_unit: %d}
  - key: %s
    rate_limit: {unit: day, requests_per_unit: %d}
`, domain, never, loadgen.Never, hundred, limit)

// policies are the limits of file, as weir has them over HTTP.
var policies = fmt.Sprintf(`policies:
  %s: {limits: [{algorithm: fixed_window, limit: %d, window: 1h}], on_store_error: deny}
  %s: {limits: [{algorithm: fixed_window, limit: %d, window: 24h}], on_store_error: deny}
`, never, loadgen.Never, hundred, limit)

type config struct {
	ratelimit string
	node      string
	duration  time.Duration // per row
	stall     time.Duration
	races     int
	warmUp    time.Duration
}

// A product is a program under test.
type product struct {
	name string
	*testbed.Process
	dial      dialer
	memcached *testbed.Memcached
}

// A dialer opens so many connections, or callers, that ask by a key.
type dialer func(ctx context.Context, key string, n int) (loadgen.Connections, error)

func overGRPC(addr string) dialer {
	return func(_ context.Context, key string, n int) (loadgen.Connections, error) {
		return loadgen.DialGRPC(addr, domain, key, n)
	}
}

func (p product) String() string { return p.name }

// awaitLimit asks until the answer is by a limit: a server that listens may not
// have read its files yet.
func (p product) awaitLimit(ctx context.Context) error {
	var failed error
	err := testbed.Poll(ctx, 10*time.Second, 10*time.Millisecond, func() (bool, error) {
		var callers loadgen.Connections
		if callers, failed = p.dial(ctx, never, 1); failed != nil {
			return false, nil
		}
		defer callers.Close()
		_, failed = callers.Operations()[0](0)
		return failed == nil, nil
	})
	if err != nil {
		return fmt.Errorf("%s doesn't answer by its limit: %w: %w: %s", p.name, err, failed, p.Log)
	}
	return nil
}
