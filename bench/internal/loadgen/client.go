package loadgen

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	"github.com/HdrHistogram/hdrhistogram-go"
)

// A Client is one keep-alive connection that sends prepared checks and reads
// just enough of the responses, so that measuring costs little. It is not safe
// for concurrent use.
type Client struct {
	Conn    net.Conn
	R       *bufio.Reader
	request []byte
	digits  []byte // of the client's name, within request
}

// A Request is what a check posts. The body names client 0.
type Request struct{ Path, Body string }

// Clients are connections to one server.
type Clients []*Client

// Dial opens n connections to addr that send r.
func Dial(ctx context.Context, addr string, r Request, n int) (Clients, error) {
	clients := make(Clients, 0, n)
	for range n {
		conn, err := new(net.Dialer).DialContext(ctx, "tcp", addr)
		if err != nil {
			clients.Close()
			return nil, err
		}
		clients = append(clients, NewClient(conn, addr, r))
	}
	return clients, nil
}

// Close closes all connections.
func (c Clients) Close() {
	for _, client := range c {
		client.Conn.Close()
	}
}

// NewClient returns a client that sends r on a connection to addr.
func NewClient(conn net.Conn, addr string, r Request) *Client {
	text := fmt.Appendf(nil, "POST %s HTTP/1.1\r\nHost: %s\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n%s",
		r.Path, addr, len(r.Body), r.Body)
	name := bytes.LastIndex(text, []byte(ClientName(0)))
	return &Client{Conn: conn, R: bufio.NewReader(conn), request: text, digits: text[name+len(ClientPrefix):][:ClientDigits]}
}

// Check asks whether the client with number n may, and returns the response's
// status and body. The body is valid until the next check.
func (c *Client) Check(n int64) (status int, body []byte, err error) {
	if err := c.Send(n); err != nil {
		return 0, nil, err
	}
	return ReadResponse(c.R)
}

// Send asks whether the client with number n may; the response is still to be
// read.
func (c *Client) Send(n int64) error {
	putDigits(c.digits, n)
	_, err := c.Conn.Write(c.request)
	return err
}

// Expire makes what waits for the connection fail.
func (c *Client) Expire() { _ = c.Conn.SetDeadline(time.Unix(1, 0)) }

// putDigits writes n with leading zeros.
func putDigits(digits []byte, n int64) {
	for i := len(digits) - 1; i >= 0; i-- {
		digits[i] = byte('0' + n%10)
		n /= 10
	}
}

var errResponse = errors.New("the response is not one that the bench can read")

// ReadResponse reads a HTTP/1.1 response with a Content-Length on a connection
// that stays open. The body is valid until the next read, and must fit into r's
// buffer.
func ReadResponse(r *bufio.Reader) (status int, body []byte, err error) {
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

const (
	ClientPrefix = "client-"
	ClientDigits = 8
)

func ClientName(n int64) string { return fmt.Sprintf("%s%0*d", ClientPrefix, ClientDigits, n) }

// A Tally is what a load measured.
type Tally struct {
	Admitted, Denied int64
	Elapsed          time.Duration
	Latency          *hdrhistogram.Histogram
}

func NewTally() Tally { return Tally{Latency: NewHistogram()} }

func (t *Tally) Checks() int64 { return t.Admitted + t.Denied }

// Add counts what o measured, at another time.
func (t *Tally) Add(o Tally) {
	t.merge(o)
	t.Elapsed += o.Elapsed
}

// merge counts what o measured at the same time.
func (t *Tally) merge(o Tally) {
	t.Admitted += o.Admitted
	t.Denied += o.Denied
	t.Latency.Merge(o.Latency)
}

// Rate returns operations per second.
func (t *Tally) Rate() float64 { return float64(t.Checks()) / t.Elapsed.Seconds() }

// A Turn hands out the numbers of clients in turn, so that all come equally
// often. It is safe for concurrent use.
type Turn struct {
	Clients int64
	Last    int64 // numbers to hand out in all; 0 means without end
	Taken   atomic.Int64
}

func (t *Turn) next() (n int64, ok bool) {
	taken := t.Taken.Add(1) - 1
	if t.Last > 0 && taken >= t.Last {
		return 0, false
	}
	return taken % t.Clients, true
}

// Drive lets every connection check as fast as it is answered, until the turn
// or the duration (0 means without end) is over. Any answer but 200 and 429 is
// an error and ends it.
func (clients Clients) Drive(ctx context.Context, turn *Turn, duration time.Duration) (Tally, error) {
	operations := make([]Operation, len(clients))
	for i, c := range clients {
		operations[i] = func(n int64) (bool, error) {
			status, body, err := c.Check(n)
			switch {
			case err != nil:
				return false, err
			case status != http.StatusOK && status != http.StatusTooManyRequests:
				return false, fmt.Errorf("a check was answered with status %d: %s", status, body)
			}
			return status == http.StatusOK, nil
		}
	}
	stop := context.AfterFunc(ctx, func() {
		for _, c := range clients {
			c.Expire()
		}
	})
	defer stop()
	return Repeat(ctx, operations, turn, duration)
}

// An Operation acts for the client with number n and returns whether it was
// admitted.
type Operation func(n int64) (admitted bool, err error)

// Repeat calls each operation again and again, all at once, until the turn or
// the duration (0 means without end) is over, or ctx ends, which is an error.
func Repeat(ctx context.Context, operations []Operation, turn *Turn, duration time.Duration) (Tally, error) {
	tallies := make([]Tally, len(operations))
	for i := range tallies {
		tallies[i] = NewTally()
	}
	errs := make([]error, len(operations))
	var failed atomic.Bool
	var callers sync.WaitGroup
	start := time.Now()
	for i, op := range operations {
		callers.Go(func() {
			t := &tallies[i]
			for before := time.Now(); duration == 0 || before.Sub(start) < duration; {
				n, ok := turn.next()
				if !ok || failed.Load() {
					return
				}
				admitted, err := op(n)
				if err != nil {
					errs[i] = err
					failed.Store(true)
					return
				}
				now := time.Now()
				if admitted {
					t.Admitted++
				} else {
					t.Denied++
				}
				Record(t.Latency, now.Sub(before))
				before = now
			}
		})
	}
	callers.Wait()
	total := NewTally()
	total.Elapsed = time.Since(start)
	if err := ctx.Err(); err != nil {
		return total, err
	}
	for i := range tallies {
		total.merge(tallies[i])
	}
	return total, errors.Join(errs...)
}

// SliceCount is how many times a row goes back and forth between weir and what
// it is compared with, so that what else the machine does hits both alike.
const SliceCount = 3

// NewHistogram returns a histogram of latencies in nanoseconds, up to a minute,
// right to 1%.
func NewHistogram() *hdrhistogram.Histogram {
	return hdrhistogram.New(int64(time.Microsecond), int64(time.Minute), 2)
}

func Percentile(h *hdrhistogram.Histogram, percent float64) time.Duration {
	return time.Duration(h.ValueAtPercentile(percent))
}

func Record(h *hdrhistogram.Histogram, d time.Duration) {
	_ = h.RecordValue(int64(min(d, time.Minute))) // beyond a minute it counts as one
}
