package main

import (
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"weir/api/policyfile"
	"weir/counters/memcachedtest"
)

// oneOfEach writes a policy file with a policy for each algorithm, of 100 a
// day, and returns its name and those of the policies.
func oneOfEach(t *testing.T, onStoreError string) (file string, policies []string) {
	t.Helper()
	text := "policies:\n"
	for _, name := range policyfile.AlgorithmNames() {
		policy := strings.ReplaceAll(name, "_", "-")
		policies = append(policies, policy)
		text += fmt.Sprintf("  %s: {on_store_error: %s, limits: [{name: l, algorithm: %s, limit: 100, window: 1d}]}\n", policy, onStoreError, name)
	}
	file = filepath.Join(t.TempDir(), "policies.yaml")
	require.NoError(t, os.WriteFile(file, []byte(text), 0o600))
	return file, policies
}

// requireUsed waits until the store decides, and so much of the limit is in
// use.
func requireUsed(t *testing.T, s service, policy, client string, want int64) {
	t.Helper()
	var a answer
	require.Eventually(t, func() bool {
		a = s.check(t, policy, client, 0)
		return a.Status == http.StatusOK && !a.Degraded && a.used(0) == want
	}, patience, time.Millisecond, "%s %s isn't %d: %+v", policy, client, want, &a)
}

// stalls are how long Memcached stands still: its connection is kept, or has
// been replaced.
var stalls = []time.Duration{0, 2500 * time.Millisecond}

// Checks that were refused because Memcached stood still take nothing from the
// limit, although it counts them when it goes on.
func TestRefusedChecksTakeNothing(t *testing.T) {
	t.Parallel()
	file, policies := oneOfEach(t, "deny")
	memcached := memcachedtest.Start(t)
	p := startProgram(t, "-config", file, "-memcached", memcached.Addr, "-store-timeout", "400ms")
	type charged struct{ policy, client string }
	var refused []charged
	starved := false
	for _, stall := range stalls {
		for _, policy := range policies {
			for attempt, late := 0, true; late; attempt++ {
				client := fmt.Sprint("c", stall, attempt)
				requireUsed(t, p.service, policy, client, 0)
				memcached.Pause()
				paused := time.Now()
				var callers sync.WaitGroup
				for range 30 {
					callers.Go(func() { assert.Equal(t, http.StatusServiceUnavailable, p.check(t, policy, client, 1).Status) })
				}
				callers.Wait()
				// Of who still waits when the connection is given up nobody will
				// know. A busy machine may start callers that late.
				late = time.Since(paused) > 1500*time.Millisecond
				starved = starved || late
				time.Sleep(time.Until(paused.Add(stall)))
				memcached.Resume()
				if !late {
					requireUsed(t, p.service, policy, client, 0)
					refused = append(refused, charged{policy, client})
				}
			}
		}
	}
	for _, c := range refused {
		requireUsed(t, p.service, c.policy, c.client, 0)
	}
	if !starved {
		_, metrics := p.get(t, "/metrics")
		assert.Contains(t, metrics, "weir_refunds_failed_total 0\n")
	}
}

// Refused checks whose outcome nobody will ever know are counted. Of a bucket or a
// log its state tells, or is lost.
func TestRefusedChecksOfALostServerAreCounted(t *testing.T) {
	t.Parallel()
	file, policies := oneOfEach(t, "deny")
	for _, policy := range policies {
		if !strings.HasSuffix(policy, "-window") {
			continue
		}
		memcached := memcachedtest.Start(t)
		p := startProgram(t, "-config", file, "-memcached", memcached.Addr, "-store-timeout", "100ms")
		requireUsed(t, p.service, policy, "c", 0)
		memcached.Pause()
		require.Equal(t, http.StatusServiceUnavailable, p.check(t, policy, "c", 1).Status)
		memcached.Kill()
		require.Eventually(t, func() bool {
			_, metrics := p.get(t, "/metrics")
			return strings.Contains(metrics, "weir_refunds_failed_total 1\n")
		}, patience, time.Millisecond)
	}
}

// Two instances that limit alone while Memcached stands still have it count
// what they have admitted, once.
func TestWhatIsAdmittedDuringAStallIsCountedOnce(t *testing.T) {
	t.Parallel()
	file, policies := oneOfEach(t, "local")
	memcached := memcachedtest.Start(t)
	args := []string{"-config", file, "-memcached", memcached.Addr, "-store-timeout", "100ms"}
	third := startProgram(t, args...)
	for _, stall := range stalls {
		p, q := startProgram(t, args...), startProgram(t, args...)
		for _, policy := range policies {
			client := fmt.Sprint("c", stall)
			admits := func(s service, n int) {
				t.Helper()
				for range n {
					require.True(t, s.check(t, policy, client, 1).Allowed)
				}
			}
			requireUsed(t, p.service, policy, client, 0)
			requireUsed(t, q.service, policy, client, 0)
			admits(p.service, 3)
			memcached.Pause()
			resume := time.Now().Add(stall)
			admits(p.service, 20)
			admits(q.service, 15)
			time.Sleep(time.Until(resume))
			memcached.Resume()
			admits(q.service, 2)
			admits(p.service, 1)
			used := int64(0)
			require.Eventually(t, func() bool {
				// Whoever is answered has it count.
				p.check(t, policy, client, 0)
				q.check(t, policy, client, 0)
				used = third.check(t, policy, client, 0).used(0)
				return used == 41
			}, patience, time.Millisecond, "%s %s", policy, client)
		}
		require.NoError(t, p.end())
		require.NoError(t, q.end())
		for _, policy := range policies {
			requireUsed(t, third.service, policy, fmt.Sprint("c", stall), 41)
		}
	}
}

// What an instance has admitted alone is counted although nobody asks it any
// more.
func TestAnIdleInstanceHasItsAdmissionsCounted(t *testing.T) {
	t.Parallel()
	file, policies := oneOfEach(t, "local")
	memcached := memcachedtest.Start(t)
	args := []string{"-config", file, "-memcached", memcached.Addr}
	p, other := startProgram(t, args...), startProgram(t, args...)
	memcached.Pause()
	for _, policy := range policies {
		for range 20 {
			require.True(t, p.check(t, policy, "c", 1).Allowed)
		}
	}
	memcached.Resume()
	for _, policy := range policies {
		requireUsed(t, other.service, policy, "c", 20)
	}
}
