package subwindow

import (
	"cmp"
	"math"
	"slices"
	"strconv"
	"strings"
	"time"

	"weir/counters"
	"weir/counters/ledger"
)

// A slot is what a process knows of one of a client's counters.
type slot struct {
	// count is what the store has, as last seen or as this process has made it, including
	// what it has lost since.
	count int64
	// own is at most what this process has added and nobody else may take back; it may be below 0.
	// A store that has less has lost something.
	own int64
}

// A due is what has been decided of a slot, less what the store was told: positive
// after admissions without it, negative for what is to be given back.
type due struct {
	bucket, cost int64
	// others is what others are thought to have admitted beside it, and have still to tell. A
	// due whose cost is 0 by now stays as long as that is expected of them.
	others int64
	// at is when its latest request was, or its earliest if it is to be given back: what was
	// decided before a reset is taken from nobody. In Unix nanoseconds.
	at int64
}

// A flight is an addition under way, or one without an answer. What its callers have admitted
// alone is due, but for presumed(), which the store is taken to have counted. Once its outcome is
// certain nothing is presumed: all that was admitted alone is due, and if the flight was done, its
// sum is given back.
type flight struct {
	bucket, sum int64
	before      int64 // the most that the store can have had before it
	alone       int64 // how much of it was admitted alone
	seen        bool  // the slot was read since
	found       int64 // how much of it is taken to be in what was read: all that is above before, up to sum
	at          int64 // Unix nanoseconds, of its latest request, or after the last known reset if that is later
	outcome     ledger.Outcome
}

// presumed returns how much of alone the store is taken to have counted: that isn't due.
func (f *flight) presumed() int64 { return min(f.alone, f.found) }

// An account is what a process knows of a client. What is in use of a slot is what
// the store has and what is due.
type account struct {
	// key is the one used last: up to its last _ all keys of the client are alike.
	key string

	// generation is the store's, as last read, and verified when all that is known
	// was last confirmed, in Unix nanoseconds; 0 if nothing is known.
	generation, verified int64

	top    int64  // the number of the newest slot
	slots  []slot // newest first; those behind the last have no count
	share  ledger.Share
	flight *flight // under way
	owed   *debts

	// The age of a slot is how many it is before top. Those of the ages finalFrom to readTo were
	// read, and change only with the generation. readTo is 0 while none was: the newest is never
	// final. Each client has these: they are small.
	finalFrom, readTo uint16
	doubtful          bool // all has to be read before anything is counted
	staleGeneration   bool // the generation has to be read before what is due is told
	visited           bool // the process has counted here since a reset: who only looks says nothing of its share
	pastChanged       bool // what may be final to others: the generation has to be raised
}

// Debts are what the store is still to be told, or may have been. Most clients
// have none, and take no room for it.
type debts struct {
	dues    []due     // in order of their slots
	share   float64   // of all that is admitted, from when the first cost became due
	until   int64     // when others should have told what they owe, in Unix nanoseconds; 0 before the store answers
	flights []*flight // without an answer, until their outcome is known and taken over
	room    [1]due    // of dues, mostly
}

// owing returns what is owed, to add to it.
func (a *account) owing() *debts {
	if a.owed == nil {
		a.owed = new(debts)
		a.owed.dues = a.owed.room[:0]
	}
	return a.owed
}

func (a *account) dues() []due {
	if a.owed == nil {
		return nil
	}
	return a.owed.dues
}

func (a *account) flights() []*flight {
	if a.owed == nil {
		return nil
	}
	return a.owed.flights
}

// prefix returns the beginning of the client's keys.
func (a *account) prefix() string { return a.key[:strings.LastIndexByte(a.key, '_')+1] }

// keyAt returns the key of a slot's counter.
func (a *account) keyAt(bucket int64) string {
	prefix := a.prefix()
	if number := a.key[len(prefix):]; number != "" { // else the error would be an allocation
		if last, err := strconv.ParseInt(number, 10, 64); err == nil && last == bucket {
			return a.key
		}
	}
	return prefix + strconv.FormatInt(bucket, 10)
}

