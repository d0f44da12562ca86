package api

import (
	"slices"
	"sync"
	"time"
)

// maxAudited is how many changes are kept.
const maxAudited = 1000

// A change is what somebody has changed for a client, or has tried to.
type change struct {
	Time   time.Time `json:"time"`
	By     string    `json:"by,omitempty"` // whose token it was
	Peer   string    `json:"peer,omitempty"`
	What   string    `json:"what"`
	Policy string    `json:"policy,omitempty"`
	Client string    `json:"client,omitempty"` // or its key; hashed unless Config.LogClients
	Reason string    `json:"reason,omitempty"`
	Error  string    `json:"error,omitempty"`
}

// An audit has the last changes of this instance. The zero value has none.
type audit struct {
	mu      sync.Mutex
	changes []change
	next    int // is overwritten next, once there are maxAudited
}

// add notes a change. One that is the same as the last takes its place, so that nobody who is
// refused again and again drives out the others.
func (a *audit) add(c change) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if n := len(a.changes); n > 0 {
		last := &a.changes[(a.next+n-1)%n]
		same := c
		if same.Time = last.Time; same == *last {
			*last = c
			return
		}
	}
	if len(a.changes) < maxAudited {
		a.changes = append(a.changes, c)
		return
	}
	a.changes[a.next] = c
	a.next = (a.next + 1) % maxAudited
}

// last returns the last n changes, the newest first.
func (a *audit) last(n int) []change {
	a.mu.Lock()
	defer a.mu.Unlock()
	all := slices.Concat(a.changes[a.next:], a.changes[:a.next])
	slices.Reverse(all)
	return all[:min(n, len(all))]
}
