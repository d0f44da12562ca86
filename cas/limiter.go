package cas

import (
	"bytes"
	"context"
	"fmt"
	"math/rand/v2"
	"sync"
	"time"

	"weir/counters"
	"weir/counters/cache"
	"weir/counters/combiner"
)

// ErrContended: until the deadline, other instances changed the client's state
// between each attempt's read and its write. Nothing was consumed. It is a
// counters.ErrTimeout too.
var ErrContended = fmt.Errorf("cas: other instances changed the state first at each attempt: %w", counters.ErrTimeout)

// After a lost race a leader waits between half and all of a pause that begins
// with minPause and doubles until maxPause.
const (
	minPause = 100 * time.Microsecond
	maxPause = time.Millisecond
)

// Config configures a Limiter.
type Config struct {
	counters.Options
	// Swaps is called after each batch that changed a state, or tried to, if it
	// isn't nil: with the number of attempts, and how many of those lost a race.
	Swaps func(attempts, lost int)
	// Foreign is called for each value found that isn't a state, if it isn't nil.
	// The client then starts anew.
	Foreign func()
}

// A Limiter admits requests by a state per client, of type S, which it replaces
// by compare-and-swap: what it decides is what the algorithm decides for all
// requests of all instances, one after the other.
//
// Concurrent checks of a client are decided in one step, in their order, so
// that a process is one contender however many callers it has. Each attempt is
// one round trip: it starts from the state that the process has seen last, or
// from none, and an attempt that loses brings back the one that won. A denial
// writes nothing, and needs no round trip at all when the state was seen within
// counters.MaxStaleness. What is remembered is only a cache: losing it changes no
// decision but those denials.
//
// Clients whose requests have different limits are kept for as long as the
// requests written last need.
//
// It is safe for concurrent use. Make one with NewTokenBucket, NewLeakyBucket or
// NewSlidingLog.
type Limiter[S any] struct {
	store     counters.StateStore
	algorithm algorithm[S]
	cfg       Config
	keys      counters.Namespace
	combiner  *combiner.Combiner[request, counters.Decision]
	views     *cache.Cache[view[S]]
}

// A request asks to take, or to refund what was taken.
type request struct {
	counters.Request
	refund bool
}

type (
	call  = combiner.Call[request, counters.Decision]
	batch = combiner.Batch[request, counters.Decision]
)

// init makes l a limiter by algorithm a, which the keys of its states name. It
// remembers no more than mostClients.
func (l *Limiter[S]) init(store counters.StateStore, a algorithm[S], name string, mostClients int, cfg Config) error {
	options, err := cfg.Options.WithDefaults()
	if err != nil {
		return err
	}
	cfg.Options = options
	*l = Limiter[S]{
		store: store, algorithm: a, cfg: cfg,
		keys:  counters.StateNamespace(options.KeyPrefix, options.Policy, options.Limit, name),
		views: cache.New[view[S]](min(options.Clients, mostClients)),
	}
	l.combiner = combiner.New(l.lead)
	return nil
}

// Take admits r and consumes its cost, or denies it. A denied cost is consumed
// only with CountDenied. The error is counters.ErrRequest, ErrContended, one of a
// store's, or of the context's; after one of the latter two the cost may have
// been consumed.
func (l *Limiter[S]) Take(ctx context.Context, r counters.Request) (counters.Decision, error) {
	if err := r.Check(); err != nil {
		return counters.Decision{}, err
	}
	if r.Cost == 0 {
		return l.Peek(ctx, r)
	}
	return l.combiner.Do(ctx, r.Client, request{Request: r})
}

// Peek decides r by the store and consumes nothing. The error is
// counters.ErrRequest or one of a store's.
func (l *Limiter[S]) Peek(ctx context.Context, r counters.Request) (counters.Decision, error) {
	if err := r.Check(); err != nil {
		return counters.Decision{}, err
	}
	state, err := l.store.Load(ctx, l.keys.StateKey(r.Client))
	if err != nil {
		return counters.Decision{}, err
	}
	s, _ := l.decode(state)
	return l.algorithm.peek(s, r), nil
}

// PeekLocal decides r by the state that the process has seen within counters.MaxStaleness,
// consumes nothing, and reports whether there is one. A denial is certain but
// for what resets and give-backs elsewhere have changed since.
func (l *Limiter[S]) PeekLocal(r counters.Request) (counters.Decision, bool) {
	v := l.views.Find(r.Client)
	if v == nil {
		return counters.Decision{}, false
	}
	seen := v.recall()
	if !seen.fresh(r.Now) {
		return counters.Decision{}, false
	}
	d := l.algorithm.peek(seen.decoded, r)
	d.Local = true
	return d, true
}

// Refund takes back a request that Take admitted. The error is as of Take;
// after one the cost may stay in use until time has passed over it.
func (l *Limiter[S]) Refund(ctx context.Context, r counters.Request) error {
	if err := r.Check(); err != nil || r.Cost == 0 {
		return err
	}
	_, err := l.combiner.Do(ctx, r.Client, request{Request: r, refund: true})
	return err
}

// Reset forgets what the client has used. No write that began before undoes
// that, as the state it would replace is gone. Other instances notice within
// counters.MaxStaleness. The error is counters.ErrRequest or one of a store's.
func (l *Limiter[S]) Reset(ctx context.Context, client string, _ time.Time) error {
	if err := counters.CheckClient(client); err != nil {
		return err
	}
	err := l.store.Delete(ctx, []string{l.keys.StateKey(client)})
	l.views.Forget(client)
	return err
}

