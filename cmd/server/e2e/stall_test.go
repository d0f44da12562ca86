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

// A stall is what instances do with checks while Memcached stands still, and what it counts of
// them when it goes on.
type stall struct {
	name         string
	onStoreError string
	timeout      string // of the store
	race         bool   // whether the instances have the race detector
	atOnce       bool   // whether those during the stall are asked at once

	lasts                 []time.Duration // each at least
	before, during, after []int           // how many checks each instance gets; no after: it is idle then
	meanwhile             func(t *testing.T, p *process)
	counted               int64 // in the end
}

// Memcached's connection is kept, or it stands still for so long that it has been replaced.
var shortAndLong = []time.Duration{0, 2500 * time.Millisecond}

var stalls = []stall{
	{
		name: "what is refused takes nothing", onStoreError: "deny", timeout: "400ms", atOnce: true,
		lasts: shortAndLong, before: []int{0}, during: []int{30}, after: []int{0}, counted: 0,
	}, {
		name: "what two instances admit alone is counted once", onStoreError: "local", timeout: "100ms",
		lasts: shortAndLong, before: []int{3, 0}, during: []int{20, 15}, after: []int{1, 2}, counted: 41,
	}, {
		name: "an idle instance has its admissions counted", onStoreError: "local", timeout: "50ms",
		lasts: []time.Duration{0}, before: []int{0}, during: []int{20}, counted: 20,
	}, {
		name: "an instance isn't ready meanwhile", onStoreError: "local", timeout: "50ms", race: true,
		lasts: []time.Duration{0}, before: []int{0}, during: []int{5}, after: []int{1}, counted: 6,
		meanwhile: func(t *testing.T, p *process) {
			status, body := p.Get(t, "/readyz")
			assert.Equal(t, http.StatusServiceUnavailable, status)
			assert.Contains(t, body, `"error":"the store is not available: `)
		},
	},
}

func TestStalls(t *testing.T) {
	t.Parallel()
	for _, s := range stalls {
		for _, lasts := range s.lasts {
			t.Run(fmt.Sprintf("%s, %v", s.name, lasts), func(t *testing.T) {
				t.Parallel()
				s.run(t, lasts)
			})
		}
	}
}

func (s *stall) run(t *testing.T, lasts time.Duration) {
	file, policies := servertest.OneOfEach(t, s.onStoreError)
	memcached := memcachedtest.Start(t)
	args := []string{"-config", file, "-memcached", memcached.Addr, "-store-timeout", s.timeout}
	var tb testing.TB = t
	if s.race {
		tb = racing{t}
	}
	instances := make([]*process, len(s.before))
	for i := range instances {
		instances[i] = startProcess(tb, args...)
	}
	other := startProcess(t, args...)
	for _, policy := range policies {
		check := func(p *process) servertest.Answer { return p.Check(t, policy, "c", 1) }
		admits := func(checks []int) {
			for i, n := range checks {
				for range n {
					require.True(t, check(instances[i]).Allowed, policy)
				}
			}
		}
		for _, p := range instances {
			servertest.RequireUsed(t, p.Service, policy, "c", 0)
		}
		admits(s.before)
		memcached.Pause()
		resume := time.Now().Add(lasts)
		for i, p := range instances {
			alone := func() { // each is answered while it stands still
				if a := check(p); s.onStoreError == "deny" {
					assert.Equal(t, http.StatusServiceUnavailable, a.Status, policy)
				} else {
					assert.True(t, a.Allowed && a.Degraded, "%s: %+v", policy, a)
				}
			}
			var asking sync.WaitGroup
			for range s.during[i] {
				if asking.Go(alone); !s.atOnce {
					asking.Wait()
				}
			}
			asking.Wait()
			if s.meanwhile != nil {
				s.meanwhile(t, p)
			}
		}
		time.Sleep(time.Until(resume))
		memcached.Resume()
		admits(s.after)
		require.Eventually(t, func() bool {
			for i := range s.after { // whoever is answered has it count
				instances[i].Check(t, policy, "c", 0)
			}
			a := other.Check(t, policy, "c", 0)
			return a.Status == http.StatusOK && !a.Degraded && a.Used(0) == s.counted
		}, servertest.Patience, time.Millisecond, "%s isn't %d", policy, s.counted)
	}
	for i, p := range instances {
		awaitReady(t, p)
		for _, policy := range policies {
			if len(s.after) > i { // what it has learned itself
				servertest.RequireUsed(t, p.Service, policy, "c", s.counted)
			}
		}
		_, metrics := p.Get(t, "/metrics")
		assert.Contains(t, metrics, "weir_refunds_failed_total 0\n")
		p.terminate(t)
		p.requireExit(t)
	}
	for _, policy := range policies {
		servertest.RequireUsed(t, other.Service, policy, "c", s.counted)
	}
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
