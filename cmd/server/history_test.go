package main

import (
	"fmt"
	"net/http"
	"slices"
	"strings"
	"time"

	"weir/counters"
)

// A history is what callers of some processes saw. Its times are since start,
// by the clock of the callers.
type history struct {
	name     string // says how to have it again
	start    time.Time
	skew     time.Duration
	timeout  time.Duration
	offsets  []time.Duration // of the processes' clocks
	policies []policy
	events   []event
	losses   []span // in which the store lost all counts
	faults   []fault
}

// An event is a check and its answer. It took effect at some moment from call
// to back.
type event struct {
	process        int
	policy, client string
	cost           int64
	span
	status   int // 0 if there was no answer
	allowed  bool
	degraded bool
	// returns: alone, and not before the last denial's retry_after.
	returns bool
}

type span struct{ call, back time.Duration }

type fault struct {
	at   time.Duration
	what string
}

// A policy promises all of its limits.
type policy struct {
	name        string
	limits      []promise
	countDenied bool
	deny        bool // on_store_error
}

// A promise is a limit as the policy file has it.
type promise struct {
	algorithm, estimate string
	limit, burst        int64
	window              time.Duration
	slots               int
}

func (l promise) width() time.Duration { return l.window / time.Duration(max(1, l.slots)) }

// most returns the most that may be admitted within a span, with clocks that
// are apart; see the docs of packages subwindow and cas. It isn't for fixed
// windows.
func (l promise) most(within, apart time.Duration) int64 {
	const unbounded = 1 << 62
	switch {
	case l.burst > 0:
		return l.burst + l.limit*int64(within+apart)/int64(l.window)
	case l.estimate == strict && within < l.window:
		return l.limit
	case l.algorithm == "sliding_log" && within < l.window-apart:
		return l.limit
	case l.estimate == weighted && within < l.window-l.width()-apart:
		return l.limit
	case l.estimate == weighted && within < l.window-apart:
		return 2 * l.limit
	}
	return unbounded
}

// A violation is a broken promise about a client, and when it was broken.
type violation struct {
	what           string
	policy, client string
	span
}

// judge returns the promises that no order of the events within their spans can
// keep.
func (h *history) judge() (broken []violation) {
	type key struct{ policy, client string }
	asked := make(map[key][]event)
	var keys []key
	for _, e := range h.events {
		k := key{e.policy, e.client}
		if asked[k] == nil {
			keys = append(keys, k)
		}
		asked[k] = append(asked[k], e)
	}
	for _, k := range keys {
		events := asked[k]
		slices.SortStableFunc(events, func(a, b event) int { return int(a.back - b.back) })
		p := h.policies[slices.IndexFunc(h.policies, func(p policy) bool { return p.name == k.policy })]
		judges := []func(policy, []event) (string, span){h.judgeStatus, h.judgeDenials, h.judgeReturns}
		for _, l := range p.limits {
			judges = append(judges, func(_ policy, events []event) (string, span) { return h.judgeLimit(l, events) })
		}
		for _, judge := range judges {
			if what, when := judge(p, events); what != "" {
				broken = append(broken, violation{what, k.policy, k.client, when})
			}
		}
	}
	return broken
}

// judgeStatus lets only on_store_error: deny answer 503, and nothing else but
// 200 and 429. Without an answer nothing is known.
func (h *history) judgeStatus(p policy, events []event) (string, span) {
	for _, e := range events {
		switch {
		case e.status == 0:
		case e.status == http.StatusOK && e.allowed, e.status == http.StatusTooManyRequests && !e.allowed:
		case e.status == http.StatusServiceUnavailable && p.deny && e.degraded:
		default:
			return fmt.Sprintf("%+v is no documented answer", e), e.span
		}
	}
	return "", span{}
}

// judgeLimit compares what was admitted with the most that the limit promises.
// What was admitted without the store doesn't count, and what the store lost is
// forgotten.
func (h *history) judgeLimit(l promise, events []event) (string, span) {
	judge := h.judgeSpans
	if l.algorithm == "fixed_window" {
		judge = h.judgeCalendar
	}
	lives := make([][]event, len(h.losses)+1)
	for _, e := range events {
		if life, ok := h.life(e.span); ok && e.allowed && !e.degraded {
			lives[life] = append(lives[life], e)
		}
	}
	for _, admitted := range lives {
		if what, when := judge(l, admitted); what != "" {
			return what, when
		}
	}
	return "", span{}
}

