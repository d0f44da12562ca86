package memcached

import (
	"testing"
	"time"

	"github.com/stretchr/testify/assert"

	"weir/counters"
)

// Memcached sends what it has to say with each get, so that a piece has one, after
// all else: what is counted, or replaced, comes before what is read.
func TestAPieceReadsAtOnce(t *testing.T) {
	t.Parallel()
	p := new(piece)
	added := [][]counters.Addition{
		{{Key: "a", Delta: 1, Have: true, Read: []string{"b", "c"}}},
		{{Read: []string{"d"}}},
		{{Key: "e", Delta: -1}, {Key: "f", Delta: 2, TTL: time.Minute, New: true, Read: []string{"g"}}},
	}
	a := &additions{begins: func(i int, to []counters.Addition) ([]counters.Addition, counters.Turn) {
		return append(to, added[i]...), counters.Now
	}}
	for i := range added {
		assert.Equal(t, counters.Now, a.begin(nil, p, i))
	}
	p.ask("get")
	assert.Equal(t, "incr a 1\r\ndecr e 1\r\nadd f 0 60 1\r\n0\r\nincr f 2\r\nget b c d g\r\n", string(p.text))

	p.reset(nil)
	replaced := []counters.Replacement{
		{Key: "a", Value: []byte("1"), TTL: time.Minute}, {Key: "b", Blind: true},
		{Key: "d", Value: []byte("3"), TTL: time.Minute, Blind: true}, {Key: "c", Value: []byte("2"), TTL: time.Minute},
	}
	r := &replacements{begins: func(i int) (counters.Replacement, counters.Turn) { return replaced[i], counters.Now }}
	for i := range replaced {
		assert.Equal(t, counters.Now, r.begin(nil, p, i))
	}
	for range 2 {
		p.ask("gets")
		assert.Equal(t, "add a 0 60 1\r\n1\r\nadd d 0 60 1\r\n3\r\nadd c 0 60 1\r\n2\r\ngets a b c\r\n", string(p.text))
		p.resend()
	}
}
