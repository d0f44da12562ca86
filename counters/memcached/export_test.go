package memcached

import (
	"context"
	"net"

	"weir/counters/memcached/pipeline"
)

// NewPatient is New without a bound on a dial: on a busy machine a handshake may take longer
// than that.
func NewPatient(cfg Config) (*Store, error) { return newStore(cfg, patient(cfg), net.DefaultResolver) }

// patient is cfg.dialer whose dials take as long as they need.
func patient(cfg Config) func(*server) pipeline.DialFunc {
	return func(to *server) pipeline.DialFunc {
		dial := cfg.dialer(to)
		return func(ctx context.Context, network, address string) (net.Conn, error) {
			return dial(context.WithoutCancel(ctx), network, address)
		}
	}
}

// BothOpen reports whether single operations and many have a socket each that is open, to
// every server.
func (s *Store) BothOpen() bool {
	for _, cs := range s.members.Load().backends {
		for _, l := range []*lane{&cs.single, &cs.bulk} {
			if !l.pool.Ready(cs.server.network, cs.server.address) {
				return false
			}
		}
	}
	return true
}
