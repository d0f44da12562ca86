package loadgen

import (
	"bufio"
	"bytes"
	"cmp"
	"context"
	"fmt"
	"net"
	"net/http"
	"sync"
	"sync/atomic"
	"time"

	"github.com/HdrHistogram/hdrhistogram-go"
)

// A Client is a connection that sends prepared checks and reads just enough of
// the responses, so that measuring costs little. It connects again when the
// server closes the connection after a response. It is not safe for concurrent
// use, but for Expire.
type Client struct {
	dial    func() (net.Conn, error)
	r       *bufio.Reader
	request []byte
	names   [][]byte // the digits of the clients' names, within request
	body    []byte   // for what doesn't fit into r

	mu      sync.Mutex
	conn    net.Conn // Expire reads it
	expired bool
}

// A Request is what a check posts, or a batch of them. The body names the
// clients from 0 on.
type Request struct{ Path, Body string }

// Clients are connections to one server.
type Clients []*Client

// Dial opens n connections to addr that send r.
func Dial(ctx context.Context, addr string, r Request, n int) (Clients, error) {
	clients := make(Clients, 0, n)
	for range n {
		c, err := NewClient(func() (net.Conn, error) {
			dialer := net.Dialer{Timeout: dialTimeout}
			return dialer.DialContext(ctx, "tcp", addr)
		}, addr, r)
		if err != nil {
			clients.Close()
			return nil, err
		}
		clients = append(clients, c)
	}
	return clients, nil
}

const dialTimeout = 10 * time.Second

// Close closes all connections.
func (c Clients) Close() {
	for _, client := range c {
		client.Close()
	}
}

// NewClient returns a client that sends r on a connection, to addr, that dial
// opens.
func NewClient(dial func() (net.Conn, error), addr string, r Request) (*Client, error) {
	text := fmt.Appendf(nil, "POST %s HTTP/1.1\r\nHost: %s\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n%s",
		r.Path, addr, len(r.Body), r.Body)
	conn, err := dial()
	if err != nil {
		return nil, err
	}
	c := &Client{dial: dial, conn: conn, r: bufio.NewReader(conn), request: text}
	for rest := text[len(text)-len(r.Body):]; ; {
		name := bytes.Index(rest, []byte(ClientPrefix))
		if name < 0 {
			return c, nil
		}
		rest = rest[name+len(ClientPrefix):]
		c.names = append(c.names, rest[:ClientDigits])
		rest = rest[ClientDigits:]
	}
}

// Check asks whether the client with number n may, or those of the batch with
// that number, and returns the response's status and body. The body is valid
// until the next check.
func (c *Client) Check(n int64) (status int, body []byte, err error) {
	if err := c.Send(n); err != nil {
		return 0, nil, err
	}
	return c.Receive()
}

// Send asks what Check asks; the response is still to be received.
func (c *Client) Send(n int64) error {
	first := n * int64(len(c.names))
	for i, digits := range c.names {
		putDigits(digits, first+int64(i))
	}
	_, err := c.conn.Write(c.request)
	return err
}

// Receive returns the status and the body of the response to what was sent. The
// body is valid until the next one. If the server closes the connection after
// it, the client has another when Receive returns.
func (c *Client) Receive() (status int, body []byte, err error) {
	a, err := readResponse(c.r, &c.body)
	if err == nil && a.last {
		// The body may be in the buffer, which the next connection uses.
		c.body = append(c.body[:0], a.body...)
		a.body = c.body
		err = c.reconnect()
	}
	return a.status, a.body, err
}

func (c *Client) reconnect() error {
	conn, err := c.dial()
	if err != nil {
		return fmt.Errorf("the server closes connections, and another can't be opened: %w", err)
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	_ = c.conn.Close() // which the server has done too
	c.conn = conn
	if c.expired {
		_ = conn.SetDeadline(past)
	}
	c.r.Reset(conn)
	return nil
}

// Close closes the connection.
func (c *Client) Close() { _ = c.conn.Close() }

var past = time.Unix(1, 0)

// Expire makes what waits for the connection fail, until Renew.
func (c *Client) Expire() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.expired = true
	_ = c.conn.SetDeadline(past)
}

// Renew undoes Expire. A connection that is closed fails when it is used.
func (c *Client) Renew() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.expired = false
	_ = c.conn.SetDeadline(time.Time{})
}

