package memcached

import (
	"context"
	"fmt"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"weir/counters"
	"weir/counters/memcached/pipeline"
)

const (
	// openFailures is after how many operations without an answer, one after
	// the other, a breaker opens.
	openFailures = 5
	// minSilence is the shortest silence that opens a breaker: with a short
	// timeout, openFailures are soon together in a hiccup.
	minSilence = 100 * time.Millisecond
	// probeInterval is the pause between two probes.
	probeInterval = 100 * time.Millisecond
	// probeTimeout is longer than a dial and a silent socket may take, which
	// end a probe too. So a server never owes an answer to more than one probe.
	// A shorter one would find a server no sooner: one that is back answers what
	// it owes first.
	probeTimeout = 2*counters.MaxTimeout + time.Second
)

// outcome is what an operation's end says about its server.
type outcome uint8

const (
	answered   outcome = iota // with any reply
	unanswered                // by the operation's deadline
	down                      // by pipeline.ErrDown
)

// A circuit is the arithmetic of a breaker: open or closed by what operations
// show of their server. The zero circuit is closed.
//
// It opens when the server is known to be down, or after openFailures
// unanswered operations in a row which span the silence. Callers who wait at
// the same time give up at the same time, and one stall of the server may well
// be short: their number says nothing, only time does. One answer closes it.
type circuit struct {
	failures int       // since the last answer
	first    time.Time // of the failures
	opened   time.Time // zero while it is closed
}

func (c circuit) open() bool { return !c.opened.IsZero() }

// silence returns the time from the first to the last of openFailures
// operations that a lone caller makes one after the other.
func silence(timeout time.Duration) time.Duration {
	return max(minSilence, (openFailures-1)*timeout)
}

// after returns the circuit after an operation that ended at now.
func (c circuit) after(o outcome, now time.Time, silence time.Duration) circuit {
	if o == answered {
		return circuit{}
	}
	if c.failures == 0 {
		c.first = now
	}
	c.failures++
	if !c.open() && (o == down || c.failures >= openFailures && now.Sub(c.first) >= silence) {
		c.opened = now
	}
	return c
}

// A breaker keeps operations from waiting for a server that doesn't answer.
// While it is open it probes the server, in a goroutine that exists only then.
type breaker struct {
	silence time.Duration
	probe   func()                               // asks the server, and notes what it shows
	run     func(func(ctx context.Context)) bool // as Pool.Go

	// suspect says that an operation has failed since the last answer. It is all
	// that operations look at, before and after, while all goes well.
	suspect atomic.Bool
	refusal atomic.Pointer[refusal] // for operations while it is open, else nil

	mu      sync.Mutex
	circuit circuit
	probing bool // the goroutine exists
	outages int
	down    time.Duration // in outages that are over
}

// A record is what a breaker has seen so far.
type record struct {
	open    bool
	outages int           // the present one included
	down    time.Duration // in all outages
}

func (b *breaker) record(now time.Time) record {
	b.mu.Lock()
	defer b.mu.Unlock()
	r := record{open: b.circuit.open(), outages: b.outages, down: b.down}
	if r.open {
		r.down += now.Sub(b.circuit.opened)
	}
	return r
}

// A refusal is the error of an operation while a breaker is open:
// ErrUnavailable and ErrNotSent. It tells why the breaker has opened, or why it stays so.
type refusal struct {
	text string
	over chan struct{} // closed with the breaker
}

func newRefusal(cause error, over chan struct{}) *refusal {
	why := strings.TrimPrefix(cause.Error(), pipeline.ErrNotSent.Error()+": ")
	return &refusal{fmt.Sprintf("%v: %s", counters.ErrUnavailable, why), over}
}

func (r *refusal) Error() string { return r.text }

func (r *refusal) Is(target error) bool {
	return target == counters.ErrUnavailable || target == counters.ErrNotSent
}

// refuse returns the error for an operation while the breaker is open.
func (b *breaker) refuse() error {
	if refusal := b.refusal.Load(); refusal != nil {
		return refusal
	}
	return nil
}

// explain has operations be refused with why a probe has failed, if the breaker is still open.
func (b *breaker) explain(err error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if open := b.refusal.Load(); open != nil {
		b.refusal.Store(newRefusal(err, open.over))
	}
}

// await returns when the breaker is closed, or ctx has ended.
func (b *breaker) await(ctx context.Context) {
	if refusal := b.refusal.Load(); refusal != nil {
		select {
		case <-refusal.over:
		case <-ctx.Done():
		}
	}
}

// note records the outcome and the error of an operation that has just ended.
func (b *breaker) note(o outcome, err error) {
	now := time.Now()
	b.mu.Lock()
	defer b.mu.Unlock()
	opened, wasOpen := b.circuit.opened, b.circuit.open()
	b.circuit = b.circuit.after(o, now, b.silence)
	b.suspect.Store(b.circuit.failures > 0)
	switch {
	case b.circuit.open() == wasOpen:
	case wasOpen:
		close(b.refusal.Swap(nil).over)
		b.down += now.Sub(opened)
	default:
		b.outages++
		b.refusal.Store(newRefusal(err, make(chan struct{})))
		b.probing = b.probing || b.run(b.probeUntilClosed)
	}
}

func (b *breaker) probeUntilClosed(ctx context.Context) {
	for b.goesOn() {
		select {
		case <-time.After(probeInterval):
			b.probe()
		case <-ctx.Done():
			return
		}
	}
}

// goesOn reports whether there is more to probe; if not, the goroutine is over.
func (b *breaker) goesOn() bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.probing = b.circuit.open()
	return b.probing
}
