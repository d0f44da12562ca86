package simulate

import (
	"fmt"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"

	"weir/bench/internal/algorithms"
)

// later is long enough for a reset to reach everybody.
const later = 2 * time.Second

// plots returns the plots, the large ones or the others. They bound what is
// explored: limits of 1 to 3, one to three processes, up to three checks at a
// time and five in all before everybody is asked, at most one reset, and one
// loss, in some plots two; or two resets and no loss. There is a plot for each
// kind of state: a fixed window, one with older slots, a bucket and a log. (The
// leaky bucket is the token bucket, but for the times that it tells.)
func plots(large bool) (all []plot) {
	add := func(size int64, p plot) {
		if (size > 1) == large {
			all = append(all, p)
		}
	}
	for _, a := range []algorithms.Algorithm{
		algorithms.Named(algorithms.Fixed), {Name: "strict N=1", Slots: 1, Strict: true},
		algorithms.Named(algorithms.Token), algorithms.Named(algorithms.Log),
	} {
		for _, evicts := range []bool{false, true} {
			p := plot{algorithm: a, start: 10 * time.Second, losses: 1, evicts: evicts}
			for limit := int64(1); limit <= 3; limit++ {
				p.limit = limit
				add(1, p.of("one process", 1, round{0, []thread{takes(0, 2)}}, round{later, []thread{takes(0, 2)}}))
				add(1, p.of("two processes", 2,
					round{0, []thread{takes(0, 1), takes(1, 1)}}, round{later, []thread{takes(0, 1), takes(1, 1)}}))
				add(2, p.of("two processes, one of them twice", 2,
					round{0, []thread{takes(0, 2), takes(1, 1)}}, round{later, []thread{takes(0, 1), takes(1, 1)}}))
				add(limit, p.of("a reset by one of two", 2,
					round{0, []thread{takes(0, 1), takes(1, 1)}}, round{later, []thread{resets(0), takes(1, 1)}}, round{later, []thread{takes(1, 1)}}))
				add(limit, p.of("a reset at once", 2,
					round{0, []thread{takes(0, 1), takes(1, 1)}}, round{10 * time.Millisecond, []thread{resets(0), takes(1, 1)}}, round{later, []thread{takes(1, 1)}}))
				add(limit, p.of("a reset, and then both", 2,
					round{0, []thread{takes(0, 1), takes(1, 1)}}, round{later, []thread{resets(0)}}, round{later, []thread{takes(0, 1), takes(1, 1)}}))
				add(2, p.of("a reset by a process that knows nothing", 2,
					round{0, []thread{takes(0, 1)}}, round{later, []thread{takes(0, 1), resets(1)}}, round{later, []thread{takes(0, 1)}}))
				add(2, p.of("a reset by the only process", 1,
					round{0, []thread{takes(0, 2)}}, round{later, []thread{takes(0, 1), resets(0)}}, round{later, []thread{takes(0, 2)}}))
			}
			p.limit = 1
			add(1, p.of("a refund soon after a reset", 1, round{0, []thread{resets(0)}}, round{70 * time.Millisecond, []thread{cancels(0)}}))
			p.limit = 2
			add(2, p.of("three processes", 3,
				round{0, []thread{takes(0, 1), takes(1, 1)}}, round{later, []thread{takes(1, 1), takes(2, 1)}}))
			if a.Slots > 0 {
				p.start = 59 * time.Second
				p.limit = 3
				add(1, p.of("a slot ends", 2, round{0, []thread{takes(0, 1)}}, round{later, []thread{takes(0, 1), takes(1, 1)}}, round{later, []thread{takes(1, 1)}}))
				add(2, p.of("a slot ends", 2, round{0, []thread{takes(0, 1), takes(1, 1)}}, round{later, []thread{takes(0, 1), takes(1, 1)}}))
				p.start = 10 * time.Second
				add(1, p.of("a reset that is remembered", 2,
					round{0, []thread{takes(1, 2)}}, round{later, []thread{resets(0)}}, round{later, []thread{takes(0, 1)}}, round{later, []thread{takes(1, 1)}}))
				p.start, p.limit = 53*time.Second, 2
				add(1, p.of("a refund as a slot ends", 2,
					round{0, []thread{resets(0)}}, round{later, []thread{takes(0, 2)}}, round{4970 * time.Millisecond, []thread{cancels(1)}}))
			}
			p.start, p.losses = 10*time.Second, 2
			add(2, p.of("two losses, one process", 1, round{0, []thread{takes(0, 2)}}, round{later, []thread{takes(0, 2)}}))
			add(2, p.of("two losses, two processes", 2, round{0, []thread{takes(0, 1), takes(1, 1)}}, round{later, []thread{takes(0, 1), takes(1, 1)}}))
		}
		late := plot{algorithm: a, start: 10 * time.Second, limit: 3}
		add(1, late.of("an answer is late", 1, round{0, []thread{lags(0)}}, round{later, []thread{takes(0, 1)}}))
		add(1, late.of("an answer is late, to who knows the client", 1,
			round{0, []thread{takes(0, 1)}}, round{later, []thread{lags(0)}}, round{later, []thread{takes(0, 1)}}))
		add(1, late.of("an answer is late, and its check is refused", 2,
			round{0, []thread{refused(0), takes(1, 1)}}, round{later, []thread{takes(0, 1)}}))
		add(1, late.of("an answer is late, while another asks", 2,
			round{0, []thread{lags(0), takes(1, 1)}}, round{later, []thread{takes(0, 1)}}))
		late.limit = 4
		add(2, late.of("an answer is late, while another asks and asks", 2,
			round{0, []thread{lags(0), takes(1, 1)}}, round{later, []thread{takes(0, 1), takes(1, 1)}}))
		if a.Slots > 0 {
			// The first reset begins a generation that ends two slots later.
			p := plot{algorithm: a, start: 10 * time.Second, limit: 1}
			add(1, p.of("a reset of what outlives the one before", 2, round{0, []thread{resets(0)}},
				round{95 * time.Second, []thread{takes(1, 1)}}, round{later, []thread{resets(0)}}, round{33 * time.Second, []thread{takes(1, 1)}}))
		}
	}
	return all
}

