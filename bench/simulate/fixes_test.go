package simulate

import (
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
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
//   - That a refund takes turns with takes of its process. Without that, what
//     the process knows is wrong until it notices the refund's generation, and
//     no seed has shown that it admits too much meanwhile.
//   - That the generation is read before the counts: where counts are missing,
//     the marks of resets are looked at anyway.
//   - That a refund takes nothing from a log that was reset: processes which
//     remember what was in it put it back.
//   - How seldom processes lose a race.
var fixes = []fix{
	{"contention is an error", "errors", takeOut{"cas/limiter.go",
		"case errors.Is(err, ErrContended):",
		"case !BUG && errors.Is(err, ErrContended):"}, nil},
	{"a strict window drops a slot in which slow clocks still count", "bound", takeOut{"subwindow/window.go",
		"func (w Window) back() int {",
		"func (w Window) back() int { if BUG { return 0 };"}, nil},
	{"the horizon is that of clocks alone", "bound", takeOut{"counters/options.go",
		"func (o *Options) Horizon() time.Duration {",
		"func (o *Options) Horizon() time.Duration { if BUG { return o.ClockSkew };"}, nil},
	{"a slot is settled while counts are on their way", "bound", takeOut{"subwindow/attempt.go",
		"func (a *attempt) snapshot(w Window) snapshot {",
		"func (a *attempt) snapshot(w Window) snapshot { if BUG { w.Horizon = 0 };"}, nil},
	{"nobody looks ahead for faster clocks", "bound", takeOut{"subwindow/window.go",
		"func (w Window) ahead(elapsed time.Duration) int {",
		"func (w Window) ahead(elapsed time.Duration) int { if BUG { w.Horizon = 0 };"}, nil},
	{"counters expire before late counts come", "bound", takeOut{"counters/ttl.go",
		"func TTL(left, horizon time.Duration) time.Duration {",
		"func TTL(left, horizon time.Duration) time.Duration { if BUG { horizon = 0 };"}, nil},
	{"others aren't told of a refund from a settled slot", "reason", takeOut{"subwindow/subtract.go",
		"= s.maySettle(ctx, s.bucket), true",
		"= !BUG && s.maySettle(ctx, s.bucket), true"}, nil},
	{"a refund has only what is left of its check's time", "counts", takeOut{"subwindow/limiter.go",
		"func (l *Limiter) refundLater(req request) {",
		"func (l *Limiter) refundLater(req request) { if BUG { return };"}, nil},
	{"a refund from a bucket or log has only what is left of its check's time", "reason", takeOut{"cas/limiter.go",
		"func (l *Limiter[S]) refundLater(req request) {",
		"func (l *Limiter[S]) refundLater(req request) { if BUG { return };"}, nil},
	{"a refund takes what was counted after a reset", "bound", takeOut{"subwindow/subtract.go",
		"if call.Request.Now.UnixMilli() > reset {",
		"if BUG || call.Request.Now.UnixMilli() > reset {"}, nil},
	{"a refund takes from a bucket that was reset", "bound", takeOut{"cas/bucket.go",
		"if s.generation != taken.Generation {",
		"if !BUG && s.generation != taken.Generation {"}, nil},
	{"a refund gives back what has drained", "bound", takeOut{"cas/bucket.go",
		"if now := r.Now.UnixNano(); now < s.time {",
		"if now := r.Now.UnixNano(); !BUG && now < s.time {"}, nil},
	{"a window's admission doesn't say when its cost fits again", "retry-after", takeOut{"subwindow/limiter.go",
		"case l.options.CountDenied:",
		"case !BUG && l.options.CountDenied:"}, nil},
	{"a bucket's admission doesn't say when its cost fits again", "retry-after", takeOut{"cas/bucket.go",
		"if allowed && !b.countDenied {",
		"if allowed && (BUG || !b.countDenied) {"}, nil},
	{"a window's denial is known ahead though smaller costs fit", "retry-after", takeOut{"subwindow/limiter.go",
		"return d, ok && !d.Allowed && d.Remaining == 0",
		"return d, ok && !d.Allowed && (BUG || d.Remaining == 0)"},
		[]takeOut{{"subwindow/limiter.go",
			"a.fresh && l.full(a):",
			"a.fresh && (BUG || l.full(a)):"}}},
	{"a bucket's denial is known ahead though smaller costs fit", "retry-after", takeOut{"cas/limiter.go",
		"&& full(calls):",
		"&& (BUG || full(calls)):"}, nil},
	{"what a process has admitted alone is counted twice", "debts", takeOut{"subwindow/view.go",
		"excess = max(0, excess-part)\n",
		"if excess = max(0, excess-part); BUG { part = 0 }\n"}, nil},
	{"what a process has consumed alone is consumed twice", "retry-after", takeOut{"cas/view.go",
		"	if v.debt.number == d.number {\n",
		"	if BUG {\n		return\n	}\n	if v.debt.number == d.number {\n"}, nil},
	{"what a process has admitted alone is never counted", "debts", takeOut{"subwindow/repay.go",
		"	if len(debts) == 0 {\n		return nil\n",
		"	if BUG {\n		for _, d := range debts {\n			v.repaid(d, d.cost, true)\n		}\n		return nil\n	}\n	if len(debts) == 0 {\n		return nil\n"}, nil},
	{"what a process has consumed alone is never consumed", "debts", takeOut{"cas/limiter.go",
		"	seen := v.recall()\n	*d = ",
		"	seen := v.recall()\n	if BUG {\n		v.mu.Lock()\n		v.debt = debt[S]{}\n		v.mu.Unlock()\n	}\n	*d = "}, nil},
	{"what a process knows of a window is too old to be believed", "bound", takeOut{"subwindow/local.go",
		"for i, n := range v.counts {",
		"for i, n := range v.counts {\n		if BUG && !v.fresh(r.Now.UnixNano()) {\n			break\n		}"}, nil},
	{"what a process knows of a bucket or log is too old to be believed", "bound", takeOut{"cas/view.go",
		"	return v.last.lasting().debt(a, r)\n",
		"	if BUG && time.Since(v.last.read) > counters.MaxStaleness {\n		return snapshot[S]{}.debt(a, r)\n	}\n	return v.last.lasting().debt(a, r)\n"}, nil},
	{"what is repaid is forgotten until it was read", "bound", takeOut{"subwindow/local.go",
		"d.cost+d.counted",
		"d.cost+func() int64 { if BUG { return 0 }; return d.counted }()"}, nil},
	{"a wrong clock makes a client wait for what has expired", "retry-after", takeOut{"cas/limiter.go",
		"if d.ResetAfter <= counters.MaxStaleness {",
		"if BUG || d.ResetAfter <= counters.MaxStaleness {"}, nil},
}

// Without any of the fixes, its bug is seen within a thousand seeds. All of
// them are taken out of one build, which is told which bug it has.
func TestFixesAreNeeded(t *testing.T) {
	t.Parallel()
	binary := without(t, fixes)
	for _, fix := range fixes {
		t.Run(fix.bug, func(t *testing.T) {
			out := runWithout(t, binary, fix.bug, fix.oracle)
			seed, err := strconv.ParseUint(out, 10, 64)
			require.NoError(t, err, "%s", out)
			require.NotZero(t, seed, "no seed sees it by the oracle %q", fix.oracle)
			assert.False(t, violates(seed, mutation{}, fix.oracle), "seed %d", seed)
			t.Logf("seed %d sees it", seed)
		})
	}
}

// runWithout returns what the build prints that has a bug.
func runWithout(t *testing.T, binary, bug, oracle string) string {
	child := exec.CommandContext(t.Context(), binary)
	child.Env = append(os.Environ(), bugVariable+"="+bug, oracleVariable+"="+oracle)
	out, err := child.CombinedOutput()
	require.NoError(t, err, "%s", out)
	return strings.TrimSpace(string(out))
}

// Variables of the environment of this test's build without fixes.
const (
	bugVariable    = "SIMULATE_BUG"
	oracleVariable = "SIMULATE_ORACLE"
)

// TestMain is the build without fixes, or else this one's.
func TestMain(m *testing.M) {
	switch oracle := os.Getenv(oracleVariable); oracle {
	case "":
		m.Run()
	case anyOracle:
		fmt.Println(firstViolated())
	default:
		fmt.Println(firstSeen(mutation{}, oracle))
	}
}

// without builds this test with all of the fixes taken out, each if the
// environment asks for its bug.
func without(t *testing.T, fixes []fix) string {
	t.Helper()
	root, err := filepath.Abs("../..")
	require.NoError(t, err)
	dir := t.TempDir()
	sources := map[string]string{"counters/bug.go": fmt.Sprintf("package counters\n\nimport \"os\"\n\nvar Bug = os.Getenv(%q)\n", bugVariable)}
	for _, fix := range fixes {
		for _, out := range append([]takeOut{fix.takeOut}, fix.also...) {
			if sources[out.file] == "" {
				source, err := os.ReadFile(filepath.Join(root, out.file))
				require.NoError(t, err)
				sources[out.file] = string(source)
			}
			require.Equal(t, 1, strings.Count(sources[out.file], out.code), "%s: %s", out.file, out.code)
			bug := fmt.Sprintf("(counters.Bug == %q)", fix.bug)
			if strings.HasPrefix(out.file, "counters/") {
				bug = strings.Replace(bug, "counters.", "", 1)
			}
			sources[out.file] = strings.Replace(sources[out.file], out.code, strings.ReplaceAll(out.broken, "BUG", bug), 1)
		}
	}
	var overlay struct{ Replace map[string]string }
	overlay.Replace = make(map[string]string)
	for file, source := range sources {
		replacement := filepath.Join(dir, strings.ReplaceAll(file, "/", "-"))
		require.NoError(t, os.WriteFile(replacement, []byte(source), 0o600))
		overlay.Replace[filepath.Join(root, file)] = replacement
	}
	list, err := json.Marshal(overlay)
	require.NoError(t, err)
	require.NoError(t, os.WriteFile(filepath.Join(dir, "overlay.json"), list, 0o600))
	binary := filepath.Join(dir, "simulate.test")
	out, err := exec.CommandContext(t.Context(), "go", "test", "-c", "-overlay", filepath.Join(dir, "overlay.json"), "-o", binary, ".").CombinedOutput()
	require.NoError(t, err, "%s", out)
	return binary
}
