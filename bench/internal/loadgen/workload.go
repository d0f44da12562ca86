// Package loadgen sends checks over HTTP and gRPC and measures how long their
// answers take: in closed loops, in which each connection asks again at once, and
// in an open one, which sends what is due. It also has the server that does
// nothing, to compare with.
//
// Start with Dial and Connections.Drive, or Connections.OpenLoop; a Pace says when
// that sends.
package loadgen

import (
	"bytes"
	"fmt"
	"net/http"
	"strings"
	"time"

	"weir/bench/internal/algorithms"
)

const (
	// Never is a limit that no run reaches.
	Never = 1_000_000_000
	// Low is the limit of those who are denied.
	Low = 100
)

// A Traffic is who asks.
type Traffic struct {
	Name    string
	Clients int64 // asked for in turn
	Limit   int64
}

// The traffics of the workloads.
var (
	Distinct = Traffic{Name: "10,000 clients", Clients: 10_000, Limit: Never}
	Few      = Traffic{Name: "1,000 clients", Clients: 1000, Limit: Never}
	Million  = Traffic{Name: "1,000,000 clients", Clients: 1_000_000, Limit: Never}
	Hot      = Traffic{Name: "one hot client", Clients: 1, Limit: Never}
	Denied   = Traffic{Name: "one denied client", Clients: 1, Limit: Low}
)

// A Workload is checks of one policy by some clients.
type Workload struct {
	Algorithm algorithms.Algorithm
	Traffic
}

func (w Workload) String() string { return w.Algorithm.Title() + ", " + w.Traffic.Name }

// Policy returns the name of the workload's policy.
func (w Workload) Policy() string {
	return fmt.Sprintf("%s-%d", algorithms.Plain(w.Algorithm.Title()), w.Limit)
}

// Check returns a check of the client with number n.
func Check(policy string, n int64) Request {
	return Request{Path: CheckPath, Body: fmt.Sprintf(`{"policy":%q,"client":%q}`, policy, ClientName(n))}
}

// Batch returns a batch of checks of so many clients, all of whom must be admitted.
func Batch(policy string, size int) Request {
	checks := make([]string, size)
	for i := range checks {
		checks[i] = Check(policy, int64(i)).Body
	}
	return Request{BatchPath, `{"checks":[` + strings.Join(checks, ",") + `]}`, func(body []byte) bool {
		return bytes.Count(body, []byte(`"status":200,`)) >= size
	}}
}

// Request returns a check of client 0.
func (w Workload) Request() Request { return Check(w.Policy(), 0) }

// Status returns what nearly all checks are answered with.
func (w Workload) Status() int {
	if w.Limit == Never {
		return http.StatusOK
	}
	return http.StatusTooManyRequests
}

// PolicyFile returns a policy file for the workloads. A store that fails shows
// as status 503, which ends the run.
func PolicyFile(rows []Workload) string {
	var b strings.Builder
	b.WriteString("policies:\n")
	seen := make(map[string]bool)
	for _, w := range rows {
		if seen[w.Policy()] {
			continue
		}
		seen[w.Policy()] = true
		lasts := "window"
		if w.Algorithm.Name == algorithms.Leases.Name {
			lasts = "lease"
		}
		fmt.Fprintf(&b, "  %s:\n    limits: [{name: %s, %s, limit: %d, %s: %s}]\n    on_store_error: deny\n",
			w.Policy(), algorithms.LimitName, w.Algorithm.Policy(), w.Limit, lasts, algorithms.Window)
	}
	return b.String()
}

// Verify returns an error if what was answered isn't what the row is about: all
// admitted, or nearly all denied. Of the latter no more may be admitted than
// the limit per window that the time since the first check touches.
func (w Workload) Verify(t Tally, sinceFirst time.Duration) error {
	if w.Limit == Never {
		if t.Denied > 0 {
			return fmt.Errorf("%s: %d of %d checks were denied, and none should be", w, t.Denied, t.Checks())
		}
		return nil
	}
	most := w.Limit * (int64(sinceFirst/algorithms.Window) + 2)
	if t.Admitted > most || t.Denied < t.Admitted {
		return fmt.Errorf("%s: %d checks were admitted and %d denied; at most %d should be admitted, and most denied", w, t.Admitted, t.Denied, most)
	}
	return nil
}
