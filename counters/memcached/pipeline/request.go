package pipeline

import (
	"errors"
	"net"
	"slices"
	"sync/atomic"
	"time"
)

// Errors of an Exchange.
var (
	// ErrNotSent: nothing was sent, so the server has done nothing.
	ErrNotSent = errors.New("pipeline: not sent")
	// ErrOtherSocket: no socket is open that was open when it had to be.
	ErrOtherSocket = errors.New("pipeline: the socket has been lost")
)

// The states of a request. Only one transition leaves pending, and whoever
// makes it puts a token into wake.
const (
	idle     uint32 = iota // not sent yet
	pending                // on its way, or its reply
	answered               // reply is complete
	failed                 // the socket was lost
	expired                // the deadline passed; a late reply is for late
	closed                 // the caller has given it up
	cutOff                 // its silent socket was given up; a late reply is for late
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

	// late is to be called once the socket is done with a request that has been
	// given up, with what end says of it. Whoever sets the second of the two calls it.
	late atomic.Pointer[func(error)]
	end  atomic.Pointer[error]
}

// over notes that the socket is done with r, which has been given up, and
// returns what is to be called.
func (r *request) over(err error) func() {
	r.end.Store(&err)
	return r.report()
}

// report returns the call of late, once it and end are set, and once only.
func (r *request) report() func() {
	end := r.end.Load()
	if end == nil {
		return nil
	}
	late := r.late.Swap(nil)
	if late == nil {
		return nil
	}
	return func() { (*late)(*end) }
}

// changes reports whether r may change something, so that somebody may want to be told of its
// reply, be it late.
func (r *request) changes() bool {
	return slices.ContainsFunc(r.reply.kinds, func(k kind) bool { return k < versionCommand })
}

func (r *request) pending() bool { return r.state.Load() == pending }

// finish ends the request with the given state and wakes the caller. err goes
// with failed. It returns false if the request has ended already.
func (r *request) finish(state uint32, err error) bool {
	if state == failed {
		r.err = err
	}
	if !r.state.CompareAndSwap(pending, state) {
		return false
	}
	r.interrupt()
	return true
}

// interrupt wakes the caller after the state has left pending.
func (r *request) interrupt() {
	r.wake <- struct{}{}
	if conn := r.reader.Load(); conn != nil && r.state.Load() != answered {
		_ = (*conn).SetReadDeadline(time.Unix(1, 0))
	}
}
