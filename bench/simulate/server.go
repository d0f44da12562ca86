package simulate

import (
	"bytes"
	"context"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"weir/counters"
)

// A server is a model of Memcached: items that expire by a clock which ticks
// once a second, and a number for each version of a value. Only the scheduler
// uses it, one step after the other.
type server struct {
	items   map[string]item
	version uint64
	life    uint64 // how often it has been restarted
}

type item struct {
	count   int64
	state   counters.State
	expires int64 // Unix seconds
}

func (s *server) live(key string, now time.Time) (item, bool) {
	i, ok := s.items[key]
	return i, ok && i.expires > now.Unix()
}

func expiry(now time.Time, ttl time.Duration) int64 {
	return now.Unix() + int64((ttl+time.Second-1)/time.Second)
}

func (s *server) add(key string, delta int64, now time.Time, ttl time.Duration) int64 {
	i, ok := s.live(key, now)
	if !ok {
		i = item{expires: expiry(now, ttl)}
	}
	i.count += delta
	s.items[key] = i
	return i.count
}

func (s *server) subtract(key string, delta int64, now time.Time) {
	if i, ok := s.live(key, now); ok {
		i.count = max(0, i.count-delta)
		s.items[key] = i
	}
}

func (s *server) count(key string, now time.Time) int64 {
	i, ok := s.live(key, now)
	if !ok {
		return 0
	}
	return i.count
}

func (s *server) load(key string, now time.Time) counters.State {
	i, ok := s.live(key, now)
	if !ok {
		return counters.State{}
	}
	return i.state
}

func (s *server) swap(key string, old uint64, value []byte, now time.Time, ttl time.Duration) bool {
	if s.load(key, now).Version != old {
		return false
	}
	s.version++
	s.items[key] = item{state: counters.State{Value: bytes.Clone(value), Version: s.version}, expires: expiry(now, ttl)}
	return true
}

// restart loses everything, and versions are numbered from 1 again.
func (s *server) restart() {
	clear(s.items)
	s.version = 0
	s.life++
}

// lifeBits is where the version of a state says in which life of the server it
// was made: a version belongs to a connection, and that ends with the server.
const lifeBits = 32

// A connection is a process's counters.Store and counters.StateStore. Each call
// becomes an operation, which the scheduler applies and answers.
type connection struct {
	world   *world
	process *process
	down    bool // the process has crashed; guarded by world.mu
}

// An operation is a command, or several that go out together, from the moment
// that it is sent. It is applied in steps, and others come in between.
type operation struct {
	process  *process
	call     *call // nil if it isn't done for one
	what     string
	deadline time.Time
	steps    []func(*server, time.Time)

	counts  []int64
	n       int64
	state   counters.State
	swapped bool
	effect  string // in words, if the world has a trace

	answered bool // or given up; known to the scheduler alone
	err      error
	done     chan struct{}
}

// do sends o and waits for its answer.
func (c *connection) do(ctx context.Context, o *operation) error {
	w := c.world
	deadline, ok := ctx.Deadline()
	if !ok {
		deadline = time.Now().Add(counters.DefaultTimeout)
	}
	o.process, o.deadline, o.done = c.process, deadline, make(chan struct{})
	o.call, _ = ctx.Value(callKey{}).(*call)
	w.mu.Lock()
	if c.down {
		w.mu.Unlock()
		return counters.ErrUnavailable
	}
	w.sent = append(w.sent, o)
	w.mu.Unlock()
	w.wake()
	<-o.done
	return o.err
}

// Add implements counters.Store: it counts first, and reads after that.
func (c *connection) Add(ctx context.Context, a counters.Addition) (int64, error) {
	o := &operation{what: c.name("add", a.Key)}
	delta, key, ttl, read := a.Delta, a.Key, a.TTL, append([]string(nil), a.Read...)
	o.steps = append(o.steps, func(s *server, now time.Time) {
		o.n = s.add(key, delta, now, ttl)
		o.note(c.world, "+%s = %s", c.world.value(key, delta), c.world.value(key, o.n))
	})
	if len(read) > 0 {
		o.steps = append(o.steps, o.reading(c.world, read)...)
	}
	err := c.do(ctx, o)
	if err == nil {
		copy(a.Counts, o.counts)
	}
	return o.n, err
}

// Read implements counters.Store.
func (c *connection) Read(ctx context.Context, keys []string, counts []int64) error {
	o := &operation{what: c.name("read", "")}
	o.steps = o.reading(c.world, append([]string(nil), keys...))
	err := c.do(ctx, o)
	if err == nil {
		copy(counts, o.counts)
	}
	return err
}

