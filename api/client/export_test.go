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

// TrustAnybody lets the client take any certificate.
func (c *Client) TrustAnybody() { c.own.TLSClientConfig = &tls.Config{InsecureSkipVerify: true} }

// Encoded returns a check as it is sent.
func (q *Check) Encoded() ([]byte, error) { return q.encode() }

// A Reply is what weir answers to a check.
type Reply = reply

// Scan decodes a reply to a batch if it is written as weir writes it.
func Scan(body []byte) (all Reply, results []Reply, ok bool) {
	r, ok := scan(body, 0)
	return r.reply, r.results, ok
}

// DecodeAny decodes any reply to a batch.
func DecodeAny(body []byte) (all Reply, results []Reply, err error) {
	r, err := decodeAny(body)
	return r.reply, r.results, err
}

// A Batcher sends checks to a function. A reply that admits says how long to
// wait.
type Batcher struct{ *batcher }

func NewBatcher(timeout time.Duration, send func(ctx context.Context, checks []string) ([]time.Duration, error)) Batcher {
	return Batcher{newBatcher(func(ctx context.Context, encoded [][]byte) ([]reply, error) {
		checks := make([]string, len(encoded))
		for i, check := range encoded {
			checks[i] = string(check)
		}
		waits, err := send(ctx, checks)
		replies := make([]reply, len(waits))
		for i, wait := range waits {
			replies[i].Wait = wait
		}
		return replies, err
	}, timeout)}
}

func (b Batcher) Do(ctx context.Context, check string) (time.Duration, error) {
	r, err := b.do(ctx, []byte(check))
	if err != nil {
		return 0, err
	}
	return r.Wait, nil
}

// Underway returns how many batches are.
func (b Batcher) Underway() int {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.underway
}
