package memcachedtest

import (
	"context"
	"net"
	"syscall"
	"time"
)

// Patient is dial without a deadline, for connections that aren't cut off: on a
// busy machine a dial may take longer than package pipeline allows for, and a
// server may have no turn until it would be cut off.
func Patient(dial func(ctx context.Context, network, address string) (net.Conn, error)) func(ctx context.Context, network, address string) (net.Conn, error) {
	return func(ctx context.Context, network, address string) (net.Conn, error) {
		conn, err := dial(context.WithoutCancel(ctx), network, address)
		if err != nil {
			return nil, err
		}
		if raw, ok := conn.(syscall.Conn); ok {
			return patientSocket{patientConn{conn}, raw}, nil
		}
		return patientConn{conn}, nil
	}
}

// A patientConn has no read deadline but one that has passed, which interrupts.
type patientConn struct{ net.Conn }

func (c patientConn) SetReadDeadline(at time.Time) error {
	if at.After(time.Now()) {
		at = time.Time{}
	}
	return c.Conn.SetReadDeadline(at)
}

type patientSocket struct {
	patientConn
	syscall.Conn
}
