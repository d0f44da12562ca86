package memcached

import (
	"cmp"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/netip"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"weir/counters"
	"weir/counters/memcached/pipeline"
	"weir/counters/memcachedtest"
)

func TestNamesThatAreNotServers(t *testing.T) {
	t.Parallel()
	for _, test := range []struct {
		names []string
		want  string
	}{
		{nil, "no Memcached server is named; give host:port or /path/to.sock"},
		{[]string{"mc1 mc2:11211"}, `"mc1 mc2:11211" has a space in it; servers are separated by commas`},
		{[]string{"localhost"}, `"localhost" is not a Memcached server; give host:port or /path/to.sock`},
		{[]string{":11211"}, `":11211" is not a Memcached server; give host:port or /path/to.sock`},
		{[]string{"a:"}, `"a:" is not a Memcached server; give host:port or /path/to.sock`},
		{[]string{"a:99999"}, `"a:99999" has a port that can't be dialed; give one from 1 to 65535`},
		{[]string{"a:1", "[::1]:65536"}, `"[::1]:65536" has a port that can't be dialed; give one from 1 to 65535`},
		{[]string{"a:0"}, `"a:0" has a port that can't be dialed; give one from 1 to 65535`},
		{[]string{"a:-1"}, `"a:-1" has a port that can't be dialed; give one from 1 to 65535`},
		{[]string{"dns+a:65536"}, `"dns+a:65536" has a port that can't be dialed; give one from 1 to 65535`},
		{[]string{"cluster+a:no-such-service"}, `"cluster+a:no-such-service" has a port that can't be dialed; give one from 1 to 65535`},
		{[]string{"relative.sock"}, `"relative.sock" is not a Memcached server; give host:port or /path/to.sock`},
		{[]string{"a:1", "b:1", "a:1"}, "the Memcached server a:1 is named twice"},
		{[]string{"dns+a:1", "dns+a:1"}, "the Memcached server dns+a:1 is named twice"},
		{[]string{"dns+a"}, `"dns+a" names no Memcached servers; give dns+host:port`},
		{[]string{"dns+:1"}, `"dns+:1" names no Memcached servers; give dns+host:port`},
		{[]string{"cluster+a"}, `"cluster+a" names no Memcached servers; give cluster+host:port`},
		{[]string{"dnssrv+_m._tcp.a:1"}, `"dnssrv+_m._tcp.a:1" names no Memcached servers; give dnssrv+_name._tcp.host, without a port`},
		{[]string{"dnssrv+a"}, `"dnssrv+a" names no Memcached servers; give dnssrv+_name._tcp.host, without a port`},
		{[]string{"dnssrv+_m.tcp.a"}, `"dnssrv+_m.tcp.a" names no Memcached servers; give dnssrv+_name._tcp.host, without a port`},
		{[]string{"dnssrv+_m._tcp"}, `"dnssrv+_m._tcp" names no Memcached servers; give dnssrv+_name._tcp.host, without a port`},
		{[]string{"DNS+a:1"}, `"DNS+a:1" is not a Memcached server; give host:port, /path/to.sock, dns+host:port, dnssrv+_name._tcp.host or cluster+host:port`},
		{[]string{"dnssrvnoa+_m._tcp.a"}, `"dnssrvnoa+_m._tcp.a" is not a Memcached server; give host:port, /path/to.sock, dns+host:port, dnssrv+_name._tcp.host or cluster+host:port`},
	} {
		_, err := newMembership(test.names, lookups{})
		assert.EqualError(t, err, test.want)
	}
	m, err := newMembership([]string{"/run/a+b.sock", "[::1]:1"}, lookups{})
	require.NoError(t, err)
	assert.Equal(t, "/run/a+b.sock [::1]:1", namesOf(m.servers()))
	assert.False(t, m.changes())
	_, err = newMembership([]string{"a:65535", "a:http", "dns+a:1"}, lookups{})
	assert.NoError(t, err, "ports that net.Dial takes")
}

func namesOf(servers []*server) string { return strings.Join((&ring{servers}).names(), " ") }

// A zone is a fake DNS: addresses at hosts, and servers at SRV names. An error
// is the answer to all.
type zone struct {
	mu        sync.Mutex
	addresses map[string][]string
	services  map[string][]string
	err       error
	asked     int
	hangs     bool
}

func (z *zone) set(change func()) {
	z.mu.Lock()
	defer z.mu.Unlock()
	change()
}

