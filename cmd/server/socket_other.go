//go:build !linux

package main

import (
	"errors"
	"net"
)

// refuse is not available: closing the listener has to do.
func refuse(*net.TCPListener) error { return errors.ErrUnsupported }

func waiting(*net.TCPListener) bool { return false }
