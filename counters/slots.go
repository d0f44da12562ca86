package counters

import (
	"context"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"time"
)

// Trust is how long a process relies on what it has read of a client without
// asking the store again: a denial that only a passing over-count caused, or
// that a reset elsewhere has ended, is over after that. Resets promise a second.
const Trust = 900 * time.Millisecond

// A Window is the arithmetic of a window over slots of calendar time. Its
// methods take the counts of consecutive slots, newest first; the last is that
// of the oldest slot in the window, and elapsed is how long the current slot has
// been open. They are pure.
type Window interface {
	// Estimate returns how much of the limit is in use.
	Estimate(counts []int64, elapsed time.Duration) int64
	// Until returns the time from elapsed to the first moment at which Estimate
	// is at most most (at least 0), if nothing is counted in between.
	Until(counts []int64, elapsed time.Duration, most int64) time.Duration
}

// SlotConfig configures a SlotLimiter.
type SlotConfig struct {
	// Keys is where the limit's counters are kept.
	Keys Namespace
	// Width is the width of a slot, and Slots the number of slots before the
	// current one that Window looks at.
	Width  time.Duration
	Slots  int
	Window Window
	// ClockSkew is the largest difference between the clocks of instances, the
	// time in which a count reaches the store included.
	ClockSkew time.Duration
	// CountDenied makes denied requests count too.
	CountDenied bool
	// Clients is how many clients are remembered; 0 means none.
	Clients int
	// Batch is called with the size of each batch, if it isn't nil.
	Batch func(size int)
}

// A SlotLimiter admits requests while a Window's estimate stays within the
// limit. Each client has a counter per slot in the store, and each check counts
// before it judges: of two requests that race for the last place, from whichever
// instances, at least one sees the other.
//
// It asks the store as little as that allows. Concurrent checks of a client are
// counted together. Counts of slots that have been closed for longer than the
// clock skew don't change and are read once. And since counts only grow, a
// check that can't fit into what was in use a moment ago is denied without
// asking. What it knows of a client is only a cache: losing it changes no
// decision.
//
// It is safe for concurrent use.
type SlotLimiter struct {
	store    Store
	cfg      SlotConfig
	combiner *Combiner[slotQuestion, Decision]
	views    *Views[slotView]
	spare    sync.Pool // of *slots
}

// NewSlotLimiter returns a limiter on the given store.
func NewSlotLimiter(store Store, cfg SlotConfig) *SlotLimiter {
	l := &SlotLimiter{
		store: store,
		cfg:   cfg,
		views: NewViews[slotView](cfg.Clients),
		spare: sync.Pool{New: func() any { return new(slots) }},
	}
	l.combiner = NewCombiner(l.lead)
	return l
}

// Take admits r and counts it, or denies it. A denied cost is counted only with
// CountDenied. The error is one of a Store's, or of the context's; after one
// the cost may have been counted.
func (l *SlotLimiter) Take(ctx context.Context, r Request) (Decision, error) {
	if r.Cost == 0 {
		return l.Peek(ctx, r)
	}
	v := l.views.Get(r.Client)
	if d, ok := l.knownDenial(v, r); ok {
		return d, nil
	}
	return l.combiner.Do(ctx, r.Client, slotQuestion{r, v})
}

// A slotQuestion is a request, and what is known of its client.
type slotQuestion struct {
	Request
	view *slotView
}

// Peek decides r by the store and counts nothing. The error is one of a
// Store's.
func (l *SlotLimiter) Peek(ctx context.Context, r Request) (Decision, error) {
	s := l.slots(r.Now, generationKey(l.cfg.Keys.Client(r.Client)))
	defer l.spare.Put(s)
	if err := l.refresh(ctx, s); err != nil {
		return Decision{}, err
	}
	return l.decision(s.counts, s.elapsed, r, l.admits(s.counts, s.elapsed, r)), nil
}

// Known decides r by what the process has read of the client within the last
// second, counts nothing, and reports whether there is such knowledge. A denial
// is certain but for what resets and give-backs elsewhere have changed since.
func (l *SlotLimiter) Known(r Request) (Decision, bool) {
	v := l.views.Find(r.Client)
	if v == nil {
		return Decision{}, false
	}
	v.mu.Lock()
	defer v.mu.Unlock()
	return l.known(v, r)
}

