package plain

import (
	"io"
	"net"
	"time"
)

const (
	// firstBuffer is the buffer of a connection whose requests are short.
	firstBuffer = 1 << 10
	// slack is how much earlier than its timeout a connection may be closed, so that
	// deadlines, which cost system time, are set more rarely.
	slack = time.Second
)

// An input is what comes on a connection.
type input struct {
	conn          net.Conn
	timeout, idle time.Duration // of a request, and between two

	buf        []byte // buf[start:end] has come and isn't read
	start, end int
	err        error // of the last read: nothing follows what is in buf

	begun    bool      // the timeout of a request has
	until    time.Time // the read deadline, if it is that of a request; else zero
	answered time.Time // when the last request was; zero before
	since    time.Time // from when the read deadline between requests counts
}

func (in *input) fill() {
	if in.begun {
		in.hurry()
	} else if in.until.IsZero() && in.answered.Sub(in.since) >= slack {
		in.since = in.answered
		_ = in.conn.SetReadDeadline(in.answered.Add(in.idle))
	}
	if in.start == in.end {
		in.start, in.end = 0, 0
	}
	switch {
	case in.end < len(in.buf):
	case in.start > 0:
		in.start, in.end = 0, copy(in.buf, in.buf[in.start:in.end])
	default:
		longer := make([]byte, max(firstBuffer, 2*len(in.buf)))
		copy(longer, in.buf)
		in.buf = longer
	}
	var n int
	n, in.err = in.conn.Read(in.buf[in.end:])
	in.end += n
}

// hurry bounds how long a request takes to arrive.
func (in *input) hurry() {
	if in.until.IsZero() {
		in.until = time.Now().Add(in.timeout)
		_ = in.conn.SetReadDeadline(in.until)
	}
}

// finish ends a request that is answered now. otherDeadline says that somebody else
// has set the read deadline.
func (in *input) finish(now time.Time, otherDeadline bool) {
	if in.answered = now; !in.until.IsZero() || otherDeadline {
		in.since = time.Time{}
	}
	in.begun, in.until = false, time.Time{}
}

// A body is that of a request, as long as its head says.
type body struct {
	*input
	left int64 // 0 too if it has ended early
}

func (b *body) Read(p []byte) (n int, err error) {
	if b.left == 0 {
		return 0, io.EOF
	}
	p = p[:min(int64(len(p)), b.left)]
	if b.start == b.end && b.err == nil {
		if len(p) < firstBuffer { // with what may follow
			b.fill()
		} else {
			b.hurry()
			n, b.err = b.conn.Read(p)
		}
	}
	if n == 0 {
		n = copy(p, b.buf[b.start:b.end])
		b.start += n
	}
	b.left -= int64(n)
	switch {
	case n > 0 && b.left == 0:
		return n, io.EOF
	case n > 0 || b.err == nil:
		return n, nil
	case b.err == io.EOF:
		b.left = 0
		return 0, io.ErrUnexpectedEOF
	default:
		return 0, b.err
	}
}

func (*body) Close() error { return nil }

// discard reads what nobody has read, and reports whether another request may follow.
func (b *body) discard() bool {
	if b.left == 0 {
		return true
	}
	_, err := io.Copy(io.Discard, b)
	return err == nil
}