// putDigits writes n with leading zeros.
func putDigits(digits []byte, n int64) {
	for i := len(digits) - 1; i >= 0; i-- {
		digits[i] = byte('0' + n%10)
		n /= 10
	}
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
// an error and ends it, as is a batch of which not all are admitted.
func (clients Clients) Drive(ctx context.Context, turn *Turn, duration time.Duration) (Tally, error) {
	defer clients.expireAfter(ctx)()
	return Repeat(ctx, clients.operations(), turn, duration)
}

// DriveAt is Drive at the times of arrivals, as RepeatAt.
func (clients Clients) DriveAt(ctx context.Context, turn *Turn, due *Arrivals) (Tally, error) {
	defer clients.expireAfter(ctx)()
	return RepeatAt(ctx, clients.operations(), turn, due)
}

// expireAfter expires all connections when ctx ends, unless stop is called.
func (clients Clients) expireAfter(ctx context.Context) (stop func() bool) {
	return context.AfterFunc(ctx, func() {
		for _, c := range clients {
			c.Expire()
		}
	})
}

// operations are the checks of each connection.
func (clients Clients) operations() []Operation {
	operations := make([]Operation, len(clients))
	for i, c := range clients {
		operations[i] = func(n int64) (bool, error) {
			status, body, err := c.Check(n)
			switch {
			case err != nil:
				return false, err
			case status != http.StatusOK && status != http.StatusTooManyRequests:
				return false, fmt.Errorf("a check was answered with status %d: %s", status, body)
			case len(c.names) > 1 && bytes.Count(body, []byte(`"status":200,`)) < len(c.names):
				return false, fmt.Errorf("not all of a batch of %d were admitted: %.300s", len(c.names), body)
			}
			return status == http.StatusOK, nil
		}
	}
	return operations
}

// An Operation acts for the client with number n and returns whether it was
// admitted.
type Operation func(n int64) (admitted bool, err error)

// Repeat calls each operation again and again, all at once, until the turn or
// the duration (0 means without end) is over, or ctx ends, which is an error.
func Repeat(ctx context.Context, operations []Operation, turn *Turn, duration time.Duration) (Tally, error) {
	return repeat(ctx, operations, turn, func(start, before time.Time) (time.Time, bool) {
		return before, duration == 0 || before.Sub(start) < duration
	})
}

// RepeatAt calls the operations at the times of arrivals, or as soon afterwards
// as one of them is idle, until there are no more. Latency counts from when an
// operation was due.
func RepeatAt(ctx context.Context, operations []Operation, turn *Turn, arrivals *Arrivals) (Tally, error) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	due := make(chan time.Time)
	var sender sync.WaitGroup
	sender.Go(func() {
		RaisePriority()
		defer close(due)
		start := time.Now()
		for at, ok := arrivals.Next(); ok; at, ok = arrivals.Next() {
			for wait := at - time.Since(start); wait > 0 && ctx.Err() == nil; wait = at - time.Since(start) {
				Pause(min(wait, longestPause))
			}
			select {
			case due <- start.Add(at):
			case <-ctx.Done():
				return
			}
		}
	})
	defer sender.Wait()
	defer cancel()
	return repeat(ctx, operations, turn, func(_, _ time.Time) (time.Time, bool) {
		at, ok := <-due
		return at, ok
	})
}

// longestPause is how long a sender sleeps before it looks whether it is to
// end.
const longestPause = 50 * time.Millisecond

// repeat calls each operation again and again, all at once, until one fails. next
// returns from when the latency of the next one counts, if there is a next; it
// is told when all began, and when the last one ended.
func repeat(ctx context.Context, operations []Operation, turn *Turn, next func(start, before time.Time) (time.Time, bool)) (Tally, error) {
	tallies := make([]sharedTally, min(len(operations), maxTallies))
	for i := range tallies {
		tallies[i].Tally = NewTally()
	}
	errs := make([]error, len(operations))
	var failed atomic.Bool
	var callers sync.WaitGroup
	start := time.Now()
	for i, op := range operations {
		callers.Go(func() {
			t := &tallies[i%len(tallies)]
			for now := start; ; {
				from, ok := next(start, now)
				if !ok {
					return
				}
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
				now = time.Now()
				t.count(admitted, now.Sub(from))
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
		total.merge(tallies[i].Tally)
	}
	return total, cmp.Or(errs...) // of many, one says what happened
}

// maxTallies is how many tallies there are at most. One for each of thousands of
// callers would never be in the processor's cache.
const maxTallies = 64

// A sharedTally is of several callers.
type sharedTally struct {
	mu sync.Mutex
	Tally
}

func (t *sharedTally) count(admitted bool, latency time.Duration) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if admitted {
		t.Admitted++
	} else {
		t.Denied++
	}
	Record(t.Latency, latency)
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
