package simulate

import (
	"bytes"
	"cmp"
	"context"
	"fmt"
	"iter"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"weir/counters"
)

// A network takes what limiters ask of the server. The scheduler decides what
// becomes of it. It is all that limiters know of the world: their pools outlast two
// garbage collections, and so would the worlds of a thousand seeds.
type network struct {
	mu   sync.Mutex
	sent []*operation // since the scheduler has looked
	// awaited are those whose late answers somebody has begun to await since.
	awaited []*operation
	awake   chan struct{} // tells the scheduler to look

	failures int // of operations whose outcome is unknown, and of refunds
	untold   int // of these, without what changes nothing or was told late

	touched     []string // keys, by the step under way
	generations []int64  // as the timeline has named them
}

// wake makes the scheduler look at what goroutines have left for it.
func (n *network) wake() {
	select {
	case n.awake <- struct{}{}:
	default:
	}
}

func (n *network) refundFailed() {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.failures++
	n.untold++
}

// A connection is a process's counters.Store and counters.StateStore. Each call
// becomes an operation, which the scheduler applies and answers.
type connection struct {
	network *network
	process int
	down    bool        // the process has crashed; guarded by network.mu
	heard   []time.Time // when the process was answered; known to the scheduler alone
	told    time.Time   // when the last of its late answers comes; as heard
	// perform, if it isn't nil, does the steps of operations, and returns after
	// the last. Nothing is sent then.
	perform func(*operation)
}

// An operation is a command, or several that go out together, from the moment
// that it is sent. It is applied in steps, and others come in between.
type operation struct {
	connection *connection
	process    int
	call       int // noCall if it isn't done for one
	sent       time.Time
	verb, key  string
	deadline   time.Time
	steps      []step

	counts  []int64
	n       int64
	state   counters.State
	swapped bool
	lost    bool
	was, is header     // of a state that was swapped
	putBack []string   // keys that it has put back, in its last step
	marks   bool       // it raises the generation, or reads it first
	looked  *operation // the read of the generation before it subtracted
	applied time.Time  // its first step

	planned int         // how many of its steps are to be applied
	finish  time.Time   // when the last of them is
	broken  bool        // nobody will hear of it any more
	late    *lateAnswer // how its caller hears of it who has given up; nil if that is never

	answered bool // or given up; known to the scheduler alone
	ended    time.Time
	err      error
	done     chan struct{}
}

// A step is done by the server at once.
type step func(s *server, now time.Time)

const noCall = -1

// A lateAnswer is the answer to an addition or a swap whose caller has given up at its
// deadline.
type lateAnswer struct {
	counters.Unanswered
	told    time.Time // zero until then; known to the scheduler alone
	outcome error     // that is told
	listens func(err error)
}

// callKey is that of the number of a call in its context, or of a thread of a
// plot with a late answer.
type callKey struct{}

// do sends o and waits for its answer.
func (c *connection) do(ctx context.Context, o *operation) error {
	o.process, o.call = c.process, noCall
	if call, ok := ctx.Value(callKey{}).(int); ok {
		o.call = call
	}
	if c.perform != nil {
		c.perform(o)
		return o.err
	}
	deadline, ok := ctx.Deadline()
	if !ok {
		deadline = time.Now().Add(counters.DefaultTimeout)
	}
	o.connection, o.deadline, o.done = c, deadline, make(chan struct{})
	n := c.network
	n.mu.Lock()
	if c.down {
		n.mu.Unlock()
		return counters.ErrUnavailable
	}
	n.sent = append(n.sent, o)
	n.mu.Unlock()
	n.wake()
	<-o.done
	return o.err
}

// before orders operations that were sent at the same time.
func (o *operation) before(other *operation) int {
	return cmp.Or(cmp.Compare(o.process, other.process), cmp.Compare(o.call, other.call),
		cmp.Compare(o.verb, other.verb), cmp.Compare(slot(o.key), slot(other.key)))
}

func (o *operation) String() string {
	what := o.verb
	if o.key != "" {
		what += " " + slot(o.key)
	}
	if o.call == noCall {
		return fmt.Sprintf("p%d     %s", o.process, what)
	}
	return fmt.Sprintf("p%d #%-3d %s", o.process, o.call, what)
}

// Verbs of operations that the world looks at.
const (
	add      = "add"
	read     = "read"
	swap     = "swap"
	subtract = "subtract"
	remove   = "delete"
	load     = "load"
	put      = "put"
)

// Add implements counters.Store: it counts first, and reads after that.
func (c *connection) Add(ctx context.Context, a counters.Addition) (int64, error) {
	o := &operation{verb: add, key: a.Key, marks: isGeneration(a.Key)}
	o.steps = append(o.steps, func(s *server, now time.Time) {
		if a.Have && s.count(a.Key, now) == counters.Absent {
			o.lost = true
			return
		}
		o.n = s.add(a.Key, a.Delta, now, a.TTL)
	})
	if len(a.Read) > 0 {
		o.steps = append(o.steps, o.reading(a.Read)...)
	}
	switch err := c.do(ctx, o); {
	case err != nil: // the server may still be at it
		return 0, err
	case o.lost:
		return 0, counters.ErrLost
	}
	copy(a.Counts, o.counts)
	return o.n, nil
}

