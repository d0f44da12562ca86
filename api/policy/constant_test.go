package policy

import (
	"testing"
	"time"

	"github.com/stretchr/testify/assert"

	"weir/counters"
)

// The timer that ends a block may be late: until it has, waiting helps.
func TestABlockThatIsOverIsSoonLifted(t *testing.T) {
	t.Parallel()
	end := time.Unix(1_749_999_600, 0)
	for at, want := range map[time.Duration]time.Duration{-time.Second: time.Second, 0: time.Millisecond, time.Second: time.Millisecond} {
		d, err := Constant{Until: end}.Take(t.Context(), counters.Request{Cost: 1, Limit: 1, Now: end.Add(at)})
		assert.NoError(t, err)
		assert.False(t, d.Allowed)
		assert.Equal(t, want, d.RetryAfter)
	}
}
