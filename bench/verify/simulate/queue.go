package simulate

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

func (e *event) before(other *event) bool {
	return e.at < other.at || e.at == other.at && e.order < other.order
}

func (e *event) stale() bool { return e.answers != nil && e.answers.answered }

// A queue is a heap of events. container/heap would allocate each of them.
type queue []event

func (q *queue) push(e event) {
	*q = append(*q, e)
	h := *q
	i := len(h) - 1
	for i > 0 {
		parent := (i - 1) / 2
		if !e.before(&h[parent]) {
			break
		}
		h[i] = h[parent]
		i = parent
	}
	h[i] = e
}

// pop removes the next event. There must be one.
func (q *queue) pop() event {
	h := *q
	first, last := h[0], h[len(h)-1]
	h[len(h)-1] = event{}
	h = h[:len(h)-1]
	*q = h
	for i := 0; len(h) > 0; {
		child := 2*i + 1
		if child+1 < len(h) && h[child+1].before(&h[child]) {
			child++
		}
		if child >= len(h) || !h[child].before(&last) {
			h[i] = last
			break
		}
		h[i] = h[child]
		i = child
	}
	return first
}
