package subwindow

import (
	"sync"

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
}

// A snapshot is what was read of a client's slots. The zero value knows
// nothing.
type snapshot struct {
	// bucket is the number of the newest slot in counts, and key its key.
	bucket int64
	key    string
	counts []int64 // newest first
	// settled is the number of the newest slot that was settled when it was
	// read: it and those before it don't change.
	settled int64
	// generation is that of the counts, read at verified, in Unix nanoseconds.
	generation int64
	verified   int64
}

// fresh reports whether what is known may be relied on at now.
func (s *snapshot) fresh(now int64) bool {
	age := now - s.verified
	return age >= 0 && age <= int64(counters.MaxStaleness)
}

// replace puts a newer snapshot, whose counts are copied, in the place of s.
func (s *snapshot) replace(newer snapshot) {
	if after := s.bucket - newer.bucket; after > 0 && after < int64(len(s.counts)) {
		// The clock has jumped back into a slot that may have been settled.
		s.counts[after] = newer.counts[0]
		s.settled = min(s.settled, newer.bucket-1)
		return
	}
	newer.counts = append(s.counts[:0], newer.counts...)
	*s = newer
}

// refund notes that cost was taken back from a slot, or may have been when it
// is 0. The slot isn't known as settled any more.
func (v *view) refund(bucket, cost int64) {
	v.mu.Lock()
	defer v.mu.Unlock()
	if i := v.bucket - bucket; i >= 0 && i < int64(len(v.counts)) {
		v.counts[i] = max(0, v.counts[i]-cost)
	}
	v.unsettle(bucket)
}

// unsettle notes that the count of a slot may have changed. v is locked.
func (v *view) unsettle(bucket int64) { v.settled = min(v.settled, bucket-1) }
