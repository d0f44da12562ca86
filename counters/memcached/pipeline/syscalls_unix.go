//go:build unix && !linux

package pipeline

import "syscall"

func write(fd uintptr, p []byte) (int, error) { return syscall.Write(int(fd), p) }

func read(fd uintptr, p []byte) (int, error) { return syscall.Read(int(fd), p) }
