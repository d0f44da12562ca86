package pipeline

import (
	"bufio"
	"cmp"
	"context"
	"crypto/tls"
	"fmt"
	"net"
	"time"
)

// A DialFunc connects to a server before ctx ends.
type DialFunc func(ctx context.Context, network, address string) (net.Conn, error)

// Dialer returns a function that opens a connection ready for commands: over
// TLS when tlsConfig isn't nil, with the host of the address as the server's
// name unless tlsConfig has one, and logged in with text-protocol
// authentication when user isn't empty. The function ends with its context.
func Dialer(tlsConfig *tls.Config, user, password string) DialFunc {
	var dial DialFunc = new(net.Dialer).DialContext
	if tlsConfig != nil {
		dial = dialTLS(tlsConfig)
	}
	if user == "" {
		return dial
	}
	return func(ctx context.Context, network, address string) (net.Conn, error) {
		conn, err := dial(ctx, network, address)
		if err != nil {
			return nil, err
		}
		if err := authenticate(ctx, conn, user, password); err != nil {
			_ = conn.Close()
			return nil, fmt.Errorf("authentication with %s: %w", address, err)
		}
		return conn, nil
	}
}

func dialTLS(config *tls.Config) DialFunc {
	config = config.Clone()
	// A record that is cut short would end within a command.
	config.DynamicRecordSizingDisabled = true
	dialer := &tls.Dialer{Config: config}
	return func(ctx context.Context, network, address string) (net.Conn, error) {
		conn, err := dialer.DialContext(ctx, network, address)
		if err != nil {
			return nil, err
		}
		return recordConn{conn.(*tls.Conn)}, nil
	}
}

// authenticate logs in on a fresh connection.
func authenticate(ctx context.Context, conn net.Conn, user, password string) (err error) {
	interrupted := make(chan struct{})
	stop := context.AfterFunc(ctx, func() {
		_ = conn.SetDeadline(time.Unix(1, 0))
		close(interrupted)
	})
	defer func() {
		if !stop() {
			<-interrupted
			err = cmp.Or(err, context.Cause(ctx))
		}
	}()
	credentials := user + " " + password
	if _, err := fmt.Fprintf(conn, "set auth 0 0 %d\r\n%s\r\n", len(credentials), credentials); err != nil {
		return err
	}
	// The server says nothing more until the next command, so no byte is lost
	// in the reader.
	line, err := bufio.NewReader(conn).ReadString('\n')
	switch {
	case err != nil:
		return err
	case line != "STORED\r\n":
		return fmt.Errorf("the server refused the credentials: %q", line)
	}
	return nil
}
