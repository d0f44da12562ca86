// Package cas limits requests by a small state per client that is read,
// stepped and written back by compare-and-swap: token bucket, leaky bucket and
// sliding log.
//
// Each algorithm is pure arithmetic over its state, whose zero value is the
// initial state and the same as no state at all:
//
//   - step decides a request and returns the state after it. A denial returns
//     the state it was given, unless denied requests count; so does a request of
//     cost 0, which consumes nothing.
//   - peek returns the decision that step would, and consumes nothing.
//   - giveBack undoes a request that step has admitted.
//   - ttl returns for how long the state still differs from the initial one.
//   - encode appends a state to a buffer, decode reads it back.
//   - clone returns a state that may be changed without changing the one it is of.
//
// Time never runs backwards: a request that is older than the state is decided
// as of the state's time. RetryAfter and ResetAfter count from the request's
// own Now even then.
//
// A cost above the capacity can never be admitted: it is denied, and its
// RetryAfter is forever.
package cas

import (
	"encoding/binary"
	"errors"
	"time"
)

// errForeignState: the bytes are not a state that this version has written. The
// client can only start anew.
var errForeignState = errors.New("cas: the value is not a state of this algorithm and version")

// The first byte of an encoded state names its algorithm and version. None is
// ASCII, so that a counter or a text is never taken for a state.
const (
	formatTokenBucket byte = 0x81
	formatLeakyBucket byte = 0x91
	formatSlidingLog  byte = 0xa1
)

// forever, 146 years, is the longest duration of a decision: longer ones, and
// never, are given as this. A margin can be added to it, and it to the current
// time in nanoseconds, without an overflow.
const forever time.Duration = 1 << 62

// between returns the nanoseconds from one Unix time to another that is not
// earlier; they may be more than a Duration holds.
func between(from, to int64) uint64 { return uint64(to) - uint64(from) }

// behind returns by how much now is behind the state's time; 0 if it isn't.
func behind(state int64, now time.Time) uint64 {
	return between(min(state, now.UnixNano()), state)
}

// after returns lag+d, at most forever.
func after(lag uint64, d time.Duration) time.Duration {
	return time.Duration(min(lag, uint64(forever-d))) + d
}

// cutUvarint returns the number that data begins with and what follows it. It
// is not ok if there is none, or it is longer than it has to be: then the same
// state would have several encodings.
func cutUvarint(data []byte) (v uint64, rest []byte, ok bool) {
	if len(data) > 0 && data[0] < 0x80 {
		return uint64(data[0]), data[1:], true // nearly all costs
	}
	v, n := binary.Uvarint(data)
	if n <= 0 || (n > 1 && data[n-1] == 0) {
		return 0, nil, false
	}
	return v, data[n:], true
}

// cutTime is cutUvarint for a Unix time in nanoseconds, which takes 8 bytes:
// as a varint it would take 9.
func cutTime(data []byte) (t int64, rest []byte, ok bool) {
	if len(data) < 8 {
		return 0, nil, false
	}
	return int64(binary.BigEndian.Uint64(data)), data[8:], true
}
