package e2e

import (
	"context"
	"flag"
	"fmt"
	"io"
	"net"
	"regexp"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	common "github.com/envoyproxy/go-control-plane/envoy/extensions/common/ratelimit/v3"
	rls "github.com/envoyproxy/go-control-plane/envoy/service/ratelimit/v3"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"

	"weir/cmd/server/servertest"
	"weir/counters/memcachedtest"
)

var rollingRPCs = flag.Int64("rpcs", 5_000, "how `many` requests TestRollingRestartsBehindABalancer asks at least")

// An l4balancer passes connections on to instances in turn, and knows nothing of what is said on
// them, as a balancer of layer 4.
type l4balancer struct {
	net.Listener
	mu        sync.Mutex
	instances []string
	next      int
}

// put has connections that begin from now on go to address, in the place of what was there if
// something was.
func (b *l4balancer) put(i int, address string) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.instances = append(b.instances[:i], append([]string{address}, b.instances[min(i+1, len(b.instances)):]...)...)
}

func (b *l4balancer) pick() string {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.next++
	return b.instances[b.next%len(b.instances)]
}

func (b *l4balancer) serve() {
	for {
		client, err := b.Accept()
		if err != nil {
			return
		}
		go func() {
			defer client.Close()
			server, err := net.Dial("tcp", b.pick())
			if err != nil {
				return
			}
			defer server.Close()
			go func() {
				_, _ = io.Copy(server, client)
				_ = server.(*net.TCPConn).CloseWrite()
			}()
			_, _ = io.Copy(client, server)
		}()
	}
}

var envoyAllowed = regexp.MustCompile(`(?m)^weir_checks_total\{decision="allowed",policy="envoy"\} [1-9]`)

// Three instances are replaced one after the other, again and again, behind a balancer that
// callers keep their connections to. No request fails, each is counted once, and one that is
// added gets its part.
func TestRollingRestartsBehindABalancer(t *testing.T) {
	t.Parallel()
	memcached := memcachedtest.Start(t).Addr
	const instances, perConnection, callers, limit = 3, 4, 16, 4_000_000_000
	file := servertest.WriteFile(t, "shop.yaml", fmt.Sprintf("domain: shop\ndescriptors:\n- {key: k, rate_limit: {unit: year, requests_per_unit: %d}}\n", limit))
	start := func() (*process, string) {
		p := startProcess(t, "-memcached", memcached, "-grpc-listen", "127.0.0.1:0", "-grpc-max-connection-age", "200ms", "-store-timeout", "2s", "-envoy-config", file)
		return p, grpcAddress.FindStringSubmatch(p.log.String())[1]
	}
	l, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	b := &l4balancer{Listener: l, instances: make([]string, instances)}
	defer b.Close()
	running := make([]*process, instances)
	for i := range running {
		running[i], b.instances[i] = start()
	}
	go b.serve()

	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	var asking sync.WaitGroup
	var answered, failed atomic.Int64
	clients := make([]rls.RateLimitServiceClient, callers/perConnection)
	for i := range clients {
		conn, err := grpc.NewClient(l.Addr().String(), grpc.WithTransportCredentials(insecure.NewCredentials()))
		require.NoError(t, err)
		defer conn.Close()
		clients[i] = rls.NewRateLimitServiceClient(conn)
	}
	for i := range callers {
		c := clients[i/perConnection]
		request := &rls.RateLimitRequest{Domain: "shop", Descriptors: []*common.RateLimitDescriptor{descriptor("k", "v")}}
		asking.Go(func() {
			for ctx.Err() == nil {
				if r, err := c.ShouldRateLimit(t.Context(), request); err != nil || r.OverallCode != rls.RateLimitResponse_OK {
					failed.Add(1)
					t.Errorf("%v, %v", r, err)
				}
				answered.Add(1)
			}
		})
	}
	await := func(n int64) {
		for answered.Load() < n && failed.Load() == 0 {
			time.Sleep(time.Millisecond)
		}
	}
	const replacements = 6
	for n := range replacements {
		await(*rollingRPCs * int64(n+1) / (replacements + 1))
		old := running[n%instances]
		p, address := start()
		b.put(n%instances, address)
		running[n%instances] = p
		old.terminate(t)
		old.requireExit(t)
	}
	another, address := start()
	b.put(instances, address)
	for _, p := range append(running, another) {
		require.Eventually(t, func() bool {
			_, metrics := p.Get(t, "/metrics")
			return envoyAllowed.MatchString(metrics)
		}, servertest.Patience, 10*time.Millisecond, "an instance gets nothing to do")
	}
	await(*rollingRPCs)
	cancel()
	asking.Wait()
	t.Logf("%d requests, %d failed", answered.Load(), failed.Load())
	assert.Zero(t, failed.Load())
	r := envoyAsks(t, dialGRPC(t, running[0].log, insecure.NewCredentials()), descriptor("k", "v"))
	assert.EqualValues(t, limit-answered.Load()-1, r.Statuses[0].LimitRemaining, "each is counted once")
}
