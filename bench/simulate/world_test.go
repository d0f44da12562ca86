package simulate

import (
	"flag"
	"testing"
)

var seeds = flag.Uint64("seeds", 1000, "how many worlds to look at")

// Nothing that the docs promise is violated in any of these seeds.
func TestWorlds(t *testing.T) {
	t.Parallel()
	seed := search(t.Context(), 1, *seeds, func(seed uint64) bool { return len(simulate(seed, mutation{}, nil)) > 0 })
	if seed != 0 {
		t.Errorf("seed %d: %v", seed, replay(seed, mutation{}, t.Output()))
	}
}
