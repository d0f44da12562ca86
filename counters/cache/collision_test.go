package cache

import (
	"testing"

	"github.com/stretchr/testify/assert"
)

// Of two keys with one hash the later one stays, alone.
func TestKeysOfOneHash(t *testing.T) {
	t.Parallel()
	c := New[int](1000)
	*c.Get("a") = 1
	s, of := c.shard("a")
	i := 0
	other := func() string { return string(rune('b' + i)) }
	for ; ; i++ {
		if o, _ := c.shard(other()); o == s {
			break
		}
	}
	_, hash := c.shard(other())
	s.entries[hash] = s.entries[of] // as if it were a's
	assert.Nil(t, c.Find(other()), "what is found is of that key")
	*c.Get(other()) = 2
	assert.Equal(t, 2, *c.Find(other()))
	assert.Same(t, s.end.newer, s.entries[hash], "the first has left")
	assert.Same(t, s.end.older, s.entries[hash])
}
