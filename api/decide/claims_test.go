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