// A generation is a counter beside a client's. Each reset leaves it above what it was,
// and above the millisecond of its time, in units of resetUnit.
// What changes the past raises it by a random number up to mostChanges: others read
// everything anew then. It is random so that a generation which has expired and begun anew
// isn't mistaken for the old one.
const (
	resetUnit   = 1 << 20
	mostChanges = 1 << 8
)

// resetAt returns when the client was last reset, in Unix nanoseconds; 0 if never.
func resetAt(generation int64) int64 {
	return max(0, generation) / resetUnit * int64(time.Millisecond)
}

// generationAt returns the least generation of a reset at now.
func generationAt(now time.Time) int64 {
	return min(max(1, now.UnixMilli()), math.MaxInt64/resetUnit/2) * resetUnit
}

// become forgets what was before a reset, by clocks that differ by skew.
func (a *account) become(generation int64, skew time.Duration) {
	a.dropBefore(generation, skew)
	a.slots = a.slots[:0]
	a.verified, a.finalFrom, a.visited, a.pastChanged = 0, longAgo, false, false
}

// dropBefore forgets what was decided before a reset, but not what is known of slots.
func (a *account) dropBefore(generation int64, skew time.Duration) {
	a.generation = generation
	if u, until := a.owed, a.forgottenTo(skew); u != nil {
		u.dues = slices.DeleteFunc(u.dues, func(d due) bool { return d.at <= until })
		u.flights = slices.DeleteFunc(u.flights, func(f *flight) bool { return f.at <= until })
	}
}

// forgottenTo returns the last moment that may be before the last reset, by clocks that differ
// by skew.
func (a *account) forgottenTo(skew time.Duration) int64 {
	return resetAt(a.generation) + int64(skew)
}

// reach moves the account on to the slots of a request at p, and drops those that aren't kept.
// It begins anew where nothing that is known matters any more, or the clock was set back far.
func (a *account) reach(p *position, kept int) {
	size, passed := int64(kept), p.newest()-a.top
	switch {
	case passed >= size, -passed >= 4*size: // or the clock has been set back
		a.slots = a.slots[:0]
		a.finalFrom, a.verified = longAgo, 0
	case passed > 0:
		if n := min(int64(len(a.slots))+passed, size); len(a.slots) > 0 {
			a.slots = append(a.slots, make([]slot, max(0, n-int64(len(a.slots))))...)[:n]
			copy(a.slots[passed:], a.slots)
			clear(a.slots[:passed])
			if cap(a.slots) > kept { // as appending doubles it
				a.slots = append(make([]slot, 0, kept), a.slots...)
			}
		}
		a.finalFrom = age(int64(a.finalFrom) + passed)
	default: // the request is late
		passed = 0
	}
	if a.readTo > 0 {
		a.readTo = min(age(int64(a.readTo)+passed), uint16(size-1))
	}
	a.top += passed
}

// longAgo is an age that no slot reaches which may be asked about: a request may be behind by 4
// times the slots that are kept, which are less than twice maxKeys.
const longAgo = math.MaxUint16

// age returns a number of slots before top as an age; newer ones have 0.
func age(slots int64) uint16 { return uint16(max(0, min(slots, longAgo))) }

// ageOf returns how many slots before top one is.
func (a *account) ageOf(bucket int64) uint16 { return age(a.top - bucket) }

// at returns a slot, or nil if it is newer than top.
func (a *account) at(bucket int64) *slot {
	i := a.top - bucket
	if i < 0 {
		return nil
	}
	if more := int(i) + 1 - len(a.slots); more > 0 {
		a.slots = append(a.slots, make([]slot, more)...)
	}
	return &a.slots[i]
}

// isFinal reports whether a slot was read and changes only with the generation.
func (a *account) isFinal(bucket int64) bool {
	return a.top-bucket >= int64(a.finalFrom) && a.hasRead(bucket)
}

// hasRead reports whether a slot isn't older than those that were read.
func (a *account) hasRead(bucket int64) bool { return a.top-bucket <= int64(a.readTo) }

