package counters

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"
)

func TestKeysAsDocumented(t *testing.T) {
	t.Parallel()
	ns := CounterNamespace("weir", "api", "per-minute", time.Minute)
	long := strings.Repeat("x", 65)
	for _, test := range []struct{ client, want string }{
		{"alice", "weir:api/per-minute:60000:alice_29333333"},
		{"a_1", "weir:api/per-minute:60000:a_1_29333333"},
		{"10.0.0.1:443", "weir:api/per-minute:60000:10.0.0.1:443_29333333"},
		{strings.Repeat("x", 64), "weir:api/per-minute:60000:" + strings.Repeat("x", 64) + "_29333333"},
		{"a b", "weir:api/per-minute:60000:~yGh6CKpdbtIEQyj6aml6uOlt_29333333"}, // printf "a b" | sha256sum, 18 bytes
	} {
		t.Run(test.client, func(t *testing.T) {
			assert.Equal(t, test.want, CounterKey(ns.Client(test.client), 29333333))
		})
	}
	for _, client := range []string{long, "~x", "a\nb", "\x00", "\x7f", "é", "😀", strings.Repeat("y", MaxClientBytes)} {
		assert.Regexp(t, `^weir:api/per-minute:60000:~[A-Za-z0-9_-]{24}_5$`, CounterKey(ns.Client(client), 5), "%q", client)
	}
}

func TestStateKeysAsDocumented(t *testing.T) {
	t.Parallel()
	ns := StateNamespace("weir", "api", "burst", "token_bucket")
	assert.Equal(t, "weir:api/burst:token_bucket:alice", ns.StateKey("alice"))
	assert.Equal(t, "weir:api/burst:token_bucket:a_1", ns.StateKey("a_1"))
	assert.Equal(t, "weir:api/burst:token_bucket:~yGh6CKpdbtIEQyj6aml6uOlt", ns.StateKey("a b"))
	name := strings.Repeat("n", 63)
	longest := StateNamespace(strings.Repeat("p", maxKeyPrefixBytes), name, name, "sliding_window").StateKey(strings.Repeat("c", maxPlainClient))
	assert.LessOrEqual(t, len(longest), 250)
}

func TestTheLongestKeyFits(t *testing.T) {
	t.Parallel()
	name := strings.Repeat("n", 63)
	prefix := strings.Repeat("p", maxKeyPrefixBytes)
	client := strings.Repeat("c", maxPlainClient)
	for _, width := range []time.Duration{time.Millisecond, MaxWindow} {
		counter := CounterNamespace(prefix, name, name, width).Client(client)
		for _, second := range []int64{-maxUnix, maxUnix} {
			now := time.Unix(second, 0)
			require.NoError(t, CheckNow(now))
			assert.LessOrEqual(t, len(CounterKey(counter, Calendar(now, width).Number)), 250)
		}
		assert.LessOrEqual(t, len(GenerationKey(counter)), 250)
	}
	require.NoError(t, CheckKeyPrefix(prefix))
	for _, bad := range []string{"", prefix + "p", "a b", "a\n", "é"} {
		assert.ErrorContains(t, CheckKeyPrefix(bad), "1 to 30 printable ASCII", "%q", bad)
	}
	assert.EqualError(t, CheckKeyPrefix("/a:b/c"), `key prefix "/a:b/c" must have no / after a colon`)
}

// anyClient draws clients that try to look like others.
func anyClient() *rapid.Generator[string] {
	return rapid.OneOf(
		rapid.StringOfN(rapid.RuneFrom([]rune("a_1~:/ \n\x00é😀")), 1, 12, -1),
		rapid.Map(rapid.SliceOfN(rapid.Byte(), 1, 100), func(b []byte) string { return string(b) }),
		rapid.SampledFrom([]string{"a", "a_1", "a_1_1", "~", "~x", "weir:p/l:1000:a_1", "~yGh6CKpdbtIEQyj6aml6uOlt"}),
	)
}