// reading returns the steps in which keys are read: two halves, because
// Memcached looks up one key after the other.
func (o *operation) reading(w *world, keys []string) (steps []func(*server, time.Time)) {
	o.counts = make([]int64, len(keys))
	for _, half := range halves(len(keys)) {
		steps = append(steps, func(s *server, now time.Time) {
			var text strings.Builder
			for i := half.from; i < half.to; i++ {
				o.counts[i] = s.count(keys[i], now)
				if w.trace != nil {
					fmt.Fprintf(&text, " %s=%s", slot(keys[i]), w.value(keys[i], o.counts[i]))
				}
			}
			o.note(w, "reads%s", text.String())
		})
	}
	return steps
}

type span struct{ from, to int }

// halves cuts n things into two parts that aren't empty, if there are two.
func halves(n int) []span {
	if n < 2 {
		return []span{{0, n}}
	}
	return []span{{0, n / 2}, {n / 2, n}}
}

// Subtract implements counters.Store.
func (c *connection) Subtract(ctx context.Context, key string, delta int64) error {
	o := &operation{what: c.name("subtract", key)}
	o.steps = append(o.steps, func(s *server, now time.Time) {
		s.subtract(key, delta, now)
		if now.Sub(c.world.vanished) < 3*c.world.timeout {
			c.world.lose() // perhaps it takes from what others have counted since
		}
		o.note(c.world, "-%d = %d", delta, s.count(key, now))
	})
	return c.do(ctx, o)
}

// Load implements counters.StateStore.
func (c *connection) Load(ctx context.Context, key string) (counters.State, error) {
	o := &operation{what: c.name("load", "")}
	o.steps = append(o.steps, o.loading(c.world, key))
	err := c.do(ctx, o)
	return o.state, err
}

func (o *operation) loading(w *world, key string) func(*server, time.Time) {
	return func(s *server, now time.Time) {
		o.state = s.load(key, now)
		o.note(w, "reads version %d", o.state.Version)
		if o.state.Exists() && !w.broken.versionsOutliveRestarts {
			o.state.Version |= s.life << lifeBits
		}
	}
}

// Swap implements counters.StateStore: it swaps, and reads in a second step.
func (c *connection) Swap(ctx context.Context, key string, old counters.State, value []byte, ttl time.Duration) (counters.State, bool, error) {
	o := &operation{what: c.name("swap", "")}
	value = bytes.Clone(value)
	o.steps = append(o.steps, func(s *server, now time.Time) {
		version := old.Version
		switch {
		case c.world.broken.versionsIgnored:
			version = s.load(key, now).Version
		case !old.Exists() || c.world.broken.versionsOutliveRestarts:
		case version>>lifeBits == s.life:
			version &= 1<<lifeBits - 1
		default:
			version = ^uint64(0) // none has it
		}
		o.swapped = s.swap(key, version, value, now, ttl)
		o.note(c.world, "version %d: %v", version, o.swapped)
	}, o.loading(c.world, key))
	err := c.do(ctx, o)
	return o.state, o.swapped, err
}

// Delete implements counters.Store and counters.StateStore, in two steps if
// there are several keys.
func (c *connection) Delete(ctx context.Context, keys []string) error {
	o := &operation{what: c.name("delete", "")}
	keys = append([]string(nil), keys...)
	for _, half := range halves(len(keys)) {
		o.steps = append(o.steps, func(s *server, _ time.Time) {
			for _, key := range keys[half.from:half.to] {
				delete(s.items, key)
			}
			c.world.lose()
			o.note(c.world, "%d keys", half.to-half.from)
		})
	}
	return c.do(ctx, o)
}

// name returns what an operation is called in the timeline.
func (c *connection) name(verb, key string) string {
	if key == "" {
		return verb
	}
	return verb + " " + slot(key)
}

func (o *operation) note(w *world, format string, args ...any) {
	if w.trace != nil {
		o.effect = fmt.Sprintf(format, args...)
	}
}

// value returns how a counter reads in the timeline. Generations begin
// anywhere, so they are named by the resets so far.
func (w *world) value(key string, n int64) string {
	if n == 0 || slot(key) != slot(counters.GenerationKey("_")) {
		return strconv.FormatInt(n, 10)
	}
	i := slices.Index(w.generations, n)
	if i < 0 {
		i = len(w.generations)
		w.generations = append(w.generations, n)
	}
	return "g" + strconv.Itoa(i)
}

// slot returns the last part of a counter's key.
func slot(key string) string { return key[strings.LastIndexByte(key, '_')+1:] }
