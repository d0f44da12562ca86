package decide

import (
	"context"
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"

	"weir/counters"
	"weir/counters/memory"
)

// A twiceStore does swaps together, each twice: the connection was cut before the first answer.
type twiceStore struct{ counters.StateStore }

func (s twiceStore) SwapMany(ctx context.Context, keys []string, begin func(i int) (counters.Replacement, counters.Turn), done func(i int, now counters.State, swapped bool, err error) (again bool)) {
	for i := range keys {
		for again := true; again; {
			r, _ := begin(i)
			if r.Value == nil {
				now, err := s.Load(ctx, r.Key)
				again = done(i, now, false, err)
				continue
			}
			_, _, _ = s.Swap(ctx, r.Key, r.Old, r.Value, r.TTL)
			now, swapped, err := s.Swap(ctx, r.Key, r.Old, r.Value, r.TTL)
			if r.Blind {
				now = counters.State{}
			}
			again = done(i, now, swapped, err)
		}
	}
}

// Who has claimed something knows it, though the store was asked twice; who claims it
// afterwards knows that too.
func TestAClaimThatIsSentTwiceIsTheFirst(t *testing.T) {
	c := Claims{Store: twiceStore{memory.New(nil)}}
	var all []claim
	for i := range 3 {
		all = append(all, claim{key: fmt.Sprint("k", i), ttl: time.Minute})
	}
	for _, want := range []bool{true, false} {
		first := make([]bool, len(all))
		c.claimAll(t.Context(), all, func(int, func()) { assert.Fail(t, "none is claimed apart") }, func(i int, is bool, err error) {
			assert.NoError(t, err)
			first[i] = is
		})
		assert.Equal(t, []bool{want, want, want}, first)
	}
}

// A cutStore does what it is asked, and its connection is cut before the answer.
type cutStore struct{ counters.StateStore }

func (s cutStore) Swap(ctx context.Context, key string, old counters.State, value []byte, ttl time.Duration) (counters.State, bool, error) {
	_, _, _ = s.StateStore.Swap(ctx, key, old, value, ttl)
	return counters.State{}, false, counters.ErrUnavailable
}

// doneLate counts how often what was claimed is done late.
type doneLate struct{ times int }

func (d *doneLate) claimedLate() { d.times++ }

// Whoever claims again what was claimed when a connection was cut is told that it was done, so
// it is.
func TestAClaimWhoseAnswerIsCutOff(t *testing.T) {
	store, done := memory.New(nil), new(doneLate)
	c := Claims{Store: cutStore{store}, Late: new(counters.Goroutines)}
	_, err := c.claim(t.Context(), claim{"k", time.Minute, done})
	assert.ErrorIs(t, err, counters.ErrUnavailable)
	c.Late.Wait()
	c.Store = store
	first, err := c.claim(t.Context(), claim{"k", time.Minute, done})
	assert.NoError(t, err)
	assert.False(t, first)
	assert.Equal(t, 1, done.times)
}