func TestKeysNeverCollide(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		prefix := rapid.SampledFrom([]string{"weir", "a:b", "x_1", "/a/b", "a/b:1:c_2:"}).Draw(t, "prefix")
		ns := CounterNamespace(prefix, "p", "l", time.Second)
		clients := rapid.SliceOfNDistinct(anyClient(), 2, 5, rapid.ID).Draw(t, "clients")
		buckets := rapid.SliceOfNDistinct(rapid.Int64Range(-2, 12), 2, 4, rapid.ID).Draw(t, "buckets")
		seen := make(map[string]string)
		for _, client := range clients {
			for _, bucket := range buckets {
				key := CounterKey(ns.Client(client), bucket)
				if len(key) > 250 || !printable(key) {
					t.Fatalf("client %q has the key %q", client, key)
				}
				if other, ok := seen[key]; ok {
					t.Fatalf("clients %q and %q share the key %q", client, other, key)
				}
				seen[key] = client
				part := strings.TrimSuffix(strings.TrimPrefix(ns.Client(client), string(ns)), "_")
				if ClientPart(key) != part {
					t.Fatalf("the client part of %q is %q", key, ClientPart(key))
				}
			}
			key := StateNamespace(prefix, "p", "l", "token_bucket").StateKey(client)
			if other, ok := seen[key]; ok {
				t.Fatalf("clients %q and %q share the key %q", client, other, key)
			}
			seen[key] = client
			if state, counter := ClientPart(key), ClientPart(CounterKey(ns.Client(client), 1)); state != counter {
				t.Fatalf("the state of %q lives with %q, its counters with %q", client, state, counter)
			}
		}
	})
}

func TestClientPartIsTheSameForAllKeysOfAClient(t *testing.T) {
	t.Parallel()
	for _, prefix := range []string{"weir", "team:weir", "/east/main/weir"} {
		parts := make(map[string]bool)
		for _, policy := range []string{"api", "login"} {
			for _, width := range []time.Duration{time.Second, time.Hour} {
				for bucket := range int64(12) {
					key := CounterKey(CounterNamespace(prefix, policy, "l", width).Client("al_i:ce"), bucket)
					parts[ClientPart(key)] = true
				}
			}
			state := StateNamespace(prefix, policy, "l", "sliding_log").StateKey("al_i:ce")
			parts[ClientPart(state)] = true
		}
		assert.Equal(t, map[string]bool{"al_i:ce": true}, parts)
	}
	for _, foreign := range []string{"", "weir", "weir:", "weir:p/l", "weir:p/l:1000:noslot"} {
		assert.Equal(t, foreign, ClientPart(foreign))
	}
}

// A proxy that chooses servers by a part of a key finds none in a client's name.
func TestNoClientChoosesItsServer(t *testing.T) {
	t.Parallel()
	for _, client := range []string{"a|#|b", "|#|", "{a}", "a{b}c", "a}b{"} {
		key := StateNamespace("weir", "p", "l", "token_bucket").StateKey(client)
		assert.Regexp(t, `^weir:p/l:token_bucket:~[A-Za-z0-9_-]{24}$`, key, "%q", client)
	}
	assert.Equal(t, "weir:p/l:token_bucket:a|#b", string(StateNamespace("weir", "p", "l", "token_bucket").StateKey("a|#b")))
}

// Whatever two clients are called, each has keys of its own, which one can send
// and which all live with it.
func FuzzClientKey(f *testing.F) {
	f.Fuzz(func(t *testing.T, client, other string, bucket int64) {
		keys := func(client string) []string {
			counter := CounterNamespace("weir", "p", "l", time.Second).Client(client)
			return []string{
				CounterKey(counter, bucket), GenerationKey(counter),
				StateNamespace("weir", "p", "l", "sliding_log").StateKey(client),
			}
		}
		parts := make(map[string]bool)
		for _, key := range keys(client) {
			if len(key) > 250 || !printable(key) {
				t.Errorf("%q has the key %q", client, key)
			}
			if client != other && slices.Contains(keys(other), key) {
				t.Errorf("%q and %q share the key %q", client, other, key)
			}
			parts[ClientPart(key)] = true
		}
		for _, key := range keys(other) {
			if client != other && parts[ClientPart(key)] {
				t.Errorf("the key %q of %q lives with %q", key, other, client)
			}
		}
		if len(parts) != 1 {
			t.Errorf("the keys of %q live with %v", client, parts)
		}
	})
}

func ExampleNamespace() {
	ns := CounterNamespace("weir", "api", "per-minute", time.Minute)
	fmt.Println(CounterKey(ns.Client("alice"), 29333333))
	// Output: weir:api/per-minute:60000:alice_29333333
}

// A check that begins a slot makes its key.
func TestACounterKeyIsOneAllocation(t *testing.T) {
	client := CounterNamespace("weir", "api", "per-minute", time.Minute).Client("alice")
	var key string
	assert.InDelta(t, 1, testing.AllocsPerRun(1000, func() { key = CounterKey(client, 29333333) }), 0)
	assert.Equal(t, client+"29333333", key)
}
