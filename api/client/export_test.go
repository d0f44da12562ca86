package client

import (
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
	return len(c.batcher.waiting)
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