// knownDenial is Known for a client that was denied when it was asked for last,
// and only for a denial. It spares those who are far over their limit even
// waiting for each other.
func (l *SlotLimiter) knownDenial(v *slotView, r Request) (Decision, bool) {
	v.mu.Lock()
	defer v.mu.Unlock()
	if !v.denied {
		return Decision{}, false
	}
	d, ok := l.known(v, r)
	return d, ok && !d.Allowed
}

// known is Known with the view at hand. The caller holds its lock.
func (l *SlotLimiter) known(v *slotView, r Request) (Decision, bool) {
	place := Calendar(r.Now, l.cfg.Width)
	counts, ok := v.countsAt(place.Number)
	if !ok || !v.fresh(r.Now.UnixNano()) {
		return Decision{}, false
	}
	d := l.decision(counts, place.Elapsed, r, l.admits(counts, place.Elapsed, r))
	d.Local = true
	return d, true
}

// GiveBack takes back a request that Take admitted. The error is one of a
// Store's; after one the count may stay too high until the slot has left the
// window.
func (l *SlotLimiter) GiveBack(ctx context.Context, r Request) error {
	if r.Cost == 0 {
		return nil
	}
	bucket := Calendar(r.Now, l.cfg.Width).Number
	if err := l.store.Subtract(ctx, CounterKey(l.cfg.Keys.Client(r.Client), bucket), r.Cost); err != nil {
		return err
	}
	if v := l.views.Find(r.Client); v != nil {
		v.giveBack(bucket, r.Cost)
	}
	return nil
}

// Reset forgets what the client has used: in every slot of the window, and in
// the next, which instances with faster clocks may count in already. Other
// instances notice within a second. The error is one of a Store's.
func (l *SlotLimiter) Reset(ctx context.Context, client string, now time.Time) error {
	prefix := l.cfg.Keys.Client(client)
	newest := Calendar(now.Add(max(l.cfg.Width, l.cfg.ClockSkew)), l.cfg.Width).Number
	oldest := Calendar(now, l.cfg.Width).Number - int64(l.cfg.Slots)
	keys := make([]string, 0, newest-oldest+1)
	for bucket := newest; bucket >= oldest; bucket-- {
		keys = append(keys, CounterKey(prefix, bucket))
	}
	err := l.store.Delete(ctx, keys)
	if err == nil && l.cfg.Slots > 0 {
		// Only now: who sees the new generation must not see old counts.
		_, err = l.store.Add(ctx, Addition{Key: generationKey(prefix), Delta: 1 + rand.Int64N(1<<30), TTL: l.ttl(0), New: true})
	}
	l.views.Forget(client)
	return err
}

// Clients returns the number of clients that are remembered.
func (l *SlotLimiter) Clients() int { return l.views.Len() }

// generationKey returns the key of the counter that changes with each reset of
// a client. Instances that remember counts of an earlier generation forget
// them. It starts anywhere, so that one which has expired and begun anew isn't
// mistaken for the old one.
func generationKey(client string) string { return client + generationSuffix }

const generationSuffix = "reset"

// slotView is what a process knows about a client.
type slotView struct {
	mu sync.Mutex
	// generationKey begins with the prefix of the client's keys; key is that of
	// bucket.
	generationKey, key string
	// bucket is the number of the newest slot in counts, which are newest first;
	// none are known when counts is empty.
	bucket int64
	counts []int64
	// settled is the number of the newest slot that was settled when it was
	// read: it and those before it don't change.
	settled int64
	// generation is that of the counts, read at verified, in Unix nanoseconds.
	generation int64
	verified   int64
	// denied says that what was read had no room for a check.
	denied bool
}

// countsAt returns what is known of the slots that a window looks at when
// bucket is the current slot, but for the newest, of which nothing is known.
// The caller holds mu.
func (v *slotView) countsAt(bucket int64) ([]int64, bool) {
	passed := bucket - v.bucket
	if passed < 0 || passed >= int64(len(v.counts)) {
		return nil, false
	}
	return v.counts[:len(v.counts)-int(passed)], true
}

