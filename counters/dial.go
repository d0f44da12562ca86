package counters

import (
	"bufio"
	"context"
	"crypto/tls"
	"fmt"
	"net"
	"strings"
	"time"
)

// dialFunc connects to a server before ctx ends.
type dialFunc func(ctx context.Context, network, address string) (net.Conn, error)

// newDialer returns a dialFunc for plain connections, or for TLS when config
// isn't nil, that authenticates each connection when user isn't empty.
func newDialer(config *tls.Config, user, password string) dialFunc {
	var dial dialFunc = new(net.Dialer).DialContext
	if config != nil {
		dial = (&tls.Dialer{Config: config}).DialContext
	}
	if user == "" {
		return dial
	}
	return func(ctx context.Context, network, address string) (net.Conn, error) {
		c, err := dial(ctx, network, address)
		if err != nil {
			return nil, err
		}
		if err := authenticate(ctx, c, user, password); err != nil {
			c.Close()
			return nil, err
		}
		return c, nil
	}
}

// authenticate sends the credentials as Memcached's text protocol wants them:
// as the value of a set, before any other command.
func authenticate(ctx context.Context, c net.Conn, user, password string) error {
	if deadline, ok := ctx.Deadline(); ok {
		if err := c.SetDeadline(deadline); err != nil {
			return err
		}
		defer c.SetDeadline(time.Time{})
	}
	credentials := user + " " + password
	if _, err := fmt.Fprintf(c, "set auth 0 0 %d\r\n%s\r\n", len(credentials), credentials); err != nil {
		return err
	}
	line, err := bufio.NewReaderSize(c, 64).ReadString('\n')
	if err != nil {
		return err
	}
	if line != "STORED\r\n" {
		return fmt.Errorf("the server refuses the user %q: %s", user, strings.TrimSpace(line))
	}
	return nil
}
