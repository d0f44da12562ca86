package counters

import "time"

// A Usage is what of a limit a client has in use, part by part as the algorithm counts it,
// for people to look at. Only the field of the limit's algorithm is set.
type Usage struct {
	Slots   []SlotUsage  // of a window, the oldest first
	Bucket  *BucketUsage // of a bucket
	Entries []EntryUsage // of a log, the oldest first; leases are entries too
}

// A SlotUsage is the counter of a slot.
type SlotUsage struct {
	Start time.Time
	Count int64
	// Weight is how much of the count is in the window that ends now, 0 to 1.
	Weight float64
}

// A BucketUsage is the level of a bucket, which drains. It is above the capacity if the
// client has a debt.
type BucketUsage struct {
	Level, Capacity, DrainsPerSecond float64
}

// An EntryUsage is a cost that was admitted between First and Last, and is in use until
// Until at the latest.
type EntryUsage struct {
	First, Last, Until time.Time
	Cost               int64
}
