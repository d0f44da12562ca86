package client

import (
	"context"
	"crypto/tls"
	"time"
)

// SetClock gives the client a clock of the test's.
func (c *Client) SetClock(now func() time.Time) { c.now = now }

// Remembered returns the number of clients that the client remembers something
// of.
func (c *Client) Remembered() int {
	c.denials.mu.Lock()
	defer c.denials.mu.Unlock()
	return len(c.denials.clients)
}

// Waiting returns how many checks wait for the next batch.
func (c *Client) Waiting() int {
	c.batcher.mu.Lock()
	defer c.batcher.mu.Unlock()
	if c.batcher.boarding == nil {
		return 0
	}
	return len(c.batcher.boarding.calls)
}

// ResetTime is how long a reset may take to be seen by all instances.
const ResetTime = resetTime

// LongestMemory is how long a denial is remembered at most.
const LongestMemory = longestMemory

// MaxWaiting is how many settlements wait for weir at most.
const MaxWaiting = maxWaiting

// TrustAnybody lets the client take any certificate.
func (c *Client) TrustAnybody() { c.own.TLSClientConfig = &tls.Config{InsecureSkipVerify: true} }

// Encoded returns a check as it is sent.
func (q *Check) Encoded() ([]byte, error) { return q.encode(nil) }

// A Reply is what weir answers to a check.
type Reply = reply

// Scan decodes a reply to a batch if it is written as weir writes it.
func Scan(body []byte) (all Reply, results []Reply, ok bool) {
	into := repliesFor(body)
	all, n, ok := scan(body, into)
	return all, valuesOf(into[:n]), ok
}

// DecodeAny decodes any reply to a batch.
func DecodeAny(body []byte) (all Reply, results []Reply, err error) {
	into := repliesFor(body)
	all, n, err := decodeAny(body, into)
	return all, valuesOf(into[:n]), err
}

// repliesFor returns as many replies as a body can have results.
func repliesFor(body []byte) []*reply {
	replies := make([]*reply, len(body))
	for i := range replies {
		replies[i] = new(reply)
	}
	return replies
}

func valuesOf(replies []*reply) []Reply {
	values := make([]Reply, len(replies))
	for i, r := range replies {
		values[i] = *r
	}
	return values
}

// A Batcher sends checks to a function. A reply that admits says how long to
// wait.
type Batcher struct{ *batcher }

func NewBatcher(timeout time.Duration, send func(ctx context.Context, checks []string) ([]time.Duration, error)) Batcher {
	return Batcher{newBatcher(func(ctx context.Context, calls []*call) error {
		checks := make([]string, len(calls))
		for i, c := range calls {
			checks[i] = string(c.check)
		}
		waits, err := send(ctx, checks)
		for i, wait := range waits {
			calls[i].reply.Wait = wait
		}
		return err
	}, timeout)}
}

func (b Batcher) Do(ctx context.Context, check string) (time.Duration, error) {
	r, err := b.ask(ctx, []byte(check))
	return r.Wait, err
}

// Underway returns how many batches are.
func (b Batcher) Underway() int {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.underway
}