func (z *zone) ask(ctx context.Context) error {
	z.mu.Lock()
	defer z.mu.Unlock()
	z.asked++
	if z.hangs {
		z.mu.Unlock()
		<-ctx.Done()
		z.mu.Lock()
		return ctx.Err()
	}
	return z.err
}

func (z *zone) LookupNetIP(ctx context.Context, network, host string) (found []netip.Addr, err error) {
	if err := z.ask(ctx); err != nil {
		return nil, err
	}
	z.mu.Lock()
	defer z.mu.Unlock()
	for _, text := range z.addresses[host] {
		if a := netip.MustParseAddr(text); a.Unmap().Is4() == (network == "ip4") {
			found = append(found, a)
		}
	}
	if len(found) == 0 {
		err = &net.DNSError{Err: "no such host", Name: host, IsNotFound: true}
	}
	return found, err
}

func (z *zone) LookupSRV(ctx context.Context, service, protocol, name string) (string, []*net.SRV, error) {
	if err := z.ask(ctx); err != nil || service != "" || protocol != "" {
		return "", nil, cmp.Or(err, errors.New("the name is split"))
	}
	z.mu.Lock()
	defer z.mu.Unlock()
	var records []*net.SRV
	for _, text := range z.services[name] {
		host, portText, _ := net.SplitHostPort(text)
		port, _ := strconv.ParseUint(portText, 10, 16)
		records = append(records, &net.SRV{Target: host + ".", Port: uint16(port)})
	}
	return name, records, nil
}

func TestMembershipFollowsTheDNS(t *testing.T) {
	t.Parallel()
	z := &zone{
		addresses: map[string][]string{"cache": {"10.0.0.2", "::ffff:10.0.0.1"}},
		services:  map[string][]string{"_memcache._tcp.set": {"set-1:11211", "set-0:11212"}},
	}
	m, err := newMembership([]string{"10.0.0.2:1", "dns+cache:1", "dnssrv+_memcache._tcp.set", "a:1"}, lookups{z, nil})
	require.NoError(t, err)
	require.True(t, m.changes())
	require.Equal(t, "10.0.0.2:1 a:1", namesOf(m.servers()))
	const all = "10.0.0.2:1 10.0.0.1:1 set-0:11212 set-1:11211 a:1"
	timeout := &net.DNSError{Err: "timeout", IsTimeout: true}
	var log lines
	logger := slog.New(slog.NewTextHandler(&log, nil))
	for _, step := range []struct {
		at      int // seconds
		what    string
		change  func()
		servers string
		asked   int
		tells   string
	}{
		{0, "the start", nil, all, 2, ""},
		{9, "it isn't time", func() { z.addresses["cache"] = []string{"10.0.0.1"} }, all, 0, ""},
		{10, "in another order, and one twice", func() { z.addresses["cache"] = []string{"10.0.0.1", "10.0.0.2", "10.0.0.1"} }, all, 2, ""},
		{20, "a third", func() { z.addresses["cache"] = []string{"10.0.0.1", "10.0.0.3"} },
			"10.0.0.2:1 10.0.0.1:1 10.0.0.3:1 set-0:11212 set-1:11211 a:1", 2, ""},
		{30, "IPv6 too, which are the same servers", func() { z.addresses["cache"] = []string{"fd00::1", "10.0.0.1"} }, all, 2, ""},
		{40, "one is gone", func() { z.services["_memcache._tcp.set"] = []string{"set-0:11212"} }, "10.0.0.2:1 10.0.0.1:1 set-0:11212 a:1", 2, ""},
		{50, "all of a name are gone", func() { z.services["_memcache._tcp.set"] = nil },
			"10.0.0.2:1 10.0.0.1:1 set-0:11212 a:1", 2, `level=WARN name=dnssrv+_memcache._tcp.set error="no server is found"`},
		{60, "still", nil, "10.0.0.2:1 10.0.0.1:1 set-0:11212 a:1", 2, ""},
		{70, "not available", func() { z.services["_memcache._tcp.set"] = []string{":1"} }, "10.0.0.2:1 10.0.0.1:1 set-0:11212 a:1", 2, ""},
		{80, "the DNS is down", func() { z.err = timeout; z.addresses["cache"] = []string{"fd00::1"} },
			"10.0.0.2:1 10.0.0.1:1 set-0:11212 a:1", 2, `level=WARN name=dns+cache:1 error="lookup : timeout"`},
		{90, "up again, with IPv6 alone", func() { z.err, z.services = nil, map[string][]string{"_memcache._tcp.set": {"set-2:3"}} },
			"10.0.0.2:1 [fd00::1]:1 set-2:3 a:1", 3, "level=INFO name=dns+cache:1 level=INFO name=dnssrv+_memcache._tcp.set"},
	} {
		if step.change != nil {
			step.change()
		}
		z.asked = 0
		log.reset()
		m.lookUp(t.Context(), time.Unix(int64(1000+step.at), 0))
		m.speak(logger)
		require.Equal(t, step.servers, namesOf(m.servers()), "at %d s: %s", step.at, step.what)
		require.Equal(t, step.asked, z.asked, "at %d s: %s", step.at, step.what)
		var told []string
		for line := range strings.Lines(log.String()) {
			fields, after, _ := strings.Cut(strings.TrimSpace(line), " name=")
			level := strings.Fields(fields)[1]
			told = append(told, level+" name="+after)
		}
		require.Equal(t, step.tells, strings.Join(told, " "), "at %d s: %s", step.at, step.what)
	}
	require.Empty(t, m.missing())
}

