package simulate

import (
	"fmt"
	"io"
	"math/rand/v2"
	"testing"
	"testing/synctest"
)

// happen runs what happens in a world that is drawn from a seed.
func happen(seed uint64, draw func(uint64, *rand.Rand) scenario, happens func(*world), broken mutation, trace io.Writer) (violations []violation) {
	defer func() {
		if r := recover(); r != nil { // goroutines wait for each other
			violations = append(violations, violation{"timeout", fmt.Sprint(r)})
		}
	}()
	// The bubble needs a T only to fail, which it never does.
	synctest.Test(new(testing.T), func(*testing.T) {
		r := rand.New(rand.NewPCG(seed, 0))
		s := draw(seed, r)
		if trace != nil {
			fmt.Fprintln(trace, s.String())
		}
		w := newWorld(s, r, broken, trace)
		w.judge = w.judgeCall
		happens(w)
		w.judgeFlush()
		w.judgeTold()
		violations = w.violations
	})
	return violations
}
