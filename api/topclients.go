package api

import (
	"time"

	"weir/counters/topk"
)

// topClients are the clients of a policy that asked most in this process.
type topClients struct{ allowed, denied *topk.Sketch }

func newTopClients() *topClients { return &topClients{topk.New(), topk.New()} }

// by returns those whom the policy allowed or denied most, or nil if that is
// neither.
func (t *topClients) by(decision string) *topk.Sketch {
	switch decision {
	case "allowed":
		return t.allowed
	case "denied":
		return t.denied
	default:
		return nil
	}
}

// count counts an answer to a check that began at now. What the limits denied is
// denied, in shadow mode too. What the store couldn't decide and was refused is
// neither.
func (t *topClients) count(a *answer, now time.Time) {
	switch {
	case a.refused:
	case a.denied:
		t.denied.Add(a.client, now)
	default:
		t.allowed.Add(a.client, now)
	}
}
