package e2e

import (
	"cmp"
	"fmt"
	"math"
	"net/http"
	"slices"
	"strings"
	"time"

	"weir/api/policy"
	"weir/counters"
	"weir/subwindow"
)

// A history is what callers of some processes saw. Its times are since start,
// by the clock of the callers.
type history struct {
	name     string // says how to have it again
	start    time.Time
	skew     time.Duration
	timeout  time.Duration
	offsets  []time.Duration // of the processes' clocks
	policies []promisedPolicy
	events   []event
	resets   []reset
	losses   []span // in which the store lost all counts
	faults   []fault
	calm     time.Duration // since when nothing goes wrong
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

// A reset took effect in each limit at some moment of its span if its status is
// 204. With any other status it may have, in some limits, and later too.
type reset struct {
	process        int
	policy, client string
	span
	status int // 0 if there was no answer
}

type span struct{ call, back time.Duration }

func (s span) overlaps(other span) bool { return s.call < other.back && other.call < s.back }

// longestPause is how long memcached or a process stops at most.
const longestPause = 300 * time.Millisecond

type fault struct {
	at   time.Duration
	what string
}

// A promisedPolicy promises all of its limits.
type promisedPolicy struct {
	name        string
	limits      []promise
	countDenied bool
	onError     policy.OnStoreError
}

const weighted, capped, strict = "weighted", "capped", "strict" // estimates of a sliding window

// A promise is a limit as the policy file has it.
type promise struct {
	algorithm, estimate string
	limit, burst        int64
	window              time.Duration
	slots               int
	entries             int64 // of a log that counts
}

func (l promise) width() time.Duration { return l.window / time.Duration(max(1, l.slots)) }

// capacity returns the largest cost that is ever admitted.
func (l promise) capacity() int64 { return cmp.Or(l.burst, l.limit) }

// kept returns how much of the capacity a log that counts may have in use of what
// has left the window: of its oldest entry, of which refunds may have taken what
// is still inside.
func (l promise) kept() int64 {
	if l.entries == 0 {
		return 0
	}
	return (l.limit+l.entries-1)/l.entries - 1
}

// lasts returns how long a cost is in use.
func (l promise) lasts() time.Duration {
	return l.window * time.Duration(l.capacity()) / time.Duration(l.limit)
}

// swaps reports whether the limit is a bucket or a log.
func (l promise) swaps() bool { return l.estimate == "" && l.algorithm != "fixed_window" }

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
	case l.estimate != "" && within < l.window-l.width()-apart:
		return l.limit
	case l.estimate != "" && within < l.window-apart:
		return (&subwindow.Window{Slots: l.slots, Capped: l.estimate == capped}).Most(l.limit)
	}
	return unbounded
}

// A violation is a broken promise about a client, and when it was broken.
type violation struct {
	what           string
	policy, client string
	span
}

// A record is what happened to one client of a policy. Its events are in the
// order of their answers.
type record struct {
	promisedPolicy
	client string
	events []event
	resets []reset
	// givenBack are the denied events that others never saw counted.
	givenBack map[event]bool
}

// judge returns the promises that no order of the events within their spans can
// keep.
func (h *history) judge() (broken []violation) {
	for _, r := range h.records() {
		judges := []func(*record) (string, span){h.judgeStatus, h.judgeDenials, h.judgeReturns}
		for _, l := range r.limits {
			judges = append(judges, func(r *record) (string, span) { return h.judgeLimit(l, r) })
		}
		for _, judge := range judges {
			if what, when := judge(r); what != "" {
				broken = append(broken, violation{what, r.name, r.client, when})
			}
		}
	}
	return broken
}

// records returns the records of all clients, in the order of their first
// events.
func (h *history) records() (records []*record) {
	type key struct{ policy, client string }
	byKey := make(map[key]*record)
	of := func(policyName, client string) *record {
		k := key{policyName, client}
		if byKey[k] == nil {
			i := slices.IndexFunc(h.policies, func(p promisedPolicy) bool { return p.name == policyName })
			byKey[k] = &record{promisedPolicy: h.policies[i], client: client}
			records = append(records, byKey[k])
		}
		return byKey[k]
	}
	for _, e := range h.events {
		r := of(e.policy, e.client)
		r.events = append(r.events, e)
	}
	for _, reset := range h.resets {
		r := of(reset.policy, reset.client)
		r.resets = append(r.resets, reset)
	}
	for _, r := range records {
		slices.SortStableFunc(r.events, func(a, b event) int { return cmp.Compare(a.back, b.back) })
		r.givenBack = make(map[event]bool)
		for _, e := range r.events {
			r.givenBack[e] = h.isGivenBack(r, e)
		}
	}
	return records
}