// fresh reports whether what is known may be relied on at now.
func (a *account) fresh(now int64) bool {
	age := now - a.verified
	return !a.doubtful && age >= 0 && age <= int64(counters.MaxStaleness)
}

// owes reports whether the store is to be told something.
func (a *account) owes() bool {
	return a.pastChanged || slices.ContainsFunc(a.dues(), func(d due) bool { return d.cost != 0 })
}

// owe adds to what is due of a slot, and reports whether that is less than 0 then.
func (a *account) owe(bucket, cost, at int64) (less bool) {
	u := a.owing()
	i, known := a.placeOf(bucket)
	if !known {
		u.dues = slices.Insert(u.dues, i, due{bucket: bucket, at: at})
	}
	d := &u.dues[i]
	if d.cost += cost; d.cost < 0 {
		d.at = min(d.at, at)
	} else {
		d.at = max(d.at, at)
	}
	if less = d.cost < 0; d.cost == 0 && d.others == 0 {
		u.dues = slices.Delete(u.dues, i, i+1)
	}
	return less
}

// dueOf returns what is due of a slot, or nil.
func (a *account) dueOf(bucket int64) *due {
	if i, known := a.placeOf(bucket); known {
		return &a.owed.dues[i]
	}
	return nil
}

// placeOf returns where in dues that of a slot is, or would be.
func (a *account) placeOf(bucket int64) (i int, known bool) {
	return slices.BinarySearchFunc(a.dues(), bucket, func(d due, bucket int64) int { return cmp.Compare(d.bucket, bucket) })
}

// toTell returns how much of a due may be told now. Two things wait for a flight's outcome: what
// it may have counted, and a refund of what is only presumed counted.
func (a *account) toTell(d due) int64 {
	cost := d.cost
	for _, f := range a.flights() {
		switch {
		case f.bucket != d.bucket || f.outcome != ledger.Pending:
		case d.cost > 0:
			cost = max(0, cost-(f.alone-f.presumed()))
		default:
			cost = min(0, cost+f.presumed())
		}
	}
	return cost
}

// expire drops what is due, or may be, of slots that have left every window at now. From others
// nothing more is expected when the time that they are given, telling, is over.
func (a *account) expire(w *Window, now int64, telling time.Duration) {
	u := a.owed
	if u == nil {
		return
	}
	if u.until > 0 && (now >= u.until || u.until-now > 2*int64(telling)) { // or the clock was set back
		for i := range u.dues {
			u.dues[i].others = 0
		}
	}
	over := func(bucket int64) bool { return w.ttl(time.Duration(now-bucket*int64(w.Width))) <= 0 }
	u.dues = slices.DeleteFunc(u.dues, func(d due) bool { return d.cost == 0 && d.others == 0 || over(d.bucket) })
	u.flights = slices.DeleteFunc(u.flights, func(f *flight) bool { return over(f.bucket) })
	if len(u.dues) == 0 && len(u.flights) == 0 {
		a.owed = nil
	}
}

// owesAlone reports whether the store has to be told of anything but refunds.
func (a *account) owesAlone() bool {
	return slices.ContainsFunc(a.dues(), func(d due) bool { return d.cost > 0 })
}

// standsFor returns what all instances admit together while this one admits the cost alone: here,
// in a slot in which it may have admitted some already, and later, in one in which it hasn't.
// The first cost stands for itself, whatever was charged before: one may always be admitted.
func (a *account) standsFor(bucket, cost int64) (here, later int64) {
	if !slices.ContainsFunc(a.dues(), func(d due) bool { return d.cost > 0 && d.others > 0 }) {
		return cost, cost
	}
	var d due
	if known := a.dueOf(bucket); known != nil {
		d = *known
	}
	later = ledger.StandsFor(cost, a.owed.share)
	return max(cost, min(later, ledger.StandsFor(d.cost+cost, a.owed.share)-d.cost-d.others)), later
}

// othersToTell returns the latest due beside which others may have something still to tell, nil
// if there is none, and the share that the process takes meanwhile.
func (a *account) othersToTell() (d *due, share float64) {
	for i := len(a.dues()) - 1; i >= 0; i-- {
		if d = &a.owed.dues[i]; d.others > 0 {
			return d, a.owed.share
		}
	}
	return nil, 1
}

