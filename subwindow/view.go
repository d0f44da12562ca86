package subwindow

import (
	"math"
	"slices"
	"sync"
	"time"

	"weir/counters"
)

// A view is what a process knows about a client. It is only a cache: losing it
// costs one read and changes no decision.
type view struct {
	mu sync.Mutex
	// generationKey begins with the prefix of the client's keys.
	generationKey string
	snapshot
	// denied says that what was read had no room for a check.
	denied bool
	// debts are what was admitted while the store couldn't be asked.
	debts []debt
	// reserved is what a leader is having counted in the slot reservedIn, or has
	// had, and isn't in counts.
	reserved, reservedIn int64
}

// A snapshot is what was read of a client's slots. The zero value knows
// nothing.
type snapshot struct {
	// bucket is the number of the newest slot in counts, and key its key.
	bucket int64
	key    string
	counts []int64 // newest first
	// own is what the process itself has counted in the newest slot and not
	// taken back: others can't have made the count less. most is the most that
	// it has known to be counted there since verified, and doubted when it was
	// last looked into why there is less, in Unix nanoseconds.
	own, most, doubted int64
	// settled is the number of the newest slot that was settled when it was
	// read: it and those before it don't change.
	settled int64
	// generation is that of the counts, read at verified, in Unix nanoseconds.
	generation int64
	verified   int64
	// passed is the number of the slot before, and passedCount what is known to
	// be counted in it. They are kept of a window of one slot alone, for late
	// requests that the process decides itself: others have it in counts.
	passed, passedCount int64
}

// fresh reports whether what is known may be relied on at now.
func (s *snapshot) fresh(now int64) bool {
	age := now - s.verified
	return age >= 0 && age <= int64(counters.MaxStaleness)
}

// replace puts a newer snapshot, whose counts are copied, in the place of s;
// requests may be late by so many slots.
func (s *snapshot) replace(newer snapshot, late int64) {
	size := int64(len(s.counts))
	if after := s.bucket - newer.bucket; after > 0 && after < max(size, late+1) && size > 0 {
		// It is of a late request, or the clock has jumped back: into a slot
		// that may have been settled.
		if after < size {
			copy(s.counts[after:], newer.counts)
		} else if size == 1 {
			s.passed, s.passedCount = newer.bucket, newer.counts[0]
		}
		s.settled = min(s.settled, newer.bucket-1)
		return
	}
	switch {
	case newer.bucket == s.bucket:
		newer.passed, newer.passedCount = s.passed, s.passedCount
	case newer.bucket > s.bucket && size == 1:
		newer.passed, newer.passedCount = s.bucket, s.counts[0]
	}
	newer.counts = append(s.counts[:0], newer.counts...)
	*s = newer
}

// refund notes that a cost was taken back from a slot, and that as much as most
// may have been. The slot isn't known as settled any more.
func (v *view) refund(bucket, cost, most int64) {
	v.mu.Lock()
	defer v.mu.Unlock()
	v.count(bucket, -cost)
	if bucket == v.bucket {
		v.own, v.most = max(0, v.own-most), max(0, v.most-cost)
	}
	v.unsettle(bucket)
}

// count adds n to what is known of a slot, and returns that; 0 if nothing is. v
// is locked.
func (v *view) count(bucket, n int64) int64 {
	i := v.bucket - bucket
	if i < 0 || i >= int64(len(v.counts)) {
		return 0
	}
	v.counts[i] = max(0, v.counts[i]+n)
	return v.counts[i]
}

// reset notes the generation that a reset has begun.
func (v *view) reset(generation int64) {
	v.mu.Lock()
	defer v.mu.Unlock()
	v.generation = generation
}

// unsettle notes that the count of a slot may have changed. v is locked.
func (v *view) unsettle(bucket int64) { v.settled = min(v.settled, bucket-1) }

// A debt is what a process has admitted in a slot without the store.
type debt struct {
	bucket int64
	cost   int64
	// counted is what the store has counted of it, but isn't in what was read;
	// untold says that other instances may have to be told of that.
	counted int64
	untold  bool
	// sent says that the store may have counted it, as its answer is missing;
	// before is what the store had before then, as far as is known, and open are
	// the additions whose answers may still come.
	sent   bool
	before int64
	open   []*addition
	have   bool  // the process knows of a count in the slot; set by due
	at     int64 // Unix milliseconds, of the last request in it
}

// An addition is one that the store hasn't answered in time.
type addition struct {
	sum int64
	// twice is how much of it was repaid, refused, or given back, before it was
	// known to be counted: by so many requests, but for what was repaid.
	twice   int64
	refused int
	// read says that the slot was read since: if it was counted, that is in it.
	read bool
	// done says that it was counted: what is repaid of it was lost since.
	done bool
}

// owe adds a debt. v is locked.
func (v *view) owe(d debt) {
	v.unsettle(d.bucket)
	for i := range v.debts {
		if have := &v.debts[i]; have.like(d) {
			if have.cost == 0 { // else what the store had may include that
				have.before = max(have.before, d.before)
			}
			have.cost += d.cost
			have.open = append(have.open, d.open...)
			have.at = max(have.at, d.at)
			return
		}
	}
	v.debts = append(v.debts, d)
}

// unanswered notes that the store may have counted sum in a slot, which had the
// given count before; or has, if that is done.
func (v *view) unanswered(bucket, before, sum int64, at time.Time, done bool) *addition {
	v.mu.Lock()
	defer v.mu.Unlock()
	add := &addition{sum: sum, done: done}
	v.owe(debt{bucket: bucket, sent: true, before: before, open: []*addition{add}, at: at.UnixMilli()})
	return add
}

