package cas

import (
	"encoding/binary"
	"errors"
	"fmt"
	"math"
	"time"

	"weir/counters"
)

// errForeignState: the bytes are not a state that this version has written. The
// client can only start anew.
var errForeignState = errors.New("cas: the value is not a state of this algorithm and version")

// errNewerState: a later version has written the state. It is left alone, as that
// version would lose what it says.
var errNewerState = fmt.Errorf("%w: cas: a newer version has written the client's state, and this one leaves it alone", counters.ErrNotSent)

// The first byte of an encoded state names its algorithm, and in its lower half the
// version of its format. A version that changes a format counts that up, and reads the
// one before. None is ASCII, so that a counter or a text is never taken for a state.
const (
	formatTokenBucket byte = 0x83
	formatLeakyBucket byte = 0x93
	formatSlidingLog  byte = 0xa2
	formatCountingLog byte = 0xc2
	formatOrigin      byte = 0xb2
)

// isNewer reports whether a value is a state that a later version has written.
func isNewer(value []byte) bool {
	_, state, _ := cutOrigin(value)
	for _, data := range [][]byte{value, state} {
		for _, format := range []byte{formatTokenBucket, formatLeakyBucket, formatSlidingLog, formatCountingLog, formatOrigin} {
			if len(data) > 0 && data[0]>>4 == format>>4 && data[0] > format {
				return true
			}
		}
	}
	return false
}

// An origin says where a state comes from, beyond its generation. Without it, a
// state that the store has lost couldn't be told from one that was reset, or
// one that was put back from a state that was put back by somebody who knew
// less. The zero value is that of a state which was neither.
type origin struct {
	// Of what was in use before mark, Unix time in nanoseconds, only what the
	// state has still is: the client was reset, or got something back. For the
	// time marked, in whole milliseconds, more may be remembered somewhere.
	mark   int64
	marked time.Duration // 0: there is no mark
	// reset is the last mark that is one of a reset, 0 if there is none: what was
	// in use before that isn't put back even if the process that does so has
	// never seen the mark.
	reset int64
	// putBack is a random number if the state was put back, else 0.
	putBack uint32
}

// markAt returns o with a mark at a moment, but after the mark that it has, and
// not for a shorter time.
func (o origin) markAt(at int64, marked time.Duration) origin {
	if o.marked > 0 {
		at = max(at, o.mark+1)
		marked = max(marked, o.left(time.Unix(0, at)))
	}
	return origin{at, (marked + time.Millisecond - 1).Truncate(time.Millisecond), o.reset, o.putBack}
}

// left returns for how long the mark still matters; 0 if it doesn't.
func (o origin) left(now time.Time) time.Duration {
	if passed := now.UnixNano(); passed > o.mark {
		return o.marked - time.Duration(min(between(o.mark, passed), uint64(o.marked)))
	}
	return o.marked
}

// newer reports whether o has a mark, and the other none that is as late.
func (o origin) newer(other origin) bool {
	return o.marked > 0 && (other.marked == 0 || o.mark > other.mark)
}

// append appends o to data. A state follows.
func (o origin) append(data []byte) []byte {
	if o == (origin{}) {
		return data
	}
	data = binary.BigEndian.AppendUint64(append(data, formatOrigin), uint64(o.mark))
	data = binary.AppendUvarint(data, uint64(o.marked/time.Millisecond))
	data = binary.AppendUvarint(data, uint64(o.putBack))
	if o.reset == 0 {
		return binary.AppendUvarint(data, 0)
	}
	return binary.AppendUvarint(data, between(o.reset, o.mark)+1)
}

// cutOrigin returns the origin that data begins with, and the state that
// follows.
func cutOrigin(data []byte) (o origin, state []byte, err error) {
	if len(data) == 0 || data[0] != formatOrigin {
		return origin{}, data, nil
	}
	in := reader{rest: data[1:]}
	at, ms, putBack, since := in.time(), in.uvarint(), in.uvarint(), in.uvarint()
	if in.wrong || ms > uint64(forever/time.Millisecond) || putBack > math.MaxUint32 ||
		ms == 0 && (at != 0 || since != 0 || putBack == 0) || since > between(math.MinInt64, at) {
		return origin{}, nil, errForeignState
	}
	o = origin{mark: at, marked: time.Duration(ms) * time.Millisecond, putBack: uint32(putBack)}
	if since > 0 {
		o.reset = at - int64(since-1)
	}
	return o, in.rest, nil
}

// A reader reads what is encoded, one after the other. What is wrong reads 0, and ends it.
type reader struct {
	rest  []byte
	wrong bool
}

// uvarint reads a number.
func (in *reader) uvarint() uint64 {
	v, rest, ok := cutUvarint(in.rest)
	in.rest, in.wrong = rest, in.wrong || !ok
	return v
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

// time reads a Unix time in nanoseconds, which takes 8 bytes: as a varint it would take 9.
func (in *reader) time() int64 {
	if len(in.rest) < 8 {
		in.rest, in.wrong = nil, true
		return 0
	}
	t := binary.BigEndian.Uint64(in.rest)
	in.rest = in.rest[8:]
	return int64(t)
}
