package pipeline

import (
	"net"
	"sync/atomic"
	"time"
)

// The states of a request. Only one transition leaves pending, and whoever
// makes it puts a token into wake.
const (
	idle     uint32 = iota // not sent yet
	pending                // on its way, or its reply
	answered               // reply is complete
	failed                 // the socket was lost
	expired                // the deadline passed; a late reply is dropped
	closed                 // the caller has given it up
)

// A request is what a caller asks of a server, in one or more commands, and the
// reply. It is the caller's, but while it is pending text is the socket's
// writer's and reply the socket's reader's.
type request struct {
	state atomic.Uint32
	wake  chan struct{} // of capacity 1
	text  []byte
	reply reply
	err   error // why the state is failed

	// reader is set while the caller itself reads from the socket.
	reader atomic.Pointer[net.Conn]
}

func (r *request) pending() bool { return r.state.Load() == pending }

// finish ends the request with the given state, unless it has ended already,
// and wakes the caller. err goes with failed.
func (r *request) finish(state uint32, err error) {
	if state == failed {
		r.err = err
	}
	if r.state.CompareAndSwap(pending, state) {
		r.interrupt()
	}
}

// interrupt wakes the caller after the state has left pending.
func (r *request) interrupt() {
	r.wake <- struct{}{}
	if conn := r.reader.Load(); conn != nil && r.state.Load() != answered {
		_ = (*conn).SetReadDeadline(time.Unix(1, 0))
	}
}