func TestConfigurationsOfAClusterAreRead(t *testing.T) {
	t.Parallel()
	for _, test := range []struct{ text, want, address, host, err string }{
		{text: "CONFIG cluster 0 70\r\n12\na.x|10.0.0.1|11211 b.x|10.0.0.2|11212\n\r\nEND\r\n", want: "a.x:11211 b.x:11212", address: "10.0.0.1:11211", host: "a.x"},
		{text: "CONFIG cluster 0 14\r\n1\na.x||11211\n\r\nEND\r\nmore", want: "a.x:11211", address: "a.x:11211", host: "a.x"},
		{text: "CONFIG cluster 0 14\r\n1\n|10.0.0.1|7\r\n\r\nEND\r\n", want: "10.0.0.1:7", address: "10.0.0.1:7", host: "10.0.0.1"},
		{text: "CONFIG cluster 0 14\r\n1\na|fd00::1|7\n\r\nEND\r\n", want: "a:7", address: "[fd00::1]:7", host: "a"},
		{text: "CONFIG cluster 0 3\r\n12\n\n\r\nEND\r\n"},
		{text: "ERROR\r\n", err: `config get cluster isn't answered with a configuration but with "ERROR"`},
		{text: "END\r\n", err: "config get cluster is answered with an incomplete configuration: []"},
		{text: "", err: "config get cluster is answered with an incomplete configuration: []"},
		{text: "CONFIG cluster 0 14\r\n1\na|10.0.0.1|7 b|10", err: `config get cluster is answered with an incomplete configuration: ["CONFIG cluster 0 14" "1" "a|10.0.0.1|7 b|10"]`},
		{text: "CONFIG cluster 0 1\r\n1\r\nEND\r\n", err: `config get cluster is answered with an incomplete configuration: ["CONFIG cluster 0 1" "1"]`},
		{text: "CONFIG cluster 0 14\r\n1\na|10.0.0.1\n\r\nEND\r\n", err: `a cluster has the node "a|10.0.0.1", which isn't host|ip|port`},
		{text: "CONFIG cluster 0 14\r\n1\n||1\n\r\nEND\r\n", err: `a cluster has the node "||1", which isn't host|ip|port`},
		{text: "CONFIG cluster 0 14\r\n1\na||99999\n\r\nEND\r\n", err: `a cluster has the node "a||99999", whose port isn't a number`},
	} {
		servers, err := parseCluster(strings.NewReader(test.text))
		if test.err != "" {
			assert.EqualError(t, err, test.err)
			continue
		}
		require.NoError(t, err, test.text)
		require.Equal(t, test.want, namesOf(servers))
		if len(servers) > 0 {
			assert.Equal(t, test.address, servers[0].address)
			assert.Equal(t, test.host, servers[0].host)
		}
	}
}

func plainDial(*server) pipeline.DialFunc { return pipeline.Dialer(nil, "", "") }

