package simulate

import (
	"cmp"
	"slices"
)

// An event happens when its time comes. Of those due at the same time, the seed
// picks the next.
type event struct {
	at    int64 // Unix nanoseconds
	order uint64
	do    func()
	// Without do, it answers an operation, unless another event has.
	answers *operation
	err     error
}

func (e *event) stale() bool { return e.answers != nil && e.answers.answered }

// A queue has the next event last.
type queue []event

func (q *queue) push(e event) {
	i, _ := slices.BinarySearchFunc(*q, e, func(a, b event) int { return cmp.Or(cmp.Compare(b.at, a.at), cmp.Compare(b.order, a.order)) })
	*q = slices.Insert(*q, i, e)
}

func (q queue) next() *event { return &q[len(q)-1] }

// pop removes the next event. There must be one.
func (q *queue) pop() event {
	e := *q.next()
	*q.next() = event{}
	*q = (*q)[:len(*q)-1]
	return e
}
