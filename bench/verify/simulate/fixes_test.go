package simulate

import (
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime/debug"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// A fix is what keeps a bug out of weir's own code.
type fix struct {
	bug    string // that comes back without it
	oracle string // that sees the bug
	takeOut
	also []takeOut
}

// A takeOut is how a fix leaves a file: code, which is there once, becomes
// broken, where BUG stands for the bug's being wanted.
type takeOut struct{ file, code, broken string }

// fixes are those that a world of one limit can show. What it can't:
//
//   - That a policy takes the longest of its limits' times, and never admits
//     what was contended. Here a limiter tells the times, and no error.
//   - That a store's versions end with a connection: here the model's do, see
//     flaws.
//   - What becomes of a client whose leader panics: here none does.
//   - How seldom processes lose a race.
var fixes = []fix{
	// The ledger, which both families stand on.
	{"a refund has only what is left of its check's time", "reason", takeOut{"counters/ledger/ledger.go",
		"	if err != nil {\n		b.tellLater(q.Record, q.Request)",
		"	if err != nil && !BUG {\n		b.tellLater(q.Record, q.Request)"}, nil},
	{"a refund waits until somebody asks", "reason", takeOut{"counters/ledger/ledger.go",
		"	return c, b.config.Family.Refund(&c.Account, admitted, taken), nil\n",
		"	return c, b.config.Family.Refund(&c.Account, admitted, taken) && !BUG, nil\n"}, nil},
	{"what turns out to be due waits until somebody asks", "counts", takeOut{"counters/ledger/ledger.go",
		"	if o != Unknown && b.config.Family.Owes(&c.Account) {",
		"	if !BUG && o != Unknown && b.config.Family.Owes(&c.Account) {"}, nil},
	{"nobody awaits a late answer", "counts", takeOut{"counters/ledger/ledger.go",
		"	f.Late.WhenKnown(func(err error) {\n",
		"	f.Late.WhenKnown(func(err error) {\n		if BUG {\n			return\n		}\n"}, nil},
	{"what surely wasn't done is of unknown outcome", "debts", takeOut{"counters/ledger/family.go",
		"	case errors.Is(err, counters.ErrNotSent), errors.Is",
		"	case errors.Is(err, counters.ErrNotSent) && !BUG, errors.Is"}, nil},
	{"counters expire before late counts come", "bound", takeOut{"counters/ttl.go",
		"func TTL(left, horizon time.Duration) time.Duration {",
		"func TTL(left, horizon time.Duration) time.Duration { if BUG { horizon = 0 };"}, nil},
	{"the horizon is that of clocks alone", "bound", takeOut{"counters/options.go",
		"func (o *Options) Horizon() time.Duration {",
		"func (o *Options) Horizon() time.Duration { if BUG { return o.ClockSkew };"}, nil},

	// Windows.
	{"a strict window drops a slot in which slow clocks still count", "bound", takeOut{"subwindow/window.go",
		"func (w *Window) back() int {",
		"func (w *Window) back() int { if BUG { return 0 };"}, nil},
	{"nobody looks ahead for faster clocks", "bound", takeOut{"subwindow/window.go",
		"func (w *Window) ahead(elapsed time.Duration) int {",
		"func (w *Window) ahead(elapsed time.Duration) int { if BUG && !w.fixed() { return int(elapsed / w.Width) };"}, nil},
	{"a slot is settled while counts are on their way", "bound", takeOut{"subwindow/replies.go",
		"final := (w.now-int64(w.window.Horizon))/",
		"final := (w.now-func() int64 { if BUG { return 0 }; return int64(w.window.Horizon) }())/"}, nil},
	{"a window's admission doesn't say when its cost fits again", "retry-after", takeOut{"subwindow/family.go",
		"	case f.options.CountDenied:\n",
		"	case !BUG && f.options.CountDenied:\n"}, nil},
	{"a window's denial is known ahead though smaller costs fit", "retry-after", takeOut{"counters/ledger/ledger.go",
		"return d, fresh && !d.Allowed && d.Remaining == 0",
		"return d, fresh && !d.Allowed && (BUG || d.Remaining == 0)"},
		[]takeOut{{"counters/ledger/ledger.go",
			"!c.spent.Load() || ",
			"!BUG && !c.spent.Load() || "}}},
	{"a denial that counts is known ahead", "counts", takeOut{"counters/ledger/ledger.go",
		"spent.Load() || b.config.Options.CountDenied {\n",
		"spent.Load() || !BUG && b.config.Options.CountDenied {\n"}, nil},
	{"what is known is relied on for too long", "reason", takeOut{"subwindow/account.go",
		"age <= int64(counters.MaxStaleness)\n",
		"(BUG || age <= int64(counters.MaxStaleness))\n"}, nil},
	{"what a process knows of a window is too old to be believed", "bound", takeOut{"subwindow/account.go",
		"	known := a.slots[min",
		"	if BUG && !a.fresh(p.now) {\n		end = 0\n	}\n	known := a.slots[min"}, nil},
	{"a denied cost stays counted", "counts", takeOut{"subwindow/answer.go",
		"		case !stays:\n			back",
		"		case !stays && BUG:\n		case !stays:\n			back"}, nil},
	{"what was just counted is judged before all is read", "bound", takeOut{"subwindow/steps.go",
		"case a.doubtful, a.owes() && a.staleGeneration:",
		"case a.doubtful && !(BUG && w.counted), a.owes() && a.staleGeneration:"}, nil},

	// Of windows, what is due.
	{"what a process has admitted alone is never counted", "debts", takeOut{"subwindow/account.go",
		"	a.staleGeneration = true\n	a.owesFrom(share)\n",
		"	if BUG {\n		return\n	}\n	a.staleGeneration = true\n	a.owesFrom(share)\n"}, nil},
	{"what is due of a window isn't in use", "bound", takeOut{"subwindow/account.go",
		"		add(d.bucket, d.cost+d.others)\n",
		"		if !BUG {\n			add(d.bucket, d.cost+d.others)\n		}\n"}, nil},
	{"what is told of a window stays due", "debts", takeOut{"subwindow/replies.go",
		"			a.owe(d.bucket, -d.cost, d.at)\n			s.count, s.own = max",
		"			if !BUG {\n				a.owe(d.bucket, -d.cost, d.at)\n			}\n			s.count, s.own = max"}, nil},
	{"what is given back is still known to be there", "view", takeOut{"subwindow/replies.go",
		"s.count, s.own = max(0, s.count+d.cost),",
		"s.count, s.own = func() int64 { if BUG && d.cost < 0 { return s.count }; return max(0, s.count+d.cost) }(),"}, nil},
	{"what is given back is missed", "counts", takeOut{"subwindow/replies.go",
		" s.own+d.cost\n			if d.cost < 0 {",
		" func() int64 { if BUG { return s.own }; return s.own+d.cost }()\n			if d.cost < 0 {"}, nil},
	{"an addition of unknown outcome stays due whatever is read", "debts", takeOut{"subwindow/replies.go",
		"			w.await(a.unanswered(f, w.options.ClockSkew), added.Err)",
		"			if BUG {\n				_ = f\n			} else {\n				w.await(a.unanswered(f, w.options.ClockSkew), added.Err)\n			}"}, nil},
	{"a refund of unknown outcome is done again", "bound", takeOut{"subwindow/replies.go",
		"			a.owe(d.bucket, -d.cost, 0)\n			s.count, s.own, a.doubtful",
		"			if !BUG {\n				a.owe(d.bucket, -d.cost, 0)\n			}\n			s.count, s.own, a.doubtful"}, nil},
	{"others aren't told of a refund from a settled slot", "reason", takeOut{"subwindow/exchange.go",
		"a.pastChanged = a.pastChanged || w.mayBeFinal(d.bucket)",
		"a.pastChanged = a.pastChanged || !BUG && w.mayBeFinal(d.bucket)"}, nil},

	// Of windows, flights.
	{"nothing is read before the next addition after a failure", "debts", takeOut{"subwindow/account.go",
		"	a.flight, a.doubtful = nil, true\n",
		"	a.flight, a.doubtful = nil, a.doubtful || !BUG\n"}, nil},
	{"what may be counted isn't taken for counted", "debts", takeOut{"subwindow/account.go",
		"		f.seen, f.found = true, max(0, min(f.sum, value-f.before))\n",
		"		if f.seen = true; !BUG {\n			f.found = max(0, min(f.sum, value-f.before))\n		}\n"}, nil},
	{"more is taken for counted than was admitted alone", "bound", takeOut{"subwindow/account.go",
		"min(f.alone, f.found)",
		"min(func() int64 { if BUG { return f.sum }; return f.alone }(), f.found)"}, nil},
	{"a flight's slot isn't read when no window looks at it", "debts", takeOut{"subwindow/exchange.go",
		"			if !f.seen {\n				more",
		"			if !BUG && !f.seen {\n				more"}, nil},
	{"what is admitted alone isn't part of its flight", "debts", takeOut{"subwindow/family.go",
		"			a.admit(was, r.Cost)\n",
		"			if !BUG {\n				a.admit(was, r.Cost)\n			}\n"}, nil},
	{"who is refused doesn't know the flight", "debts", takeOut{"subwindow/answer.go",
		"c.Answer(counters.Decision{}, ledger.Failed(err, f))",
		"c.Answer(counters.Decision{}, func() error { if BUG { return err }; return ledger.Failed(err, f) }())"}, nil},
	{"what turns out to be counted isn't given back", "counts", takeOut{"subwindow/family.go",
		"			a.owe(was.bucket, -was.sum, was.at)\n",
		"			if !BUG {\n				a.owe(was.bucket, -was.sum, was.at)\n			}\n"}, nil},
	{"what the server lost on the way fails", "errors", takeOut{"subwindow/steps.go",
		"	case errors.Is(err, counters.ErrLost) && w.steps",
		"	case !BUG && errors.Is(err, counters.ErrLost) && w.steps"}, nil},
	{"nothing is read when the server lost something on the way", "errors", takeOut{"subwindow/steps.go",
		"		a.flight, a.doubtful = nil, true\n		return true",
		"		a.flight, a.doubtful = nil, a.doubtful || !BUG\n		return true"}, nil},

	// Of windows, the generation.
	{"a denial doesn't look whether the client was reset", "reset", takeOut{"subwindow/exchange.go",
		"w.reads(all, all || !a.fresh(w.now), true)",
		"w.reads(all, !BUG && (all || !a.fresh(w.now)), true)"}, nil},
	{"a reset isn't noticed", "reset", takeOut{"subwindow/replies.go",
		"	case is > was:\n",
		"	case is > was && !BUG:\n"}, nil},
	{"nothing is forgotten at a reset", "reset", takeOut{"subwindow/account.go",
		"	a.slots = a.slots[:0]\n	a.verified",
		"	if !BUG {\n		a.slots = a.slots[:0]\n	}\n	a.verified"}, nil},
	{"what comes after a reset isn't read", "bound", takeOut{"subwindow/replies.go",
		"w.options.ClockSkew)\n		a.doubtful = true\n		if s := a.at(w.bucket); w.counted {",
		"w.options.ClockSkew)\n		a.doubtful = a.doubtful || !BUG\n		if s := a.at(w.bucket); w.counted {"}, nil},
	{"settled slots aren't read when the past has changed", "reason", takeOut{"subwindow/replies.go",
		"	case generation != a.generation:\n		a.doubtful = true",
		"	case generation != a.generation:\n		a.doubtful = a.doubtful || !BUG"}, nil},
	{"who tells of a change doesn't see that of another", "reset", takeOut{"subwindow/replies.go",
		"if told.Count-w.additions[n].Delta == a.generation {",
		"if BUG || told.Count-w.additions[n].Delta == a.generation {"}, nil},

	// Buckets and logs.
	{"contention is an error", "errors", takeOut{"cas/work.go",
		"		case contended:\n",
		"		case !BUG && contended:\n"}, nil},
	{"a refund takes from a bucket that was reset", "bound", takeOut{"cas/bucket.go",
		"if s.generation != d.generation {",
		"if !BUG && s.generation != d.generation {"}, nil},
	{"a refund gives back what has drained", "bound", takeOut{"cas/bucket.go",
		"if d.now < at {",
		"if !BUG && d.now < at {"}, nil},
	{"a bucket's admission doesn't say when its cost fits again", "retry-after", takeOut{"cas/bucket.go",
		"if allowed && !b.countDenied {",
		"if allowed && (BUG || !b.countDenied) {"}, nil},
	{"a bucket's denial is known ahead though smaller costs fit", "retry-after", takeOut{"counters/ledger/ledger.go",
		"	d.Local = true\n	return d, fresh && ",
		"	if d.Local = true; BUG {\n		return d, fresh && !d.Allowed\n	}\n	return d, fresh && "},
		[]takeOut{{"counters/ledger/ledger.go",
			"!c.spent.Load() || ",
			"!BUG && !c.spent.Load() || "}}},
	{"a state is relied on for too long", "reason", takeOut{"cas/family.go",
		"!a.owes() && a.last.fresh(r.Now) {",
		"!a.owes() && (BUG || a.last.fresh(r.Now)) {"}, nil},
	{"a wrong clock makes a client wait for what has expired", "retry-after", takeOut{"cas/rules.go",
		"	if at <= now+skew {\n",
		"	if BUG || at <= now+skew {\n"}, nil},
	{"a reset ends before what is remembered", "reset", takeOut{"cas/limiter.go",
		"counters.TTL(next.origin.left(now), f.cfg.Horizon())\n",
		"counters.TTL(next.origin.left(now), f.cfg.Horizon())\n		if BUG {\n			next.ttl = time.Second\n		}\n"}, nil},

	// Of buckets and logs, what is due.
	{"what a process has consumed alone isn't in use", "bound", takeOut{"cas/account.go",
		"	if b.state = l.tell(b.state, d); !d.standsForMore() {\n",
		"	if BUG {\n		return\n	}\n	if b.state = l.tell(b.state, d); !d.standsForMore() {\n"},
		[]takeOut{{"cas/account.go",
			"		old++\n	}\n",
			"		old++\n	}\n	if BUG {\n		old = 0\n	}\n"}}},
	{"what a process knows of a bucket or log is too old to be believed", "bound", takeOut{"cas/account.go",
		"	case a.last.unexpired():",
		"	case a.last.unexpired() && !(BUG && time.Now().UnixNano()-a.last.at > int64(counters.MaxStaleness)):"}, nil},
	{"what a process has consumed alone is never consumed", "debts", takeOut{"cas/work.go",
		"	next.to = w.rules.tell(next.to, w.a.due...)\n",
		"	if !BUG {\n		next.to = w.rules.tell(next.to, w.a.due...)\n	}\n"}, nil},
	{"what a process has consumed alone is lost when others have written", "debts", takeOut{"cas/account.go",
		"	flights := a.flights\n	a.flights = nil\n",
		"	flights := a.flights\n	a.flights = nil\n	if BUG {\n		a.due = nil\n	}\n"}, nil},
	{"what was told stays due", "bound", takeOut{"cas/account.go",
		"			if a.strike(d); refused {",
		"			if !BUG {\n				a.strike(d)\n			}\n			if refused {"}, nil},
	{"what wasn't done isn't due any more", "bound", takeOut{"cas/account.go",
		"			if d.flights--; d.flights > 0",
		"			if BUG {\n				a.strike(d)\n				continue\n			}\n			if d.flights--; d.flights > 0"}, nil},
	{"a refund isn't done", "reason", takeOut{"cas/rules.go",
		"			s = l.refund(s, d)\n",
		"			if !BUG {\n				s = l.refund(s, d)\n			}\n"}, nil},
	{"a refund of unknown outcome is done again", "bound", takeOut{"cas/account.go",
		"				a.strike(t.debt)\n",
		"				if !BUG || t.debt.kind != back {\n					a.strike(t.debt)\n				}\n"}, nil},
	{"what was given back is put back", "reason", takeOut{"cas/work.go",
		"		if d.kind == back && generation != 0",
		"		if !BUG && d.kind == back && generation != 0"}, nil},

	// Settlements and leases.
	{"what another process gives back is missed", "settled", takeOut{"subwindow/answer.go",
		"		case r.Reserved: // from",
		"		case r.Reserved && !BUG: // from"}, nil},
	{"a renewal that was refused is given back", "leases", takeOut{"cas/concurrency.go",
		"	case d.renews != 0:\n",
		"	case d.renews != 0 && !BUG:\n"}, nil},
	{"a lease lasts as long as the clock says that began it", "leases", takeOut{"cas/newlog.go",
		"grid + options.ClockSkew}",
		"grid + func() time.Duration { if BUG { return 0 }; return options.ClockSkew }()}"}, nil},
	{"a lease ends as if it had begun when its name says", "leases", takeOut{"cas/newlog.go",
		"log{window: lease + grid + ",
		"log{window: lease + grid - func() time.Duration { if BUG { return grid }; return 0 }() + "}, nil},
	{"a renewal takes one more place", "released", takeOut{"cas/concurrency.go",
		"	if renewed {\n",
		"	if renewed && !BUG {\n"}, nil},
}

// Without any of the fixes, its bug is seen by the seed that is written down, or within two thousand.
func TestFixesAreNeeded(t *testing.T) {
	t.Parallel()
	for _, fix := range fixes {
		t.Run(fix.bug, func(t *testing.T) {
			t.Parallel()
			out := runWithout(t, fix.bug, fix.oracle)
			seed, err := strconv.ParseUint(out, 10, 64)
			require.NoError(t, err, "%s", out)
			require.NotZero(t, seed, "no seed sees it by the oracle %q", fix.oracle)
			assert.False(t, violates(seed, mutation{}, fix.oracle), "seed %d", seed)
			saw(t, out)
		})
	}
}

// runWithout returns what the build prints that has a bug. All fixes and steps are taken
// out of one build, which is told which bug it has.
func runWithout(t *testing.T, bug, oracle string) string {
	binary, err := brokenBuild()
	require.NoError(t, err)
	child := exec.CommandContext(t.Context(), binary)
	child.Env = append(os.Environ(), bugVariable+"="+bug, oracleVariable+"="+oracle, witnessVariable+"="+witness(t))
	out, err := child.CombinedOutput()
	require.NoError(t, err, "%s", out)
	return strings.TrimSpace(string(out))
}

// Variables of the environment of this test's build without fixes.
const (
	bugVariable     = "SIMULATE_BUG"
	oracleVariable  = "SIMULATE_ORACLE"
	witnessVariable = "SIMULATE_WITNESS"
)

// TestMain is the build without fixes, or else this one's.
func TestMain(m *testing.M) {
	debug.SetGCPercent(400) // worlds are thrown away by the thousand
	witness := os.Getenv(witnessVariable)
	switch oracle := os.Getenv(oracleVariable); oracle {
	case "":
		dir, err := os.MkdirTemp("", "weir-simulate")
		if err != nil {
			panic(err)
		}
		brokenBuild = sync.OnceValues(func() (string, error) { return without(dir, slices.Concat(fixes, steps)) })
		code := m.Run()
		writeWitnesses()
		_ = os.RemoveAll(dir)
		os.Exit(code)
	case plotsOfWindows, plotsOfStates:
		fmt.Println(firstViolated(oracle == plotsOfWindows, witness))
	default:
		fmt.Println(firstSeen(mutation{}, oracle, witness))
	}
}

var brokenBuild func() (binary string, err error)

// without builds this test with all of the fixes taken out, each if the
// environment asks for its bug.
func without(dir string, fixes []fix) (string, error) {
	root, err := filepath.Abs("../../..")
	if err != nil {
		return "", err
	}
	sources := map[string]string{"counters/bug.go": fmt.Sprintf("package counters\n\nimport \"os\"\n\nvar Bug = os.Getenv(%q)\n", bugVariable)}
	for _, fix := range fixes {
		for _, out := range append([]takeOut{fix.takeOut}, fix.also...) {
			if sources[out.file] == "" {
				source, err := os.ReadFile(filepath.Join(root, out.file))
				if err != nil {
					return "", err
				}
				sources[out.file] = string(source)
			}
			if n := strings.Count(sources[out.file], out.code); n != 1 {
				return "", fmt.Errorf("%s has %d times: %s", out.file, n, out.code)
			}
			bug := fmt.Sprintf("(counters.Bug == %q)", fix.bug)
			if filepath.Dir(out.file) == "counters" {
				bug = strings.Replace(bug, "counters.", "", 1)
			}
			sources[out.file] = strings.Replace(sources[out.file], out.code, strings.ReplaceAll(out.broken, "BUG", bug), 1)
		}
	}
	var overlay struct{ Replace map[string]string }
	overlay.Replace = make(map[string]string)
	for file, source := range sources {
		replacement := filepath.Join(dir, strings.ReplaceAll(file, "/", "-"))
		if err := os.WriteFile(replacement, []byte(source), 0o600); err != nil {
			return "", err
		}
		overlay.Replace[filepath.Join(root, file)] = replacement
	}
	list, err := json.Marshal(overlay)
	if err != nil {
		return "", err
	}
	if err := os.WriteFile(filepath.Join(dir, "overlay.json"), list, 0o600); err != nil {
		return "", err
	}
	binary := filepath.Join(dir, "simulate.test")
	out, err := exec.Command("go", "test", "-c", "-vet=off", "-ldflags=-w", "-overlay", filepath.Join(dir, "overlay.json"), "-o", binary, ".").CombinedOutput()
	if err != nil {
		return "", fmt.Errorf("%w\n%s", err, out)
	}
	return binary, nil
}
