package counters

import "sync"

// A Scratch keeps slices that are needed only while a call lasts, for the next call. It is
// safe for concurrent use; the zero value keeps none.
type Scratch[T any] struct{ kept sync.Pool }

// maxScratch is how many elements a kept slice has room for: those of a full batch, and what
// append adds.
const maxScratch = 2 << 10

// Get returns n zero elements.
func (s *Scratch[T]) Get(n int) []T {
	if kept, ok := s.kept.Get().(*[]T); ok && cap(*kept) >= n {
		return (*kept)[:n]
	}
	return make([]T, n)
}

// Put takes back what Get has returned, with what was appended, which nobody uses any more.
// Don't defer it: after a panic others may still be at work. What is never put is no loss.
func (s *Scratch[T]) Put(used []T) {
	if cap(used) > maxScratch {
		return
	}
	clear(used) // they may keep much alive
	used = used[:0]
	s.kept.Put(&used)
}
