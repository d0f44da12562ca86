package e2e

import (
	"fmt"
	"net/http"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"weir/cmd/server/servertest"
	"weir/counters/memcachedtest"
)

// stalls are how long Memcached stands still: its connection is kept, or has
// been replaced.
var stalls = []time.Duration{0, 2500 * time.Millisecond}

// Checks that were refused because Memcached stood still take nothing from the
// limit, although it counts them when it goes on.
func TestRefusedChecksTakeNothing(t *testing.T) {
	t.Parallel()
	file, policies := servertest.OneOfEach(t, "deny")
	memcached := memcachedtest.Start(t)
	p := startProcess(t, "-config", file, "-memcached", memcached.Addr, "-store-timeout", "400ms")
	type charged struct{ policy, client string }
	var refused []charged
	for _, stall := range stalls {
		for _, policy := range policies {
			client := fmt.Sprint("c", stall)
			servertest.RequireUsed(t, p.Service, policy, client, 0)
			memcached.Pause()
			resume := time.Now().Add(stall)
			var callers sync.WaitGroup
			for range 30 {
				callers.Go(func() { assert.Equal(t, http.StatusServiceUnavailable, p.Check(t, policy, client, 1).Status) })
			}
			callers.Wait()
			time.Sleep(time.Until(resume))
			memcached.Resume()
			servertest.RequireUsed(t, p.Service, policy, client, 0)
			refused = append(refused, charged{policy, client})
		}
	}
	for _, c := range refused {
		servertest.RequireUsed(t, p.Service, c.policy, c.client, 0)
	}
	_, metrics := p.Get(t, "/metrics")
	assert.Contains(t, metrics, "weir_refunds_failed_total 0\n")
}

// Refused checks whose outcome nobody will ever know are counted. Of a bucket or a
// log its state tells, or is lost.
func TestRefusedChecksOfALostServerAreCounted(t *testing.T) {
	t.Parallel()
	file, policies := servertest.OneOfEach(t, "deny")
	for _, policy := range policies {
		if !strings.HasSuffix(policy, "-window") {
			continue
		}
		memcached := memcachedtest.Start(t)
		p := startProcess(t, "-config", file, "-memcached", memcached.Addr, "-store-timeout", "100ms")
		servertest.RequireUsed(t, p.Service, policy, "c", 0)
		memcached.Pause()
		require.Equal(t, http.StatusServiceUnavailable, p.Check(t, policy, "c", 1).Status)
		memcached.Kill()
		require.Eventually(t, func() bool {
			_, metrics := p.Get(t, "/metrics")
			return strings.Contains(metrics, "weir_refunds_failed_total 1\n")
		}, servertest.Patience, time.Millisecond)
	}
}

// Two instances that limit alone while Memcached stands still have it count
// what they have admitted, once.
func TestWhatIsAdmittedDuringAStallIsCountedOnce(t *testing.T) {
	t.Parallel()
	file, policies := servertest.OneOfEach(t, "local")
	memcached := memcachedtest.Start(t)
	args := []string{"-config", file, "-memcached", memcached.Addr, "-store-timeout", "100ms"}
	third := startProcess(t, args...)
	for _, stall := range stalls {
		p, q := startProcess(t, args...), startProcess(t, args...)
		for _, policy := range policies {
			client := fmt.Sprint("c", stall)
			admits := func(s servertest.Service, n int) {
				t.Helper()
				for range n {
					require.True(t, s.Check(t, policy, client, 1).Allowed)
				}
			}
			servertest.RequireUsed(t, p.Service, policy, client, 0)
			servertest.RequireUsed(t, q.Service, policy, client, 0)
			admits(p.Service, 3)
			memcached.Pause()
			resume := time.Now().Add(stall)
			admits(p.Service, 20)
			admits(q.Service, 15)
			time.Sleep(time.Until(resume))
			memcached.Resume()
			admits(q.Service, 2)
			admits(p.Service, 1)
			var last servertest.Answer
			require.Eventually(t, func() bool {
				// Whoever is answered has it count.
				p.Check(t, policy, client, 0)
				q.Check(t, policy, client, 0)
				last = third.Check(t, policy, client, 0)
				return last.Used(0) == 41
			}, servertest.Patience, time.Millisecond, "%s %s: %+v", policy, client, &last)
		}
		for _, process := range []*process{p, q} {
			process.terminate(t)
			process.requireExit(t)
		}
		for _, policy := range policies {
			servertest.RequireUsed(t, third.Service, policy, fmt.Sprint("c", stall), 41)
		}
	}
}

// What an instance has admitted alone is counted although nobody asks it any
// more.
func TestAnIdleInstanceHasItsAdmissionsCounted(t *testing.T) {
	t.Parallel()
	file, policies := servertest.OneOfEach(t, "local")
	memcached := memcachedtest.Start(t)
	args := []string{"-config", file, "-memcached", memcached.Addr}
	p, other := startProcess(t, args...), startProcess(t, args...)
	memcached.Pause()
	for _, policy := range policies {
		for range 20 {
			require.True(t, p.Check(t, policy, "c", 1).Allowed)
		}
	}
	memcached.Resume()
	for _, policy := range policies {
		servertest.RequireUsed(t, other.Service, policy, "c", 20)
	}
}