// judgeStatus lets only on_store_error: deny answer 503 to a check, and nothing
// else but 200 and 429. Without an answer nothing is known.
func (h *history) judgeStatus(r *record) (string, span) {
	for _, e := range r.events {
		switch {
		case e.status == 0:
		case e.status == http.StatusOK && e.allowed, e.status == http.StatusTooManyRequests && !e.allowed:
		case e.status == http.StatusServiceUnavailable && r.onError == policy.StoreErrorDeny && e.degraded:
		default:
			return fmt.Sprintf("%+v is no documented answer", e), e.span
		}
	}
	for _, reset := range r.resets {
		if !slices.Contains([]int{0, http.StatusNoContent, http.StatusAccepted, http.StatusServiceUnavailable}, reset.status) {
			return fmt.Sprintf("%+v is no documented answer", reset), reset.span
		}
	}
	return "", span{}
}

// judgeLimit compares what was admitted with the most that the limit promises.
// What was admitted without the store doesn't count. What the store lost is
// forgotten, and so is what came before a reset.
func (h *history) judgeLimit(l promise, r *record) (string, span) {
	judge := h.judgeSpans
	if l.algorithm == "fixed_window" {
		judge = h.judgeCalendar
	}
	forgotten := slices.Clone(h.losses)
	for _, reset := range r.resets {
		forgotten = append(forgotten, h.forgets(reset, r.events))
	}
	lives := make([][]event, len(forgotten)+1)
	for _, e := range r.events {
		if n, ok := life(e.span, forgotten); ok && e.allowed && !e.degraded {
			lives[n] = append(lives[n], e)
		}
	}
	for _, admitted := range lives {
		if what, when := judge(l, admitted); what != "" {
			return what, when
		}
	}
	return "", span{}
}

// forgets returns when counts may vanish because of a reset. A refund that is
// under way meanwhile may take from what is counted after it.
func (h *history) forgets(reset reset, events []event) span {
	switch reset.status {
	case http.StatusNoContent:
	case http.StatusAccepted: // done when the store is back
		return span{reset.call, h.done(reset)}
	default:
		return span{reset.call, reset.back + h.late()}
	}
	forgets := reset.span
	for _, e := range events {
		refunded := e.back
		if !e.answered() || !h.isCalm(e) {
			refunded += h.late()
		}
		if !(e.answered() && e.allowed) && reset.overlaps(span{e.call, refunded}) {
			forgets.back = max(forgets.back, refunded)
		}
	}
	return forgets
}

// done returns until when a process may do a reset that it has accepted: once it has done a
// later one of the client, none waits any more.
func (h *history) done(accepted reset) time.Duration {
	for _, r := range h.resets {
		if r.status == http.StatusNoContent && r.process == accepted.process && r.policy == accepted.policy && r.client == accepted.client && r.call >= accepted.back {
			return r.back + h.late()
		}
	}
	return math.MaxInt64
}

// late returns how long after an answer its check may still count, or give back
// in two tries, if somebody stops meanwhile.
func (h *history) late() time.Duration { return 2*h.timeout + longestPause + 200*time.Millisecond }

