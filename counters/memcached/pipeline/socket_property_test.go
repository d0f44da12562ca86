package pipeline

import (
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/bradfitz/gomemcache/memcache"
	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"weir/counters/memcachedtest"
)

// step is one command of a streamCaller on keys of its own.
type step struct {
	verb   string
	key    int
	keys   int // multiget
	number uint64
	value  string
}

func steps(verbs []string, longest int) *rapid.Generator[[]step] {
	value := rapid.OneOf(
		rapid.SampledFrom([]string{"", "0", "41", "18446744073709551615", "END\r\n", "VALUE x 0 3\r\n", "\r\nEND\r\n", "STORED\r\n", "x"}),
		rapid.Custom(func(t *rapid.T) string { return string(rapid.SliceOfN(rapid.Byte(), 0, 50).Draw(t, "bytes")) }),
		rapid.Custom(func(t *rapid.T) string {
			return strings.Repeat("END\r\n", rapid.IntRange(0, longest/5).Draw(t, "repeats"))
		}),
	).Filter(func(v string) bool {
		// An incr of white space reads on, in memory that is left from another item.
		return v == "" || strings.TrimSpace(v) != ""
	})
	return rapid.SliceOfN(rapid.Custom(func(t *rapid.T) step {
		return step{
			verb:   rapid.SampledFrom(verbs).Draw(t, "verb"),
			key:    rapid.IntRange(0, 3).Draw(t, "key"),
			keys:   rapid.IntRange(1, 200).Draw(t, "keys"),
			number: rapid.Uint64Range(0, 1000).Draw(t, "number"),
			value:  value.Draw(t, "value"),
		}
	}), 1, 40)
}

// run returns what each of the steps answered.
func run(c *memcache.Client, prefix string, program []step) []string {
	seen := make(map[string]*memcache.Item) // for cas
	key := func(i int) string { return fmt.Sprintf("%s-%d", prefix, i) }
	var answers []string
	for _, s := range program {
		it := item(key(s.key), s.value)
		var value any
		var err error
		switch s.verb {
		case "incr":
			value, err = c.Increment(it.Key, s.number)
		case "decr":
			value, err = c.Decrement(it.Key, s.number)
		case "add":
			err = c.Add(it)
		case "set":
			err = c.Set(it)
		case "delete":
			err = c.Delete(it.Key)
		case "touch":
			err = c.Touch(it.Key, 60)
		case "cas":
			if old := seen[it.Key]; old != nil {
				old.Value = it.Value
				err = c.CompareAndSwap(old)
			}
		case "get":
			var got *memcache.Item
			if got, err = c.Get(it.Key); err == nil {
				seen[it.Key] = got
				value = string(got.Value)
			}
		case "multiget":
			keys := make([]string, s.keys)
			for i := range keys {
				keys[i] = key(i)
			}
			var got map[string]*memcache.Item
			got, err = c.GetMulti(keys)
			for _, k := range slices.Sorted(maps.Keys(got)) {
				value = fmt.Sprintf("%v%s=%q ", value, k, got[k].Value)
			}
		}
		answers = append(answers, fmt.Sprintf("%s %d: %v, %v", s.verb, s.key, value, err))
	}
	return answers
}

// Callers on shared sockets get the answers they would get on connections of
// their own.
func TestSharedSocketAnswersAsOwnConnections(t *testing.T) {
	t.Parallel()
	// With room for all: neither has to evict what the other keeps.
	shared, own := memcachedtest.Start(t, "-m", "1024"), memcachedtest.Start(t, "-m", "1024")
	s, _ := startPool(t)
	programs := steps([]string{"incr", "decr", "add", "set", "delete", "touch", "cas", "get", "multiget"}, 100<<10)
	var round atomic.Int64
	rapid.Check(t, func(t *rapid.T) {
		n := round.Add(1)
		all := rapid.SliceOfN(programs, 1, 6).Draw(t, "programs")
		got, want := make([][]string, len(all)), make([][]string, len(all))
		var wg sync.WaitGroup
		for i, program := range all {
			prefix := fmt.Sprintf("%d-%d", n, i)
			wg.Go(func() {
				client := newTestClient(s, shared.Addr, time.Minute)
				defer client.Close()
				got[i] = run(client, prefix, program)
			})
			wg.Go(func() {
				plain := memcache.New(own.Addr)
				plain.Timeout = time.Minute
				defer plain.Close()
				want[i] = run(plain, prefix, program)
			})
		}
		wg.Wait()
		require.Equal(t, want, got)
	})
}

// errorer is a *testing.T or *rapid.T.
type errorer interface {
	Errorf(format string, args ...any)
}

// streamCaller runs steps whose commands may fail, and knows what each answer
// can be: its own writes that have succeeded, and any of those that have
// failed, because these may have been carried out, or be carried out late.
type streamCaller struct {
	client        *memcache.Client
	prefix        string
	base          uint64
	last          uint64
	done, unknown uint64 // increments
	values        [4][]string
	settled       [4]string
	ok, failed    *atomic.Int64
}

// newCaller puts the first values in place over a connection of its own.
func newCaller(t *testing.T, direct *memcache.Client, prefix string, client *memcache.Client, ok, failed *atomic.Int64) *streamCaller {
	c := &streamCaller{client: client, prefix: prefix, base: rand.Uint64N(1e18), ok: ok, failed: failed}
	require.NoError(t, direct.Set(item(prefix+"-n", fmt.Sprint(c.base))))
	for k := range c.settled {
		c.settled[k] = fmt.Sprintf("%s-%d first", prefix, k)
		require.NoError(t, direct.Set(item(fmt.Sprintf("%s-%d", prefix, k), c.settled[k])))
	}
	return c
}

