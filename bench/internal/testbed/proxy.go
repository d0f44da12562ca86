package testbed

import (
	"bytes"
	"net"
	"sync"
	"time"

	"weir/bench/internal/loadgen"
)

// A Proxy makes the way to a server longer: in either direction each byte comes
// half the round trip later, and in order. It doesn't limit how many may be
// under way. When one side closes a connection, the other side's end is closed
// too, once it has got what was under way to it.
type Proxy struct{ *Listener }

// StartProxy starts one before the server at the host:port target. When it is
// stopped, what is under way still arrives.
func StartProxy(target string, roundTrip time.Duration) (*Proxy, error) {
	l, err := Listen(func(l *Listener, client net.Conn) {
		l.join(client, target, func(client, server net.Conn) {
			var both sync.WaitGroup
			both.Go(func() { pass(client, server, roundTrip/2) })
			both.Go(func() { pass(server, client, roundTrip/2) })
			both.Wait()
		})
	})
	return &Proxy{l}, err
}

// A piece is what was read at once.
type piece struct {
	due   time.Time
	bytes []byte
}

// underWay is how many pieces may be under way in one direction: more than
// there can be at any delay that the bench has.
const underWay = 1 << 14

// pass passes on what from sends until that is closed, each byte so much later, and
// closes to after it.
func pass(from, to net.Conn, later time.Duration) {
	pieces := make(chan piece, underWay)
	go func() {
		defer close(pieces)
		buffer := make([]byte, 64<<10)
		for {
			n, err := from.Read(buffer)
			if err != nil {
				return // either side has closed it
			}
			pieces <- piece{time.Now().Add(later), bytes.Clone(buffer[:n])}
		}
	}()
	loadgen.RaisePriority()
	for piece := range pieces {
		for early := time.Until(piece.due); early > 0; early = time.Until(piece.due) {
			loadgen.Pause(early)
		}
		// Where nobody reads any more, the rest is dropped.
		if _, err := to.Write(piece.bytes); err != nil {
			from.Close()
		}
	}
	to.Close()
}