// of returns p as a story of so many processes.
func (p plot) of(story string, processes int, rounds ...round) plot {
	what := "everything is lost"
	if p.losses == 0 {
		what = "nothing is lost"
	} else if p.evicts {
		what = "a key is lost"
	}
	p.name = fmt.Sprintf("%v, limit %d, %s: %s", p.algorithm, p.limit, what, story)
	p.rounds = rounds
	for i := range processes + 1 {
		p.asked = append(p.asked, i)
	}
	return p
}

// Whatever the order in which a few concurrent checks and a reset reach the
// server, and wherever it forgets everything, or one key: nothing that the docs
// promise is violated.
func TestCourses(t *testing.T) {
	t.Parallel()
	all := plots(false)
	if !testing.Short() {
		all = append(all, plots(true)...)
	}
	var runs, cut atomic.Int64
	search(t.Context(), 0, uint64(len(all)), func(i uint64) bool {
		p := all[i]
		x, violated, tell := explore(p)
		runs.Add(int64(x.runs))
		cut.Add(int64(x.cut))
		if violated != nil {
			tell(t.Output())
			assert.Fail(t, p.name, "%v", violated)
		} else {
			assert.Empty(t, x.stack, "choices that are left")
		}
		return false // go on to the others
	})
	t.Logf("%d plots, %d courses and %d that others stand for", len(all), runs.Load(), cut.Load())
}

// An enumeration makes all choices in all orders.
type enumeration struct {
	stack []struct{ at, of int }
	depth int
}

func (e *enumeration) choose(enabled []choice) (choice, bool) {
	if e.depth == len(e.stack) {
		e.stack = append(e.stack, struct{ at, of int }{0, len(enabled)})
	}
	return enabled[e.stack[e.depth].at], true
}

func (e *enumeration) chosen(touches) { e.depth++ }

func (e *enumeration) backtrack() bool {
	e.depth = 0
	for len(e.stack) > 0 {
		last := &e.stack[len(e.stack)-1]
		if last.at++; last.at < last.of {
			return true
		}
		e.stack = e.stack[:len(e.stack)-1]
	}
	return false
}

// ending is what everybody was told, and what the server has then.
func (r *run) ending() string {
	var told []string
	for _, a := range r.acts {
		told = append(told, fmt.Sprint(a.process, a.round, a.decision.Allowed, a.decision.Remaining))
	}
	slices.Sort(told)
	for _, key := range r.present() {
		if isCounter(key) {
			told = append(told, fmt.Sprint(r.items[key].count))
		}
	}
	return strings.Join(told, " ")
}

