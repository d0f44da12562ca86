package memcached

import (
	"net"
	"strings"

	"github.com/cespare/xxhash/v2"

	"weir/counters"
)

// A server is one Memcached server. Every instance agrees on its name, which
// decides which clients it keeps. It implements net.Addr with the address to
// connect to, in which a name of a host is resolved anew at each dial. It is
// also gomemcache's ServerSelector that knows no other.
type server struct {
	name    string
	seed    uint64 // the hash of the name
	network string
	address string
	host    string // that its certificate names, or empty for the address's
}

// newServer returns the server of that name: host:port, or the absolute path of
// a unix socket.
func newServer(name string) *server {
	s := &server{name: name, seed: xxhash.Sum64String(name), network: "tcp", address: name}
	if strings.HasPrefix(name, "/") {
		s.network = "unix"
	}
	return s
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

func (r *ring) names() []string {
	names := make([]string, len(r.servers))
	for i, s := range r.servers {
		names[i] = s.name
	}
	return names
}

// pick returns the index of the server that keeps the client which key belongs
// to. There must be a server.
func (r *ring) pick(key string) int {
	if len(r.servers) == 1 {
		return 0
	}
	client := xxhash.Sum64String(counters.ClientPart(key))
	best, bestScore := 0, mix(client^r.servers[0].seed)
	for i, s := range r.servers[1:] {
		if score := mix(client ^ s.seed); score > bestScore || score == bestScore && s.name < r.servers[best].name {
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
