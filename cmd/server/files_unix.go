//go:build unix

package main

import "syscall"

// mostFiles returns how many files the process may have open.
func mostFiles() int {
	var limit syscall.Rlimit
	if err := syscall.Getrlimit(syscall.RLIMIT_NOFILE, &limit); err != nil {
		return maxFiles
	}
	return int(min(uint64(limit.Cur), maxFiles))
}