// fresh reports whether what is known may be relied on at now. The caller holds
// mu.
func (v *slotView) fresh(now int64) bool {
	age := now - v.verified
	return age >= 0 && age <= int64(Trust)
}

// giveBack notes that cost was taken back from a slot.
func (v *slotView) giveBack(bucket, cost int64) {
	v.mu.Lock()
	defer v.mu.Unlock()
	if i := v.bucket - bucket; i >= 0 && i < int64(len(v.counts)) {
		v.counts[i] = max(0, v.counts[i]-cost)
	}
}

// slots is what one decision handles of a window's slots.
type slots struct {
	prefix   string
	bucket   int64  // the current slot's number
	key      string // its key, "" until it's needed
	elapsed  time.Duration
	now      int64 // Unix nanoseconds
	ahead    int   // slots that have begun on a clock that is ahead by the skew
	counts   []int64
	known    int // how many of the oldest counts are settled and were read before
	fresh    bool
	asked    bool  // the store, for this decision
	denied   bool  // a call of this decision
	verified int64 // when generation was read
	// generation is that of what is known.
	generation    int64
	generationKey string

	keys    []string                        // to read
	text    []byte                          // of the keys, one after the other
	ends    []int                           // where in text each of them ends
	read    []int64                         // what was read
	pending []*Call[slotQuestion, Decision] // to be answered
	chosen  []bool                          // which of them are being counted
}

// slots returns the slots at now, of which nothing is known, of the client with
// that generation key. counts are newest first, as Window wants them;
// counts[ahead] is that of the current slot.
func (l *SlotLimiter) slots(now time.Time, generationKey string) *slots {
	place := Calendar(now, l.cfg.Width)
	s := l.spare.Get().(*slots)
	s.generationKey, s.prefix = generationKey, strings.TrimSuffix(generationKey, generationSuffix)
	s.bucket, s.elapsed, s.now = place.Number, place.Elapsed, now.UnixNano()
	s.key, s.known, s.fresh, s.asked, s.denied, s.verified, s.generation = "", 0, false, false, false, 0, 0
	s.ahead = 0
	if l.cfg.Slots > 0 {
		s.ahead = int((place.Elapsed + l.cfg.ClockSkew) / l.cfg.Width)
	}
	size := s.ahead + 1 + l.cfg.Slots
	s.counts = slices.Grow(s.counts[:0], size)[:size]
	clear(s.counts)
	return s
}

// recall takes over what the view knows. The caller holds the view's lock.
func (s *slots) recall(v *slotView) {
	counts, ok := v.countsAt(s.bucket)
	if !ok {
		return
	}
	copy(s.counts[len(s.counts)-len(counts):], counts)
	if v.bucket == s.bucket {
		s.key = v.key
	}
	oldest := s.bucket - int64(len(s.counts)-1-s.ahead)
	s.known = int(max(0, min(v.settled, s.bucket-1)-oldest+1))
	s.generation, s.verified, s.fresh = v.generation, v.verified, v.fresh(s.now)
}

// remember puts what has been read into the view.
func (l *SlotLimiter) remember(s *slots, v *slotView) {
	v.mu.Lock()
	defer v.mu.Unlock()
	if newer := v.bucket - s.bucket; newer > 0 && newer < int64(len(v.counts)) {
		// The clock has jumped back into a slot that may have been settled.
		v.counts[newer] = s.counts[s.ahead]
		v.settled = min(v.settled, s.bucket-1)
		return
	}
	v.bucket, v.key, v.generation, v.verified = s.bucket, s.currentKey(), s.generation, s.verified
	v.counts = append(v.counts[:0], s.counts[s.ahead:]...)
	v.denied = s.denied && !l.cfg.CountDenied
	// A slot is settled when it has been closed for longer than the skew.
	v.settled = (s.now-int64(l.cfg.ClockSkew))/int64(l.cfg.Width) - 1
}

func (s *slots) currentKey() string {
	if s.key == "" {
		s.key = CounterKey(s.prefix, s.bucket)
	}
	return s.key
}

