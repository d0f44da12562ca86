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

// readHeader reads an origin, if there is one: a format, the time of a mark and
// three varints; and a state: a format, a time, and by how much its generation
// is before that.
func readHeader(value []byte) (h header) {
	const formatOrigin = 0xb2
	if len(value) > 9 && value[0] == formatOrigin {
		mark := int64(binary.BigEndian.Uint64(value[1:]))
		var numbers [3]uint64 // for how long it is marked, putBack, and since when it is reset
		value = value[9:]
		for i := range numbers {
			number, n := binary.Uvarint(value)
			numbers[i], value = number, value[max(0, n):]
		}
		if h.putBack = numbers[1]; numbers[2] > 0 {
			h.reset = mark - int64(numbers[2]-1)
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
