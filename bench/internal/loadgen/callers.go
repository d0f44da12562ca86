package loadgen

import (
	"context"
	"net/http"
	"sync"
)

// An Operation acts for the client with number n and returns whether it was
// admitted.
type Operation func(n int64) (admitted bool, err error)

// Callers returns n connections that call an operation instead of sending anything.
// Expire doesn't end operations under way.
func Callers(op Operation, n int) (all Connections) {
	for range n {
		all = append(all, newCaller(func(_ context.Context, n int64) (bool, error) { return op(n) }, func() {}))
	}
	return all
}

type caller struct {
	op      func(ctx context.Context, n int64) (admitted bool, err error)
	numbers chan int64 // what is sent; at most one
	close   func()

	mu     sync.Mutex
	ctx    context.Context // that Renew begins and Expire ends
	cancel context.CancelFunc
}

func newCaller(op func(ctx context.Context, n int64) (bool, error), close func()) *caller {
	c := &caller{op: op, numbers: make(chan int64, 1), close: close}
	c.Renew()
	return c
}

// Send implements Connection. The operation begins when Receive is called.
func (c *caller) Send(n int64) error {
	c.numbers <- n
	return nil
}

func (c *caller) Receive() (status int, body []byte, err error) {
	ctx := c.context()
	select {
	case n := <-c.numbers:
		if admitted, err := c.op(ctx, n); err != nil || admitted {
			return http.StatusOK, nil, err
		}
		return http.StatusTooManyRequests, nil, nil
	case <-ctx.Done():
		return 0, nil, ctx.Err()
	}
}

func (c *caller) Right([]byte) bool { return true }

func (c *caller) Close() {
	c.Expire()
	c.close()
}

// context returns one that Expire ends.
func (c *caller) context() context.Context {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.ctx
}

// Expire implements Connection.
func (c *caller) Expire() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.cancel()
}

// Renew implements Connection.
func (c *caller) Renew() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.ctx, c.cancel = context.WithCancel(context.Background())
}
