//go:build !race

// The race detector makes sync.Pool forget at random.

package combiner

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

func TestCombinerLoneCallerAllocatesNothing(t *testing.T) {
	ctx := &checkContext{t.Context(), time.Now().Add(time.Hour)}
	var p Place[int, int]
	c := New(positions(inMemory()))
	require.Zero(t, testing.AllocsPerRun(1000, func() {
		_, _ = c.Do(ctx, &p, 1, nil, nil)
	}))
}
