package counters

import "time"

// A Deadline is a context that has a deadline and nothing else. It needs no
// timer, because limiters and stores read the deadline themselves. It is never
// done: an operation that has begun is bounded by the deadline, and giving it
// up earlier would leave unknown what was counted.
type Deadline struct{ At time.Time }

// Deadline implements context.Context.
func (d *Deadline) Deadline() (time.Time, bool) { return d.At, true }

// Done implements context.Context.
func (*Deadline) Done() <-chan struct{} { return nil }

// Err implements context.Context.
func (*Deadline) Err() error { return nil }

// Value implements context.Context.
func (*Deadline) Value(any) any { return nil }