// prepare makes keys those of what has to be read besides the current slot: the
// slots that aren't known, and the generation if what is known isn't fresh.
func (l *SlotLimiter) prepare(s *slots) {
	s.keys, s.text, s.ends = s.keys[:0], s.text[:0], s.ends[:0]
	for i := range len(s.counts) - s.known {
		if i != s.ahead {
			s.text = appendCounterKey(s.text, s.prefix, s.bucket+int64(s.ahead-i))
			s.ends = append(s.ends, len(s.text))
		}
	}
	// The keys are parts of one string, so that many take one allocation.
	text, start := string(s.text), 0
	for _, end := range s.ends {
		s.keys = append(s.keys, text[start:end])
		start = end
	}
	if l.verifies(s) {
		s.keys = append(s.keys, s.generationKey)
	}
	s.read = slices.Grow(s.read[:0], len(s.keys)+1)[:len(s.keys)]
}

// verifies reports whether the next read is one of the generation too. A window
// without older slots has nothing to remember that a reset could end.
func (l *SlotLimiter) verifies(s *slots) bool { return l.cfg.Slots > 0 && !s.fresh }

// take puts what was read of the prepared keys, and the current slot's count,
// where they belong. It returns false when the client has been reset since the
// known slots were read; then none is known any more.
func (l *SlotLimiter) take(s *slots, current int64) bool {
	read := s.read
	for i := range len(s.counts) - s.known {
		if i != s.ahead {
			s.counts[i], read = read[0], read[1:]
		}
	}
	s.counts[s.ahead] = current
	s.asked = true
	if s.fresh {
		return true
	}
	s.fresh, s.verified = true, s.now
	if l.cfg.Slots == 0 {
		return true
	}
	same := s.known == 0 || s.generation == read[0]
	s.generation = read[0]
	if !same {
		s.known, s.fresh = 0, false
	}
	return same
}

// refresh reads the current slot and all that aren't known.
func (l *SlotLimiter) refresh(ctx context.Context, s *slots) error {
	for {
		l.prepare(s)
		s.keys = append(s.keys, s.currentKey())
		s.read = s.read[:len(s.keys)]
		if err := l.store.Read(ctx, s.keys, s.read); err != nil {
			return err
		}
		last := len(s.read) - 1
		current := s.read[last]
		s.read = s.read[:last]
		if l.take(s, current) {
			return nil
		}
	}
}

// add counts cost in the current slot and reads all that aren't known. The
// current slot's count is the one before that.
func (l *SlotLimiter) add(ctx context.Context, s *slots, cost int64) error {
	l.prepare(s)
	n, err := l.store.Add(ctx, Addition{
		Key: s.currentKey(), Delta: cost, TTL: l.ttl(s.elapsed),
		New: s.counts[s.ahead] == 0, Read: s.keys, Counts: s.read,
	})
	if err != nil {
		return err
	}
	if !l.take(s, n-cost) {
		err = l.refresh(ctx, s)
		s.counts[s.ahead] = n - cost
	}
	return err
}

// lead answers a batch of checks of one client.
func (l *SlotLimiter) lead(ctx context.Context, _ string, batch *Batch[slotQuestion, Decision]) {
	calls := batch.Calls()
	if l.cfg.Batch != nil {
		l.cfg.Batch(len(calls))
	}
	for len(calls) > 0 {
		// A batch may stand on both sides of a boundary between slots.
		bucket, n := Calendar(calls[0].Question.Now, l.cfg.Width).Number, 1
		for n < len(calls) && Calendar(calls[n].Question.Now, l.cfg.Width).Number == bucket {
			n++
		}
		l.answer(ctx, calls[0].Question.view, calls[:n])
		calls = calls[n:]
	}
}

