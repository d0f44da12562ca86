// Package topk finds the clients that asked for most in the last minute, in bounded
// memory, however many there are.
//
// It keeps Space-Saving counters (Metwally, Agrawal and El Abbadi, "Efficient
// Computation of Frequent and Top-k Elements in Data Streams", ICDT 2005): when
// a client comes that isn't counted and there is no room, the one counted least
// makes room, and the new one takes over its count. So a count may be too high,
// by an error that is known, and whoever asks for enough is counted. What is taken
// back lowers counts, so a new one takes over no less than the largest that has made
// room so far: whoever isn't counted has no more. Each ten seconds have counters of
// their own, which are dropped as a whole. Start with New.
package topk

import (
	"bytes"
	"cmp"
	"hash/maphash"
	"slices"
	"strings"
	"sync"
	"time"
)

const (
	// Window is the time that is looked back on, at least. It is up to slotWidth
	// more, because slots are counted as a whole.
	Window    = time.Minute
	slotWidth = 10 * time.Second
	slotCount = int64(Window/slotWidth) + 1

	// Clients are spread over shards, each with a lock and counters of its own.
	shardCount = 8
	// shardSize is how many clients a shard counts in a slot.
	shardSize = 64
)

// A Sketch counts what clients ask for. Make one with New: the zero Sketch
// isn't usable. It is safe for concurrent use. It takes memory for those
// who ask, at most about half a megabyte if their names are short.
type Sketch struct {
	seed   maphash.Seed
	shards [shardCount]shard
}

// New returns a sketch that has counted nothing.
func New() *Sketch { return &Sketch{seed: maphash.MakeSeed()} }

// A Count says how much a client asked for.
type Count struct {
	Client string
	// Count is at least what the client asked for while it was counted, and positive.
	Count int64
	// Error is by how much Count may be too high. It is 0 while no more clients
	// ask than there is room for: 64 of each shard in ten seconds, 512 in all.
	Error int64
}

// Add counts n that the client asked for at now. A negative n takes back what was
// added at about that time, as far as it is counted: no count is ever negative.
// What is older than the window by then isn't counted.
func (s *Sketch) Add(client string, n int64, now time.Time) {
	if n == 0 {
		return
	}
	hash := maphash.String(s.seed, client)
	s.shards[hash%shardCount].add(hash, client, n, slotNumber(now))
}

// Top returns the n clients that asked for most in the window that ends at now, the
// most first, and those of equal counts by name.
func (s *Sketch) Top(n int, now time.Time) []Count {
	var all []Count
	for i := range s.shards {
		all = s.shards[i].appendCounts(all, slotNumber(now))
	}
	slices.SortFunc(all, func(a, b Count) int {
		return cmp.Or(cmp.Compare(b.Count, a.Count), strings.Compare(a.Client, b.Client))
	})
	return all[:min(n, len(all))]
}

// slotNumber returns the number of the slot that now is in, at least 1: 0 is that
// of a slot that never began.
func slotNumber(now time.Time) int64 { return max(1, now.UnixMilli()/slotWidth.Milliseconds()) }

// A shard counts the clients whose hashes lead to it.
type shard struct {
	mu    sync.Mutex
	slots [slotCount]slot // by their numbers modulo slotCount

	_ [64]byte // keeps the locks of neighbours off one cache line
}

func (s *shard) add(hash uint64, client string, n, number int64) {
	s.mu.Lock()
	defer s.mu.Unlock()
	slot := &s.slots[number%slotCount]
	if slot.number > number { // the clock went back
		return
	}
	if slot.number < number {
		slot.begin(number)
	}
	if n > 0 {
		slot.add(hash, client, n)
	} else {
		slot.takeBack(hash, -n)
	}
}

// appendCounts appends the counts of all clients in the slots up to the one of
// that number.
func (s *shard) appendCounts(counts []Count, number int64) []Count {
	s.mu.Lock()
	defer s.mu.Unlock()
	found := make(map[uint64]int) // index in counts
	for i := range s.slots {
		slot := &s.slots[i]
		if slot.number > number || slot.number <= number-slotCount {
			continue
		}
		for j, e := range slot.entries {
			if e.count == 0 { // all was taken back
				continue
			}
			at, ok := found[slot.hashes[j]]
			if !ok {
				at = len(counts)
				found[slot.hashes[j]] = at
				counts = append(counts, Count{Client: string(e.client)})
			}
			counts[at].Count += e.count
			counts[at].Error += e.excess
		}
	}
	return counts
}

// A slot holds the counters of one stretch of time. The shard's lock guards it.
type slot struct {
	number  int64
	tags    []byte   // the top bytes of hashes; so few are found faster than in a map
	hashes  []uint64 // of the entries
	entries []entry
	floor   int64 // whoever isn't counted asked for no more; 0 while there is room
	hand    int   // where the search for who makes room goes on
}

// Clients are told apart by their hashes, as nobody can choose two that meet: the
// seed is secret, and a shard has few.
type entry struct {
	client []byte // its room is used again
	count  int64
	excess int64 // of the count, taken over from others
}

// begin empties the slot. It keeps the room of its entries.
func (s *slot) begin(number int64) {
	s.number, s.tags, s.hashes, s.entries, s.floor, s.hand = number, s.tags[:0], s.hashes[:0], s.entries[:0], 0, 0
}

// find returns the index of the entry of the hash, or -1.
func (s *slot) find(hash uint64) int {
	for i := 0; ; i++ {
		next := bytes.IndexByte(s.tags[i:], tag(hash))
		if next < 0 {
			return -1
		}
		if i += next; s.hashes[i] == hash {
			return i
		}
	}
}

func tag(hash uint64) byte { return byte(hash >> 56) }

func (s *slot) add(hash uint64, client string, n int64) {
	i := s.find(hash)
	if i >= 0 {
		s.entries[i].count += n
		return
	}
	if i = len(s.entries); i < shardSize {
		s.tags, s.hashes = append(s.tags, 0), append(s.hashes, 0)
		s.entries = slices.Grow(s.entries, 1)[:i+1] // with the room of a name that was there
	} else {
		i = s.makeRoom()
	}
	s.tags[i], s.hashes[i] = tag(hash), hash
	e := &s.entries[i]
	e.client = append(e.client[:0], client...)
	e.count, e.excess = s.floor+n, s.floor
}

// takeBack lowers the count of a client by n.
func (s *slot) takeBack(hash uint64, n int64) {
	if i := s.find(hash); i >= 0 {
		e := &s.entries[i]
		e.count = max(0, e.count-n)
		e.excess = min(e.excess, e.count)
	}
}

// makeRoom returns the index of an entry that is at the floor, which it raises if there
// is none.
func (s *slot) makeRoom() int {
	for {
		for range s.entries {
			s.hand = (s.hand + 1) % len(s.entries)
			if s.entries[s.hand].count <= s.floor {
				return s.hand
			}
		}
		s.floor = slices.MinFunc(s.entries, func(a, b entry) int { return cmp.Compare(a.count, b.count) }).count
	}
}
