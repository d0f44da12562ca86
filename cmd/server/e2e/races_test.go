package e2e

import (
	"cmp"
	"fmt"
	"net/http"
	"slices"
	"testing"
	"time"

	rls "github.com/envoyproxy/go-control-plane/envoy/service/ratelimit/v3"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"google.golang.org/grpc/credentials/insecure"

	"weir/cmd/server/servertest"
	"weir/counters/limitertest"
	"weir/counters/memcachedtest"
)

// A race is what callers of several processes ask at once for one client, whose limit they are
// admitted together, and not one more.
type race struct {
	name  string
	start func(t *testing.T) []*process

	// In a race for a limit of atOnce a request is denied only if the limit is used up. Callers that
	// race for the last places of the others may all be denied, and have to ask again.
	atOnce, others []string
	limit          int64
	clients        int // that callers race for, one after the other; 0 means 1

	callers, requests int             // callers of each process, requests of each caller
	cost              func(int) int64 // of a caller's i-th request; nil means 1
	largest           int64           // cost; 0 means 1

	// connect returns what a caller asks its process by: it returns the cost that is admitted, or 0.
	connect func(t *testing.T, p *process, caller int, policy, client string) func(cost int64) int64
	// counted returns the count of each limit that has counted what was admitted, as a process sees it.
	counted func(t *testing.T, p *process, policy, client string) []int64
	// after is what else holds when all is over; or nil.
	after func(t *testing.T, processes []*process)
}

// checks are made on a connection that each caller has.
func checks(t *testing.T, p *process, _ int, policy, client string) func(cost int64) int64 {
	c := rawClient{address: p.Address()}
	require.NoError(t, c.dial())
	t.Cleanup(func() { c.conn.Close() })
	return func(cost int64) int64 {
		a, err := c.check(fmt.Sprintf(`{"policy":%q,"client":%q,"cost":%d}`, policy, client, cost))
		if assert.NoError(t, err) && assert.False(t, a.Degraded) && a.Allowed {
			return cost
		}
		return 0
	}
}

// countedBy returns a function that reads the count of a limit. It asks with a larger limit, to
// see a count above the limit too.
func countedBy(limit string) func(t *testing.T, p *process, policy, client string) []int64 {
	return func(t *testing.T, p *process, policy, client string) []int64 {
		a := p.Ask(t, http.MethodPost, "/v1/check", "application/json", `{"policy":"`+policy+`","client":"`+client+`","cost":0,"limits":{"`+limit+`":1000000}}`)
		return []int64{a.Used(0)}
	}
}

// taken returns how much of a capacity isn't left.
func taken(t *testing.T, p *process, policy, client string, capacity int64) int64 {
	return capacity - p.Ask(t, http.MethodGet, "/v1/policies/"+policy+"/clients/"+client, "", "").Limits[0].Remaining
}

