package plain

import (
	"net"
	"os"
	"sync"
	"syscall"
	"unsafe"
)

// mostArrivals is how many connections are told at once.
const mostArrivals = 128

// An epoll tells on which of its connections something comes. The poller of Go's runtime
// knows them too, but has no goroutine to wake.
type epoll struct {
	file *os.File
	raw  syscall.RawConn

	mu      sync.Mutex
	handles map[int32]*handle // by file
}

// A handle is a connection to its epoll.
type handle struct {
	epoll *epoll
	raw   syscall.RawConn
	file  int32
	owner any // what is told
}

// newEpoll returns an epoll, or nil where there can't be another.
func newEpoll() *epoll {
	file, err := syscall.EpollCreate1(syscall.EPOLL_CLOEXEC)
	if err != nil {
		return nil
	}
	_ = syscall.SetNonblock(file, true) // so that Go waits for it
	e := &epoll{file: os.NewFile(uintptr(file), "epoll"), handles: make(map[int32]*handle)}
	e.raw, _ = e.file.SyscallConn() // fails for none
	return e
}

func (e *epoll) close() { _ = e.file.Close() }

// add has e tell what comes on a connection, from now on, and reports whether it can.
func (e *epoll) add(h *handle, c net.Conn, owner any) bool {
	if h.epoll == nil { // else it was added before, and a goroutine may still have its handle
		file, ok := c.(syscall.Conn)
		if !ok {
			return false
		}
		raw, err := file.SyscallConn()
		if err != nil {
			return false
		}
		*h = handle{epoll: e, raw: raw, owner: owner}
		if raw.Control(func(file uintptr) { h.file = int32(file) }) != nil {
			return false
		}
	}
	var err error
	failed := h.raw.Control(func(uintptr) {
		e.mu.Lock()
		e.handles[h.file] = h
		e.mu.Unlock()
		err = h.listen(syscall.EPOLL_CTL_ADD)
	})
	return failed == nil && err == nil
}

// listen has the epoll tell what comes: also what has come and isn't read.
func (h *handle) listen(operation int) error {
	const edges = 1 << 31 // syscall.EPOLLET, whose sign is wrong
	return h.epoll.control(operation, &syscall.EpollEvent{Events: syscall.EPOLLIN | syscall.EPOLLRDHUP | edges, Fd: h.file})
}

// tellAgain has the epoll tell again what has come and isn't read. h is a copy: another goroutine
// may have the connection by now, and change its handle.
func (h handle) tellAgain() {
	_ = h.raw.Control(func(uintptr) { _ = h.listen(syscall.EPOLL_CTL_MOD) }) // fails if others have closed it meanwhile
}

// forget ends what add began. The connection isn't closed yet.
func (h *handle) forget() {
	e := h.epoll
	e.mu.Lock()
	if e.handles[h.file] == h {
		delete(e.handles, h.file)
	}
	e.mu.Unlock()
	_ = h.raw.Control(func(uintptr) { _ = e.control(syscall.EPOLL_CTL_DEL, &syscall.EpollEvent{Fd: h.file}) })
}

func (e *epoll) control(operation int, event *syscall.EpollEvent) (err error) {
	if failed := e.raw.Control(func(epoll uintptr) { err = syscall.EpollCtl(int(epoll), operation, int(event.Fd), event) }); failed != nil {
		return failed
	}
	return err
}

// An arrival says that something has come on a connection: with ending, nothing follows.
type arrival struct {
	owner  any
	ending bool
}

// arrivals are what an epoll has told a goroutine.
type arrivals struct {
	events [mostArrivals]syscall.EpollEvent
	all    []arrival
}

// wait waits until something comes, and reports whether e is still open.
func (e *epoll) wait(a *arrivals) ([]arrival, bool) {
	n := 0
	if e.raw.Read(func(epoll uintptr) bool {
		came, _, errno := syscall.RawSyscall6(syscall.SYS_EPOLL_PWAIT, epoll, uintptr(unsafe.Pointer(&a.events[0])), mostArrivals, 0, 0, 0)
		if n = int(came); errno != 0 {
			n = 0
		}
		return came != 0
	}) != nil {
		return nil, false
	}
	a.all = a.all[:0]
	e.mu.Lock()
	defer e.mu.Unlock()
	for _, event := range a.events[:n] {
		if h := e.handles[event.Fd]; h != nil {
			a.all = append(a.all, arrival{h.owner, event.Events&(syscall.EPOLLRDHUP|syscall.EPOLLHUP) != 0})
		}
	}
	return a.all, true
}

// An attempt is a system call that doesn't wait, so that nobody else needs the processor
// meanwhile.
type attempt struct {
	bytes       []byte
	n           int
	errno       syscall.Errno
	read, write func(file uintptr) // here, they cost no allocation
}

func newAttempt() *attempt {
	a := new(attempt)
	try := func(call uintptr) func(uintptr) {
		return func(file uintptr) {
			n, _, errno := syscall.RawSyscall(call, file, uintptr(unsafe.Pointer(&a.bytes[0])), uintptr(len(a.bytes)))
			a.n, a.errno = int(n), errno
		}
	}
	a.read, a.write = try(syscall.SYS_READ), try(syscall.SYS_WRITE)
	return a
}

// later reports whether there was nothing to read, or no room to write.
func (a *attempt) later() bool { return a.errno == syscall.EAGAIN || a.errno == syscall.EINTR }

// readCome reads what has come on c, and returns how much that is. p isn't empty.
func readCome(c net.Conn, p []byte) int {
	file, ok := c.(syscall.Conn)
	if !ok {
		return 0
	}
	raw, err := file.SyscallConn()
	if err != nil {
		return 0
	}
	n, _ := (&handle{raw: raw}).readNow(newAttempt(), p)
	return max(0, n)
}

// readNow reads what has come, and reports whether nothing has. n isn't positive if nothing
// ever will.
func (h *handle) readNow(a *attempt, p []byte) (n int, later bool) {
	if a.bytes = p; h.raw.Control(a.read) != nil { // its Read would look at the poller of Go's runtime
		return 0, false
	}
	return a.n, a.later()
}

// writeNow writes what there is room for, and returns the rest.
func (h *handle) writeNow(a *attempt, p []byte) (rest []byte, ok bool) {
	if a.bytes = p; h.raw.Control(a.write) != nil {
		return nil, false
	}
	if a.later() {
		return p, true
	}
	return p[max(0, a.n):], a.errno == 0
}
