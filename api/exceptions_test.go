package api

import (
	"fmt"
	"net/http"
	"net/netip"
	"strings"
	"testing"
	"time"

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
		"a*b":                     `client "a*b" has a * before its end; only at the end does it stand for what follows`,
		"**":                      `client "**" has a * before its end; only at the end does it stand for what follows`,
	} {
		_, err := ParseClientKey(text)
		if message == "" {
			assert.NoError(t, err)
			continue
		}
		assert.EqualError(t, err, message)
	}
}

// The name comes before networks, these before beginnings of names, and of each
// the one that says the most.
func TestTheMostSpecificExceptionHolds(t *testing.T) {
	t.Parallel()
	p := newPolicy("api", fixed("per-minute", 1000, time.Minute))
	limit := func(n int64) Client { return Client{Limits: map[string]int64{"per-minute": n}} }
	p.Clients = clients(map[string]Client{
		"alice": limit(1), "user:alice": limit(2), "user:*": limit(3), "user:admin:*": limit(4), "user": limit(5),
		"0.0.0.0/0": limit(10), "10.0.0.0/8": limit(11), "10.1.0.0/16": limit(12), "10.1.2.3": limit(13), "10.*": limit(14),
		"2001:db8::/32": limit(20), "2001:db8:1::/48": limit(21), "2001:db8:1::7": limit(22),
	})
	s := newService(p)
	for client, want := range map[string]int64{
		"alice": 1, "user:alice": 2, "user:alicia": 3, "user:": 3, "user:admin": 3, "user:admin:": 4, "user:admin:x": 4, "user": 5,
		"use": 1000, "bob": 1000, "Alice": 1000,
		"192.0.2.1": 10, "10.2.0.1": 11, "10.1.2.4": 12, "10.1.2.3": 13, "::ffff:10.1.2.3": 13, "10.x": 14, "10.1.2.300": 14,
		"2001:db8:2::7": 20, "2001:DB8:1::8": 21, "2001:db8:1:0::7": 22, "2001:db9::": 1000,
		// Networks, as forward auth names them.
		"2001:db8:1::/64": 21, "2001:db8::/32": 20, "2001:db8::/31": 1000, "10.1.0.0/16": 12, "10.0.0.0/15": 11,
	} {
		r := s.admits(t, fmt.Sprintf(`{"policy":"api","client":%q}`, client))
		assert.Equal(t, want, r.Limits[0].Limit, client)
		r = s.do(t, http.MethodGet, "/v1/policies/api/clients/"+strings.ReplaceAll(client, "/", "%2F"), "")
		assert.Equal(t, want, r.Limits[0].Limit, client)
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
		all := make(map[ClientKey]Client)
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
			all[k] = Client{Limits: map[string]int64{"limit": int64(i)}}
		}
		client, of := name("client"), netip.Prefix{}
		if rapid.Bool().Draw(t, "has an address") {
			of = network("its network")
		}
		best, rank := Client{}, -1
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
		require.Equal(t, best, e.find(client, of))
	})
}

// Not parallel: it counts the allocations of the whole process.
func TestFindingAnExceptionAllocatesNothing(t *testing.T) {
	p := newPolicy("api")
	p.Clients = clients(map[string]Client{"a": {}, "10.0.0.0/8": {}, "10.1.0.0/16": {}, "2001:db8::/32": {}, "user:*": {}})
	p.settle()
	for _, client := range []string{"a", "user:alice", "nobody", "10.1.2.3", "2001:db8::1"} {
		q := check{client: client}
		assert.Zero(t, testing.AllocsPerRun(100, func() { p.exception(&q) }), client)
	}
}

func BenchmarkExceptions(b *testing.B) {
	for _, keys := range []int{10, 100_000} {
		all := make(map[string]Client)
		for i := range keys {
			all[fmt.Sprintf("user:%d:*", i)] = Client{}
			all[fmt.Sprintf("10.%d.%d.0/24", i>>8&255, i&255)] = Client{}
		}
		p := newPolicy("api")
		p.Clients = clients(all)
		p.settle()
		for _, client := range []string{"10.200.3.4", "user:77:x"} {
			b.Run(fmt.Sprintf("%d/%s", keys, client), func(b *testing.B) {
				q := check{client: client}
				b.ReportAllocs()
				for b.Loop() {
					p.exception(&q)
				}
			})
		}
	}
}