// The built-in policies are of a minute; all others are of so long that nothing refills.
func races(t *testing.T) []race {
	oneOfEach, policies := servertest.OneOfEach(t, "deny")
	one := func(t *testing.T) (servers []string) {
		a := memcachedtest.Start(t).Addr
		return []string{a, a, a, a}
	}
	two := func(t *testing.T) (servers []string) { // in any order
		a, b := memcachedtest.Start(t).Addr, memcachedtest.StartSocket(t).Addr
		return []string{a + "," + b, b + "," + a, b + ", " + a, a + "," + b}
	}
	all := []race{
		{
			name:   "fixed window, one Memcached",
			start:  func(t *testing.T) []*process { return startProcesses(t, one(t)) },
			atOnce: []string{"fixed"}, limit: 100, callers: 64, requests: 40, connect: checks, counted: countedBy("fixed-window"),
		}, {
			name:   "fixed window, two Memcached",
			start:  func(t *testing.T) []*process { return startProcesses(t, two(t)) },
			atOnce: []string{"fixed"}, limit: 100, callers: 64, requests: 40, connect: checks, counted: countedBy("fixed-window"),
		}, {
			name:   "sliding windows",
			start:  func(t *testing.T) []*process { return startProcesses(t, two(t)) },
			others: []string{"sliding", "default", "sliding-1s", "strict"}, limit: 100, callers: 64, requests: 10, connect: checks, counted: countedBy("sliding-window"),
		}, {
			name: "buckets and logs",
			start: func(t *testing.T) []*process {
				return startProcesses(racing{t}, two(t), "-config", servertest.WriteFile(t, "p.yaml", `
policies:
  token: {limits: [{algorithm: token_bucket, limit: 100, window: 366d, burst: 150}]}
  leaky: {limits: [{algorithm: leaky_bucket, limit: 100, window: 366d, burst: 150}]}
  log: {limits: [{algorithm: sliding_log, limit: 150, window: 366d}]}
  counting: {limits: [{algorithm: sliding_log, limit: 150, window: 366d, entries: 8}]}
`))
			},
			atOnce: []string{"token", "leaky", "log", "counting"}, limit: 150, clients: 2, // on both servers, more or less
			callers: 64, requests: 10, connect: checks,
			counted: func(t *testing.T, p *process, policy, client string) []int64 {
				return []int64{taken(t, p, policy, client, 150)}
			},
			after: func(t *testing.T, processes []*process) {
				metrics := ""
				for _, p := range processes {
					_, body := p.Get(t, "/metrics")
					metrics += body
				}
				assert.Regexp(t, `weir_cas_conflicts_total [1-9]`, metrics, "processes did race")
				assert.NotRegexp(t, `weir_cas_foreign_values_total [1-9]`, metrics)
			},
		}, {
			name: "two limits, costs from 1 to 7",
			start: func(t *testing.T) []*process {
				return startProcesses(racing{t}, one(t), "-config", servertest.WriteFile(t, "p.yaml", `
policies:
  mixed:
    limits:
      - {algorithm: sliding_window, limit: 500, window: 1m, sub_windows: 6}
      - {algorithm: fixed_window, limit: 10000, window: 366d}
`))
			},
			others: []string{"mixed"}, limit: 500, callers: 64, requests: 10, cost: func(i int) int64 { return int64(i%7 + 1) }, largest: 7, connect: checks,
			counted: func(t *testing.T, p *process, policy, client string) []int64 {
				now := p.Check(t, policy, client, 0)
				return []int64{now.Used(0), now.Used(1)}
			},
		}, {
			// Instances in several regions share their limits over such links.
			name: "links of 100 ms",
			start: func(t *testing.T) []*process {
				far := memcachedtest.Start(t).Far(100 * time.Millisecond)
				return startProcesses(t, []string{far, far, far}, "-config", oneOfEach)
			},
			others: policies, limit: 100, callers: 22, requests: 4,
			connect: func(t *testing.T, p *process, _ int, policy, client string) func(cost int64) int64 {
				return func(cost int64) int64 {
					if p.Check(t, policy, client, cost).Status == http.StatusOK {
						return cost
					}
					return 0
				}
			},
			counted: func(t *testing.T, p *process, policy, client string) []int64 {
				return []int64{taken(t, p, policy, client, 100)}
			},
		}, {
			name: "all or none",
			start: func(t *testing.T) []*process {
				servers := memcachedtest.Start(t).Addr + "," + memcachedtest.Start(t).Addr
				return startProcesses(racing{t}, []string{servers, servers, servers, servers}, "-config", servertest.WriteFile(t, "p.yaml", `
policies:
  wide: {limits: [{algorithm: sliding_window, limit: 2000, window: 30d, estimate: strict}]}
  fixed: {limits: [{algorithm: fixed_window, limit: 100, window: 366d}]}
  bucket: {limits: [{algorithm: token_bucket, limit: 100, window: 366d}]}
  log: {limits: [{algorithm: sliding_log, limit: 100, window: 366d}]}
`))
			},
			others: []string{"fixed", "bucket", "log"}, limit: 100, callers: 16, requests: 6,
			// Other clients are asked for beside it, which are on several servers, whichever has the one.
			connect: func(t *testing.T, p *process, caller int, policy, client string) func(cost int64) int64 {
				body := fmt.Sprintf(`{"all":true,"checks":[{"policy":"wide","client":"%s-%s-%d"},{"policy":%q,"client":%q}]}`, client, policy, caller%4, policy, client)
				return func(int64) int64 {
					status, _, answer, err := p.Send(http.MethodPost, "/v1/check/batch", "application/json", body)
					if assert.NoError(t, err) && assert.Contains(t, []int{http.StatusOK, http.StatusTooManyRequests}, status, "%s", answer) && status == http.StatusOK {
						return 1
					}
					return 0
				}
			},
			counted: func(t *testing.T, p *process, policy, client string) []int64 {
				var wide int64
				for i := range 4 {
					wide += taken(t, p, "wide", fmt.Sprintf("%s-%s-%d", client, policy, i), 2000)
				}
				return []int64{taken(t, p, policy, client, 100), wide}
			},
		},
	}
	for _, instances := range []int{1, 4} {
		var caller rls.RateLimitServiceClient // of the connection that 16 callers share
		all = append(all, race{
			name: fmt.Sprintf("Envoy, %d instances", instances),
			start: func(t *testing.T) []*process {
				return startProcesses(t, one(t)[:instances], "-grpc-listen", "127.0.0.1:0", "-envoy-config", servertest.WriteFile(t, "shop.yaml", envoyShop))
			},
			atOnce: []string{"user"}, others: []string{"bucket", "slide"}, limit: 100, callers: 64, requests: 10,
			connect: func(t *testing.T, p *process, i int, policy, client string) func(cost int64) int64 {
				if i%16 == 0 {
					caller = dialGRPC(t, p.log, insecure.NewCredentials())
				}
				c := caller
				return func(int64) int64 {
					if envoyAsks(t, c, descriptor(policy, client), descriptor("wide", policy+client)).OverallCode == rls.RateLimitResponse_OK {
						return 1
					}
					return 0
				}
			},
			// A denied request has taken nothing from the other limit that it asked.
			counted: func(t *testing.T, p *process, policy, client string) []int64 {
				look := envoyAsks(t, dialGRPC(t, p.log, insecure.NewCredentials()), descriptor("wide", policy+client))
				return []int64{1000 - 1 - int64(look.Statuses[0].LimitRemaining)}
			},
		})
	}
	return all
}

