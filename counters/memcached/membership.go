package memcached

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/netip"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"weir/counters"
	"weir/counters/memcached/pipeline"
)

const (
	// lookUpInterval is the time between two look-ups of a name.
	lookUpInterval = 10 * time.Second
	// retryInterval is the same while no servers of it are known.
	retryInterval = time.Second
	// lookUpTimeout bounds a look-up. Resolvers ask the next name server when one
	// hasn't answered for five seconds.
	lookUpTimeout = 8 * time.Second
	// firstLookUp bounds the first look-up, for which the start waits.
	firstLookUp = 2 * time.Second
	// maxConfiguration bounds what a cluster says of itself, in bytes.
	maxConfiguration = 1 << 20
)

// A membership is what servers a store has by the names it was given. Looking
// them up again may change it. One goroutine at a time may use it.
type membership []*source

// A source is one name: that of a server, or one that servers are found by.
type source struct {
	name    string
	find    func(ctx context.Context) ([]*server, error) // nil for a server
	servers []*server                                    // that were found last
	asked   time.Time                                    // when the last look-up began
	err     error                                        // of the last look-up
	warned  bool                                         // of errors since the last success
}

// newMembership returns the membership of these names. Those that have to be
// looked up have no servers yet.
func newMembership(names []string, l lookups) (membership, error) {
	if len(names) == 0 {
		return nil, errors.New("no Memcached server is named; give host:port or /path/to.sock")
	}
	var m membership
	for _, name := range names {
		s := &source{name: name}
		if err := s.parse(l); err != nil {
			return nil, err
		}
		if slices.ContainsFunc(m, func(other *source) bool { return other.name == name }) {
			return nil, fmt.Errorf("the Memcached server %s is named twice", name)
		}
		m = append(m, s)
	}
	return m, nil
}

// parse says how to find the servers that the source names.
func (s *source) parse(l lookups) error {
	kind, rest, prefixed := strings.Cut(s.name, "+")
	if !prefixed {
		rest = s.name
	}
	host, port, err := net.SplitHostPort(rest)
	incomplete := err != nil || host == "" || port == ""
	switch {
	case strings.HasPrefix(s.name, "/"):
		s.servers = []*server{newServer(s.name)}
	case strings.ContainsAny(s.name, " \t"):
		return fmt.Errorf("%q has a space in it; servers are separated by commas", s.name)
	case !prefixed && incomplete:
		return fmt.Errorf("%q is not a Memcached server; give host:port or /path/to.sock", s.name)
	case kind == "dnssrv":
		labels := strings.SplitN(rest, ".", 3)
		if len(labels) < 3 || len(labels[0]) < 2 || labels[0][0] != '_' || len(labels[1]) < 2 || labels[1][0] != '_' || labels[2] == "" || strings.Contains(rest, ":") {
			return fmt.Errorf("%q names no Memcached servers; give dnssrv+_name._tcp.host, without a port", s.name)
		}
		s.find = func(ctx context.Context) ([]*server, error) { return l.services(ctx, rest) }
	case prefixed && kind != "dns" && kind != "cluster":
		return fmt.Errorf("%q is not a Memcached server; give host:port, /path/to.sock, dns+host:port, dnssrv+_name._tcp.host or cluster+host:port", s.name)
	case incomplete:
		return fmt.Errorf("%q names no Memcached servers; give %s+host:port", s.name, kind)
	case !dialable(port):
		return fmt.Errorf("%q has a port that can't be dialed; give one from 1 to 65535", s.name)
	case !prefixed:
		s.servers = []*server{newServer(s.name)}
	case kind == "dns":
		s.find = func(ctx context.Context) ([]*server, error) { return l.addresses(ctx, host, port) }
	default:
		s.find = func(ctx context.Context) ([]*server, error) { return l.cluster(ctx, newServer(rest)) }
	}
	return nil
}

// dialable reports whether a port is one to net.Dial: a number, or a service's
// name.
func dialable(port string) bool {
	n, err := net.LookupPort("tcp", port)
	return err == nil && n > 0
}

// changes reports whether there is anything to look up.
func (m membership) changes() bool {
	return slices.ContainsFunc(m, func(s *source) bool { return s.find != nil })
}

// lookUp looks up what is due, all at the same time, until ctx ends. What isn't
// found keeps the servers that were found last.
func (m membership) lookUp(ctx context.Context, now time.Time) {
	var wg sync.WaitGroup
	for _, s := range m {
		if s.find == nil || len(s.servers) > 0 && now.Sub(s.asked) < lookUpInterval-retryInterval/2 {
			continue
		}
		s.asked = now
		wg.Go(func() {
			servers, err := s.find(ctx)
			if err == nil && len(servers) == 0 {
				err = errors.New("no server is found")
			}
			if s.err = err; err == nil {
				s.servers = servers
			}
		})
	}
	wg.Wait()
}

// servers returns all servers, in the order of the names. One that is found by
// several names is there once.
func (m membership) servers() []*server {
	var all []*server
	for _, s := range m {
		for _, found := range slices.SortedFunc(slices.Values(s.servers), func(a, b *server) int { return strings.Compare(a.name, b.name) }) {
			if !slices.ContainsFunc(all, func(other *server) bool { return other.name == found.name }) {
				all = append(all, found)
			}
		}
	}
	return all
}