func TestMembershipFollowsACluster(t *testing.T) {
	t.Parallel()
	c := memcachedtest.StartCluster(t, "10.0.0.1:1", "10.0.0.2:2")
	single, gone := memcachedtest.Start(t), memcachedtest.Start(t)
	gone.Kill()
	m, err := newMembership([]string{"cluster+" + c.Addr, "cluster+" + single.Addr, "cluster+" + gone.Addr}, lookups{nil, plainDial})
	require.NoError(t, err)
	m.lookUp(t.Context(), time.Unix(0, 0))
	assert.Equal(t, "node-1.example:1 node-2.example:2", namesOf(m.servers()))
	missing := m.missing()
	require.Len(t, missing, 2)
	const refused = `config get cluster isn't answered with a configuration but with "ERROR"`
	assert.Equal(t, "cluster+"+single.Addr, missing[0].Server)
	assert.EqualError(t, missing[0].Err, "counters: the store is not available: "+refused)
	assert.ErrorContains(t, missing[1].Err, "connection refused")

	c.Set("10.0.0.3:2")
	m.lookUp(t.Context(), time.Unix(10, 0))
	require.Len(t, m.servers(), 1)
	assert.Equal(t, "node-2.example:2", m.servers()[0].name)
	assert.Equal(t, "10.0.0.3:2", m.servers()[0].address, "it is replaced")

	c.Set()
	m.lookUp(t.Context(), time.Unix(20, 0))
	assert.EqualError(t, m[0].err, refused)
	assert.Equal(t, "node-2.example:2", namesOf(m.servers()))

	single.Pause()
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Millisecond)
	defer cancel()
	_, err = lookups{nil, plainDial}.cluster(ctx, newServer(single.Addr))
	assert.ErrorContains(t, err, "timeout")
}

// A certificate has to name the host that the operator has named, unless the
// configuration has another name.
func TestCertificatesOfServersThatAreFound(t *testing.T) {
	t.Parallel()
	cert, key, pool := memcachedtest.NewCertificate(t) // for 127.0.0.1
	server := memcachedtest.Start(t, "-Z", "-o", "ssl_chain_cert="+cert+",ssl_key="+key)
	_, port, _ := net.SplitHostPort(server.Addr)
	z := &zone{addresses: map[string][]string{"cache": {"127.0.0.1"}}}
	for name, want := range map[string]string{"": "wanted to match cache", "127.0.0.1": ""} {
		cfg := Config{Servers: []string{"dns+cache:" + port}, TLS: &tls.Config{RootCAs: pool, ServerName: name}, Timeout: counters.MaxTimeout}
		s, err := newStore(cfg, cfg.dialer, z)
		require.NoError(t, err)
		defer s.Close()
		if err := addTo(s, "k", patience); want == "" {
			assert.NoError(t, err)
		} else {
			assert.ErrorContains(t, err, want)
		}
	}
}

// openFound returns a store on the servers that an SRV name has in a fake DNS.
func openFound(t *testing.T, servers ...*memcachedtest.Server) (*Store, *zone) {
	t.Helper()
	z := &zone{services: map[string][]string{"_m._tcp.x": addressesOf(servers)}}
	cfg := Config{Servers: []string{"dnssrv+_m._tcp.x"}, Timeout: counters.MaxTimeout}
	s, err := newStore(cfg, cfg.dialer, z)
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, s.Close()) })
	return s, z
}

func addressesOf(servers []*memcachedtest.Server) (addresses []string) {
	for _, server := range servers {
		addresses = append(addresses, server.Addr)
	}
	return addresses
}

// publish has the DNS name these servers, and the store look.
func publish(t *testing.T, s *Store, z *zone, servers ...*memcachedtest.Server) (joined, left []string) {
	t.Helper()
	z.set(func() { z.services["_m._tcp.x"] = addressesOf(servers) })
	s.membership[0].asked = time.Time{}
	s.membership.lookUp(t.Context(), time.Now())
	return s.adopt()
}

// requireClosed waits until the server has as few connections as before.
func requireClosed(t *testing.T, server *memcachedtest.Server, before int64) {
	t.Helper()
	require.Eventually(t, func() bool { return server.Stat("curr_connections") <= before }, patience, time.Millisecond)
}

