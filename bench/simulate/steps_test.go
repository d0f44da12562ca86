package simulate

import (
	"testing"

	"github.com/stretchr/testify/assert"
)

// steps are those of putting back what was lost, each as a fix. The first plot
// that sees the bug does so by the oracle.
var steps = []fix{
	{"an absent counter is begun anew", "bound", takeOut{"subwindow/limiter.go",
		"New: !have, Have: have, Read: a.keys",
		"New: !have, Have: have && !BUG, Read: a.keys"}, nil},
	{"what the process has counted itself isn't looked for", "bound", takeOut{"subwindow/attempt.go",
		"|| i == a.ownAt && max(0, count) < a.own",
		"|| !BUG && i == a.ownAt && max(0, count) < a.own"}, nil},
	{"a closed slot isn't put back", "bound", takeOut{"subwindow/restore.go",
		"		if want > 0 && ttl > 0",
		"		if BUG && i > a.ahead {\n			continue\n		}\n		if want > 0 && ttl > 0"}, nil},
	{"marks of resets aren't looked at", "reason", takeOut{"subwindow/restore.go",
		"	if s.resetUntil(",
		"	if !BUG && s.resetUntil("}, nil},
	{"a generation that has changed isn't looked at", "reason", takeOut{"subwindow/attempt.go",
		"	if lastReset(generation) != lastReset(a.generation) {",
		"	if !BUG && lastReset(generation) != lastReset(a.generation) {"}, nil},
	{"what was put back stays though a reset has come in between", "reason", takeOut{"subwindow/restore.go",
		"	if (lastReset(now.generation) == ",
		"	if BUG || (lastReset(now.generation) == "}, nil},
	{"what was lost is added to what is there", "reason", takeOut{"subwindow/restore.go",
		"	if err := s.store.Raise(ctx, floors); err != nil {",
		"	for _, f := range floors {\n		if BUG {\n			if _, err := s.store.Add(ctx, counters.Addition{Key: f.Key, Delta: f.Count, TTL: f.TTL}); err != nil {\n				return seen, err\n			}\n		}\n	}\n	if err := s.store.Raise(ctx, floors); err != nil {"}, nil},
	{"a lost generation isn't put back", "reason", takeOut{"subwindow/restore.go",
		"	if a.unmarked(seen.generation) {",
		"	if !BUG && a.unmarked(seen.generation) {"}, []takeOut{{"subwindow/restore.go",
		"len(losses) == 0 && !a.unmarked(seen.generation) {",
		"len(losses) == 0 && (BUG || !a.unmarked(seen.generation)) {"}}},
	{"a generation that was begun anew is taken for a reset", "bound", takeOut{"subwindow/attempt.go",
		"	return lastReset(generation) == 0 && ",
		"	return (!BUG || generation == counters.Absent) && lastReset(generation) == 0 && "}, nil},
	{"a count is judged before what was lost is put back", "bound", takeOut{"subwindow/limiter.go",
		"	if found == lost {\n		return l.restore(ctx, a, sum)",
		"	if found == lost && !(BUG && sum > 0) {\n		return l.restore(ctx, a, sum)"}, nil},
	{"what is just counted is put back and counted too", "seen", takeOut{"subwindow/attempt.go",
		"	a.counts[a.ahead] = max(0, a.counts[a.ahead]-sum)\n",
		"	if !BUG {\n		a.counts[a.ahead] = max(0, a.counts[a.ahead]-sum)\n	}\n"}, nil},
	{"a reset leaves no mark while it is under way", "reason", takeOut{"subwindow/limiter.go",
		"	err := l.mark(ctx, prefix, now, resetBegun",
		"	if BUG {\n		prefix += \"x\"\n	}\n	err := l.mark(ctx, prefix, now, resetBegun"}, []takeOut{{"subwindow/limiter.go",
		"	if err == nil {\n		err = l.store.Delete(ctx, keys)",
		"	if BUG {\n		prefix = l.keys.Client(client)\n	}\n	if err == nil {\n		err = l.store.Delete(ctx, keys)"}}},
	{"a reset raises no generation", "reason", takeOut{"subwindow/limiter.go",
		"		generation, err = l.store.Add(ctx, l.generationAfter(prefix, now, 0, resetUnit, mostReset))",
		"		if !BUG {\n			generation, err = l.store.Add(ctx, l.generationAfter(prefix, now, 0, resetUnit, mostReset))\n		}"}, []takeOut{{"subwindow/limiter.go",
		"		generation += resetUnit\n",
		"		if generation += resetUnit; BUG {\n			generation = 1\n		}\n"}}},
	{"nobody is told what was put back", "known", takeOut{"subwindow/restore.go",
		"	if tell {",
		"	if tell && !BUG {"}, nil},

	{"nobody is told which counts were put back", "known", takeOut{"subwindow/restore.go",
		"		floors = append(floors, l.Floor, mark)\n",
		"		if floors = append(floors, l.Floor); !BUG {\n			floors = append(floors, mark)\n		}\n"}, nil},
	{"nobody looks into why there is less than was known", "known", takeOut{"subwindow/limiter.go",
		"	if found == complete && a.doubts() {",
		"	if !BUG && found == complete && a.doubts() {"}, nil},
	{"a reset leaves no mark when it is done", "reason", takeOut{"subwindow/limiter.go",
		"	if err == nil {\n		err = l.mark(ctx, prefix, now, resetDone",
		"	if err == nil && !BUG {\n		err = l.mark(ctx, prefix, now, resetDone"}, nil},
	{"a reset leaves a generation that ends before what it has deleted", "reason", takeOut{"subwindow/limiter.go",
		"		err = l.store.Raise(ctx, []counters.Floor{{Key: counters.GenerationKey(prefix)",
		"		prefix := prefix\n		if BUG {\n			prefix += \"x\"\n		}\n		err = l.store.Raise(ctx, []counters.Floor{{Key: counters.GenerationKey(prefix)"}, nil},

	{"a reset leaves no mark in a state", "twice", takeOut{"cas/limiter.go",
		"		o.reset = o.mark\n",
		"		if o.reset = o.mark; BUG {\n			o = origin{}\n		}\n"}, nil},
	{"the mark of a reset isn't looked at", "twice", takeOut{"cas/limiter.go",
		"|| seen.origin.newer(known.origin) {",
		"|| !BUG && seen.origin.newer(known.origin) {"}, nil},
	{"what was put back from before a reset stays", "reason", takeOut{"cas/limiter.go",
		"seen.origin.putBack != 0 && present <= known.origin.reset {",
		"!BUG && seen.origin.putBack != 0 && present <= known.origin.reset {"}, nil},
	{"the mark of a reset isn't put back", "reason", takeOut{"cas/limiter.go",
		"		seen.origin = known.origin\n",
		"		if !BUG {\n			seen.origin = known.origin\n		}\n"}, nil},
	{"others don't add what they know", "known", takeOut{"cas/limiter.go",
		"	if present == generation && since >= at",
		"	if BUG && seen.state.Exists() || present == generation && since >= at"}, nil},
	{"a state that was put back isn't told from one that wasn't", "known", takeOut{"cas/limiter.go",
		" && seen.origin.putBack == known.origin.putBack {",
		" && (BUG || seen.origin.putBack == known.origin.putBack) {"}, nil},
	{"the known state replaces the one there is", "seen", takeOut{"cas/limiter.go",
		"	more, isMore := l.algorithm.most(seen.decoded, known.decoded, r)\n",
		"	more, isMore := l.algorithm.most(seen.decoded, known.decoded, r)\n	if BUG {\n		more, isMore = known.decoded, true\n	}\n"}, nil},
	{"what is lost as it is written is forgotten", "bound", takeOut{"cas/limiter.go",
		"!bytes.Equal(state.Value, next.value) { // it may be lost by now",
		"!BUG && !bytes.Equal(state.Value, next.value) { // it may be lost by now"}, nil},
	{"a state is put back whatever is there", "twice", takeOut{"cas/limiter.go",
		"	return d.store.Swap(ctx, d.key, d.seen.state, d.next.value, d.next.ttl)\n",
		"	if BUG && d.seen.lost {\n		if err = d.store.Put(ctx, d.key, d.next.value, d.next.ttl); err == nil {\n			swapped = true\n			state, err = d.store.Load(ctx, d.key)\n		}\n		return state, swapped, err\n	}\n	return d.store.Swap(ctx, d.key, d.seen.state, d.next.value, d.next.ttl)\n"}, nil},
	{"what is lost is put back in part", "known", takeOut{"cas/bucket.go",
		"	k.time = max(k.time, s.time)\n	return k, true",
		"	k.time = max(k.time, s.time)\n	if BUG {\n		return present, true\n	}\n	return k, true"}, nil},
}

// Without any of the steps, some course of a plot violates something.
func TestStepsAreNeeded(t *testing.T) {
	t.Parallel()
	binary := without(t, steps)
	for _, step := range steps {
		t.Run(step.bug, func(t *testing.T) {
			out := runWithout(t, binary, step.bug, anyOracle)
			assert.Contains(t, out, ": "+step.oracle+": ")
			t.Log(out)
		})
	}
}

// anyOracle stands for the oracles of plots.
const anyOracle = "any"
