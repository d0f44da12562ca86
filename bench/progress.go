package main

import (
	"fmt"
	"os"
)

// say replaces the progress line on a terminal; it prints nothing elsewhere. An
// empty line removes it.
func say(format string, args ...any) {
	if info, err := os.Stderr.Stat(); err != nil || info.Mode()&os.ModeCharDevice == 0 {
		return
	}
	const eraseLine = "\r\x1b[K"
	fmt.Fprintf(os.Stderr, eraseLine+format, args...)
}