func TestClientsMoveOnlyFromWhatLeavesAndToWhatJoins(t *testing.T) {
	t.Parallel()
	var servers []*memcachedtest.Server
	for range 4 {
		servers = append(servers, memcachedtest.Start(t))
	}
	unconnected := servers[0].Stat("curr_connections")
	s, z := openFound(t, servers[:3]...)

	const clients = 400
	key := func(i int) string { return fmt.Sprint("weir:p/l:1000:c", i, "_1") }
	home := func(i int) string {
		m := s.members.Load()
		return m.ring.servers[m.ring.pick(key(i))].name
	}
	var before [clients]string
	for i := range clients {
		before[i] = home(i)
	}
	// Each client is counted by one goroutine, which knows what comes next.
	var rounds sync.WaitGroup
	var restarts, counts [clients]int64
	stop, warm := make(chan struct{}), make(chan struct{}, 8)
	for g := range 8 {
		rounds.Go(func() {
			for round, last := 0, false; !last; round++ {
				select {
				case <-stop:
					last = true
				default:
				}
				for i := g; i < clients; i += 8 {
					n, err := s.Add(&counters.Deadline{At: time.Now().Add(patience)}, counters.Addition{Key: key(i), Delta: 1, TTL: time.Hour})
					if !assert.NoError(t, err) {
						return
					}
					if n != counts[i]+1 {
						restarts[i]++
						assert.Equal(t, int64(1), n)
					}
					counts[i] = n
				}
				if round == 2 {
					warm <- struct{}{}
				}
			}
		})
	}
	for range 8 {
		<-warm
	}
	joined, left := publish(t, s, z, servers[3], servers[2], servers[1])
	assert.Equal(t, []string{servers[3].Addr}, joined)
	assert.Equal(t, []string{servers[0].Addr}, left)
	close(stop)
	rounds.Wait()

	moved := 0
	keys := make(map[string][]string)
	for _, server := range servers {
		keys[server.Addr] = server.Keys()
	}
	for i := range clients {
		after := home(i)
		require.Contains(t, keys[after], key(i), "it is where it belongs")
		if before[i] == after {
			assert.Zero(t, restarts[i], "client %d has stayed, and its count too", i)
			continue
		}
		moved++
		assert.Equal(t, int64(1), restarts[i])
		assert.True(t, before[i] == servers[0].Addr || after == servers[3].Addr, "client %d has moved for nothing", i)
	}
	// A third had to leave. A third of the others goes to the server that joins.
	assert.InDelta(t, clients*(1./3+2./3/3), moved, clients/8)
	requireClosed(t, servers[0], unconnected)
	states := s.Ping()
	assert.Equal(t, slices.Sorted(slices.Values([]string{servers[1].Addr, servers[2].Addr, servers[3].Addr})),
		[]string{states[0].Server, states[1].Server, states[2].Server})

	joined, left = publish(t, s, z, servers[1:]...)
	assert.Empty(t, joined)
	assert.Empty(t, left)
}

// Which servers stay keep what is known of them.
func TestAServerThatStaysKeepsItsBreakerAndSocket(t *testing.T) {
	t.Parallel()
	w := openTwo(t)
	s, z := openFound(t, w.servers[:]...)
	w.servers[0].Kill()
	requireDown := func(server string) {
		t.Helper()
		require.Eventually(t, func() bool { // a busy one may be late
			return !slices.ContainsFunc(s.Ping(), func(state counters.ServerStatus) bool { return state.BreakerOpen != (state.Server == server) })
		}, patience, time.Millisecond)
	}
	requireDown(w.servers[0].Addr)
	connections := w.servers[1].Stat("total_connections")
	third := memcachedtest.Start(t)
	publish(t, s, z, third, w.servers[1], w.servers[0])
	requireDown(w.servers[0].Addr)
	require.Len(t, s.Ping(), 3)
	publish(t, s, z, third, w.servers[1])
	require.Len(t, s.Ping(), 2)
	requireDown("")
	publish(t, s, z, third, w.servers[1], w.servers[0])
	require.Len(t, s.Ping(), 3, "it has come back as another")
	requireDown(w.servers[0].Addr)
	require.Equal(t, connections+1, w.servers[1].Stat("total_connections"), "only that which has just asked")
}