// counted notes that the store has counted what it hadn't answered: it isn't
// due any more. What has been repaid or given back already is returned: it
// counts too much.
func (v *view) counted(add *addition) (twice int64) {
	v.mu.Lock()
	defer v.mu.Unlock()
	for i := range v.debts {
		have := &v.debts[i]
		if j := slices.Index(have.open, add); j >= 0 {
			have.open = slices.Delete(have.open, j, j+1)
			part := min(have.cost, add.sum-add.twice)
			have.cost, have.untold = have.cost-part, have.untold || part > 0
			if !add.read {
				have.counted += part
			}
		}
	}
	return add.twice
}

// untold notes that nobody will know whether the store has counted add, and
// returns how many requests of it should be refunded then.
func (v *view) untold(add *addition) (refused int) {
	v.mu.Lock()
	defer v.mu.Unlock()
	for i := range v.debts {
		have := &v.debts[i]
		have.open = slices.DeleteFunc(have.open, func(a *addition) bool { return a == add })
	}
	return add.refused
}

// owes reports whether there are debts.
func (v *view) owes() bool {
	v.mu.Lock()
	defer v.mu.Unlock()
	return len(v.debts) > 0
}

// drop ends the debts from until then, in Unix milliseconds: the client was reset.
func (v *view) drop(until int64) {
	v.mu.Lock()
	defer v.mu.Unlock()
	v.debts = slices.DeleteFunc(v.debts, func(d debt) bool { return d.at <= until })
}

// due returns the debts of the oldest slot and later ones. Time has passed over
// the others.
func (v *view) due(oldest int64) []debt {
	v.mu.Lock()
	defer v.mu.Unlock()
	v.debts = slices.DeleteFunc(v.debts, func(d debt) bool { return d.bucket < oldest })
	debts := slices.DeleteFunc(slices.Clone(v.debts), debt.none)
	for i, d := range debts {
		debts[i].open = slices.Clone(d.open)
		debts[i].have = v.known(d.bucket) > 0
	}
	return debts
}

// answered notes that what the store has counted was read, in a slot and those
// before it. v is locked.
func (v *view) answered(newest int64) {
	if len(v.debts) > 0 {
		for i := range v.debts {
			if d := &v.debts[i]; d.bucket <= newest {
				if d.bucket == v.passed && d.bucket < newest {
					v.passedCount += d.counted // nobody reads it any more
				}
				d.counted = 0
				for _, add := range d.open {
					add.read = true
				}
			}
		}
		v.debts = slices.DeleteFunc(v.debts, func(d debt) bool { return d.none() && d.counted == 0 })
	}
}

// none reports whether there is nothing to be repaid, nor told.
func (d debt) none() bool { return d.cost == 0 && !d.untold }

// repaid notes that the store has counted the debt d, due of it now, and
// whether others were told; what has come since is left. It returns what was
// given back meanwhile, and is counted too much. (Of what may have been counted
// before, forgive has taken care.)
func (v *view) repaid(d debt, due int64, told bool) (excess int64) {
	v.mu.Lock()
	defer v.mu.Unlock()
	v.unsettle(d.bucket)
	if !d.sent {
		excess = due
	}
	for i := range v.debts {
		have := &v.debts[i]
		if have.bucket == d.bucket && have.sent && !d.sent && have.before != math.MinInt64 {
			have.before += due
		}
		if have.like(d) {
			part := min(d.cost, have.cost)
			excess = max(0, excess-part)
			have.cost, have.counted, have.untold = have.cost-part, have.counted+part, !told
			have.open = slices.DeleteFunc(have.open, func(add *addition) bool { return slices.Contains(d.open, add) })
		}
	}
	for _, add := range d.open {
		part := max(0, min(add.sum, due))
		if !add.done {
			add.twice += part
		}
		due -= part
	}
	return excess
}

// doubt notes that the store may have counted the debt d, in a slot of which
// what was repaid is known.
func (v *view) doubt(d debt) {
	v.mu.Lock()
	defer v.mu.Unlock()
	part := d.cost - v.reduce(d)
	v.owe(debt{bucket: d.bucket, cost: part, sent: true, before: v.known(d.bucket), at: d.at})
}

// known returns what the store is known to have counted in a slot. v is locked.
func (v *view) known(bucket int64) int64 {
	n := v.count(bucket, 0)
	for _, d := range v.debts {
		if d.bucket == bucket {
			n += d.counted
		}
	}
	return n
}

// owed returns what is owed of a slot and later ones. v is locked.
func (v *view) owed(oldest int64) (cost int64) {
	for _, d := range v.debts {
		if d.bucket >= oldest {
			cost += d.cost
		}
	}
	return cost
}

// forgive takes the cost of the request d from the debts like it. It returns
// what they have no part of, as that has been repaid, and how much of the rest
// nobody will know of whether the store has counted it. What may still turn out
// to be counted is to be taken back then, of the latest additions first: those
// are the least likely to be. v is locked.
func (v *view) forgive(d debt) (repaid, unknown int64) {
	repaid = v.reduce(d)
	if !d.sent {
		return repaid, 0
	}
	unknown = d.cost - repaid
	for _, have := range v.debts {
		if have.like(d) {
			for _, add := range slices.Backward(have.open) {
				if back := min(unknown, add.sum-add.twice); back > 0 {
					add.twice += back
					add.refused++
					unknown -= back
				}
			}
		}
	}
	return repaid, unknown
}

// reduce takes the cost of d from the debts like it, and returns what they have
// no part of. v is locked.
func (v *view) reduce(d debt) int64 {
	for i := range v.debts {
		if have := &v.debts[i]; have.like(d) {
			part := min(d.cost, have.cost)
			have.cost -= part
			d.cost -= part
		}
	}
	return d.cost
}

func (d debt) like(other debt) bool { return d.bucket == other.bucket && d.sent == other.sent }