// Read implements counters.Store.
func (c *connection) Read(ctx context.Context, keys []string, counts []int64) error {
	o := &operation{verb: read, marks: isGeneration(keys[0])}
	o.steps = o.reading(keys)
	err := c.do(ctx, o)
	if err == nil {
		copy(counts, o.counts)
	}
	return err
}

// reading returns the steps in which keys are read: two halves, because
// Memcached looks up one key after the other.
func (o *operation) reading(keys []string) (steps []step) {
	for half := range halves(keys) {
		steps = append(steps, func(s *server, now time.Time) {
			for _, key := range half {
				o.counts = append(o.counts, s.count(key, now))
			}
		})
	}
	return steps
}

// halves cuts a copy of what there is into two parts that aren't empty, if there are two.
func halves[T any](all []T) iter.Seq[[]T] { return slices.Chunk(slices.Clone(all), (len(all)+1)/2) }

// Subtract implements counters.Store.
func (c *connection) Subtract(ctx context.Context, key string, delta int64) error {
	return c.do(ctx, &operation{verb: subtract, key: key, steps: []step{func(s *server, now time.Time) { s.subtract(key, delta, now) }}})
}

// Raise implements counters.Store: it reads, and raises one counter after the
// other after that.
func (c *connection) Raise(ctx context.Context, floors []counters.Floor) error {
	o := &operation{verb: "raise", steps: []step{func(*server, time.Time) {}}}
	for half := range halves(floors) {
		o.steps = append(o.steps, func(s *server, now time.Time) {
			for _, f := range half {
				if before := s.count(f.Key, now); before < f.Count {
					o.putBack = append(o.putBack, f.Key)
				}
				s.raise(f, now)
			}
		})
	}
	return c.do(ctx, o)
}

// Load implements counters.StateStore.
func (c *connection) Load(ctx context.Context, key string) (counters.State, error) {
	o := &operation{verb: load}
	o.steps = append(o.steps, o.loading(key))
	err := c.do(ctx, o)
	return o.state, err
}

func (o *operation) loading(key string) step {
	return func(s *server, now time.Time) { o.state = s.public(s.load(key, now)) }
}

// Swap implements counters.StateStore: it swaps, and reads in a second step.
func (c *connection) Swap(ctx context.Context, key string, old counters.State, value []byte, ttl time.Duration) (counters.State, bool, error) {
	o := &operation{verb: swap}
	value = bytes.Clone(value)
	o.steps = append(o.steps, func(s *server, now time.Time) {
		version := s.private(key, old, now)
		o.was, o.is = readHeader(s.load(key, now).Value), readHeader(value)
		o.swapped = s.swap(key, version, value, now, ttl)
		if o.swapped && o.is.putBack != 0 && o.is.putBack != o.was.putBack {
			o.putBack = append(o.putBack, key)
		}
	}, o.loading(key))
	err := c.do(ctx, o)
	return o.state, o.swapped, err
}

// Put implements counters.StateStore.
func (c *connection) Put(ctx context.Context, key string, value []byte, ttl time.Duration) error {
	value = bytes.Clone(value)
	return c.do(ctx, &operation{verb: put, key: key, steps: []step{func(s *server, now time.Time) { s.put(key, value, now, ttl) }}})
}

// Delete implements counters.Store, in two steps if there are several keys.
func (c *connection) Delete(ctx context.Context, keys []string) error {
	o := &operation{verb: remove}
	for half := range halves(keys) {
		o.steps = append(o.steps, func(s *server, _ time.Time) {
			for _, key := range half {
				s.remove(key)
			}
		})
	}
	return c.do(ctx, o)
}

// touch implements server.touched.
func (n *network) touch(key string, _ bool) {
	if !slices.Contains(n.touched, key) {
		n.touched = append(n.touched, key)
	}
}

// effect says what the server has, after a step, at the keys that this has touched.
func (n *network) effect(s *server) (text string) {
	for _, key := range n.touched {
		if i, ok := s.items[key]; !ok {
			text += fmt.Sprintf(" %s is absent", slot(key))
		} else {
			text += fmt.Sprintf(" %s=%s", slot(key), n.value(key, i))
		}
	}
	return text
}

// value returns how an item reads in the timeline. Generations begin anywhere, so
// they are named by the resets so far.
func (n *network) value(key string, i item) string {
	switch {
	case i.state.Exists():
		return fmt.Sprintf("version %d", i.state.Version)
	case !isGeneration(key):
		return strconv.FormatInt(i.count, 10)
	}
	if !slices.Contains(n.generations, i.count) {
		n.generations = append(n.generations, i.count)
	}
	return "g" + strconv.Itoa(slices.Index(n.generations, i.count))
}

func isGeneration(key string) bool { return slot(key) == slot(counters.GenerationKey("_")) }

// slot returns the last part of a counter's key.
func slot(key string) string { return key[strings.LastIndexByte(key, '_')+1:] }