func TestProcessesThatRaceFillTheLimit(t *testing.T) {
	t.Parallel()
	for _, r := range races(t) {
		t.Run(r.name, func(t *testing.T) {
			t.Parallel()
			processes := r.start(t)
			for _, policy := range slices.Concat(r.atOnce, r.others) {
				for n := range cmp.Or(r.clients, 1) {
					t.Run(fmt.Sprint(policy, n), func(t *testing.T) { r.run(t, processes, policy, fmt.Sprint("-", n)) })
				}
			}
			if r.after != nil {
				r.after(t, processes)
			}
		})
	}
}

func (r *race) run(t *testing.T, processes []*process, policy, name string) {
	type result struct {
		raced, after int64
		counted      []int64
	}
	largest := cmp.Or(r.largest, 1)
	got := withinMinute(t, func(client string) (got result) {
		client += name
		var asks []func(cost int64) int64
		for _, p := range processes {
			for i := range r.callers {
				asks = append(asks, r.connect(t, p, i, policy, client))
			}
		}
		got.raced = limitertest.RaceOfCosts(len(asks), r.requests, func(caller, request int) int64 {
			if r.cost != nil {
				return asks[caller](r.cost(request))
			}
			return asks[caller](1)
		})
		// What was denied is given back before the answer, so that a lone caller gets what is left.
		for asks[0](largest) > 0 {
			got.after += largest
		}
		got.counted = r.counted(t, processes[len(processes)-1], policy, client)
		return got
	})
	t.Logf("%d admitted in the race, %d after it", got.raced, got.after)
	admitted := got.raced + got.after
	if slices.Contains(r.atOnce, policy) {
		assert.Equal(t, r.limit, got.raced)
	}
	assert.LessOrEqual(t, admitted, r.limit)
	assert.Greater(t, admitted, r.limit-largest)
	for _, counted := range got.counted {
		assert.Equal(t, admitted, counted)
	}
}
