package loadgen

import "net/http"

// An Operation acts for the client with number n and returns whether it was
// admitted.
type Operation func(n int64) (admitted bool, err error)

// Callers returns connections that call operations instead of sending anything.
// What is under way when they expire comes to its own end.
func Callers(operations []Operation) Connections {
	var all Connections
	for _, op := range operations {
		c := &caller{op: op, numbers: make(chan int64, 1)}
		c.Renew()
		all = append(all, c)
	}
	return all
}

type caller struct {
	expiry
	op      Operation
	numbers chan int64 // what is sent; at most one
}

func (c *caller) Send(n int64) error {
	c.numbers <- n
	return nil
}

func (c *caller) Receive() (status int, body []byte, err error) {
	ctx := c.context()
	select {
	case n := <-c.numbers:
		if admitted, err := c.op(n); err != nil || admitted {
			return http.StatusOK, nil, err
		}
		return http.StatusTooManyRequests, nil, nil
	case <-ctx.Done():
		return 0, nil, ctx.Err()
	}
}

func (c *caller) Right([]byte) bool { return true }

func (c *caller) Close() {}
