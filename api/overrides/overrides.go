// Package overrides keeps the exceptions that operators make while weir runs: blocks,
// exemptions and other limits, each for a time. They are one list in the store, which
// every instance has in memory; a counter beside it tells when it has changed.
//
// A change is in force in its own instance at once, in the others within a second. If
// the store loses the list, whoever remembers it puts it back, and what was removed stays
// removed. If all instances and the store lose it at once, it is gone. While the store
// can't be asked, what is known holds until its end, and nothing can be changed.
//
// Start reading at Overrides; list.go has what becomes of two lists, without I/O.
package overrides

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"sync"
	"time"

	"weir/api/policy"
	"weir/counters"
)

const (
	// maxOverrides is how many may be in force, over all policies.
	maxOverrides = 1000
	// MaxReasonBytes bounds the reason of one.
	MaxReasonBytes = 200
	// MinTime and MaxTime bound how long one is in force.
	MinTime = time.Second
	MaxTime = 30 * 24 * time.Hour

	maxBytes = 512 << 10 // of the list
	interval = 500 * time.Millisecond
	soon     = 20 * time.Millisecond // between two looks, as long as the list hasn't been read
	// readAnyway is how many looks at the counter come between two at the list itself: its
	// writer may have died before it raised the counter.
	readAnyway = 20
	// counterTime is how long the counter is waited for: the list may be on another server, and
	// has the rest of the time.
	counterTime = interval / 2
	// patience is how long a change may take, and the first reading of the list.
	patience = 2 * time.Second
)

// Errors of Set and Remove, beside those of the store: then it can be done again, and
// nothing was changed if it is a counters.ErrNotSent or ErrRefused; else nobody knows.
var (
	ErrNone    = errors.New("there is no such override")
	ErrChanged = errors.New("the override has changed since")
	ErrFull    = fmt.Errorf("there are %d overrides, or %d kB of them, and no more are possible; end some first (those take room for a day at most, if they would have gone on for as long)", maxOverrides, maxBytes>>10)
)

// A Store keeps the list.
type Store interface {
	counters.Store
	counters.StateStore
}

// Config says where the list is. All fields are needed.
type Config struct {
	Store     Store
	KeyPrefix string
	Horizon   time.Duration // how much longer than needed the list is kept, as clocks differ
	Now       func() time.Time
	Foreign   func() // is called when something else is found in its place
	Log       *slog.Logger
}

// Overrides are those of all policies, as this instance knows them. Make them with New.
// They are safe for concurrent use.
type Overrides struct {
	cfg                 Config
	listKey, versionKey string

	writing sync.Mutex // held through a change, and through a look
	counter int64      // as it stood before the list was last read
	untold  bool       // the others are still to be told of a change, perhaps
	foreign bool       // what is in the place of the list isn't one, as the log has said

	mu      sync.Mutex // of the rest
	changed func(map[string]map[policy.ClientKey]policy.Terms)
	known   list
	asOf    time.Time // when the store last told what is known
	ready   bool
	end     *time.Timer
}

// New returns overrides of which none is known yet; Watch reads them.
func New(c Config) *Overrides {
	o := &Overrides{cfg: c, listKey: c.KeyPrefix + ":overrides", known: list{entries: make(map[place]entry)}, changed: func(map[string]map[policy.ClientKey]policy.Terms) {}, asOf: c.Now()}
	o.versionKey = o.listKey + ":version"
	return o
}

// Notify has changed be called with what is in force, by policy and key, now and
// whenever that changes. It must not call o.
func (o *Overrides) Notify(changed func(map[string]map[policy.ClientKey]policy.Terms)) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.changed = changed
	o.apply()
}

// Ready reports whether the list was read, or couldn't be for two seconds.
func (o *Overrides) Ready() bool {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.ready
}

// Age returns how long ago the store last told what is in force, or since when it should
// have: less than a second where it answers.
func (o *Overrides) Age() time.Duration {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.cfg.Now().Sub(o.asOf)
}

// All returns what is in force, in the order of policies and keys.
func (o *Overrides) All() []Override {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.known.inForce(o.cfg.Now())
}

