package simulate

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
)

// steps are those that only few worlds would show, each as a fix. The first plot
// that sees the bug does so by the oracle.
var steps = []fix{
	// Windows: what is lost is put back.
	{"an absent counter is begun anew", "bound", takeOut{"subwindow/exchange.go",
		"New: !have, Have: have, Read: w.keys",
		"New: !have || BUG, Have: have && !BUG, Read: w.keys"}, nil},
	{"no loss is noticed", "bound", takeOut{"subwindow/account.go",
		"	if lasting && (value",
		"	if !BUG && lasting && (value"}, nil},
	{"what the process has counted itself isn't missed", "known", takeOut{"subwindow/account.go",
		"known > 0 || has < s.own) {",
		"known > 0 || !BUG && has < s.own) {"}, nil},
	{"what is counted isn't the process's own", "known", takeOut{"subwindow/replies.go",
		"s.count, s.own = s.count+w.sum, s.own+w.sum\n",
		"if s.count += w.sum; !BUG {\n			s.own += w.sum\n		}\n"}, nil},
	{"nobody looks into why there is less than was known", "bound", takeOut{"subwindow/replies.go",
		"		default: // a loss, or a reset\n			a.doubtful = true",
		"		default: // a loss, or a reset\n			a.doubtful = a.doubtful || !BUG"}, nil},
	{"a count is judged though something was lost", "known", takeOut{"subwindow/replies.go",
		"if w.see(w.bucket, n-w.sum, true, 0) > 0 {",
		"if missing := w.see(w.bucket, n-w.sum, true, 0); BUG {\n			s.count = n - w.sum\n		} else if missing > 0 {"}, nil},
	{"a closed slot isn't put back", "seen", takeOut{"subwindow/replies.go",
		"			w.lost, w.repairs = append(w.lost, loss{bucket, missing, a.at(bucket).count}), true\n",
		"			if !BUG || bucket >= w.bucket {\n				w.lost, w.repairs = append(w.lost, loss{bucket, missing, a.at(bucket).count}), true\n			}\n"}, nil},
	{"what was lost is added to what is there", "reason", takeOut{"subwindow/exchange.go",
		"	if len(w.floors) > 0 {\n",
		"	for _, f := range w.floors {\n		if BUG {\n			_, _ = w.store.Add(ctx, counters.Addition{Key: f.Key, Delta: f.Count, TTL: f.TTL})\n		}\n	}\n	if len(w.floors) > 0 {\n"}, nil},
	{"what a check has just counted is taken for put back", "reseeded", takeOut{"subwindow/replies.go",
		"return w.counted && l.bucket == w.bucket && l.known == w.sum }",
		"return !BUG && w.counted && l.bucket == w.bucket && l.known == w.sum }"}, nil},

	// Windows: resets.
	{"a lost generation isn't noticed", "reason", takeOut{"subwindow/replies.go",
		"	case is < was && w.now-was",
		"	case !BUG && is < was && w.now-was"}, nil},
	{"a lost generation isn't put back", "reason", takeOut{"subwindow/exchange.go",
		"	if a.generation >= resetUnit {",
		"	if a.generation >= resetUnit && !BUG {"}, nil},
	{"a generation isn't read with what is counted", "seen", takeOut{"subwindow/exchange.go",
		"w.reads(false, !a.fresh(w.now) && !w.window.fixed(), false)",
		"w.reads(false, !BUG && !a.fresh(w.now) && !w.window.fixed(), false)"}, nil},
	{"a process doesn't forget what it has reset", "reason", takeOut{"subwindow/limiter.go",
		"	if err == nil {\n		l.Forget(client",
		"	if err == nil && !BUG {\n		l.Forget(client"}, nil},
	{"what is read while a reset is under way is put back", "reason", takeOut{"subwindow/work.go",
		"w.now <= w.a.forgottenTo(w.options.ClockSkew)+int64(w.options.StoreTimeout)",
		"!BUG && w.now <= w.a.forgottenTo(w.options.ClockSkew)+int64(w.options.StoreTimeout)"}, nil},
	{"a reset is told of after it only", "reason", takeOut{"subwindow/limiter.go",
		"	generation, err := raise()\n",
		"	generation, err := generationAt(now), error(nil)\n	if !BUG {\n		generation, err = raise()\n	}\n"}, nil},
	{"a reset leaves a generation that ends before what it has deleted", "reason", takeOut{"subwindow/limiter.go",
		"Count: generationAt(now), TTL: ttl}})",
		"Count: func() int64 { if BUG { return 0 }; return generationAt(now) }(), TTL: ttl}})"}, nil},

	// Windows: flights.
	{"what turns out not to be counted isn't due", "bound", takeOut{"subwindow/family.go",
		"		a.owe(was.bucket, was.presumed(), was.at)\n",
		"		if !BUG || o == ledger.Done {\n			a.owe(was.bucket, was.presumed(), was.at)\n		}\n"}, nil},

	// Buckets and logs: what is lost is put back.
	{"what is lost isn't put back", "seen", takeOut{"cas/work.go",
		"a.owes() || take && a.last.lost",
		"a.owes() || !BUG && take && a.last.lost"}, nil},
	{"what is lost as it is written is forgotten", "bound", takeOut{"cas/rules.go",
		"!bytes.Equal(state.Value, next.value) { // it may be lost by now",
		"!BUG && !bytes.Equal(state.Value, next.value) { // it may be lost by now"}, nil},
	{"others don't add what they know", "known", takeOut{"cas/rules.go",
		"	if present == generation && since >= at",
		"	if BUG && seen.token.version != 0 || present == generation && since >= at"}, nil},
	{"a state that was put back isn't told from one that wasn't", "known", takeOut{"cas/rules.go",
		" && seen.origin.putBack == known.origin.putBack {",
		" && (BUG || seen.origin.putBack == known.origin.putBack) {"}, nil},
	{"the known state replaces the one there is", "seen", takeOut{"cas/rules.go",
		"	more, isMore := l.fuller(seen.decoded, known.decoded, r)\n",
		"	more, isMore := l.fuller(seen.decoded, known.decoded, r)\n	if BUG {\n		more, isMore = known.decoded, true\n	}\n"}, nil},
	{"a state is put back whatever is there", "twice", takeOut{"cas/work.go",
		"		w.now, w.swapped, w.err = w.store.Swap(ctx, key, w.asks.Old, w.asks.Value, w.asks.TTL)\n",
		"		if BUG && w.a.last.lost {\n			if w.err = w.store.Put(ctx, key, w.asks.Value, w.asks.TTL); w.err == nil {\n				w.swapped = true\n				w.now, w.err = w.store.Load(ctx, key)\n			}\n			return\n		}\n		w.now, w.swapped, w.err = w.store.Swap(ctx, key, w.asks.Old, w.asks.Value, w.asks.TTL)\n"}, nil},
	{"what is lost is put back in part", "known", takeOut{"cas/bucket.go",
		"	k.time, k.total = max(k.time, s.time), max(k.total, s.total)\n	return k, true",
		"	k.time, k.total = max(k.time, s.time), max(k.total, s.total)\n	if BUG {\n		return present, true\n	}\n	return k, true"}, nil},

	// Buckets and logs: resets.
	{"a reset leaves nothing in a state", "twice", takeOut{"cas/limiter.go",
		"		next.origin.reset = max(at.UnixNano(), old.reset+1)\n",
		"		if next.origin.reset = max(at.UnixNano(), old.reset+1); BUG {\n			next.origin = origin{}\n		}\n"}, nil},
	{"whether more is remembered isn't looked at", "twice", takeOut{"cas/rules.go",
		"|| seen.origin.reset > known.origin.reset || seen.origin.until > known.origin.until && !(older && l.drains()) {",
		"|| !BUG && (seen.origin.reset > known.origin.reset || seen.origin.until > known.origin.until && !(older && l.drains())) {"}, nil},
	{"what was put back from before a reset stays", "reason", takeOut{"cas/rules.go",
		"older := holds &&",
		"older := !BUG && holds &&"}, nil},
	{"a reset isn't put back", "reason", takeOut{"cas/rules.go",
		"		seen.origin.until, seen.origin.reset = max(known.origin.until, seen.origin.until), known.origin.reset\n",
		"		if !BUG {\n			seen.origin.until, seen.origin.reset = max(known.origin.until, seen.origin.until), known.origin.reset\n		}\n"}, nil},
	{"a process remembers what it has reset", "reason", takeOut{"cas/limiter.go",
		"	l.Forget(client) // who",
		"	if BUG {\n		return nil\n	}\n	l.Forget(client) // who"}, nil},

	// Buckets and logs: flights.
	{"nobody waits to be told of a flight", "reason", takeOut{"cas/work.go",
		"			w.flown = append(w.flown, ledger.Flown{Flight: f, Late: late})\n",
		"			if !BUG {\n				w.flown = append(w.flown, ledger.Flown{Flight: f, Late: late})\n			}\n"}, nil},
	{"what turns out to be done, and was refused, isn't given back", "reason", takeOut{"cas/account.go",
		"				a.owe(l, over)\n",
		"				if !BUG {\n					a.owe(l, over)\n				}\n"}, nil},
	{"a flight is forgotten when others have written", "reason", takeOut{"cas/account.go",
		"			if f.outcome == ledger.Unknown {",
		"			if f.outcome == ledger.Unknown || BUG {"}, nil},
	{"a flight that others refer to is used again", "reason", takeOut{"cas/work.go",
		"	if w.escaped { // after",
		"	if w.escaped && !BUG { // after"}, nil},
}

// Without any of the steps, some course of a plot violates something, of which no
// course does with all of them: see TestCourses.
func TestStepsAreNeeded(t *testing.T) {
	t.Parallel()
	for _, step := range steps {
		t.Run(step.bug, func(t *testing.T) {
			t.Parallel()
			oracle := plotsOfStates
			if strings.HasPrefix(step.file, "subwindow/") {
				oracle = plotsOfWindows
			}
			out := runWithout(t, step.bug, oracle)
			plot, told, _ := strings.Cut(out, "\n")
			assert.True(t, strings.HasPrefix(told, step.oracle+": "), told)
			saw(t, plot)
		})
	}
}

// These stand for the oracles of plots.
const (
	plotsOfWindows = "plots of windows"
	plotsOfStates  = "plots of states"
)