// isCalm reports whether nothing goes wrong around e, for all that its caller
// can see.
func (h *history) isCalm(e event) bool {
	around := span{e.call - h.late(), e.back + h.late()}
	return e.call >= h.calm && !slices.ContainsFunc(h.events, func(other event) bool {
		return (!other.answered() || other.back-other.call >= h.timeout) && other.overlaps(around)
	})
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

// life returns how often counts had vanished before s, or false if they did so
// meanwhile.
func life(s span, forgotten []span) (n int, ok bool) {
	for _, f := range forgotten {
		switch {
		case s.call >= f.back:
			n++
		case s.back > f.call:
			return 0, false
		}
	}
	return n, true
}

// judgeDenials looks for one that nothing is a reason for: all that may have
// been in use would have fit with it. Buckets and logs may also deny what was
// cut off.
func (h *history) judgeDenials(r *record) (string, span) {
	swaps := slices.ContainsFunc(r.limits, promise.swaps)
	for _, denied := range r.events {
		if denied.status != http.StatusTooManyRequests || swaps && h.isCutOff(r, denied) {
			continue
		}
		used, givenBack := r.events, r.givenBack
		if h.tookShare(r, denied) {
			continue
		}
		if denied.degraded {
			givenBack = nil // who can't ask the store knows neither of that
		} else if resets := h.seen(r.resets, denied); len(resets) > 0 { // nor of resets
			used = slices.DeleteFunc(slices.Clone(used), func(e event) bool {
				return slices.ContainsFunc(resets, func(reset reset) bool { return h.counted(e) <= reset.call })
			})
		}
		if !slices.ContainsFunc(r.limits, func(l promise) bool { return h.isReason(l, used, givenBack, denied) }) {
			return fmt.Sprintf("a cost of %d is denied without reason", denied.cost), denied.span
		}
	}
	return "", span{}
}

// tookShare reports whether denied was decided by a process that has admitted alone: if others
// may do so too, that can stand for all of a limit while that is in use. With the store it does
// until the others have told it, for which they are given time once it answers again.
func (h *history) tookShare(r *record, denied event) bool {
	longest := slices.MaxFunc(r.limits, func(a, b promise) int { return cmp.Compare(a.window, b.window) }).window
	tells := time.Second + (&counters.Options{StoreTimeout: h.timeout}).Telling() + h.late() // what is due is told within a second
	failed := func(lasts time.Duration) func(e event) bool {
		return func(e event) bool {
			return e.degraded && e.process == denied.process && e.call <= denied.back && e.back >= denied.call-lasts
		}
	}
	return len(h.offsets) > 1 && slices.ContainsFunc(r.events, func(e event) bool {
		return e.allowed && e.cost > 0 && failed(2*longest)(e) && (denied.degraded || failed(tells)(e) ||
			slices.ContainsFunc(r.events, failed(tells)) && !slices.ContainsFunc(r.events, func(between event) bool {
				return between.process == e.process && between.answered() && between.call >= e.back && between.back < denied.call-tells
			}))
	})
}

// isCutOff reports whether the deadline of e may have come after the state had
// been read. One that is slow may have led a batch that e has joined, which
// then shares its deadline.
func (h *history) isCutOff(r *record, e event) bool {
	return slices.ContainsFunc(r.events, func(other event) bool {
		led := span{other.call, other.back + h.late()}
		return other.process == e.process && !(h.quick(other) && other.answered()) && led.overlaps(e.span)
	})
}

// seen returns the resets that the process which denied has to know of, unless
// the store lost them.
func (h *history) seen(resets []reset, denied event) (seen []reset) {
	for _, reset := range resets {
		noticed := span{reset.call, reset.back + time.Second}
		lost := slices.ContainsFunc(h.losses, noticed.overlaps)
		if reset.status == http.StatusNoContent && noticed.back <= denied.call && !lost {
			seen = append(seen, reset)
		}
	}
	return seen
}

// counted returns when the cost of e was counted at the latest, if it was.
func (h *history) counted(e event) time.Duration {
	if e.answered() {
		return e.back
	}
	return e.back + h.late()
}

// isReason reports whether so much of the limit may have been used that a
// denial doesn't fit.
func (h *history) isReason(l promise, used []event, givenBack map[event]bool, denied event) bool {
	// How long a cost is in use, and a stale knowledge of it.
	reach := l.lasts() + 2*(l.width()+h.skew+h.timeout) + counters.MaxStaleness
	sum := l.kept()
	for _, e := range slices.Backward(used) {
		if e.back <= denied.call-reach || sum > l.capacity() {
			break
		}
		if e.call < denied.back && (e.back > denied.call || !givenBack[e]) {
			sum += e.cost // its own is among them
		}
	}
	return sum > l.capacity()
}

// isGivenBack reports whether e was denied and its cost certainly given back
// before its answer, with no one else to see it. A bucket gives back less when
// clocks differ, and a reset may prevent it.
func (h *history) isGivenBack(r *record, e event) bool {
	if e.call < h.calm || e.status != http.StatusTooManyRequests || r.countDenied || !e.answered() || !h.quick(e) {
		return false
	}
	if len(r.limits) > 1 && slices.ContainsFunc(r.limits, promise.swaps) {
		return false
	}
	if slices.ContainsFunc(r.resets, func(reset reset) bool { return reset.call < e.back }) {
		return false
	}
	others := 0
	for _, other := range r.events {
		if other.overlaps(e.span) {
			others++ // e too
		}
	}
	return others == 1 && h.isCalm(e)
}

// judgeReturns checks that a lone client which waited as long as it was told is
// admitted. A bucket or log that took half of the timeout may have been cut
// off, and what goes wrong may count or give back late.
func (h *history) judgeReturns(r *record) (string, span) {
	for _, e := range r.events {
		if e.returns && e.status == http.StatusTooManyRequests && h.quick(e) && h.isCalm(e) {
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
	for _, r := range h.resets {
		outcomes[fmt.Sprint("reset ", r.status)]++
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
	for _, r := range h.resets {
		if r.policy == v.policy && r.client == v.client && r.back >= from && r.call <= v.back {
			lines = append(lines, line{r.call, fmt.Sprintf("%v to %v, process %d, reset: %d", r.call, r.back, r.process, r.status)})
		}
	}
	slices.SortStableFunc(lines, func(a, b line) int { return int(a.at - b.at) })
	for _, l := range lines {
		fmt.Fprintln(&b, l.text)
	}
	return b.String()
}

// answered reports whether the store decided e by its answer, so that nothing
// is counted later.
func (e event) answered() bool {
	return !e.degraded && (e.status == http.StatusOK || e.status == http.StatusTooManyRequests)
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
