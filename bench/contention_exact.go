package main

import (
	"context"
	"fmt"
	"slices"
	"time"
)

// The limits of the runs that count what is admitted.
const (
	bucketLimit = 5000 // per second
	bucketBurst = 1000
	logLimit    = 1000 // per second
)

// An exactRun has many more requests than its limit admits.
type exactRun struct {
	loop      string
	processes int
}

func (e exactRun) String() string { return fmt.Sprintf("exact, %s, %d processes", e.loop, e.processes) }

func exactRuns() []exactRun {
	var runs []exactRun
	for _, loop := range []string{combinedCAS, logCAS} {
		for _, processes := range []int{1, 4, 8} {
			runs = append(runs, exactRun{loop, processes})
		}
	}
	return runs
}

func (e exactRun) measure(ctx context.Context, d time.Duration) (outcome, error) {
	m, err := startMemcached(ctx, 64)
	if err != nil {
		return outcome{}, err
	}
	defer m.stop()
	s := share{Loop: e.loop, Memcached: m.addr, Callers: callersPerProcess, Limit: bucketLimit, Burst: bucketBurst}
	if e.loop == logCAS {
		s.Limit = logLimit
	}
	c, err := startCrowd(ctx, s, e.processes)
	if err != nil {
		return outcome{}, err
	}
	defer c.stop()
	return c.run(d)
}

// bucketMost returns the most that a token bucket may admit in the given time.
func bucketMost(limit, burst int64, elapsed time.Duration) float64 {
	return float64(burst) + float64(limit)*elapsed.Seconds()/fill.Seconds()
}

// fullest returns the most admissions in any window (t-length, t]. The times,
// in nanoseconds, must be sorted.
func fullest(admissions []int64, length time.Duration) int {
	most, oldest := 0, 0
	for i, t := range admissions {
		for t-admissions[oldest] >= int64(length) {
			oldest++
		}
		most = max(most, i-oldest+1)
	}
	return most
}

// unfounded returns how many of the obstacles are none. A denied request names
// the oldest admission in its way, at time t, and comes before t+length. It is
// rightly denied if t is an admission and [t, t+length) holds as many as the
// limit. The admissions must be sorted.
//
// With fullest at most the limit, and nothing unfounded, the decisions are those
// of an exact log that decides the same requests in the same order: each
// admitted one found room, and each denied one found none. A request older than
// the newest admission is decided as of that admission's time.
func unfounded(admissions, obstacles []int64, limit int, length time.Duration) int {
	n := 0
	for _, t := range obstacles {
		from, found := slices.BinarySearch(admissions, t)
		to, _ := slices.BinarySearch(admissions, t+int64(length))
		if !found || to-from < limit {
			n++
		}
	}
	return n
}
