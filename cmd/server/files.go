package main

import (
	"crypto/sha256"
	"fmt"
	"os"
	"strings"
)

// watchedFiles are the files of some flags that are read together, and read again
// when one of them changes. One goroutine at a time may use it.
type watchedFiles struct {
	flags, names []string
	read         func() error      // reads them all and puts them in force, or else nothing
	seen         [sha256.Size]byte // the digest before they were last read
	wrong        bool              // the last read failed
}

// look reads the files if one has changed since, and reports whether it has. With an
// error, what was in force before still is.
func (w *watchedFiles) look() (changed bool, err error) {
	// Before they are read: what changes in between is found by the next look.
	seen := w.digest()
	if seen == w.seen {
		return false, nil
	}
	w.seen = seen
	err = w.read()
	w.wrong = err != nil
	return true, err
}

// digest returns a hash of what is in the files, or of why they can't be read.
func (w *watchedFiles) digest() (sum [sha256.Size]byte) {
	h := sha256.New()
	for _, name := range w.names {
		data, err := os.ReadFile(name)
		fmt.Fprintln(h, len(data), err)
		_, _ = h.Write(data) // a hash never fails
	}
	h.Sum(sum[:0])
	return sum
}

func (w *watchedFiles) String() string { return strings.Join(w.flags, ",") }
