package e2e

import (
	"bytes"
	"fmt"
	"io"
	"net"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	common "github.com/envoyproxy/go-control-plane/envoy/extensions/common/ratelimit/v3"
	rls "github.com/envoyproxy/go-control-plane/envoy/service/ratelimit/v3"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/protobuf/types/known/wrapperspb"

	"weir/cmd/server/servertest"
	"weir/counters/memcachedtest"
)

// flight is how long a distant store holds back what it is told. What is said
// before the first answer has come back is on the same flight.
const flight = 150 * time.Millisecond

// A distantStore is a real Memcached behind a long wire.
type distantStore struct {
	addr    string
	flights atomic.Int64 // with commands about limits of Envoy
}

func startDistantStore(t testing.TB) *distantStore {
	t.Helper()
	server := memcachedtest.Start(t)
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	s := &distantStore{addr: listener.Addr().String()}
	var running sync.WaitGroup
	running.Go(func() {
		for {
			client, err := listener.Accept()
			if err != nil {
				return
			}
			memcached, err := net.Dial("tcp", server.Addr)
			if err != nil {
				client.Close()
				continue
			}
			running.Go(func() {
				_, _ = io.Copy(client, memcached)
				client.Close()
			})
			running.Go(func() {
				s.carry(memcached, client)
				memcached.Close()
			})
		}
	})
	t.Cleanup(func() {
		listener.Close()
		server.Kill()
		running.Wait()
	})
	return s
}

// carry passes on what client says, a flight after the first of it.
func (s *distantStore) carry(memcached io.Writer, client net.Conn) {
	part := make([]byte, 1<<16)
	for {
		_ = client.SetReadDeadline(time.Time{})
		n, err := client.Read(part)
		said := bytes.Clone(part[:n])
		_ = client.SetReadDeadline(time.Now().Add(flight))
		for err == nil {
			n, err = client.Read(part)
			said = append(said, part[:n]...)
		}
		if bytes.Contains(said, []byte("weir:envoy/")) {
			s.flights.Add(1)
		}
		if _, writeErr := memcached.Write(said); writeErr != nil {
			return
		}
		if timeout, ok := err.(net.Error); !ok || !timeout.Timeout() {
			return
		}
	}
}

// All descriptors of a request are one round trip to each server.
func TestDescriptorsShareTheirRoundTrips(t *testing.T) {
	t.Parallel()
	stores := []*distantStore{startDistantStore(t), startDistantStore(t)}
	config := "domain: shop\ndescriptors:\n"
	var descriptors []*common.RateLimitDescriptor
	for i := range 10 {
		algorithm := []string{"fixed_window", "sliding_window", "token_bucket", "leaky_bucket", "sliding_log"}[i%5]
		config += fmt.Sprintf("  - {key: k%d, rate_limit: {unit: day, requests_per_unit: %d}, metadata: {weir: {algorithm: %s, count_denied: false}}}\n", i, []int{5, 2}[i/9], algorithm)
		descriptors = append(descriptors, descriptor(fmt.Sprintf("k%d", i), "a"))
	}
	file := servertest.WriteFile(t, "shop.yaml", config)
	p := startProcess(t, append([]string{"-memcached", stores[0].addr + "," + stores[1].addr,
		"-grpc-listen", "127.0.0.1:0", "-envoy-config", file}, unhurried...)...)
	c := dialGRPC(t, p.log, insecure.NewCredentials())
	asks := func(descriptors []*common.RateLimitDescriptor) (rls.RateLimitResponse_Code, []int64) {
		before := []int64{stores[0].flights.Load(), stores[1].flights.Load()}
		code := envoyAsks(t, c, descriptors...).OverallCode
		return code, []int64{stores[0].flights.Load() - before[0], stores[1].flights.Load() - before[1]}
	}
	for i := range 2 {
		code, flights := asks(descriptors)
		require.Equal(t, rls.RateLimitResponse_OK, code)
		assert.Equal(t, []int64{1, 1}, flights, "request %d", i)
	}
	// The last has nothing left. What the others take is given back together.
	code, flights := asks(descriptors)
	assert.Equal(t, rls.RateLimitResponse_OVER_LIMIT, code)
	for _, n := range flights {
		assert.LessOrEqual(t, n, int64(2), "%v", flights)
	}
	code, flights = asks(descriptors)
	assert.Equal(t, rls.RateLimitResponse_OVER_LIMIT, code)
	assert.Equal(t, []int64{0, 0}, flights, "known by now")

	// A process that doesn't know asks all, and gives back together too.
	other := startProcess(t, append([]string{"-memcached", stores[0].addr + "," + stores[1].addr,
		"-grpc-listen", "127.0.0.1:0", "-envoy-config", file}, unhurried...)...)
	c = dialGRPC(t, other.log, insecure.NewCredentials())
	code, flights = asks(descriptors)
	assert.Equal(t, rls.RateLimitResponse_OVER_LIMIT, code)
	for _, n := range flights {
		assert.LessOrEqual(t, n, int64(4), "%v", flights)
	}
	for i := range 9 {
		d := descriptors[i]
		d.HitsAddend = wrapperspb.UInt64(0)
		assert.EqualValues(t, 3, envoyAsks(t, c, d).Statuses[0].LimitRemaining, d)
	}
}
