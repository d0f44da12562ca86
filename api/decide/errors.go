package decide

import (
	"errors"
	"fmt"
	"runtime/debug"
)

// An Invalid check can't be made: it says what would be right.
type Invalid string

func (e Invalid) Error() string { return string(e) }

func invalid(format string, args ...any) error { return Invalid(fmt.Sprintf(format, args...)) }

// An UnknownPolicy is the name of a policy that there isn't; "" if none was named.
type UnknownPolicy string

func (e UnknownPolicy) Error() string { return fmt.Sprintf("decide: there is no policy %q", string(e)) }

// A Refused check was refused by on_store_error, as the store could not decide.
type Refused struct {
	Policy, Client string
	Limits         []string // that nobody could decide
}

func (e *Refused) Error() string {
	return fmt.Sprintf("decide: the store could not decide in time and policy %q denies then", e.Policy)
}

func refused(a *Answer) *Refused {
	e := &Refused{Policy: a.Policy.Name, Client: a.Client}
	for _, l := range a.Limits {
		if !l.decided {
			e.Limits = append(e.Limits, l.Name)
		}
	}
	return e
}

// ErrLeft says that the caller left before the check began.
var ErrLeft = errors.New("decide: the caller left before the check began")

// An AtError says which check of several can't be made, from 0, and why.
type AtError struct {
	Number int
	error
}

func (e *AtError) Unwrap() error { return e.error }

// A Panic is what deciding has panicked with, and where.
type Panic struct {
	Value any
	Stack []byte
}

func (e *Panic) Error() string { return fmt.Sprint(e.Value) }

// contain calls f and returns what it panics with, or nil. Every goroutine of this
// package runs in it, as nothing else would keep a panic from ending the process.
func contain(f func()) (failed *Panic) {
	defer func() {
		if v := recover(); v != nil {
			failed = &Panic{v, debug.Stack()}
		}
	}()
	f()
	return nil
}
