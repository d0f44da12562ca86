package memcached

import (
	"errors"
	"fmt"
	"net"
	"slices"
	"strings"

	"github.com/cespare/xxhash/v2"

	"weir/counters"
)

// A server is one Memcached server. It implements net.Addr with the name it was
// configured under, so that every instance agrees on it and names are resolved
// anew at each dial. It is also gomemcache's ServerSelector that knows no
// other.
type server struct {
	network string
	address string
	seed    uint64
}

func (s *server) Network() string { return s.network }
func (s *server) String() string  { return s.address }

func (s *server) PickServer(string) (net.Addr, error) { return s, nil }
func (s *server) Each(f func(net.Addr) error) error   { return f(s) }

// A ring places clients on servers by rendezvous hashing: each client goes to
// the server with the highest score for it. The order of the servers doesn't
// matter, and adding or removing one moves only the clients it gains or loses.
// It never changes.
type ring struct{ servers []*server }

// newRing returns the ring of the named servers: host:port, or the absolute
// path of a unix socket.
func newRing(names []string) (*ring, error) {
	if len(names) == 0 {
		return nil, errors.New("no Memcached server is named; give host:port or /path/to.sock")
	}
	r := new(ring)
	for _, name := range names {
		s := &server{network: "tcp", address: name, seed: xxhash.Sum64String(name)}
		if strings.HasPrefix(name, "/") {
			s.network = "unix"
		} else if host, port, err := net.SplitHostPort(name); err != nil || host == "" || port == "" {
			return nil, fmt.Errorf("%q is not a Memcached server; give host:port or /path/to.sock", name)
		}
		if slices.ContainsFunc(r.servers, func(other *server) bool { return other.address == name }) {
			return nil, fmt.Errorf("the Memcached server %s is named twice", name)
		}
		r.servers = append(r.servers, s)
	}
	return r, nil
}

// pick returns the index of the server that keeps the client which key belongs
// to.
func (r *ring) pick(key string) int {
	if len(r.servers) == 1 {
		return 0
	}
	client := xxhash.Sum64String(counters.ClientPart(key))
	best, bestScore := 0, mix(client^r.servers[0].seed)
	for i, s := range r.servers[1:] {
		if score := mix(client ^ s.seed); score > bestScore || score == bestScore && s.address < r.servers[best].address {
			best, bestScore = i+1, score
		}
	}
	return best
}

// mix spreads every bit of x over all bits: the 64-bit finalizer of
// MurmurHash3.
func mix(x uint64) uint64 {
	x ^= x >> 33
	x *= 0xff51afd7ed558ccd
	x ^= x >> 33
	x *= 0xc4ceb9fe1a85ec53
	x ^= x >> 33
	return x
}
