package decide

import (
	"bytes"
	"context"
	"errors"
	"math/rand/v2"
	"strconv"
	"time"

	"weir/counters"
)

// Claims are of what is done once, whichever instances are asked to: each is an item of
// the store, of the client and a name. The zero value has no store.
type Claims struct {
	Store     counters.StateStore
	KeyPrefix string
	// Horizon is how much longer than its ttl an item is kept, as clocks differ.
	Horizon time.Duration
	// Late is where what is claimed too late for its caller is done.
	Late *counters.Group
}

// claim reports whether nobody has claimed the name before, for the ttl at least. The
// error is an Unclaimed; if it turns out then that this was the first, late is called.
func (c *Claims) claim(ctx context.Context, policy, client, name string, ttl time.Duration, late func()) (first bool, err error) {
	key := c.key(policy, client, name)
	id := strconv.AppendUint(nil, rand.Uint64(), 36)
	now, first, err := c.Store.Swap(ctx, key, counters.State{}, id, counters.TTL(ttl, c.Horizon))
	if err == nil {
		return first || bytes.Equal(now.Value, id), nil
	}
	if unanswered := (*counters.Unanswered)(nil); errors.As(err, &unanswered) {
		unanswered.Later(func(err error) {
			if err == nil {
				c.Late.Go(late)
			}
		})
	}
	return false, &Unclaimed{err}
}

// claimed reports whether somebody has claimed the name, as far as the store tells.
func (c *Claims) claimed(ctx context.Context, policy, client, name string) bool {
	now, err := c.Store.Load(ctx, c.key(policy, client, name))
	return err == nil && now.Exists()
}

func (c *Claims) key(policy, client, name string) string {
	return counters.CounterNamespace(c.KeyPrefix, policy, "-", 0).Client(client) + name
}

// An Unclaimed says that the store couldn't tell whether something was done before, so
// that nothing was done.
type Unclaimed struct{ error }

// Unwrap returns why.
func (e *Unclaimed) Unwrap() error { return e.error }
