package main

import (
	"errors"
	"math"
	"syscall"

	"golang.org/x/sys/unix"
)

// refuse lets the kernel refuse new connections, as if nobody listened. Those
// whose handshake has begun can still be accepted. They would be reset by
// closing the listener, and by shutdown(2). A filter for their first packets
// would let new connections hang, and sockets of Multipath TCP, which are Go's
// default, take none.
//
// A listener that is bound to a device gets no new connection from any other,
// and no device has this number. A handshake under way has no need of it.
// Without privileges this takes Linux 5.7.
func refuse(l syscall.Conn) error {
	var bindErr error
	err := control(l, func(fd int) {
		bindErr = unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_BINDTOIFINDEX, math.MaxInt32)
	})
	return errors.Join(err, bindErr)
}

// waiting reports whether a connection waits to be accepted.
func waiting(l syscall.Conn) bool {
	ready := 0
	err := control(l, func(fd int) {
		ready, _ = unix.Poll([]unix.PollFd{{Fd: int32(fd), Events: unix.POLLIN}}, 0)
	})
	return err == nil && ready > 0
}

func control(l syscall.Conn, f func(fd int)) error {
	raw, err := l.SyscallConn()
	if err != nil {
		return err
	}
	return raw.Control(func(fd uintptr) { f(int(fd)) })
}
