package simulate

import "testing"

// Nothing that the docs promise is violated in any of these seeds.
func TestWorlds(t *testing.T) {
	seed := search(t.Context(), 1, 10_000, func(seed uint64) bool { return len(simulate(seed, mutation{}, nil)) > 0 })
	if seed != 0 {
		t.Error(replay(seed, mutation{}, t.Output()))
	}
}
