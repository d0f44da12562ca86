package subwindow

import (
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
)

// After a reset that the process hasn't heard of, more may be due back of a slot than is there:
// nothing is in use then, and not less.
func TestInUseIsNeverLessThanNothing(t *testing.T) {
	w := Window{Slots: 10, Width: time.Second, Horizon: 100 * time.Millisecond}
	p := w.positionAt(time.Unix(1000, 50_000_000)) // faster clocks may count in no slot after it
	for _, due := range []int64{0, -3} {
		var a account
		a.reach(&p, w.kept())
		a.owe(p.bucket, -1, p.now)
		a.at(p.bucket - 2).count = 2
		if due != 0 {
			a.owe(p.bucket-2, due, p.now)
		}
		use := a.believe(&p, true, nil)
		for i, n := range use {
			assert.GreaterOrEqual(t, n, int64(0), "%d: %v", i, use)
		}
		assert.Equal(t, max(0, 2+due), w.Estimate(use, p.ahead, p.elapsed, 100))
	}
}