// InForce returns how many are in force, and the revision of the last change: while both
// stay, so does what All returns.
func (o *Overrides) InForce() (n int, revision int64) {
	o.mu.Lock()
	defer o.mu.Unlock()
	now := o.cfg.Now()
	for _, e := range o.known.entries {
		if e.Until.After(now) {
			n++
		}
	}
	return n, o.known.revision
}

// Set puts v in force until its end, in the place of what is there, and returns it with
// its revision. If revision isn't 0, it must be that of what is there. The error is
// ErrChanged, ErrFull, or one of the store's.
func (o *Overrides) Set(ctx context.Context, v Override, revision int64) (Override, error) {
	err := o.change(ctx, func(l *list, now time.Time) error {
		if err := check(l.entries[place{v.Policy, v.Key}], revision, now); err != nil && !errors.Is(err, ErrNone) {
			return err
		}
		v = l.set(v, now)
		if len(l.inForce(now)) > maxOverrides {
			return ErrFull
		}
		return nil
	})
	return v, err
}

// Remove ends the override of a key of a policy, and returns it as it was. If revision
// isn't 0, it must be that of the override. The error is ErrNone, ErrChanged, or one of
// the store's.
func (o *Overrides) Remove(ctx context.Context, policyName string, key policy.ClientKey, revision int64) (was Override, err error) {
	err = o.change(ctx, func(l *list, now time.Time) error {
		was = l.entries[place{policyName, key}].Override
		if err := check(l.entries[place{policyName, key}], revision, now); err != nil {
			return err
		}
		l.set(Override{Policy: policyName, Key: key, Terms: policy.Terms{Until: time.UnixMilli(0)}}, now)
		return nil
	})
	return was, err
}

// check returns ErrNone if e isn't in force, or ErrChanged if it hasn't the revision, unless
// that is 0.
func check(e entry, revision int64, now time.Time) error {
	switch inForce := e.Until.After(now); {
	case inForce && (revision == 0 || revision == e.Revision):
		return nil
	case revision == 0:
		return ErrNone
	default:
		return ErrChanged
	}
}

// change has the store keep the list that do makes of the newest.
func (o *Overrides) change(ctx context.Context, do func(l *list, now time.Time) error) error {
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	o.writing.Lock()
	defer o.writing.Unlock()
	state, err := o.cfg.Store.Load(ctx, o.listKey)
	if err != nil {
		return fmt.Errorf("%w: %w", counters.ErrNotSent, err)
	}
	for err == nil {
		now := o.cfg.Now()
		seen, _ := decode(state.Value)
		next := o.remembers(now)
		next.merge(seen.clone(now))
		if err := do(&next, now); err != nil {
			return err
		}
		data := next.encode()
		if len(data) > maxBytes {
			return ErrFull
		}
		var swapped bool
		if state, swapped, err = o.cfg.Store.Swap(ctx, o.listKey, state, data, o.ttl(next, now)); swapped && err == nil {
			o.adopt(next, true)
			o.announce(ctx)
			return nil
		}
	}
	o.untold = true // the store may have it
	return err
}

// announce has all read the list, this instance too: others may have changed it since. What
// it adds is random, so that a counter which the store has lost meanwhile isn't taken for an
// older one. If it fails, the next look does it.
func (o *Overrides) announce(ctx context.Context) {
	ctx, cancel := context.WithTimeout(ctx, counterTime)
	defer cancel()
	_, err := o.cfg.Store.Add(ctx, counters.Addition{Key: o.versionKey, Delta: 1 + rand.Int64N(1<<32), TTL: MaxTime})
	o.untold = err != nil
}

// remembers returns what this instance knows, to be changed.
func (o *Overrides) remembers(now time.Time) list {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.known.clone(now)
}

// adopt takes over a list that the store has, which may be news.
func (o *Overrides) adopt(l list, news bool) {
	o.foreign = false
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.known, o.asOf, o.ready = l, o.cfg.Now(), true; news {
		o.apply()
	}
}

