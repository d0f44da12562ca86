package loadgen

import (
	"bytes"
	"fmt"
	"net/http"
	"strconv"
)

// A Connection sends prepared checks and receives the answers, one at a time.
// Send and Receive may be called by two goroutines.
type Connection interface {
	// Send asks whether the client with number n may, or those of the batch with
	// that number.
	Send(n int64) error
	// Receive returns the status, as over HTTP, and the body of the answer to
	// what was sent. The body is valid until the next one.
	Receive() (status int, body []byte, err error)
	// Right reports whether an answer with an expected status is about what was
	// asked.
	Right(body []byte) bool
	// Expire makes what waits for an answer fail, until Renew.
	Expire()
	Renew()
	Close()
}

// ask sends a check on c and receives the answer.
func ask(c Connection, n int64) (status int, body []byte, err error) {
	if err := c.Send(n); err != nil {
		return 0, nil, err
	}
	return c.Receive()
}

// Connections are those to one server.
type Connections []Connection

// Close closes all connections.
func (all Connections) Close() {
	for _, c := range all {
		c.Close()
	}
}

// Expire makes what waits for an answer fail on all.
func (all Connections) Expire() {
	for _, c := range all {
		c.Expire()
	}
}

// wrong returns what is wrong with an answer on c, if anything.
func wrong(c Connection, status int, body []byte) error {
	switch {
	case status != http.StatusOK && status != http.StatusTooManyRequests:
		return fmt.Errorf("status %d: %s", status, readable(body))
	case !c.Right(body):
		return fmt.Errorf("status %d without what was asked for: %s", status, readable(body))
	default:
		return nil
	}
}

// readable returns a body, quoted if it isn't text.
func readable(body []byte) string {
	if bytes.ContainsFunc(body, func(r rune) bool { return r < ' ' && r != '\n' }) {
		return strconv.Quote(string(body))
	}
	return string(body)
}