// Clients returns the number of clients that are remembered.
func (l *Limiter[S]) Clients() int { return l.views.Len() }

// lead answers a batch of one client's calls.
func (l *Limiter[S]) lead(ctx context.Context, client string, b *batch) {
	attempts, lost, err := l.decide(ctx, l.views.Get(client), client, b)
	calls := b.Calls()
	if err != nil {
		for _, call := range calls {
			call.Result, call.Err = counters.Decision{}, err
		}
	}
	if l.cfg.Batch != nil {
		l.cfg.Batch(len(calls))
	}
	if l.cfg.Swaps != nil && attempts > 0 {
		l.cfg.Swaps(attempts, lost)
	}
}

// decide answers the calls of a batch, and those that arrive while it retries.
// It returns how often it tried to swap the state and how many of these lost a
// race. A failed guess from a stale snapshot, or from none, isn't counted as a
// lost race.
func (l *Limiter[S]) decide(ctx context.Context, v *view[S], client string, b *batch) (attempts, lost int, err error) {
	key := l.keys.StateKey(client)
	deadline, ok := ctx.Deadline()
	if !ok {
		deadline = time.Now().Add(counters.DefaultTimeout)
	}
	pause := minPause
	seen := v.recall()
	asked := false   // the store, in this batch
	current := false // seen was read just now, and not before a pause
	for {
		calls := b.Join()
		next := l.step(seen.decoded, calls)
		var state counters.State
		var swapped bool
		switch {
		case next.changed:
			attempts++
			state, swapped, err = l.store.Swap(ctx, key, seen.state, next.value, next.ttl)
		case asked || seen.fresh(next.now):
			for _, call := range calls {
				call.Result.Local = !asked
			}
			return attempts, lost, nil
		default:
			state, err = l.store.Load(ctx, key)
		}
		if err != nil {
			if next.changed {
				v.remember(snapshot[S]{}) // whether it was swapped is unknown
			}
			return attempts, lost, err
		}
		if next.changed && !swapped && asked {
			lost++
		}
		raced := current && !swapped
		seen, asked, current = l.snapshot(state, next), true, true
		v.remember(seen)
		if swapped {
			return attempts, lost, nil
		}
		if raced {
			wait := pause/2 + rand.N(pause/2)
			if time.Until(deadline) <= wait {
				return attempts, lost, ErrContended
			}
			time.Sleep(wait)
			pause = min(2*pause, maxPause)
			current = false
		}
	}
}

// A transition is what a batch makes of a state.
type transition[S any] struct {
	changed bool
	state   S      // the state after it, if it has changed
	value   []byte // which is encoded
	ttl     time.Duration
	now     time.Time // of the latest request
}

// step answers the calls from the given state, which it leaves as it is.
func (l *Limiter[S]) step(from S, calls []*call) transition[S] {
	next := transition[S]{now: calls[0].Request.Now, state: l.algorithm.clone(from)}
	for _, call := range calls {
		q := &call.Request
		if q.refund {
			next.state = l.algorithm.refund(next.state, q.Request)
			next.changed = true
		} else {
			next.state, call.Result = l.algorithm.step(next.state, q.Request)
			next.changed = next.changed || call.Result.Allowed || l.cfg.CountDenied
		}
		if q.Now.After(next.now) {
			next.now = q.Now
		}
	}
	if next.changed {
		next.value = l.algorithm.encode(nil, next.state)
		for _, call := range calls {
			next.ttl = max(next.ttl, l.algorithm.ttl(next.state, call.Request.Request))
		}
		next.ttl = counters.TTL(next.ttl, l.cfg.ClockSkew)
	}
	return next
}

// decode returns the state that the store has, whose memory it takes over. What
// is foreign is the initial state.
func (l *Limiter[S]) decode(state counters.State) (s S, foreign bool) {
	if !state.Exists() {
		return s, false
	}
	s, err := l.algorithm.decode(state.Value)
	return s, err != nil
}

// snapshot returns what the store has, as it was seen by the batch that next is the
// transition of. Mostly it is the state that this batch has written, and needs
// no decoding.
func (l *Limiter[S]) snapshot(state counters.State, next transition[S]) snapshot[S] {
	seen := snapshot[S]{known: true, at: next.now.UnixNano()}
	if next.changed && bytes.Equal(state.Value, next.value) {
		seen.decoded = next.state
	} else {
		var foreign bool
		if seen.decoded, foreign = l.decode(state); foreign && l.cfg.Foreign != nil {
			l.cfg.Foreign()
		}
	}
	state.Value = nil
	seen.state = state
	return seen
}

// A view is what a process has last seen of a client.
type view[S any] struct {
	mu   sync.Mutex
	last snapshot[S]
}

// A snapshot is a state as it was seen. The zero value is none.
type snapshot[S any] struct {
	state   counters.State // without its value
	decoded S              // which no one may change
	known   bool
	at      int64 // Unix nanoseconds
}

// fresh reports whether denials may rely on it at now.
func (s snapshot[S]) fresh(now time.Time) bool {
	age := now.UnixNano() - s.at
	return s.known && age >= 0 && age <= int64(counters.MaxStaleness)
}

func (v *view[S]) recall() snapshot[S] {
	v.mu.Lock()
	defer v.mu.Unlock()
	return v.last
}

func (v *view[S]) remember(s snapshot[S]) {
	v.mu.Lock()
	defer v.mu.Unlock()
	v.last = s
}