// answer answers checks of one client that fall in one slot.
func (l *SlotLimiter) answer(ctx context.Context, v *slotView, calls []*Call[slotQuestion, Decision]) {
	latest := calls[0].Question.Now
	for _, call := range calls[1:] {
		if call.Question.Now.After(latest) {
			latest = call.Question.Now
		}
	}
	v.mu.Lock()
	if v.generationKey == "" {
		v.generationKey = generationKey(l.cfg.Keys.Client(calls[0].Question.Client))
	}
	s := l.slots(latest, v.generationKey)
	s.recall(v)
	v.mu.Unlock()
	defer l.spare.Put(s)

	s.pending = append(s.pending[:0], calls...)
	s.chosen = slices.Grow(s.chosen[:0], len(calls))[:len(calls)]
	for len(s.pending) > 0 {
		sum := l.choose(s)
		var err error
		switch {
		case sum > 0:
			if err = l.add(ctx, s, sum); err == nil {
				l.deal(ctx, s)
			}
		case s.fresh:
			l.deny(s)
		default:
			err = l.refresh(ctx, s)
		}
		if err != nil {
			for _, call := range s.pending {
				call.Err = err
			}
			break
		}
	}
	clear(s.pending[:cap(s.pending)])
	if s.asked {
		l.remember(s, v)
	}
}

// choose chooses the pending calls that fit, in their order, into what is known
// to be in use, and returns the sum of their costs. Those that don't can't be
// admitted before the chosen ones have been decided, and would only be in the
// way of other instances' checks.
func (l *SlotLimiter) choose(s *slots) int64 {
	var sum int64
	for i, call := range s.pending {
		s.chosen[i] = l.cfg.CountDenied || l.admits(s.counts, l.elapsed(s, call.Question.Request), call.Question.Request)
		if s.chosen[i] {
			sum += call.Question.Cost
			s.counts[s.ahead] += call.Question.Cost
		}
	}
	s.counts[s.ahead] -= sum
	return sum
}

// deal answers the chosen calls, whose costs have been counted but aren't in
// s.counts, and gives back the costs of those denied. The others stay pending.
func (l *SlotLimiter) deal(ctx context.Context, s *slots) {
	var refund int64
	left := s.pending[:0]
	for i, call := range s.pending {
		if !s.chosen[i] {
			left = append(left, call)
			continue
		}
		r := call.Question.Request
		elapsed := l.elapsed(s, r)
		allowed := l.admits(s.counts, elapsed, r)
		if allowed || l.cfg.CountDenied {
			s.counts[s.ahead] += r.Cost
		} else {
			refund += r.Cost
		}
		s.denied = s.denied || !allowed
		call.Answer = l.decision(s.counts, elapsed, r, allowed)
	}
	s.pending = left
	if refund > 0 {
		// A give-back that fails leaves the count too high until the slot has
		// left the window; the denials stand either way.
		_ = l.store.Subtract(ctx, s.currentKey(), refund)
	}
}

// deny answers the pending calls, which don't fit into what is in use.
func (l *SlotLimiter) deny(s *slots) {
	for _, call := range s.pending {
		call.Answer = l.decision(s.counts, l.elapsed(s, call.Question.Request), call.Question.Request, false)
		call.Answer.Local = !s.asked
	}
	s.denied = true
	s.pending = s.pending[:0]
}

// elapsed returns how long the current slot was open when r was made.
func (l *SlotLimiter) elapsed(s *slots, r Request) time.Duration {
	return s.elapsed - time.Duration(s.now-r.Now.UnixNano())
}

// admits reports whether r fits into what is in use.
func (l *SlotLimiter) admits(counts []int64, elapsed time.Duration, r Request) bool {
	return l.cfg.Window.Estimate(counts, elapsed) <= r.Limit-r.Cost
}

// decision returns the answer to r when it was admitted or not and counts, which
// include it if it is counted, are in use.
func (l *SlotLimiter) decision(counts []int64, elapsed time.Duration, r Request, allowed bool) Decision {
	d := Decision{
		Allowed:    allowed,
		Remaining:  max(0, r.Limit-l.cfg.Window.Estimate(counts, elapsed)),
		ResetAfter: l.cfg.Window.Until(counts, elapsed, 0),
	}
	if !allowed {
		d.RetryAfter = l.cfg.Window.Until(counts, elapsed, r.Limit-r.Cost)
	}
	return d
}

// ttl returns how long the counter of a slot must be kept that has been open for
// elapsed: until no window looks at it.
func (l *SlotLimiter) ttl(elapsed time.Duration) time.Duration {
	return TTL(time.Duration(l.cfg.Slots+1)*l.cfg.Width-elapsed, l.cfg.ClockSkew)
}
