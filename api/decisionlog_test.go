package api

import (
	"encoding/json"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"weir/api/policy"
	"weir/api/telemetry"
)

// decided returns the lines of a decision log.
func decided(t *testing.T, log *syncBuffer) (lines []map[string]any) {
	t.Helper()
	for text := range strings.Lines(log.String()) {
		var line map[string]any
		require.NoError(t, json.Unmarshal([]byte(text), &line), text)
		lines = append(lines, line)
	}
	return lines
}

func TestDecisionLog(t *testing.T) {
	t.Parallel()
	check := func(s *service, clients ...string) {
		for _, client := range clients {
			s.check(t, fmt.Sprintf(`{"policy":"api","client":%q,"cost":2}`, client))
		}
	}
	p := func() *policy.Policy {
		p := newPolicy("api", fixed("per-minute", 3, time.Minute))
		p.Clients = clients(map[string]policy.Terms{"abuser": {Blocked: true}})
		return p
	}
	log := new(syncBuffer)
	s := newServiceWith(func(cfg *Config) { cfg.Decisions = &telemetry.DecisionLog{Writer: log, ShowClients: true} }, p())
	s.clock.at(20 * time.Second)
	check(s, "alice", "alice", "abuser")
	lines := decided(t, log)
	require.Len(t, lines, 3)
	assert.Equal(t, map[string]any{
		"time": epoch.Add(20 * time.Second).UTC().Format(time.RFC3339), "policy": "api", "client": "alice", "decision": "denied", "degraded": false, "retry_after": 40.0, "took": 0.0,
		"limits": []any{map[string]any{"name": "per-minute", "allowed": false, "cost": 2.0, "limit": 3.0, "remaining": 1.0}},
	}, lines[1])
	assert.Equal(t, "allowed", lines[0]["decision"])
	assert.Equal(t, "blocked", lines[2]["exception"])

	log = new(syncBuffer)
	s = newServiceWith(func(cfg *Config) { cfg.Decisions = &telemetry.DecisionLog{Writer: log, DeniedOnly: true} }, p())
	check(s, "alice", "bob", "alice")
	lines = decided(t, log)
	require.Len(t, lines, 1)
	assert.Equal(t, telemetry.HashClient("alice"), lines[0]["client"])

	log = new(syncBuffer)
	s = newServiceWith(func(cfg *Config) { cfg.Decisions = &telemetry.DecisionLog{Writer: log, Every: 10} }, p())
	for range 100 {
		check(s, "alice")
	}
	assert.Len(t, decided(t, log), 10)
}
