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
