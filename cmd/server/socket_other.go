//go:build !linux

package main

import (
	"errors"
	"syscall"
)

// refuse is not available: closing the listener has to do.
func refuse(syscall.Conn) error { return errors.ErrUnsupported }

func waiting(syscall.Conn) bool { return false }
