package loadgen

import (
	"bufio"
	"bytes"
	"context"
	"fmt"
	"net"
	"sync"
	"time"
)

// An httpConnection is a Connection over HTTP. It reads just enough of the responses, so
// that measuring costs little, and connects again when the server closes the
// connection after a response.
type httpConnection struct {
	dial    func() (net.Conn, error)
	r       *bufio.Reader
	request []byte
	names   [][]byte // the digits of the clients' names, within request
	right   func(body []byte) bool
	body    []byte // for what doesn't fit into r

	mu       sync.Mutex
	conn     net.Conn  // Expire reads it
	deadline time.Time // of all connections; zero if there is none
}

// A Request is what a check posts, or a batch of them. The body names the
// clients from 0 on.
type Request struct {
	Path, Body string
	Right      func(body []byte) bool // see Connection; nil for any answer
}

// Dial opens n connections to addr that send r.
func Dial(ctx context.Context, addr string, r Request, n int) (Connections, error) {
	all := make(Connections, 0, n)
	for range n {
		c, err := newHTTPConnection(func() (net.Conn, error) {
			dialer := net.Dialer{Timeout: dialTimeout}
			return dialer.DialContext(ctx, "tcp", addr)
		}, addr, r)
		if err != nil {
			all.Close()
			return nil, err
		}
		all = append(all, c)
	}
	return all, nil
}

const dialTimeout = 10 * time.Second

// newHTTPConnection returns one that sends r on what dial opens, to addr.
func newHTTPConnection(dial func() (net.Conn, error), addr string, r Request) (*httpConnection, error) {
	text := fmt.Appendf(nil, "POST %s HTTP/1.1\r\nHost: %s\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n%s",
		r.Path, addr, len(r.Body), r.Body)
	conn, err := dial()
	if err != nil {
		return nil, err
	}
	c := &httpConnection{dial: dial, conn: conn, r: bufio.NewReader(conn), request: text, right: r.Right}
	for rest := text[len(text)-len(r.Body):]; ; {
		name := bytes.Index(rest, []byte(clientPrefix))
		if name < 0 {
			return c, nil
		}
		rest = rest[name+len(clientPrefix):]
		c.names = append(c.names, rest[:clientDigits])
		rest = rest[clientDigits:]
	}
}

// Send implements Connection.
func (c *httpConnection) Send(n int64) error {
	first := n * int64(len(c.names))
	for i, digits := range c.names {
		putDigits(digits, first+int64(i))
	}
	_, err := c.conn.Write(c.request)
	return err
}

// Right implements Connection.
func (c *httpConnection) Right(body []byte) bool { return c.right == nil || c.right(body) }

// Receive implements Connection. If the server closes the connection after the
// response, there is another when Receive returns.
func (c *httpConnection) Receive() (status int, body []byte, err error) {
	a, err := readResponse(c.r, &c.body)
	if err == nil && a.last {
		// The body may be in the buffer, which the next connection uses.
		c.body = append(c.body[:0], a.body...)
		a.body = c.body
		err = c.reconnect()
	}
	return a.status, a.body, err
}

func (c *httpConnection) reconnect() error {
	conn, err := c.dial()
	if err != nil {
		return fmt.Errorf("the server closes connections, and another can't be opened: %w", err)
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	_ = c.conn.Close() // which the server has done too
	c.conn = conn
	_ = conn.SetDeadline(c.deadline)
	c.r.Reset(conn)
	return nil
}

// Close implements Connection.
func (c *httpConnection) Close() { _ = c.conn.Close() }

var past = time.Unix(1, 0)

// Expire implements Connection.
func (c *httpConnection) Expire() { c.setDeadline(past) }

// Renew implements Connection. A connection that is closed fails when it is used.
func (c *httpConnection) Renew() { c.setDeadline(time.Time{}) }

func (c *httpConnection) setDeadline(deadline time.Time) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.deadline = deadline
	_ = c.conn.SetDeadline(deadline)
}
