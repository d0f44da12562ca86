package policy

import (
	"fmt"
	"net/netip"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"
)

func TestClientKeys(t *testing.T) {
	t.Parallel()
	for _, test := range []struct{ text, same, means string }{
		{"alice", "", `client "alice"`},
		{"user:*", "", `each client that begins with "user:"`},
		{"*", "", `each client that begins with ""`},
		{"10.0.0.0/8", "", "each address in 10.0.0.0/8"},
		{"10.0.0.7", "10.0.0.7/32", "address 10.0.0.7"},
		{"::ffff:10.0.0.7", "10.0.0.7", "address 10.0.0.7"},
		{"::ffff:10.0.0.0/104", "10.0.0.0/8", "each address in 10.0.0.0/8"},
		{"2001:DB8:0::/32", "2001:db8::/32", "each address in 2001:db8::/32"},
		{"2001:DB8:0::7", "2001:db8::7/128", "address 2001:db8::7"},
		{"0.0.0.0/0", "", "each address in 0.0.0.0/0"},
		// Names, though they have something of an address.
		{"orgs/8", "", `client "orgs/8"`},
		{"v1.2", "", `client "v1.2"`},
		{"abba:8", "", `client "abba:8"`},
		{"10", "", `client "10"`},
		{"odd one\n", "", `client "odd one\n"`},
		{`"`, "", `client "\""`},
		// Names that look like something else, as names.
		{`"a*b"`, "", `client "a*b"`},
		{`"user:*"`, "", `client "user:*"`},
		{`"*"`, "", `client "*"`},
		{`"10.0.0.0/8"`, "", `client "10.0.0.0/8"`},
		{`"10.0.0.1/8"`, "", `client "10.0.0.1/8"`},
		{`"10.0.0.7"`, "", `client "10.0.0.7"`},
		{`"alice"`, "alice", `client "alice"`},
		{`""alice""`, "", `client "\"alice\""`},
		{`"""`, `"`, `client "\""`},
		{`"` + strings.Repeat("*", 1024) + `"`, "", `client "` + strings.Repeat("*", 1024) + `"`},
	} {
		k, err := ParseClientKey(test.text)
		require.NoError(t, err, test.text)
		assert.Equal(t, test.means, k.Means())
		again, err := ParseClientKey(k.String())
		require.NoError(t, err)
		assert.Equal(t, k, again)
		if test.same != "" {
			other, err := ParseClientKey(test.same)
			require.NoError(t, err)
			assert.Equal(t, k, other)
		}
	}
	for text, message := range map[string]string{
		"":                        "a client must be 1 to 1024 bytes",
		strings.Repeat("x", 1025): "a client must be 1 to 1024 bytes",
		"10.0.0.1/8":              `client "10.0.0.1/8" names an address within a range; write 10.0.0.0/8 for the range, or the address alone`,
		"2001:db8::1/32":          `client "2001:db8::1/32" names an address within a range; write 2001:db8::/32 for the range, or the address alone`,
		"10.0.0.0/33":             `client "10.0.0.0/33" is no address range; one is 10.0.0.0/8 or 2001:db8::/32`,
		"10.0.0/8":                `client "10.0.0/8" is no address range; one is 10.0.0.0/8 or 2001:db8::/32`,
		"10.0.0.256/24":           `client "10.0.0.256/24" is no address range; one is 10.0.0.0/8 or 2001:db8::/32`,
		"2001:db8::/x":            `client "2001:db8::/x" is no address range; one is 10.0.0.0/8 or 2001:db8::/32`,
		"10.0.0.*":                "",
		"a*b":                     `client "a*b" has a * before its end; only at the end does it stand for what follows, and a name that has one is a key in double quotes`,
		`""`:                      "a client must be 1 to 1024 bytes",
		"**":                      `client "**" has a * before its end; only at the end does it stand for what follows, and a name that has one is a key in double quotes`,
	} {
		_, err := ParseClientKey(text)
		if message == "" {
			assert.NoError(t, err)
			continue
		}
		assert.EqualError(t, err, message)
	}
}

// Look-ups find what a search through all keys finds.
func TestExceptionsAreFoundAsBySearch(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		network := func(label string) netip.Prefix {
			b := rapid.SliceOfN(rapid.SampledFrom([]byte{0, 1, 0x80}), 4, 4).Draw(t, label)
			if rapid.Bool().Draw(t, label+" is IPv6") {
				b = append([]byte{0x20, 1, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0}, b...)
			}
			address, _ := netip.AddrFromSlice(b)
			return netip.PrefixFrom(address, address.BitLen()-rapid.IntRange(0, 32).Draw(t, label+" bits")).Masked()
		}
		name := func(label string) string { return rapid.StringMatching("[ab]{0,4}").Draw(t, label) }
		all := make(map[ClientKey]Terms)
		for i := range rapid.IntRange(0, 12).Draw(t, "keys") {
			var k ClientKey
			switch rapid.IntRange(0, 2).Draw(t, "kind") {
			case 0:
				k.network = network("network")
			case 1:
				k.name, k.all = name("beginning"), true
			default:
				k.name = name("name")
			}
			all[k] = Terms{Limits: map[string]int64{"limit": int64(i)}}
		}
		client, of := name("client"), netip.Prefix{}
		if rapid.Bool().Draw(t, "has an address") {
			of = network("its network")
		}
		best, rank := Terms{}, -1
		for k, c := range all {
			r := -1
			switch {
			case k.network.IsValid():
				if of.IsValid() && k.network.Bits() <= of.Bits() && k.network.Contains(of.Addr()) {
					r = 1000 + k.network.Bits()
				}
			case k.all && strings.HasPrefix(client, k.name):
				r = len(k.name)
			case !k.all && k.name == client:
				r = 10_000
			}
			if r > rank {
				best, rank = c, r
			}
		}
		e := newExceptions(all)
		require.Equal(t, best, e.find(client, of).Terms)
	})
}

// newIndex returns the index of a policy with exceptions for these keys.
func newIndex(t require.TestingT, keys ...string) *Index {
	p := &Policy{Clients: make(map[ClientKey]Terms)}
	for _, key := range keys {
		k, err := ParseClientKey(key)
		require.NoError(t, err)
		p.Clients[k] = Terms{}
	}
	return NewIndex(p)
}

// Not parallel: it counts the allocations of the whole process.
func TestFindingAnExceptionAllocatesNothing(t *testing.T) {
	index := newIndex(t, "a", "10.0.0.0/8", "10.1.0.0/16", "2001:db8::/32", "user:*")
	for _, client := range []string{"a", "user:alice", "nobody", "10.1.2.3", "2001:db8::1"} {
		assert.Zero(t, testing.AllocsPerRun(100, func() { index.Exception(client, netip.Prefix{}, false) }), client)
	}
}

func BenchmarkExceptions(b *testing.B) {
	for _, keys := range []int{10, 100_000} {
		var all []string
		for i := range keys {
			all = append(all, fmt.Sprintf("user:%d:*", i), fmt.Sprintf("10.%d.%d.0/24", i>>8&255, i&255))
		}
		index := newIndex(b, all...)
		for _, client := range []string{"10.200.3.4", "user:77:x", "alice"} {
			b.Run(fmt.Sprintf("%d/%s", keys, client), func(b *testing.B) {
				b.ReportAllocs()
				for b.Loop() {
					index.Exception(client, netip.Prefix{}, false)
				}
			})
		}
	}
}