func (c *streamCaller) run(t errorer, program []step, cut func()) {
	for i, s := range program {
		key := fmt.Sprintf("%s-%d", c.prefix, s.key)
		var err error
		switch s.verb {
		case "cut":
			cut()
			continue
		case "incr":
			var n uint64
			if n, err = c.client.Increment(c.prefix+"-n", 1); err != nil {
				c.unknown++
				break
			}
			c.done++
			if n <= c.last || n < c.base+c.done || n > c.base+c.done+c.unknown {
				t.Errorf("%d after %d, base %d, %d done, %d unknown", n, c.last, c.base, c.done, c.unknown)
			}
			c.last = n
		case "set":
			value := fmt.Sprintf("%s/%d/%s", key, i, s.value)
			if err = c.client.Set(item(key, value)); err == nil {
				c.settled[s.key] = value
			} else {
				c.values[s.key] = append(c.values[s.key], value)
			}
		case "get":
			var got *memcache.Item
			if got, err = c.client.Get(key); err == nil {
				c.check(t, got, s.key)
			}
		case "multiget":
			keys := make([]string, s.keys)
			for i := range keys {
				keys[i] = fmt.Sprintf("%s-%d", c.prefix, i)
			}
			var got map[string]*memcache.Item
			if got, err = c.client.GetMulti(keys); err == nil {
				if len(got) != min(s.keys, 4) {
					t.Errorf("%d items for %d keys", len(got), s.keys)
				}
				for i := range min(s.keys, 4) {
					c.check(t, got[keys[i]], i)
				}
			}
		}
		if err == nil {
			c.ok.Add(1)
		} else {
			c.failed.Add(1)
			if err == memcache.ErrCacheMiss {
				t.Errorf("%s %s: %v", s.verb, key, err)
			}
		}
	}
}

func (c *streamCaller) check(t errorer, got *memcache.Item, key int) {
	if v := string(got.Value); v != c.settled[key] && !slices.Contains(c.values[key], v) {
		t.Errorf("%s is %q", got.Key, v)
	}
}

// With short deadlines, delays, bytes that come in pieces, and cut connections,
// an answer may be an error; but every other answer is right and the
// streamCaller's own.
func TestFaultsGiveErrorsButNeverWrongAnswers(t *testing.T) {
	t.Parallel()
	m := memcachedtest.Start(t)
	direct := memcache.New(m.Addr)
	direct.Timeout = time.Minute
	defer direct.Close()
	programs := steps([]string{"incr", "incr", "set", "get", "multiget", "cut"}, 2000)
	var round, ok, failed atomic.Int64
	rapid.Check(t, func(rt *rapid.T) {
		n := round.Add(1)
		piece := rapid.SampledFrom([]int{1, 7, 100, 1 << 16}).Draw(rt, "piece")
		p := startProxy(t, m.Addr, piece, func() {
			if rand.IntN(100) == 0 {
				time.Sleep(rand.N(2 * time.Millisecond))
			}
		})
		d := &dials{dial: Dialer(nil, "", "")}
		s := New(d.DialContext, time.Second)
		defer s.Close()
		var wg sync.WaitGroup
		for i, program := range rapid.SliceOfN(programs, 1, 6).Draw(rt, "programs") {
			timeout := rapid.SampledFrom([]time.Duration{time.Millisecond, 5 * time.Millisecond, 50 * time.Millisecond}).Draw(rt, "timeout")
			c := newCaller(t, direct, fmt.Sprintf("%d-%d", n, i), newTestClient(s, p.address(), timeout), &ok, &failed)
			wg.Go(func() {
				defer c.client.Close()
				c.run(rt, program, p.cut)
			})
		}
		wg.Wait()
	})
	t.Logf("%d answers, %d errors", ok.Load(), failed.Load())
	require.Greater(t, ok.Load(), int64(100))
	require.Greater(t, failed.Load(), int64(100))
}

// Many callers, some of whom give up all the time, while the server is held up
// now and then: nobody else's request fails, and the connection stays.
func TestManyCallersGivingUp(t *testing.T) {
	t.Parallel()
	m := memcachedtest.Start(t)
	direct := memcache.New(m.Addr)
	direct.Timeout = time.Minute
	defer direct.Close()
	s, d := startPool(t)
	var ok, failed, gaveUp atomic.Int64
	var wg sync.WaitGroup
	for i := range 100 {
		timeout, failed := time.Minute, &failed
		if i%4 == 0 {
			timeout, failed = 100*time.Microsecond, &gaveUp
		}
		c := newCaller(t, direct, fmt.Sprint(i), newTestClient(s, m.Addr, timeout), &ok, failed)
		program := make([]step, 300)
		for j := range program {
			program[j] = step{verb: []string{"incr", "set", "get", "multiget"}[rand.IntN(4)], key: j % 4, keys: 10, value: strings.Repeat("END\r\n", rand.IntN(50))}
			if i == 0 && j%100 == 0 {
				program[j].verb = "cut"
			}
		}
		wg.Go(func() {
			defer c.client.Close()
			c.run(t, program, func() {
				m.Pause()
				defer m.Resume()
				time.Sleep(5 * time.Millisecond)
			})
		})
	}
	wg.Wait()
	require.Zero(t, failed.Load(), "those with time get all their answers")
	require.Greater(t, gaveUp.Load(), int64(100))
	require.EqualValues(t, 1, d.count.Load(), "giving up costs no connection")
}
