package simulate

import (
	"bytes"
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
	flaws
	// touched is told of each key that is looked at, and of each that changes.
	touched func(key string, changes bool)
}

// Flaws are promises of a store that the server breaks.
type flaws struct {
	// versionsIgnored: a swap overwrites whatever is there.
	versionsIgnored bool
	// versionsOutliveRestarts: a version from before a restart is taken for one
	// of the same number after it.
	versionsOutliveRestarts bool
	// saysDone: a late answer says of what wasn't done that it was.
	saysDone bool
	// saysUndone: a late answer says of what was done that it wasn't.
	saysUndone bool
	// tellsNobody: late answers never come.
	tellsNobody bool
}

type item struct {
	count   int64
	state   counters.State
	expires int64 // Unix seconds
}

func (s *server) live(key string, now time.Time) (item, bool) {
	s.touched(key, false)
	i, ok := s.items[key]
	return i, ok && i.expires > now.Unix()
}

func (s *server) set(key string, i item) {
	s.touched(key, true)
	s.items[key] = i
}

func (s *server) remove(key string) {
	_, ok := s.items[key]
	s.touched(key, ok)
	delete(s.items, key)
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
	s.set(key, i)
	return i.count
}

func (s *server) subtract(key string, delta int64, now time.Time) {
	if i, ok := s.live(key, now); ok {
		i.count = max(0, i.count-delta)
		s.set(key, i)
	}
}

func (s *server) count(key string, now time.Time) int64 {
	i, ok := s.live(key, now)
	if !ok {
		return counters.Absent
	}
	return i.count
}

func (s *server) raise(f counters.Floor, now time.Time) {
	if i, ok := s.live(f.Key, now); !ok || i.count < f.Count {
		s.set(f.Key, item{count: f.Count, expires: expiry(now, f.TTL)})
	}
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
	s.put(key, value, now, ttl)
	return true
}

func (s *server) put(key string, value []byte, now time.Time, ttl time.Duration) {
	s.version++
	s.set(key, item{state: counters.State{Value: bytes.Clone(value), Version: s.version}, expires: expiry(now, ttl)})
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

// public returns the version of a state as clients know it.
func (s *server) public(state counters.State) counters.State {
	if state.Exists() && !s.versionsOutliveRestarts {
		state.Version |= s.life << lifeBits
	}
	return state
}

// private returns the version which a client means that has loaded old.
func (s *server) private(key string, old counters.State, now time.Time) uint64 {
	switch {
	case s.versionsIgnored:
		return s.load(key, now).Version
	case !old.Exists() || s.versionsOutliveRestarts:
		return old.Version
	case old.Version>>lifeBits == s.life:
		return old.Version & (1<<lifeBits - 1)
	default:
		return ^uint64(0) // none has it
	}
}