// judgeCalendar sums up each calendar window. By the clock of its process, all
// of an event has to be in it.
func (h *history) judgeCalendar(l promise, admitted []event) (string, span) {
	sums := make(map[int64]int64)
	for _, e := range admitted {
		clock := h.start.Add(h.offsets[e.process])
		number := counters.Calendar(clock.Add(e.call), l.window).Number
		if number != counters.Calendar(clock.Add(e.back), l.window).Number {
			continue
		}
		if sums[number] += e.cost; sums[number] > l.limit {
			return fmt.Sprintf("%d of %d admitted in a calendar window of %v", sums[number], l.limit, l.window),
				span{e.back - l.window, e.back}
		}
	}
	return "", span{}
}

// judgeSpans sums up every span from a call to an answer, with the events that
// are wholly in it.
func (h *history) judgeSpans(l promise, admitted []event) (string, span) {
	apart := slices.Max(h.offsets) - slices.Min(h.offsets)
	for _, first := range admitted {
		var sum int64
		for _, last := range admitted {
			if last.call < first.call {
				continue
			}
			sum += last.cost
			within := last.back - first.call
			if most := l.most(within, apart); sum > most {
				return fmt.Sprintf("%s %s admitted %d within %v, not %d", l.algorithm, l.estimate, sum, within, most),
					span{first.call, last.back}
			}
		}
	}
	return "", span{}
}

// life returns how often the store had lost its counts before s, or false if it
// did so meanwhile.
func (h *history) life(s span) (n int, ok bool) {
	for _, lost := range h.losses {
		switch {
		case s.call >= lost.back:
			n++
		case s.back > lost.call:
			return 0, false
		}
	}
	return n, true
}

// judgeDenials looks for one that nothing is a reason for: all that was asked
// lately, admitted or not, would have fit with it. Buckets and logs may also
// deny when the deadline comes after the state has been read.
func (h *history) judgeDenials(p policy, events []event) (string, span) {
	swaps := func(l promise) bool { return l.estimate == "" && l.algorithm != "fixed_window" }
	if slices.ContainsFunc(p.limits, swaps) {
		return "", span{}
	}
	for _, denied := range events {
		if denied.status != http.StatusTooManyRequests {
			continue
		}
		reason := false
		for _, l := range p.limits {
			// How long a count is in the window, and a stale knowledge of it in
			// use.
			reach := l.window + 2*(l.width()+h.skew+h.timeout) + counters.MaxStaleness
			var sum int64
			for _, e := range slices.Backward(events) {
				if e.back <= denied.call-reach || sum > l.limit {
					break
				}
				if e.call < denied.back {
					sum += e.cost // its own is among them
				}
			}
			if reason = sum > l.limit; reason {
				break
			}
		}
		if !reason {
			return fmt.Sprintf("a cost of %d is denied without reason", denied.cost), denied.span
		}
	}
	return "", span{}
}

// judgeReturns checks that a lone client which waited as long as it was told is
// admitted. A bucket or log that took half of the timeout may have been cut
// off.
func (h *history) judgeReturns(_ policy, events []event) (string, span) {
	for _, e := range events {
		if e.returns && e.status == http.StatusTooManyRequests && h.quick(e) {
			return "denied after its retry_after, alone", e.span
		}
	}
	return "", span{}
}

func (h *history) quick(e event) bool { return e.back-e.call < h.timeout/2 }

// summary counts the events by their outcome.
func (h *history) summary() string {
	outcomes := make(map[string]int)
	for _, e := range h.events {
		outcomes[e.outcome()]++
	}
	return fmt.Sprintf("%d processes, %d faults, %v", len(h.offsets), len(h.faults), outcomes)
}

// timeline tells what led to a violation, in the order of the calls.
func (h *history) timeline(v violation) string {
	var b strings.Builder
	fmt.Fprintf(&b, "%s: %s %s: %s\nclocks %v, -clock-skew %v, -store-timeout %v, %+v\n",
		h.name, v.policy, v.client, v.what, h.offsets, h.skew, h.timeout, h.policies)
	from := v.call - 2*time.Second
	type line struct {
		at   time.Duration
		text string
	}
	var lines []line
	for _, f := range h.faults {
		lines = append(lines, line{f.at, fmt.Sprintf("%v %s", f.at, f.what)})
	}
	for _, e := range h.events {
		if e.policy == v.policy && e.client == v.client && e.back >= from && e.call <= v.back {
			lines = append(lines, line{e.call, e.String()})
		}
	}
	slices.SortStableFunc(lines, func(a, b line) int { return int(a.at - b.at) })
	for _, l := range lines {
		fmt.Fprintln(&b, l.text)
	}
	return b.String()
}

func (e event) String() string {
	return fmt.Sprintf("%v to %v, process %d, cost %d: %s", e.call, e.back, e.process, e.cost, e.outcome())
}

func (e event) outcome() string {
	outcome := fmt.Sprint(e.status)
	if e.degraded {
		outcome += " degraded"
	}
	if e.returns {
		outcome += " after retry_after"
	}
	return outcome
}
