package faults

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"strings"
	"sync"
	"time"

	"github.com/HdrHistogram/hdrhistogram-go"

	"weir/bench/internal/algorithms"
	"weir/bench/internal/loadgen"
)

const (
	// limit is that of every policy, in a window that no run sees the end of.
	limit  = 100
	window = "168h"

	// patience is how long a caller waits. One that waits longer is stuck.
	patience = 5 * time.Second
)

// policies are the names of those that clients are checked by, policyFile says
// what they are.
var policies, policyFile = policiesOf(append(algorithms.Select(
	algorithms.Fixed, algorithms.Sliding10, algorithms.Strict60, algorithms.Token, algorithms.Leaky, algorithms.Log), algorithms.Counting))

// policiesOf returns a policy for each algorithm.
func policiesOf(all []algorithms.Algorithm) (names []string, file string) {
	file = "policies:\n"
	for _, a := range all {
		names = append(names, a.Short())
		file += fmt.Sprintf("  %s: {limits: [{%s, limit: %d, window: %s}]}\n", a.Short(), a.Policy(), limit, window)
	}
	return names, file
}

// A client is one whose admissions are counted. The counts are guarded by its
// record.
type client struct {
	policy, name    string
	spent           bool  // and every process knows
	admitted, local int64 // cost; local was admitted by answers that are degraded
}

// bound returns what may be admitted: the limit, and what so many processes
// admitted on their own without knowing of each other, or of what has arrived.
func (c *client) bound(unknowing int) int64 {
	if c.spent {
		return limit
	}
	return limit + min(c.local, int64(unknowing)*limit)
}

// An answer is what a check's JSON says.
type answer struct {
	Policy     string  `json:"policy"`
	Client     string  `json:"client"`
	Allowed    bool    `json:"allowed"`
	Degraded   bool    `json:"degraded"`
	RetryAfter float64 `json:"retry_after"`
	Limits     []struct {
		Allowed   bool  `json:"allowed"`
		Limit     int64 `json:"limit"`
		Remaining int64 `json:"remaining"`
	} `json:"limits"`
}

// wrong returns what is wrong with an answer to a check of c, if anything.
func (a *answer) wrong(c *client, status int) error {
	admitted := status == http.StatusOK
	switch {
	case !admitted && status != http.StatusTooManyRequests:
		return fmt.Errorf("status %d", status)
	case a.Policy != c.policy || a.Client != c.name:
		return fmt.Errorf("it is about %s, %s", a.Policy, a.Client)
	case len(a.Limits) != 1 || a.Limits[0].Limit != limit:
		return fmt.Errorf("other limits: %+v", a.Limits)
	case a.Allowed != admitted || a.Limits[0].Allowed != admitted || a.Limits[0].Remaining < 0 || a.Limits[0].Remaining > limit || a.RetryAfter < 0:
		return fmt.Errorf("status %d and %+v", status, *a)
	}
	return nil
}

// A caller asks a weir, on a connection that is dialed when it is needed.
type caller struct {
	addr   string
	client http.Client
}

func newCaller(addr string) *caller {
	return &caller{addr, http.Client{Timeout: patience, Transport: &http.Transport{}}}
}

func (c *caller) ask(method, path, text string) (status int, body []byte, err error) {
	r, err := loadgen.AskBy(context.Background(), &c.client, method, c.addr+path, text)
	return r.Status, r.Body, err
}

// checkTogether checks so many clients of the fixed window in one batch, whose
// names have the numbers from first on.
func (c *caller) checkTogether(names string, first, size int) error {
	checks := make([]string, size)
	for i := range checks {
		checks[i] = fmt.Sprintf(`{"policy":"fixed","client":"%s%d"}`, names, first+i)
	}
	status, body, err := c.ask(http.MethodPost, loadgen.BatchPath, `{"checks":[`+strings.Join(checks, ",")+`]}`)
	if err == nil && status != http.StatusOK {
		err = fmt.Errorf("a batch was answered with status %d: %s", status, body)
	}
	return err
}

func (c *caller) close() { c.client.CloseIdleConnections() }

// A record has what the callers of a row have seen. It is safe for concurrent
// use; whoever reads its fields waits until no caller is left.
type record struct {
	mu      sync.Mutex
	checks  int64
	local   int64 // admitted by answers that are degraded
	stuck   int64
	wrong   []string
	clients []*client

	faultAt time.Time               // when the fault began; zero where there is none
	during  *hdrhistogram.Histogram // of checks while the fault is on
	settled *hdrhistogram.Histogram // of those that began settleAfter later
}

// settleAfter is how long a breaker may take to open.
const settleAfter = 500 * time.Millisecond

func newRecord() *record {
	return &record{during: loadgen.NewHistogram(), settled: loadgen.NewHistogram()}
}

// newClients returns n clients of each policy, which are judged at the end.
func (r *record) newClients(n int) []*client {
	r.mu.Lock()
	defer r.mu.Unlock()
	var clients []*client
	for range n {
		for _, policy := range policies {
			c := &client{policy: policy, name: loadgen.ClientName(int64(len(r.clients)))}
			r.clients = append(r.clients, c)
			clients = append(clients, c)
		}
	}
	return clients
}

// setFault says that a fault begins now, or that it is over.
func (r *record) setFault(on bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.faultAt = time.Time{}
	if on {
		r.faultAt = time.Now()
	}
}

// check checks a client and notes the answer. ok is whether there was a right
// one.
func (r *record) check(by *caller, c *client, cost int64) (a answer, ok bool) {
	begin := time.Now()
	status, body, err := by.ask(http.MethodPost, loadgen.CheckPath, fmt.Sprintf(`{"policy":%q,"client":%q,"cost":%d}`, c.policy, c.name, cost))
	took := time.Since(begin)
	if err == nil && (status == http.StatusOK || status == http.StatusTooManyRequests) {
		err = json.Unmarshal(body, &a)
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	r.checks++
	during := !r.faultAt.IsZero() && begin.After(r.faultAt)
	if during {
		loadgen.Record(r.during, took)
		if begin.After(r.faultAt.Add(settleAfter)) {
			loadgen.Record(r.settled, took)
		}
	}
	if errors.Is(err, context.DeadlineExceeded) {
		r.stuck++
		return a, false
	}
	if err = cmp.Or(err, a.wrong(c, status)); err != nil {
		r.wrong = append(r.wrong, fmt.Sprintf("%s, %s: %v: %s", c.policy, c.name, err, body))
		return a, false
	}
	if a.Allowed {
		c.admitted += cost
		if a.Degraded {
			c.local += cost
			r.local += cost
		}
	}
	return a, true
}

// above returns what was admitted above the limit, and how much of it nothing
// excuses, by policy; below, what is missing to the limits. It judges clients that
// have asked for more than their limit.
func (r *record) above(unknowing int) (above, below int64, unexcused map[string]int64) {
	unexcused = make(map[string]int64)
	for _, c := range r.clients {
		above += max(0, c.admitted-limit)
		below += max(0, limit-c.admitted)
		if n := c.admitted - c.bound(unknowing); n > 0 {
			unexcused[c.policy] += n
		}
	}
	return above, below, unexcused
}
