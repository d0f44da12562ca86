package cas

import (
	"encoding/binary"
	"errors"
)

// errForeignState: the bytes are not a state that this version has written. The
// client can only start anew.
var errForeignState = errors.New("cas: the value is not a state of this algorithm and version")

// The first byte of an encoded state names its algorithm and version. None is
// ASCII, so that a counter or a text is never taken for a state.
const (
	formatTokenBucket byte = 0x82
	formatLeakyBucket byte = 0x92
	formatSlidingLog  byte = 0xa2
)

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