// missing returns the names that no servers are known of, as servers that are
// down.
func (m membership) missing() []counters.ServerStatus {
	var missing []counters.ServerStatus
	for _, s := range m {
		if len(s.servers) == 0 {
			missing = append(missing, counters.ServerStatus{Server: s.name, Err: fmt.Errorf("%w: %w", counters.ErrUnavailable, s.err)})
		}
	}
	return missing
}

// speak warns when look-ups of a name begin to fail, and says when they
// succeed again.
func (m membership) speak(log *slog.Logger) {
	for _, s := range m {
		log := log.With(slog.String("name", s.name))
		switch failed := s.err != nil; {
		case failed == s.warned:
			continue
		case failed && len(s.servers) == 0:
			log.Warn("no Memcached servers are found by a name: it is looked up again every second", slog.Any("error", s.err))
		case failed:
			log.Warn("Memcached servers can't be looked up: those found last stay", slog.Any("error", s.err))
		default:
			log.Info("Memcached servers can be looked up again")
		}
		s.warned = s.err != nil
	}
}

// lookups is all that look-ups need.
type lookups struct {
	resolver resolver
	dial     func(*server) pipeline.DialFunc
}

// A resolver asks the DNS, as net.Resolver does.
type resolver interface {
	LookupNetIP(ctx context.Context, network, host string) ([]netip.Addr, error)
	LookupSRV(ctx context.Context, service, protocol, name string) (string, []*net.SRV, error)
}

// addresses returns a server for each address of the host. One that has an
// address of both kinds would be taken for two servers, so it is IPv4 only, or
// IPv6 when there is none. What asks for both at once may return only one kind
// when the other times out.
func (l lookups) addresses(ctx context.Context, host, port string) ([]*server, error) {
	addresses, err := l.resolver.LookupNetIP(ctx, "ip4", host)
	if dns, ok := errors.AsType[*net.DNSError](err); ok && !dns.IsNotFound {
		return nil, err
	}
	if len(addresses) == 0 {
		addresses, err = l.resolver.LookupNetIP(ctx, "ip6", host)
	}
	if err != nil {
		return nil, err
	}
	var servers []*server
	for _, address := range addresses {
		s := newServer(net.JoinHostPort(address.Unmap().String(), port))
		s.host = host
		servers = append(servers, s)
	}
	return servers, nil
}

// services returns the servers in the SRV records at name. They keep the names
// of their hosts, so that one that comes back at another address keeps its
// clients.
func (l lookups) services(ctx context.Context, name string) ([]*server, error) {
	_, records, err := l.resolver.LookupSRV(ctx, "", "", name)
	if err != nil {
		return nil, err
	}
	var servers []*server
	for _, record := range records {
		host := strings.TrimSuffix(record.Target, ".")
		if host == "" {
			return nil, fmt.Errorf("%s says that there is no such service", name)
		}
		servers = append(servers, newServer(net.JoinHostPort(host, strconv.Itoa(int(record.Port)))))
	}
	return servers, nil
}

// cluster asks a server for all servers of its cluster.
func (l lookups) cluster(ctx context.Context, endpoint *server) ([]*server, error) {
	conn, err := l.dial(endpoint)(ctx, endpoint.network, endpoint.address)
	if err != nil {
		return nil, err
	}
	defer conn.Close()
	defer context.AfterFunc(ctx, func() { _ = conn.SetDeadline(time.Unix(1, 0)) })()
	if _, err := io.WriteString(conn, "config get cluster\r\n"); err != nil {
		return nil, err
	}
	return parseCluster(conn)
}

// parseCluster reads what is answered to config get cluster:
//
//	CONFIG cluster 0 <length>\r\n
//	<version>\n
//	<host>|<ip>|<port> <host>|<ip>|<port>...\n
//	\r\n
//	END\r\n
//
// The ip may be missing. It is what is connected to, else the host; the host
// stays when a server is replaced.
func parseCluster(r io.Reader) ([]*server, error) {
	var lines []string
	scan := bufio.NewScanner(io.LimitReader(r, maxConfiguration))
	for scan.Scan() && scan.Text() != "END" {
		lines = append(lines, scan.Text())
		if !strings.HasPrefix(lines[0], "CONFIG cluster ") {
			return nil, fmt.Errorf("config get cluster isn't answered with a configuration but with %.100q", lines[0])
		}
	}
	if err := scan.Err(); err != nil {
		return nil, err
	}
	if scan.Text() != "END" || len(lines) < 3 {
		return nil, fmt.Errorf("config get cluster is answered with an incomplete configuration: %.100q", lines)
	}
	var servers []*server
	for node := range strings.FieldsSeq(lines[2]) {
		fields := strings.Split(node, "|")
		if len(fields) != 3 || fields[0]+fields[1] == "" {
			return nil, fmt.Errorf("a cluster has the node %.100q, which isn't host|ip|port", node)
		}
		host, ip := fields[0], fields[1]
		if host == "" {
			host = ip
		}
		if ip == "" {
			ip = host
		}
		if _, err := strconv.ParseUint(fields[2], 10, 16); err != nil {
			return nil, fmt.Errorf("a cluster has the node %.100q, whose port isn't a number", node)
		}
		s := newServer(net.JoinHostPort(host, fields[2]))
		s.address, s.host = net.JoinHostPort(ip, fields[2]), host
		servers = append(servers, s)
	}
	return servers, nil
}
