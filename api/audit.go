package api

import (
	"slices"
	"sync"
	"time"
)

// maxAudited is how many changes are kept, and as many that were refused.
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

	refused bool
}

// An audit has the last changes of this instance and, counted apart, the last that were refused:
// however many are refused, the changes stay. The zero value has none.
type audit struct {
	mu            sync.Mutex // of both
	done, refused []change
}

func (a *audit) add(c change) {
	a.mu.Lock()
	defer a.mu.Unlock()
	to := &a.done
	if c.refused {
		to = &a.refused
	}
	*to = append(*to, c)
	*to = (*to)[max(0, len(*to)-maxAudited):]
}

// last returns the last n changes, those that were refused among them, the newest first.
func (a *audit) last(n int) []change {
	a.mu.Lock()
	defer a.mu.Unlock()
	all := append(append([]change{}, a.done...), a.refused...) // not nil, which would be null
	slices.SortStableFunc(all, func(a, b change) int { return a.Time.Compare(b.Time) })
	slices.Reverse(all)
	return all[:min(n, len(all))]
}
