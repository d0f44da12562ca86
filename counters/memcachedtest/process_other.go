//go:build !linux

package memcachedtest

import "syscall"

// endsWithTests can't have a process end with tests that are interrupted here.
func endsWithTests() *syscall.SysProcAttr { return new(syscall.SysProcAttr) }
