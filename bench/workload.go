package main

import (
	"fmt"
	"net/http"
	"strings"
	"time"
)

const (
	keyPrefix = "weir"
	limitName = "limit"
	window    = time.Minute

	clientPrefix = "client-"
	clientDigits = 8

	// never is a limit that no run reaches.
	never = 1_000_000_000
	// low is the limit of those who are denied.
	low = 100
)

// An algorithm is one that the bench measures; subWindows is 0 for a fixed
// window.
type algorithm struct {
	name       string
	subWindows int64
	strict     bool
}

var (
	fixedWindow = algorithm{name: "fixed"}
	slidingBy60 = algorithm{name: "sliding N=60", subWindows: 60}
	algorithms  = []algorithm{
		fixedWindow,
		{name: "sliding N=1", subWindows: 1},
		{name: "sliding N=4", subWindows: 4},
		slidingBy60,
		{name: "strict N=60", subWindows: 60, strict: true},
	}
)

// A traffic is who asks.
type traffic struct {
	name    string
	clients int64 // asked for in turn
	limit   int64
}

var (
	distinct = traffic{name: "10,000 clients", clients: 10_000, limit: never}
	hot      = traffic{name: "one hot client", clients: 1, limit: never}
	denied   = traffic{name: "one denied client", clients: 1, limit: low}
	traffics = []traffic{distinct, hot, denied}
)

// A workload is a row of the table.
type workload struct {
	algorithm
	traffic
}

// workloads returns all rows.
func workloads() []workload {
	var all []workload
	for _, a := range algorithms {
		for _, t := range traffics {
			all = append(all, workload{a, t})
		}
	}
	return all
}

func (w workload) String() string { return w.algorithm.name + ", " + w.traffic.name }

// policy returns the name of the row's policy.
func (w workload) policy() string {
	name := strings.NewReplacer(" ", "-", "=", "").Replace(strings.ToLower(w.algorithm.name))
	return fmt.Sprintf("%s-%d", name, w.limit)
}

// body returns a check of the client with number n. All have the same length.
func (w workload) body(n int64) string {
	return fmt.Sprintf(`{"policy":%q,"client":%q}`, w.policy(), clientName(n))
}

func (w workload) request() request { return request{checkPath, w.body(0)} }

func clientName(n int64) string { return fmt.Sprintf("%s%0*d", clientPrefix, clientDigits, n) }

// status returns what nearly all checks are answered with.
func (w workload) status() int {
	if w.limit == never {
		return http.StatusOK
	}
	return http.StatusTooManyRequests
}

// policyFile returns a policy file for the rows. A store that fails shows as
// status 503, which ends the run.
func policyFile(rows []workload) string {
	var b strings.Builder
	b.WriteString("policies:\n")
	seen := make(map[string]bool)
	for _, w := range rows {
		if seen[w.policy()] {
			continue
		}
		seen[w.policy()] = true
		limit := "algorithm: fixed_window"
		if w.subWindows > 0 {
			limit = fmt.Sprintf("algorithm: sliding_window, sub_windows: %d", w.subWindows)
		}
		if w.strict {
			limit += ", estimate: strict"
		}
		fmt.Fprintf(&b, "  %s:\n    limits: [{name: %s, %s, limit: %d, window: %s}]\n    on_store_error: deny\n",
			w.policy(), limitName, limit, w.limit, window)
	}
	return b.String()
}

// verify returns an error if what was answered isn't what the row is about: all
// admitted, or nearly all denied. Of the latter no more may be admitted than
// the limit per window that the time since the first check touches.
func (w workload) verify(t tally, sinceFirst time.Duration) error {
	if w.limit == never {
		if t.denied > 0 {
			return fmt.Errorf("%s: %d of %d checks were denied, and none should be", w, t.denied, t.checks())
		}
		return nil
	}
	most := w.limit * (int64(sinceFirst/window) + 2)
	if t.admitted > most || t.denied < t.admitted {
		return fmt.Errorf("%s: %d checks were admitted and %d denied; at most %d should be admitted, and most denied", w, t.admitted, t.denied, most)
	}
	return nil
}
