package simulate

import "encoding/binary"

// A header is what the world reads of a state that a limiter has written. The
// zero value is that of none.
type header struct {
	reset      int64  // Unix nanoseconds, of the last reset that it knows of
	putBack    uint64 // any number if it was put back, else 0
	generation int64  // Unix nanoseconds, of the request that began it
	size       int    // in bytes, without the origin that may come first
}

// readHeader reads an origin, if there is one: a format, until when more may be remembered and
// two varints; and a state: a format, a time, and by how much its generation
// is before that.
func readHeader(value []byte) (h header) {
	const formatOrigin = 0xb3
	if len(value) > 9 && value[0] == formatOrigin {
		until := int64(binary.BigEndian.Uint64(value[1:]))
		var numbers [2]uint64 // putBack, and how long before until the last reset was, and 1
		value = value[9:]
		for i := range numbers {
			number, n := binary.Uvarint(value)
			numbers[i], value = number, value[max(0, n):]
		}
		if h.putBack = numbers[0]; numbers[1] > 0 {
			h.reset = until - int64(numbers[1]-1)
		}
	}
	if h.size = len(value); h.size > 9 {
		age, _ := binary.Uvarint(value[9:])
		h.generation = int64(binary.BigEndian.Uint64(value[1:])) - int64(age)
	}
	return h
}

// forgets reports whether the writer of h, which has replaced a state, knew of a
// reset that those who had put this back didn't: what they have admitted since
// is forgotten with what is from before the reset.
func (h header) forgets(was header) bool {
	return was.putBack != 0 && was.generation != 0 && was.generation <= h.reset && was.reset < h.reset
}
