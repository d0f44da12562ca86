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
// one before if that was released. None is ASCII, so that a counter or a text is never taken for a state.
const (
	formatTokenBucket byte = 0x83
	formatLeakyBucket byte = 0x93
	formatSlidingLog  byte = 0xa2
	formatCountingLog byte = 0xc2
	formatOrigin      byte = 0xb3
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
	// until is not 0 if the client was reset, or got something back: only until then, Unix
	// time in nanoseconds, more may be remembered somewhere. It is later each time, and who
	// remembers an earlier one puts nothing back.
	until int64
	// reset is the time of the last reset, before until; 0 if there was none: what was in use
	// before that isn't put back even if the process that does so has never seen it.
	reset int64
	// putBack is a random number if the state was put back, else 0.
	putBack uint32
}

// left returns for how long more may be remembered somewhere.
func (o origin) left(now time.Time) time.Duration {
	passed := min(now.UnixNano(), o.until)
	return time.Duration(min(between(passed, o.until), uint64(forever)))
}

// append appends o to data. A state follows.
func (o origin) append(data []byte) []byte {
	if o == (origin{}) {
		return data
	}
	data = binary.BigEndian.AppendUint64(append(data, formatOrigin), uint64(o.until))
	data = binary.AppendUvarint(data, uint64(o.putBack))
	if o.reset == 0 {
		return binary.AppendUvarint(data, 0)
	}
	return binary.AppendUvarint(data, between(o.reset, o.until)+1)
}

// cutOrigin returns the origin that data begins with, and the state that
// follows.
func cutOrigin(data []byte) (o origin, state []byte, err error) {
	if len(data) == 0 || data[0] != formatOrigin {
		return origin{}, data, nil
	}
	in := reader{rest: data[1:]}
	until, putBack, since := in.time(), in.uvarint(), in.uvarint()
	if in.wrong || until < 0 || putBack > math.MaxUint32 || until == 0 && putBack == 0 || since > uint64(until) {
		return origin{}, nil, errForeignState
	}
	o = origin{until: until, putBack: uint32(putBack)}
	if since > 0 {
		o.reset = until - int64(since-1)
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
