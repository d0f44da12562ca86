package receipt

import (
	"math"
	"math/rand/v2"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

var example = Receipt{
	Policy: "llm", Client: "team-a", Issued: time.Unix(1_790_000_000, 123_456_789), Nonce: 1<<63 | 7,
	Until: time.Unix(1_790_000_600, 0), Cost: 6000,
	Limits: []Limit{
		{Name: 1<<31 | 5, Value: 1_000_000_000_000, Remaining: 4170, Generation: 1_789_999_999_000_000_001, Position: 12},
		{Name: 3, Alone: true, Value: 1},
	},
}

func TestAReceiptSaysWhatWasWritten(t *testing.T) {
	t.Parallel()
	k := NewKey([]string{"a", "b"})
	for _, r := range []Receipt{example, {Issued: time.Unix(0, -1), Until: time.Unix(-5, 0)}} {
		text, fits := k.Append([]byte("x"), &r)
		require.True(t, fits)
		require.Regexp(t, `^xw1\.[-_A-Za-z0-9]+$`, string(text))
		got, err := k.Open(text[1:])
		require.NoError(t, err)
		assert.Equal(t, r, got)
	}
}

func TestOnlyTheSameSecretsOpenAReceipt(t *testing.T) {
	t.Parallel()
	text := func(secrets ...string) []byte {
		b, fits := NewKey(secrets).Append(nil, &example)
		require.True(t, fits)
		return b
	}
	same, others := NewKey([]string{"b", "a"}), []*Key{NewKey(nil), NewKey([]string{"a"}), NewKey([]string{"ab"}), NewKey([]string{"a", "b", "c"})}
	_, err := same.Open(text("a", "b"))
	require.NoError(t, err, "in any order")
	_, err = same.Open(text("a", "b", "a"))
	require.NoError(t, err, "one that stands in a file twice is no other")
	for _, k := range others {
		_, err := k.Open(text("a", "b"))
		require.ErrorIs(t, err, ErrInvalid)
	}
}

func TestWhatWasChangedIsNoReceipt(t *testing.T) {
	t.Parallel()
	k := NewKey([]string{"a"})
	b, _ := k.Append(nil, &example)
	text := string(b)
	wrong := []string{"", "w1.", "w2." + text[3:], text[3:], text + "A", text + "=", text + "\n", text[:9] + "\r\n" + text[9:], text[:len(text)-4], strings.ToLower(text), text + strings.Repeat("A", maxBytes)}
	for range 2000 { // one character is another
		i := 3 + rand.IntN(len(text)-3)
		if c := "ABCDabcd0123-_"[rand.IntN(14)]; c != text[i] {
			wrong = append(wrong, text[:i]+string(c)+text[i+1:])
		}
	}
	for _, text := range wrong {
		_, err := k.Open([]byte(text))
		require.ErrorIs(t, err, ErrInvalid, text)
	}
}

func TestAReceiptIsAtMostTwoKilobytes(t *testing.T) {
	t.Parallel()
	k := NewKey(nil)
	r := example
	r.Client = strings.Repeat("\xff", 1024)
	text, fits := k.Append(nil, &r)
	assert.True(t, fits, "the longest client")
	assert.LessOrEqual(t, len(text), maxBytes)
	for range 100 {
		r.Limits = append(r.Limits, example.Limits[0])
	}
	text, fits = k.Append([]byte("x"), &r)
	assert.False(t, fits)
	assert.Equal(t, "x", string(text))
}

func FuzzOpen(f *testing.F) {
	k := NewKey(nil)
	b, _ := k.Append(nil, &example)
	f.Add(string(b), []byte(nil))
	f.Add("", b[3:])
	f.Fuzz(func(t *testing.T, text string, data []byte) {
		if r, err := k.Open([]byte(text)); err == nil {
			again, fits := k.Append(nil, &r)
			require.True(t, fits)
			back, err := k.Open(again)
			require.NoError(t, err)
			require.Equal(t, r, back)
		}
		// What another version might have written with the same key.
		m := k.macs.New().(*mac)
		if signed := appendEncoded(nil, append(data, m.code(data)...)); len(signed) <= maxBytes {
			_, _ = k.Open(signed)
		}
	})
}

func TestAReceiptHasRoomForTheLargestLimits(t *testing.T) {
	t.Parallel()
	k := NewKey(nil)
	for _, client := range []string{"c", strings.Repeat("c", 1024)} {
		r := Receipt{
			Policy: strings.Repeat("p", 63), Client: client, Issued: time.Unix(0, math.MaxInt64), Nonce: math.MaxUint64,
			Until: time.Unix(math.MaxInt64, 0), Cost: 1_000_000_000,
		}
		for range Room(r.Policy, client) {
			r.Limits = append(r.Limits, Limit{Name: math.MaxUint32, Alone: true, Value: 1e12, Remaining: 1e12, Generation: math.MinInt64, Position: math.MaxInt64})
		}
		_, fits := k.Append(nil, &r)
		assert.True(t, fits, "%d limits", len(r.Limits))
		assert.GreaterOrEqual(t, len(r.Limits), 10)
	}
}
