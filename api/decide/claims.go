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

// Claims make sure that something is done once, whichever instances are asked to do it: the
// first to put its item into the store does it. The zero value has no store.
type Claims struct {
	Store     counters.StateStore
	KeyPrefix string
	// Horizon is added to the ttl of an item, as clocks differ.
	Horizon time.Duration
	// Late does what turns out to be claimed after its caller was told of an error.
	Late *counters.Goroutines
}

// A claim is what is to be done once.
type claim struct {
	key string
	ttl time.Duration // how long nobody else may do it, at least
	by  claimant
}

// A claimant is told if its claim turns out to be the first when its caller has been told of an
// error, and does then what it has claimed.
type claimant interface{ claimedLate() }

// claim reports whether nobody has claimed q before. The error is an Unclaimed.
func (c *Claims) claim(ctx context.Context, q claim) (first bool, err error) {
	id := appendID(nil)
	now, first, err := c.Store.Swap(ctx, q.key, counters.State{}, id, counters.TTL(q.ttl, c.Horizon))
	return c.outcome(&q, id, now, first, err)
}

// claimAll is claim for many, and calls done with the number and the outcome of each, while
// others may still be claimed. It has goOn, which doesn't wait, do what takes long for one.
func (c *Claims) claimAll(ctx context.Context, all []claim, goOn func(i int, f func()), done func(i int, first bool, err error)) {
	apart := func(i int) {
		first, err := c.claim(ctx, all[i])
		done(i, first, err)
	}
	many, together := c.Store.(counters.ManyStateStore)
	switch {
	case len(all) == 1:
		apart(0)
		return
	case len(all) == 0 || !together:
		for i := range all {
			goOn(i, func() { apart(i) })
		}
		return
	}
	keys, ids, ask := make([]string, len(all)), make([][]byte, len(all)), make([]bool, len(all))
	text := make([]byte, 0, idBytes*len(all))
	for i := range all {
		text = appendID(text)
		keys[i], ids[i], text = all[i].key, text, text[len(text):]
	}
	many.SwapMany(ctx, keys, func(i int) (counters.Replacement, counters.Turn) {
		if ask[i] {
			return counters.Replacement{Key: keys[i]}, counters.Now
		}
		return counters.Replacement{Key: keys[i], Value: ids[i], TTL: counters.TTL(all[i].ttl, c.Horizon), Blind: true}, counters.Now
	}, func(i int, now counters.State, first bool, err error) (again bool) {
		switch {
		case errors.Is(err, counters.ErrNotAdded):
			goOn(i, func() { apart(i) })
			return false
		case err == nil && !first && !now.Exists() && !ask[i]: // whose it is remains to be seen
			ask[i] = true
			return true
		}
		first, err = c.outcome(&all[i], ids[i], now, first, err)
		done(i, first, err)
		return false
	})
}

// appendID appends an ID of at most idBytes that no other claim has.
func appendID(b []byte) []byte { return strconv.AppendUint(b, rand.Uint64(), 36) }

const idBytes = 13

// outcome returns what claim returns when the store has been asked to put id at q's key.
func (c *Claims) outcome(q *claim, id []byte, now counters.State, first bool, err error) (bool, error) {
	if err == nil {
		return first || bytes.Equal(now.Value, id), nil
	}
	known := func(err error) {
		switch {
		case err == nil:
			c.Late.Go(q.by.claimedLate)
		case !errors.Is(err, counters.ErrNotSent) && !errors.Is(err, counters.ErrRefused):
			c.Late.Go(func() { c.askAgain(q, id) })
		}
	}
	if unanswered := (*counters.Unanswered)(nil); errors.As(err, &unanswered) {
		unanswered.WhenKnown(known)
	} else {
		known(err)
	}
	return false, &Unclaimed{err}
}

// askAgain does what q is for if the store has id at its key. The connection was cut before the
// answer; if q was claimed all the same, whoever claims it later is told that it was done.
func (c *Claims) askAgain(q *claim, id []byte) {
	if now, err := c.Store.Load(context.Background(), q.key); err == nil && bytes.Equal(now.Value, id) {
		q.by.claimedLate()
	}
}

// made reports whether somebody has made the claim of that key, as far as the store tells.
func (c *Claims) made(ctx context.Context, key string) bool {
	now, err := c.Store.Load(ctx, key)
	return err == nil && now.Exists()
}

// An Unclaimed says that the store couldn't tell whether something was done before, so
// that nothing was done.
type Unclaimed struct{ error }

func (e *Unclaimed) Unwrap() error { return e.error }