// The courses that are cut short end as others do.
func TestNoEndingIsLeftOut(t *testing.T) {
	t.Parallel()
	strict := algorithms.Algorithm{Name: "strict N=1", Slots: 1, Strict: true}
	both := round{later, []thread{takes(0, 1), takes(1, 1)}}
	resetting := round{later, []thread{takes(0, 1), resets(1)}}
	for _, p := range []plot{
		plot{algorithm: algorithms.Named(algorithms.Fixed), limit: 2, losses: 1}.of("both", 2, round{0, []thread{takes(0, 1)}}, both),
		plot{algorithm: algorithms.Named(algorithms.Log), limit: 2, losses: 1, evicts: true}.of("both", 2, round{0, []thread{takes(0, 1)}}, both),
		plot{algorithm: algorithms.Named(algorithms.Token), limit: 1, losses: 1}.of("a reset", 2, round{0, []thread{takes(0, 1)}}, resetting),
		plot{algorithm: algorithms.Named(algorithms.Token), limit: 2, losses: 1}.of("its own reset", 1,
			round{0, []thread{takes(0, 1)}}, round{later, []thread{takes(0, 1), resets(0)}}, round{0, []thread{takes(0, 1)}}),
		plot{algorithm: strict, limit: 1}.of("a reset", 2, round{0, []thread{takes(0, 1)}}, resetting),
		plot{algorithm: algorithms.Named(algorithms.Log), limit: 3}.of("a late answer", 2,
			round{0, []thread{lags(0), takes(1, 1)}}, round{later, []thread{takes(0, 1)}}),
		plot{algorithm: strict, limit: 3}.of("a late answer, refused", 2, round{0, []thread{refused(0), takes(1, 1)}}),
	} {
		every, x := new(enumeration), &exploration{stage: stage{plot: p, keys: make(map[string]int)}}
		want, got := make(map[string]bool), make(map[string]bool)
		runs := 0
		x.bubble(func() {
			for more := true; more; more = every.backtrack() {
				r := x.play(every, nil)
				r.judge()
				want[r.ending()] = true
				runs++
			}
			for more := true; more; more = x.backtrack() {
				if r := x.run(nil); !r.left {
					got[r.ending()] = true
				}
			}
		})
		assert.Equal(t, want, got, p.name)
		assert.Less(t, x.runs, runs, p.name)
		t.Logf("%s: %d endings of %d courses, %d explored", p.name, len(want), runs, x.runs)
	}
}

// A store that tells something wrong late, or nothing, is seen.
func TestCoursesSeeWrongAnswers(t *testing.T) {
	t.Parallel()
	for _, test := range []struct {
		name  string
		flaws flaws
	}{
		{"what wasn't done was", flaws{saysDone: true}},
		{"what was done wasn't", flaws{saysUndone: true}},
		{"nobody is told", flaws{tellsNobody: true}},
	} {
		for _, name := range []string{algorithms.Fixed, algorithms.Token, algorithms.Log} {
			t.Run(test.name+", "+name, func(t *testing.T) {
				seen := slices.ContainsFunc([]thread{lags(0), refused(0)}, func(gives thread) bool {
					p := plot{algorithm: algorithms.Named(name), limit: 3, start: 10 * time.Second, flaws: test.flaws}
					p = p.of("a late answer", 2, round{0, []thread{gives, takes(1, 1)}}, round{later, []thread{takes(0, 1)}})
					_, violated, _ := explore(p)
					p.flaws = flaws{}
					_, without, _ := explore(p)
					return violated != nil && without == nil
				})
				assert.True(t, seen)
			})
		}
	}
}

// firstViolated returns a plot that a bug in windows, or else in states, violates, and
// how, on a line each: the witness, if it still does, or the first.
func firstViolated(inWindows bool, witness string) string {
	all := append(plots(false), plots(true)...)
	if i := slices.IndexFunc(all, func(p plot) bool { return p.name == witness }); i > 0 {
		all[0], all[i] = all[i], all[0]
	}
	for _, p := range all {
		if (p.algorithm.Kind == algorithms.Counters) != inWindows {
			continue
		}
		if _, violated, _ := explore(p); violated != nil {
			return fmt.Sprintf("%s\n%v", p.name, violated[0])
		}
	}
	return ""
}