// apply puts in force what is known, now and when the first of it ends. o.mu is held.
func (o *Overrides) apply() {
	now := o.cfg.Now()
	all := make(map[string]map[policy.ClientKey]policy.Terms)
	var end time.Time
	for _, v := range o.known.inForce(now) {
		if all[v.Policy] == nil {
			all[v.Policy] = make(map[policy.ClientKey]policy.Terms)
		}
		all[v.Policy][v.Key] = v.Terms
		if end.IsZero() || v.Until.Before(end) {
			end = v.Until
		}
	}
	o.changed(all)
	if o.end != nil {
		o.end.Stop()
	}
	if !end.IsZero() {
		pause := func() time.Duration { return min(end.Sub(o.cfg.Now()), interval) } // as the clock may jump
		var timer *time.Timer
		timer = time.AfterFunc(pause(), func() {
			o.mu.Lock()
			defer o.mu.Unlock()
			switch {
			case o.end != timer: // it ran out before another took its place
			case o.cfg.Now().Before(end):
				timer.Reset(pause())
			default:
				o.apply()
			}
		})
		o.end = timer
	}
}

// ttl returns how long the store has to keep l.
func (o *Overrides) ttl(l list, now time.Time) time.Duration {
	kept := now.Add(remembered)
	for _, e := range l.entries {
		kept = latest(kept, e.kept)
	}
	return counters.TTL(kept.Sub(now), o.cfg.Horizon)
}

// Read reads the list now. The error is one of the store's.
func (o *Overrides) Read(ctx context.Context) error { return o.look(ctx, true) }

// Watch reads the list, and again when it has changed, until ctx ends.
func (o *Overrides) Watch(ctx context.Context) {
	began := o.cfg.Now()
	for looks := 0; ; looks++ {
		err := o.look(ctx, looks%readAnyway == 0)
		if err != nil && o.cfg.Now().Sub(began) >= patience {
			o.mu.Lock()
			o.ready = true // what isn't known can't be waited for
			o.mu.Unlock()
		}
		pause := interval
		if !o.Ready() {
			pause = soon
		}
		select {
		case <-ctx.Done():
			return
		case <-time.After(pause):
		}
	}
}

// look reads the counter, and the list if that has changed or can't be read, or anyway.
// What the list hasn't any more is put back.
func (o *Overrides) look(ctx context.Context, anyway bool) error {
	ctx, cancel := context.WithTimeout(ctx, interval)
	defer cancel()
	o.writing.Lock()
	defer o.writing.Unlock()
	counter := []int64{counters.Absent}
	first, end := context.WithTimeout(ctx, counterTime)
	defer end()
	unread := o.cfg.Store.Read(first, []string{o.versionKey}, counter) != nil
	lost := counter[0] == counters.Absent && !unread
	if !unread && !lost && counter[0] == o.counter && !anyway && !o.untold {
		o.mu.Lock()
		defer o.mu.Unlock()
		o.asOf = o.cfg.Now()
		return nil
	}
	state, err := o.cfg.Store.Load(ctx, o.listKey)
	for err == nil {
		now := o.cfg.Now()
		seen, foreign := decode(state.Value)
		if state.Exists() && foreign != nil {
			o.foundForeign(len(state.Value))
			return nil
		}
		seen = seen.clone(now)
		next := o.remembers(now)
		news := next.merge(seen)
		if seen.merge(next) {
			o.untold = true // also if it fails: the next look goes on
			var swapped bool
			if state, swapped, err = o.cfg.Store.Swap(ctx, o.listKey, state, next.encode(), o.ttl(next, now)); err != nil || !swapped {
				continue
			}
			o.cfg.Log.Warn("overrides that the store had lost are put back", slog.Int("overrides", len(next.inForce(now))))
		}
		if !unread {
			o.counter = counter[0]
		}
		o.adopt(next, news)
		if o.untold || lost && len(next.entries) > 0 {
			o.announce(ctx)
		}
		return nil
	}
	return err
}

// foundForeign notes that what is in the place of the list isn't one. The next change
// replaces it; until then what is known holds.
func (o *Overrides) foundForeign(bytes int) {
	if !o.foreign {
		o.foreign = true
		o.cfg.Foreign()
		o.cfg.Log.Error("what the store has in the place of the overrides isn't a list of them; the next change replaces it",
			slog.String("key", o.listKey), slog.Int("bytes", bytes))
	}
	o.mu.Lock()
	defer o.mu.Unlock()
	o.asOf, o.ready = o.cfg.Now(), true
}
