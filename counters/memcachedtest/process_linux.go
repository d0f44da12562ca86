package memcachedtest

import "syscall"

// endsWithTests has a process end with the tests that started it, even if they
// are interrupted.
func endsWithTests() *syscall.SysProcAttr {
	return &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
}
