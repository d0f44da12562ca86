package accuracy

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"time"

	"weir/bench/internal/algorithms"
	"weir/subwindow"
)

// An attackPlan is a burst of as many attempts as the limit at one moment, silence,
// and then one attempt each Spacing until the burst has left the window. It
// knows the clock: window and slots begin at 0.
type attackPlan struct {
	Burst   time.Duration `json:"burst_ns"`
	Resume  time.Duration `json:"resume_ns"` // at or after Burst
	Spacing time.Duration `json:"spacing_ns"`
}

func (a attackPlan) String() string {
	return fmt.Sprintf("burst at %v, from %v on one each %v", a.Burst.Round(time.Microsecond), a.Resume.Round(time.Microsecond), a.Spacing.Round(time.Microsecond))
}

// attempts returns the times at which the attacker asks.
func (a attackPlan) attempts(limit int64) []time.Duration {
	all := slices.Repeat([]time.Duration{a.Burst}, int(limit))
	for at := a.Resume; at < a.Burst+window; at += a.Spacing {
		all = append(all, at)
	}
	return all
}

// pace is how many times the limit an attacker tries in the time in which it
// pays.
const pace = 10

// attacks returns the attack written for an algorithm, and then those written
// for the others, each once. Counters forget when in a slot something came: a
// burst at the very end of a slot is taken to be spread over it, and fades out
// while all of it is still in the window. A bucket refills from its first
// request on.
func attacks(on algorithms.Algorithm, limit int64) []attackPlan {
	written := []attackPlan{attackFor(on, limit)}
	for _, a := range algorithms.All {
		if attack := attackFor(a, limit); !slices.Contains(written, attack) {
			written = append(written, attack)
		}
	}
	return written
}

// attackFor returns the attack written for an algorithm.
func attackFor(a algorithms.Algorithm, limit int64) attackPlan {
	if a.Kind != algorithms.Counters {
		return attackPlan{Spacing: window / time.Duration(pace*limit)}
	}
	return attackPlan{Burst: a.Width(window) - time.Microsecond, Resume: window, Spacing: a.Width(window) / time.Duration(pace*limit)}
}

// An attackResult is what an attack got out of a limiter.
type attackResult struct {
	Attack attackPlan `json:"attack"`
	// Fullest is the most admitted in any window, FullestReleased the most that may
	// proceed in any.
	Fullest         int64 `json:"fullest"`
	FullestReleased int64 `json:"fullest_released"`
}

// An attackRow is the most that was found for an algorithm.
type attackRow struct {
	Algorithm string `json:"algorithm"`
	Limit     int64  `json:"limit"`
	attackResult
	// Bound is the most that theory lets into any window.
	Bound int64 `json:"bound"`
}

// bound returns the most that the algorithm can admit in any window. A bucket holds the
// limit, and just under the limit drains in (t-window, t] after it was full.
func bound(a algorithms.Algorithm, limit int64) int64 {
	switch a.Kind {
	case algorithms.Counters:
		return (&subwindow.Window{Slots: a.Slots, Strict: a.Strict, Capped: a.Capped}).Most(limit)
	case algorithms.Bucket:
		return 2*limit - 1
	default:
		return limit
	}
}

// attackOn returns the most that the written attacks get: one on a large limit,
// of which all would take long, that written for the algorithm.
func attackOn(ctx context.Context, a algorithms.Algorithm, limit int64) (attackRow, error) {
	row := attackRow{Algorithm: a.Name, Limit: limit, Bound: bound(a, limit)}
	played := attacks(a, limit)
	if limit == largeLimit {
		played = played[:1]
	}
	for _, attack := range played {
		r, err := play(ctx, a, attack, limit)
		if err := cmp.Or(err, ctx.Err()); err != nil {
			return attackRow{}, err
		}
		if r.Fullest > row.Fullest {
			row.Attack, row.Fullest = attack, r.Fullest
		}
		row.FullestReleased = max(row.FullestReleased, r.FullestReleased)
	}
	return row, nil
}

// play plays an attack to a new limiter.
func play(ctx context.Context, a algorithms.Algorithm, attack attackPlan, limit int64) (attackResult, error) {
	s, err := newSubject(a, limit, true)
	if err != nil {
		return attackResult{}, err
	}
	var admitted, released []time.Duration
	for _, at := range attack.attempts(limit) {
		answer, err := s.ask(ctx, at)
		if err != nil {
			return attackResult{}, err
		}
		if answer.allowed {
			admitted = append(admitted, at)
			released = append(released, at+answer.wait)
		}
	}
	return attackResult{Attack: attack, Fullest: fullestWindow(admitted, window), FullestReleased: fullestWindow(released, window)}, nil
}
