package e2e

import (
	"fmt"
	"io"
	"net"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
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

// quiet is how long nobody has anything to say or to do before a flight leaves for a distant
// store: then those who have said it wait for answers.
const quiet = 20 * time.Millisecond

// A distantStore is a real Memcached behind a long wire. What is said on all connections before
// an answer comes back is on the same flight.
type distantStore struct {
	addr  string
	said  chan said
	ended chan struct{}
	// Flights with commands about limits of Envoy; with those about windows; and about others.
	flights, windows, states atomic.Int64
	// These have something to do before a flight leaves unless they are asleep.
	memcached, weir atomic.Int64
}

// said is what was said on a connection, which goes on to Memcached.
type said struct {
	to    io.Writer
	bytes []byte
}

func startDistantStore(t testing.TB) *distantStore {
	t.Helper()
	server := memcachedtest.Start(t)
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	s := &distantStore{addr: listener.Addr().String(), said: make(chan said), ended: make(chan struct{})}
	s.memcached.Store(server.Stat("pid"))
	var running sync.WaitGroup
	running.Go(s.fly)
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
				defer memcached.Close()
				for {
					part := make([]byte, 1<<16)
					n, err := client.Read(part)
					if err != nil {
						return
					}
					select {
					case s.said <- said{memcached, part[:n]}:
					case <-s.ended:
						return
					}
				}
			})
		}
	})
	t.Cleanup(func() {
		listener.Close()
		server.Kill()
		close(s.ended)
		running.Wait()
	})
	return s
}

var (
	aboutWindow = regexp.MustCompile("weir:envoy/[a-z]+-window-")
	aboutState  = regexp.MustCompile("weir:envoy/[a-z]+-(bucket|log)-")
)

// fly has one flight after the other leave.
func (s *distantStore) fly() {
	const look = 5 * time.Millisecond
	var flight []said
	for looks := 0; ; {
		var again <-chan time.Time
		if len(flight) > 0 {
			again = time.After(look)
		}
		select {
		case more := <-s.said:
			flight, looks = append(flight, more), 0
		case <-again:
			if looks++; !asleep(s.weir.Load()) || !asleep(s.memcached.Load()) {
				looks = 0
			}
		case <-s.ended:
			return
		}
		if looks < int(quiet/look) {
			continue
		}
		windows, states := false, false
		for _, s := range flight {
			windows = windows || aboutWindow.Match(s.bytes)
			states = states || aboutState.Match(s.bytes)
		}
		for count, has := range map[*atomic.Int64]bool{&s.flights: windows || states, &s.windows: windows, &s.states: states} {
			if has {
				count.Add(1)
			}
		}
		for _, s := range flight {
			_, _ = s.to.Write(s.bytes) // one that is closed is noticed by who reads
		}
		flight, looks = nil, 0
	}
}

// asleep reports whether no thread of a process has anything to do, though it may have no turn
// on a busy machine.
func asleep(pid int64) bool {
	threads, _ := filepath.Glob(fmt.Sprintf("/proc/%d/task/*/stat", pid))
	for _, thread := range threads {
		stat, err := os.ReadFile(thread)
		if err != nil {
			continue // it has ended
		}
		_, state, _ := strings.Cut(string(stat), ") ") // behind its name
		if !strings.HasPrefix(state, "S") {
			return false
		}
	}
	return true
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
	start := func() rls.RateLimitServiceClient {
		p := startProcess(t, append([]string{"-memcached", stores[0].addr + "," + stores[1].addr,
			"-grpc-listen", "127.0.0.1:0", "-envoy-config", file}, unhurried...)...)
		for _, s := range stores {
			s.weir.Store(int64(p.cmd.Process.Pid))
		}
		return dialGRPC(t, p.log, insecure.NewCredentials())
	}
	c := start()
	count := func() (n []int64) {
		for _, s := range stores {
			n = append(n, s.flights.Load(), s.windows.Load(), s.states.Load())
		}
		return n
	}
	asks := func(descriptors []*common.RateLimitDescriptor) (_ rls.RateLimitResponse_Code, all, windows, states []int64) {
		before := count()
		code := envoyAsks(t, c, descriptors...).OverallCode
		n := count()
		for i := range n {
			n[i] -= before[i]
		}
		return code, []int64{n[0], n[3]}, []int64{n[1], n[4]}, []int64{n[2], n[5]}
	}
	for i := range 2 {
		code, flights, _, _ := asks(descriptors)
		require.Equal(t, rls.RateLimitResponse_OK, code)
		assert.Equal(t, []int64{1, 1}, flights, "request %d", i)
	}
	// The last has nothing left. What the others take is given back together.
	code, flights, _, _ := asks(descriptors)
	assert.Equal(t, rls.RateLimitResponse_OVER_LIMIT, code)
	for _, n := range flights {
		assert.LessOrEqual(t, n, int64(2), "%v", flights)
	}
	// Known by now, for as long as it is fresh: a busy machine may ask again too late.
	require.Eventually(t, func() bool {
		code, flights, _, _ = asks(descriptors)
		return code == rls.RateLimitResponse_OVER_LIMIT && slices.Max(flights) == 0
	}, servertest.Patience, time.Millisecond, "%v", &flights)

	// A process that doesn't know asks all, and gives back together too: windows once it has
	// looked whether they were reset, and others once it has swapped what it has found, when
	// it is its turn.
	c = start()
	code, _, windows, states := asks(descriptors)
	assert.Equal(t, rls.RateLimitResponse_OVER_LIMIT, code)
	for _, n := range append(windows, states...) {
		assert.LessOrEqual(t, n, int64(3), "%v %v", windows, states)
	}
	for i := range 9 {
		d := descriptors[i]
		d.HitsAddend = wrapperspb.UInt64(0)
		assert.EqualValues(t, 3, envoyAsks(t, c, d).Statuses[0].LimitRemaining, d)
	}
}