// What is under way on a server that leaves ends as it would have.
func TestOperationsUnderWayOutliveTheMembership(t *testing.T) {
	t.Parallel()
	a, b := memcachedtest.Start(t), memcachedtest.Start(t)
	unconnected := a.Stat("curr_connections")
	s, z := openFound(t, a)
	require.NoError(t, addTo(s, "k", patience))
	backend := s.members.Load().backends[0]
	a.Pause()
	counted := make(chan error)
	go func() {
		n, err := s.Add(&counters.Deadline{At: time.Now().Add(patience)}, counters.Addition{Key: "k", Delta: 5, TTL: time.Hour})
		if err == nil && n != 6 {
			err = fmt.Errorf("counted to %d", n)
		}
		counted <- err
	}()
	require.Eventually(t, func() bool {
		backend.mu.Lock()
		defer backend.mu.Unlock()
		return backend.inUse == 1
	}, patience, time.Millisecond)
	publish(t, s, z, b)
	require.NoError(t, addTo(s, "k", patience), "later ones don't wait")
	require.Equal(t, []counters.ServerStatus{{Server: b.Addr}}, s.Ping())
	a.Resume()
	require.NoError(t, <-counted)
	assert.Equal(t, []string{"k"}, b.Keys())
	requireClosed(t, a, unconnected)
	require.Nil(t, backend.get(&backend.single, time.Now().Add(patience)))
	require.ErrorIs(t, backend.ask(patience, "version\r\n", checkVersion), errLeft)
}

func TestCloseDoesNotWaitForServersThatHaveLeft(t *testing.T) {
	t.Parallel()
	a, b := memcachedtest.Start(t), memcachedtest.Start(t)
	s, z := openFound(t, a)
	require.NoError(t, addTo(s, "k", patience))
	backend := s.members.Load().backends[0]
	a.Pause()
	defer a.Resume()
	counted := make(chan error)
	go func() { counted <- addTo(s, "k", patience) }()
	require.Eventually(t, func() bool {
		backend.mu.Lock()
		defer backend.mu.Unlock()
		return backend.inUse == 1
	}, patience, time.Millisecond)
	publish(t, s, z, b)
	require.NoError(t, s.Close())
	require.ErrorIs(t, <-counted, counters.ErrUnavailable, "it ends before its deadline")
	joined, left := publish(t, s, z, a)
	require.Empty(t, joined, "it is closed")
	require.Empty(t, left)
}

// Versions belong to a server: two servers number their values alike.
func TestASwapOnAnotherServerOnlyLoads(t *testing.T) {
	t.Parallel()
	a, b := memcachedtest.Start(t), memcachedtest.Start(t)
	s, z := openFound(t, a)
	ctx := &counters.Deadline{At: time.Now().Add(patience)}
	old, swapped, err := s.Swap(ctx, "k", counters.State{}, []byte("on a"), time.Minute)
	require.NoError(t, err)
	require.True(t, swapped)
	publish(t, s, z, b)
	b.Do("set k 0 0 4\r\non b", "STORED")
	now, swapped, err := s.Swap(ctx, "k", old, []byte("of a"), time.Minute)
	require.NoError(t, err)
	require.False(t, swapped)
	require.Equal(t, "on b", string(now.Value))
	require.Equal(t, old.Version, now.Version)
	require.NotEqual(t, old.Life, now.Life)
	now, swapped, err = s.Swap(ctx, "k", now, []byte("of b"), time.Minute)
	require.NoError(t, err)
	require.True(t, swapped)
	require.Equal(t, "of b", string(now.Value))
}

// A store starts before its servers' names are known.
func TestAStoreStartsWithoutServers(t *testing.T) {
	t.Parallel()
	server := memcachedtest.Start(t)
	z := &zone{services: map[string][]string{}}
	cfg := Config{Servers: []string{"dnssrv+_m._tcp.x"}, Timeout: counters.MaxTimeout}
	s, err := newStore(cfg, cfg.dialer, z)
	require.NoError(t, err)
	defer s.Close()
	err = addTo(s, "k", patience)
	require.ErrorIs(t, err, counters.ErrUnavailable)
	require.ErrorIs(t, err, counters.ErrNotSent)
	require.ErrorContains(t, err, "no Memcached server is known")
	states := s.Ping()
	require.Len(t, states, 1)
	assert.Equal(t, "dnssrv+_m._tcp.x", states[0].Server)
	assert.EqualError(t, states[0].Err, "counters: the store is not available: no server is found")
	publish(t, s, z, server)
	require.NoError(t, addTo(s, "k", patience))
	require.Equal(t, []counters.ServerStatus{{Server: server.Addr}}, s.Ping())
}

