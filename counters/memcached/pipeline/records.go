package pipeline

import "crypto/tls"

// maxRecord is what a TLS record carries, in bytes, and what Memcached has room
// for.
const maxRecord = 16 << 10

// A recordConn is a TLS connection that closes without delay.
type recordConn struct{ *tls.Conn }

// Close closes the connection at once. That of crypto/tls takes leave of the
// server first, and may wait five seconds for one that doesn't read.
func (c recordConn) Close() error { return c.NetConn().Close() }

// recordLength returns the length of the commands at the start of b that a
// record has room for, or of the first when it is larger than that. So a record
// holds whole commands, or a part of one and nothing else.
//
// Memcached before 1.6.39 forgets the rest of a record that it has read a part
// of: it waits until its socket has more, while the rest is with OpenSSL. It
// reads a part when a value ends within a record that it began before, and when
// its buffer still holds the beginning of a command. The commands in the rest
// would get no answer until somebody sends another.
func recordLength(b []byte) int {
	length := 0
	for length < len(b) {
		n, _, err := parseCommand(b[length:])
		if n == 0 || err != nil {
			return len(b)
		}
		if length > 0 && length+n > maxRecord {
			break
		}
		length += n
	}
	return length
}
