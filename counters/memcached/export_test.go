package memcached

import (
	"net"

	"weir/counters/memcached/pipeline"
	"weir/counters/memcachedtest"
)

// NewPatient is New for servers on a busy machine: a dial takes as long as it needs, and none is
// cut off as it is silent.
func NewPatient(cfg Config) (*Store, error) { return newStore(cfg, patient(cfg), net.DefaultResolver) }

func patient(cfg Config) func(*server) pipeline.DialFunc {
	return func(to *server) pipeline.DialFunc { return memcachedtest.Patient(cfg.dialer(to)) }
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
