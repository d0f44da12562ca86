package api

import (
	"log/slog"
	"sync"

	"weir/counters"
)

// maxUnknown is how many names are told that no policy has.
const maxUnknown = 100

// unknownPolicies warns of names that callers take for those of policies, once of
// each, and of so few that nobody can fill the log.
type unknownPolicies struct {
	log  *slog.Logger
	mu   sync.Mutex
	told map[string]bool
}

func newUnknownPolicies(log *slog.Logger) *unknownPolicies {
	return &unknownPolicies{log: log, told: make(map[string]bool)}
}

func (u *unknownPolicies) asked(name string) {
	name = name[:min(len(name), counters.MaxNameBytes)] // no policy's is longer
	u.mu.Lock()
	defer u.mu.Unlock()
	if len(u.told) == maxUnknown || u.told[name] {
		return
	}
	u.told[name] = true
	message := "there is no such policy: whoever asks by it gets 404"
	if len(u.told) == maxUnknown {
		message += "; no more of them are named until policies are loaded again"
	}
	u.log.Warn(message, slog.String("policy", name))
}
