package pipeline

import (
	"bufio"
	"cmp"
	"context"
	"crypto/tls"
	"fmt"
	"io"
	"net"
	"strings"
	"time"
)

// A DialFunc connects to a server before ctx ends.
type DialFunc = func(ctx context.Context, network, address string) (net.Conn, error)

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

// Checked returns a function that dials, and fails unless the server answers on the new
// connection: a server that takes no more of them accepts it all the same, and closes it.
func Checked(dial DialFunc) DialFunc {
	return func(ctx context.Context, network, address string) (net.Conn, error) {
		conn, err := dial(ctx, network, address)
		if err != nil {
			return nil, err
		}
		if line, err := greet(ctx, conn, "version\r\n"); err != nil || !strings.HasPrefix(line, "VERSION ") {
			_ = conn.Close()
			return nil, cmp.Or(err, fmt.Errorf("%s refused the connection: %q", address, line))
		}
		return conn, nil
	}
}

// authenticate logs in on a fresh connection.
func authenticate(ctx context.Context, conn net.Conn, user, password string) error {
	credentials := user + " " + password
	line, err := greet(ctx, conn, fmt.Sprintf("set auth 0 0 %d\r\n%s\r\n", len(credentials), credentials))
	if err == nil && line != "STORED\r\n" {
		err = fmt.Errorf("the server refused the credentials: %q", line)
	}
	return err
}

// greet sends a command on a fresh connection and returns the line of the reply.
func greet(ctx context.Context, conn net.Conn, command string) (line string, err error) {
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
	if _, err := io.WriteString(conn, command); err != nil {
		return "", err
	}
	// The server says nothing more until the next command, so no byte is lost
	// in the reader.
	return bufio.NewReader(conn).ReadString('\n')
}