// The start waits for a look-up, but not for long. Later ones delay nothing,
// and are given up too.
func TestLookUpsHaveTheirTime(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		z := &zone{services: map[string][]string{"_m._tcp.x": {"a:1"}}, hangs: true}
		start := time.Now()
		s, err := newStore(Config{Servers: []string{"dnssrv+_m._tcp.x", "dns+cache:1"}}, plainDial, z)
		require.NoError(t, err)
		defer s.Close()
		require.Equal(t, 2*time.Second, time.Since(start))

		var log lines
		logger := slog.New(slog.NewTextHandler(&log, &slog.HandlerOptions{
			ReplaceAttr: func(_ []string, a slog.Attr) slog.Attr {
				if a.Key == slog.TimeKey {
					a = slog.String("after", time.Since(start).String())
				}
				return a
			},
		}))
		ctx, cancel := context.WithCancel(t.Context())
		var following sync.WaitGroup
		following.Go(func() { s.follow(ctx, logger) })
		asked := func(within time.Duration) int {
			z.set(func() { z.asked = 0 })
			time.Sleep(within)
			synctest.Wait()
			z.mu.Lock()
			defer z.mu.Unlock()
			return z.asked
		}
		require.Equal(t, 2, asked(1500*time.Millisecond), "both again after a second")
		z.set(func() { z.hangs = false })
		require.Equal(t, 2+2*2, asked(9*time.Second), "they are given up after eight seconds, and asked again") // until 12.5 s
		z.set(func() { z.addresses = map[string][]string{"cache": {"10.0.0.1"}} })
		require.Equal(t, 1, asked(time.Second), "the one that isn't known")
		require.Equal(t, 2, asked(10*time.Second), "each once in ten seconds")
		z.set(func() { z.addresses["cache"] = []string{"10.0.0.2"} })
		require.Equal(t, 2, asked(10*time.Second))
		z.set(func() { z.hangs = true })
		require.Equal(t, 2, asked(10*time.Second))
		cancel()
		following.Wait()
		assert.Equal(t, `after=2s level=WARN msg="no Memcached servers are found by a name: it is looked up again every second" name=dnssrv+_m._tcp.x error="context deadline exceeded"
after=2s level=WARN msg="no Memcached servers are found by a name: it is looked up again every second" name=dns+cache:1 error="context deadline exceeded"
after=11s level=INFO msg="Memcached servers can be looked up again" name=dnssrv+_m._tcp.x
after=11s level=INFO msg="Memcached servers joined or left" joined=[a:1] left=[]
after=13s level=INFO msg="Memcached servers can be looked up again" name=dns+cache:1
after=13s level=INFO msg="Memcached servers joined or left" joined=[10.0.0.1:1] left=[]
after=33s level=INFO msg="Memcached servers joined or left" joined=[10.0.0.2:1] left=[10.0.0.1:1]
after=42s level=WARN msg="Memcached servers can't be looked up: those found last stay" name=dnssrv+_m._tcp.x error="context deadline exceeded"
`, log.String())
	})
}

// What a server does after it has left is told, and what it won't is told to be
// unknown. Nobody waits for its breaker: operations go elsewhere.
func TestOutcomesFromAServerThatHasLeft(t *testing.T) {
	t.Parallel()
	a, b := memcachedtest.Start(t), memcachedtest.Start(t)
	unconnected := a.Stat("curr_connections")
	s, z := openFound(t, a)
	require.NoError(t, addTo(s, "k", patience))
	backend := s.members.Load().backends[0]
	fail := func() *counters.Unanswered {
		var unanswered *counters.Unanswered
		require.ErrorAs(t, addTo(s, "k", time.Second), &unanswered) // less than a socket may be silent
		return unanswered
	}
	a.Pause()
	told := make(chan error, 1)
	fail().WhenKnown(func(err error) { told <- err })
	backend.breaker.note(down, context.DeadlineExceeded)
	publish(t, s, z, b)
	require.Empty(t, told)
	a.Resume()
	require.NoError(t, <-told)
	requireClosed(t, a, unconnected)

	backend = s.members.Load().backends[0]
	require.NoError(t, addTo(s, "k", patience))
	b.Pause()
	late := fail()
	publish(t, s, z, a)
	<-backend.unused
	require.NoError(t, backend.single.pool.Close(), "as it is anyway")
	late.WhenKnown(func(err error) { told <- err })
	err := <-told
	require.ErrorIs(t, err, counters.ErrUnavailable)
	require.NotErrorIs(t, err, counters.ErrNotSent)
	b.Resume()
	require.NoError(t, s.Close())
	late.Await(func(error) { assert.Fail(t, "nothing is told once the store is closed") })
}