// owesFrom sets the share of the process, unless something is due by an earlier one.
func (a *account) owesFrom(share float64) {
	if !a.owesAlone() {
		a.owing().share = share
	}
}

// oweAlone is owe for what was admitted alone by a process that has such a share.
func (a *account) oweAlone(bucket, cost, at int64, share float64) {
	a.staleGeneration = true
	a.owesFrom(share)
	a.owe(bucket, cost, at)
	if d := a.dueOf(bucket); d != nil { // what was charged stands for itself
		all := d.others + ledger.StandsFor(cost, a.owed.share) - cost
		d.others, a.owed.until = max(d.others, min(all, ledger.StandsFor(d.cost, a.owed.share)-d.cost)), 0
	}
}

// giveBack has what was admitted in a slot given back, and reports whether the store is to be
// told of it. Until the store answers, others are thought to have admitted in proportion to
// what is left.
func (a *account) giveBack(bucket, cost, at int64) (tell bool) {
	a.staleGeneration = true
	tell = a.owe(bucket, -cost, at)
	if d := a.dueOf(bucket); d != nil && a.owed.until == 0 && d.others > 0 {
		beside := func(cost int64) int64 { return ledger.StandsFor(max(0, cost), a.owed.share) - max(0, cost) }
		d.others = max(0, d.others-beside(d.cost+cost)+beside(d.cost))
	}
	return tell
}

// believe returns what is in use of the slots that matter at p, newest first, up to the oldest
// in which something is; with what others are thought to have still to tell, or without. It uses
// the memory of to.
func (a *account) believe(p *position, withOthers bool, to []int64) []int64 {
	newest := p.newest()
	size := int(newest-p.oldest) + 1
	// The slots that are known come in between.
	ahead, end := min(max(0, newest-a.top), int64(size)), min(int64(len(a.slots)), a.top-p.oldest+1)
	known := a.slots[min(max(0, a.top-newest), max(0, end)):max(0, end)]
	n := max(p.ahead+1, int(ahead)+len(known))
	to = slices.Grow(to[:0], size)[:n]
	clear(to)
	for i := range known {
		to[int(ahead)+i] = known[i].count
	}
	add := func(bucket, n int64) {
		if i := newest - bucket; i >= 0 && i < int64(size) {
			to = append(to, make([]int64, max(0, int(i)+1-len(to)))...)
			to[i] = max(0, to[i]+n) // after a reset more may be due back than is there
		}
	}
	if f := a.flight; f != nil {
		add(f.bucket, f.sum-f.alone)
	}
	for _, f := range a.flights() {
		if f.outcome == ledger.Done {
			add(f.bucket, f.sum-f.found)
		}
	}
	for _, d := range a.dues() {
		if !withOthers {
			d.others = 0
		}
		add(d.bucket, d.cost+d.others)
	}
	return to
}

// see takes over what the store has in a slot, and returns how much others have counted there
// since it was last seen: that isn't expected of them any more. If the store has lost
// something, see returns how much is missing, and keeps what was known. Only a lasting slot can
// be lost: others may have expired. While a reset may be under way only own can be missing:
// the rest may be from before it.
func (a *account) see(bucket, value int64, lasting, resetting bool) (others, missing int64) {
	if value <= 0 && a.top-bucket >= int64(len(a.slots)) {
		return 0, 0 // there is nothing, as was known
	}
	s := a.at(bucket)
	if s == nil {
		return 0, 0
	}
	known, has := s.own, max(0, value)
	if !resetting {
		known = max(s.count, known)
	}
	if lasting && (value == counters.Absent && known > 0 || has < s.own) {
		s.count = known
		return 0, known - has
	}
	others = max(0, has-a.mayHave(bucket, s.count))
	if d := a.dueOf(bucket); d != nil && d.others > 0 { // they may have more to tell
		d.others = max(1, d.others-others)
	}
	s.count = has
	s.own = min(s.own, s.count)
	return others, 0
}

