//go:build !linux

package plain

import "net"

const mostArrivals = 0

// Elsewhere there is no epoll, and each connection has a goroutine of its own.
type (
	epoll    struct{}
	handle   struct{ epoll *epoll }
	arrivals struct{}
	arrival  struct {
		owner  any
		ending bool
	}
	attempt struct{}
)

func newEpoll() *epoll     { return nil }
func newAttempt() *attempt { return nil }

func readCome(net.Conn, []byte) int { return 0 }

func (*epoll) close()                                  {}
func (*epoll) add(*handle, net.Conn, any) bool         { return false }
func (*epoll) wait(*arrivals) (all []arrival, ok bool) { return nil, false }

func (*handle) forget()                                          {}
func (handle) tellAgain()                                        {}
func (*handle) readNow(*attempt, []byte) (n int, later bool)     { return 0, false }
func (*handle) writeNow(*attempt, []byte) (rest []byte, ok bool) { return nil, false }
