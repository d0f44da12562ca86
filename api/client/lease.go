package client

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"sync"
	"time"
)

// A DeniedError is why there is no Lease: its Answer says when to try again.
type DeniedError struct{ Answer Answer }

func (e *DeniedError) Error() string {
	if e.Answer.RetryAfter == 0 {
		return "client: denied, however long it waits"
	}
	return fmt.Sprintf("client: denied; try again in %v", e.Answer.RetryAfter)
}

// A Lease is the places that a check holds, in limits with the algorithm concurrency, while
// what it was for is under way. It is safe for concurrent use. One that Config.FailOpen has
// admitted holds none, and can be ended like any other.
type Lease struct {
	client  *Client
	stop    context.CancelFunc
	renewed sync.WaitGroup
	lost    chan struct{}

	mu      sync.Mutex
	receipt Receipt
	settled bool // or will be, later
}

// Hold asks q, which is to be settled, and holds the places that it is given until Release
// or Settle, renewing them in time. It waits for as long as the Answer says, or until ctx
// ends. Each Lease must be ended by one of these, in a defer.
// When ctx ends, so does the renewing, and the places are free a lease later. The error is
// a *DeniedError, or one of Check: then nothing is held, but for what weir may have admitted.
// If it answers so in one more Config.Timeout, the places are given back a second later, or by
// Close, and the cost stays.
func (c *Client) Hold(ctx context.Context, q Check) (*Lease, error) {
	h := holder{client: c, lasts: ctx}
	switch a, err := h.Check(ctx, q); {
	case a.Allowed && a.await(ctx):
		return h.lease, nil
	case a.Allowed:
		h.lease.Release()
		return nil, fmt.Errorf("client: the time ended before its turn came: %w", ctx.Err())
	case err != nil:
		return nil, err
	default:
		return nil, &DeniedError{a}
	}
}

// hold returns the lease of a receipt.
func (c *Client) hold(ctx context.Context, r Receipt) *Lease {
	ctx, stop := context.WithCancel(ctx)
	l := &Lease{client: c, stop: stop, lost: make(chan struct{}), receipt: r}
	if r.RenewWithin > 0 {
		l.renewed.Go(func() { l.renew(ctx, r) })
	}
	return l
}

// renewRetry is how long after a failure a lease is renewed again.
const renewRetry = 500 * time.Millisecond

// renew renews l, which has the receipt r, in half of the time that there is, until ctx ends or
// it is lost.
func (l *Lease) renew(ctx context.Context, r Receipt) {
	for wait := r.RenewWithin / 2; ; {
		select {
		case <-time.After(wait):
		case <-ctx.Done():
			return
		}
		next, err := l.client.Renew(ctx, r)
		switch {
		case err == nil:
			l.mu.Lock()
			r, l.receipt = next, next
			l.mu.Unlock()
			wait = r.RenewWithin / 2
		case ctx.Err() != nil:
			return
		case !retryable(err):
			close(l.lost)
			return
		default:
			wait = min(renewRetry, wait)
		}
	}
}

// Lost is closed when weir has said that the places may be another's: the lease is over and
// there is no room, or it can't be renewed any more. While weir can't be asked it stays open,
// although the places may be another's a lease after they were renewed last.
func (l *Lease) Lost() <-chan struct{} { return l.lost }

// Release gives the places back, and has the check cost what it has reserved. It waits no
// longer than Config.Timeout, but for a Settle that is under way; what fails is done later.
// It may be called again, also after Settle: only the first that weir hasn't refused counts.
func (l *Lease) Release() { _, _ = l.settle(-1) }

// Settle is Release, of what has cost this much in the end. The settlement and the error are
// those of Client.Settle.
func (l *Lease) Settle(cost int64) (Settlement, error) {
	if err := validateCost(cost); err != nil {
		return Settlement{}, err
	}
	return l.settle(cost)
}

func (l *Lease) settle(cost int64) (Settlement, error) {
	l.stop()
	l.renewed.Wait()
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.settled {
		return Settlement{Already: true}, nil
	}
	s, err := l.client.settle(context.Background(), l.receipt, cost)
	l.settled = err == nil || errors.Is(err, ErrSettledLater)
	return s, err
}

// Concurrent is Middleware that holds the places of the check while a handler serves a
// request, also if whoever sent that has hung up, and gives them back when it returns, or
// panics: also if it has taken over the connection by then, and others go on with that.
func (c *Client) Concurrent(check func(*http.Request) Check) func(next http.Handler) http.Handler {
	return func(next http.Handler) http.Handler {
		return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			if lease := c.AdmitHeld(w, r, check(r)); lease != nil {
				defer lease.Release()
				next.ServeHTTP(w, r)
			}
		})
	}
}

// AdmitHeld is Admit that holds the places of q. If it returns nil, it has answered, and
// nothing is held. Else r may be served, and the Lease must be ended, in a defer: until then it
// is renewed, also when the context of r has ended.
func (c *Client) AdmitHeld(w http.ResponseWriter, r *http.Request, q Check) *Lease {
	h := holder{client: c, lasts: context.WithoutCancel(r.Context())}
	if Admit(w, r, &h, q) {
		return h.lease
	}
	if h.lease != nil { // r's context ended while it waited
		h.lease.Release()
	}
	return nil
}

// A holder is a Limiter that holds what it admits.
type holder struct {
	client *Client
	lasts  context.Context // for as long as the lease is renewed
	lease  *Lease
}

func (h *holder) Check(ctx context.Context, q Check) (Answer, error) {
	q.Settle = true
	a, err := h.client.Check(ctx, q)
	if a.Allowed {
		h.lease = h.client.hold(h.lasts, a.Receipt)
	}
	return a, err
}