// forgo takes a refund off what is known of a slot that the store has lost, so that it isn't put
// back, nor taken from others. asked was due when the store was asked; what still is of it counts.
// A store has lost a slot if it has less than the refund, or less than own.
func (a *account) forgo(asked due, value int64) {
	d, s := a.dueOf(asked.bucket), a.at(asked.bucket)
	if d == nil || s == nil {
		return
	}
	cost := max(asked.cost, a.toTell(*d)) // what is only presumed counted isn't lost
	if cost >= 0 || value >= max(-cost, s.own) {
		return
	}
	s.count, s.own = max(0, s.count+cost), max(0, s.own+cost)
	a.owe(asked.bucket, -cost, 0)
}

// noteRead notes that a slot was read in which flights may have counted: what is above what it had
// before is taken for theirs, and isn't due any more. It reports whether that is anything.
func (a *account) noteRead(bucket, value int64) (counted bool) {
	for _, f := range a.flights() {
		if f.bucket != bucket || f.seen {
			continue
		}
		f.seen, f.found = true, max(0, min(f.sum, value-f.before))
		counted = counted || f.found > 0
		if !f.outcome.Certain() { // else nothing of it is due any more
			a.owe(bucket, -f.presumed(), 0)
		}
	}
	return counted
}

// mayHave returns the most that the store can have in a slot where count is known, if others
// count nothing.
func (a *account) mayHave(bucket, count int64) int64 {
	for _, f := range a.flights() {
		if f.bucket == bucket && f.outcome != ledger.NotDone {
			count += f.sum - f.found
		}
	}
	return count
}

// awaits reports whether a flight is one of the account's whose outcome isn't certain.
func (a *account) awaits(f *flight) bool {
	return f != nil && (f == a.flight || slices.Contains(a.flights(), f)) && !f.outcome.Certain()
}

// unanswered notes that a flight that was under way had no answer, and returns it.
func (a *account) unanswered(f *flight, skew time.Duration) *flight {
	a.flight, a.doubtful = nil, true
	if f.at > a.forgottenTo(skew) { // else the client was reset meanwhile
		u := a.owing()
		u.flights = append(u.flights, f)
	}
	return f
}

// admit notes that a caller of a flight whose outcome isn't certain was admitted alone; a cost
// below 0 takes that back.
func (a *account) admit(f *flight, cost int64) {
	before := f.presumed()
	f.alone += cost
	a.owe(f.bucket, before-f.presumed(), 0)
}

// absorb adds to what is known of the store what flights have counted. No exchange may be under
// way: what the store says in it may not include them.
func (a *account) absorb() {
	u := a.owed
	if u == nil {
		return
	}
	u.flights = slices.DeleteFunc(u.flights, func(f *flight) bool {
		if !f.outcome.Certain() {
			return f.outcome == ledger.Unknown && f.seen
		}
		if s := a.at(f.bucket); s != nil && f.outcome == ledger.Done {
			s.count, s.own = s.count+f.sum-f.found, s.own+f.sum
		}
		return true
	})
}

// A position is where a moment falls among the slots.
type position struct {
	now     int64 // Unix nanoseconds
	bucket  int64
	elapsed time.Duration
	ahead   int   // how many slots after it may have counts, by faster clocks
	oldest  int64 // the oldest slot that matters
	lasting int64 // the oldest that can't have expired
}

func (p *position) newest() int64 { return p.bucket + int64(p.ahead) }

func (w *Window) positionAt(now time.Time) position {
	c := counters.Calendar(now, w.Width)
	p := position{now: now.UnixNano(), bucket: c.Number, elapsed: c.Elapsed, ahead: w.ahead(c.Elapsed)}
	p.oldest = p.bucket - int64(w.Slots+w.back())
	p.lasting = p.oldest + int64(w.gone(c.Elapsed))
	return p
}

// kept returns how many slots an account has: those that matter, and for late
// requests.
func (w *Window) kept() int {
	return w.ahead(w.Width-1) + 1 + w.Slots + w.back() + int(w.lateSlots())
}
