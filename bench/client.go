package main

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"net"
	"strconv"
	"time"
)

// A client is one keep-alive connection that sends prepared checks and reads
// just enough of the responses, so that measuring costs little. It is not safe
// for concurrent use.
type client struct {
	conn    net.Conn
	r       *bufio.Reader
	request []byte
	digits  []byte // of the client's name, within request
}

// A request is what a check posts. The body names client 0.
type request struct{ path, body string }

// dialClients opens n connections to addr that send r.
func dialClients(ctx context.Context, addr string, r request, n int) ([]*client, error) {
	clients := make([]*client, 0, n)
	for range n {
		conn, err := new(net.Dialer).DialContext(ctx, "tcp", addr)
		if err != nil {
			closeClients(clients)
			return nil, err
		}
		clients = append(clients, newClient(conn, addr, r))
	}
	return clients, nil
}

func closeClients(clients []*client) {
	for _, c := range clients {
		c.conn.Close()
	}
}

func newClient(conn net.Conn, addr string, r request) *client {
	text := fmt.Appendf(nil, "POST %s HTTP/1.1\r\nHost: %s\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n%s",
		r.path, addr, len(r.body), r.body)
	name := bytes.LastIndex(text, []byte(clientName(0)))
	return &client{conn: conn, r: bufio.NewReader(conn), request: text, digits: text[name+len(clientPrefix):][:clientDigits]}
}

// check asks whether the client with number n may, and returns the response's
// status and body. The body is valid until the next check.
func (c *client) check(n int64) (status int, body []byte, err error) {
	if err := c.send(n); err != nil {
		return 0, nil, err
	}
	return readResponse(c.r)
}

// send asks whether the client with number n may; the response is still to be
// read.
func (c *client) send(n int64) error {
	putDigits(c.digits, n)
	_, err := c.conn.Write(c.request)
	return err
}

// expire makes what waits for the connection fail.
func (c *client) expire() { _ = c.conn.SetDeadline(time.Unix(1, 0)) }

// putDigits writes n with leading zeros.
func putDigits(digits []byte, n int64) {
	for i := len(digits) - 1; i >= 0; i-- {
		digits[i] = byte('0' + n%10)
		n /= 10
	}
}

var errResponse = errors.New("the response is not one that the bench can read")

// readResponse reads a HTTP/1.1 response with a Content-Length on a connection
// that stays open. The body is valid until the next read, and must fit into r's
// buffer.
func readResponse(r *bufio.Reader) (status int, body []byte, err error) {
	line, err := r.ReadSlice('\n')
	if err != nil {
		return 0, nil, err
	}
	const version = "HTTP/1.1 "
	if !bytes.HasPrefix(line, []byte(version)) || len(line) < len(version)+4 {
		return 0, nil, fmt.Errorf("%w: it begins with %q", errResponse, line)
	}
	if status, err = strconv.Atoi(string(line[len(version) : len(version)+3])); err != nil {
		return 0, nil, fmt.Errorf("%w: it begins with %q", errResponse, line)
	}
	length := -1
	for {
		if line, err = r.ReadSlice('\n'); err != nil {
			return 0, nil, err
		}
		if line = bytes.TrimRight(line, "\r\n"); len(line) == 0 {
			break
		}
		name, value, _ := bytes.Cut(line, []byte(":"))
		switch {
		case bytes.EqualFold(name, []byte("Content-Length")):
			if length, err = strconv.Atoi(string(bytes.TrimSpace(value))); err != nil || length < 0 {
				return 0, nil, fmt.Errorf("%w: %q", errResponse, line)
			}
		case bytes.EqualFold(name, []byte("Transfer-Encoding")), bytes.EqualFold(name, []byte("Connection")):
			return 0, nil, fmt.Errorf("%w: %q", errResponse, line)
		}
	}
	if length < 0 {
		return 0, nil, fmt.Errorf("%w: it has no Content-Length", errResponse)
	}
	if body, err = r.Peek(length); err != nil {
		return 0, nil, err
	}
	_, err = r.Discard(length)
	return status, body, err
}
