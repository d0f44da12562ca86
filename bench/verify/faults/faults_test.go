package faults

import (
	"bufio"
	"bytes"
	"cmp"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os/exec"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	"weir/bench/internal/benchtest"
	"weir/bench/internal/loadgen"
	"weir/bench/internal/testbed"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// A store that takes as long as it likes makes no process decide on its own, so
// that these rows don't depend on the machine's speed.
func TestRowsOnRealProcesses(t *testing.T) {
	t.Parallel()
	var r Report
	_, printed, err := benchtest.Run(t, Run, "faults", &r, "-quick", "-store-timeout", "5s", "-rows", "SIGSTOP$|^random")
	require.Len(t, r.Rows, 3, "%v", err)
	for _, row := range r.Rows {
		assert.Positive(t, row.Checks)
		assert.Zero(t, row.Wrong, row.Missed)
		assert.Zero(t, row.Stuck)
		assert.Zero(t, row.Leaked)
		assert.Contains(t, printed, row.Fault)
	}
	// Of a row no check is measured if all callers wait when the fault comes.
	slowest := slices.MaxFunc(r.Rows, func(a, b row) int { return cmp.Compare(a.Longest, b.Longest) })
	assert.Positive(t, slowest.Longest)
	assert.Less(t, slowest.P50, slowest.Longest)
}

// What processes keep open is open before their goroutines are counted: also the
// connections for batches, and for what is repaid.
func TestABedHasAllConnectionsAtItsStart(t *testing.T) {
	t.Parallel()
	build, err := testbed.BuildWeir(t.Context(), policyFile, "")
	require.NoError(t, err)
	t.Cleanup(build.Remove)
	b, err := newBed(t.Context(), config{timeout: 5 * time.Second, patience: 20 * time.Second}, build, 2, 64)
	require.NoError(t, err)
	t.Cleanup(b.stop)
	require.NoError(t, b.start(t.Context(), 1))
	counted := b.goroutines
	by := b.on(0)
	status, _, err := by.ask(http.MethodPost, loadgen.BatchPath, loadgen.Batch("token", probes).Body)
	by.close()
	require.NoError(t, err)
	require.Equal(t, http.StatusOK, status)
	assert.Eventually(t, func() bool {
		return b.countGoroutines(t.Context()) == nil && slices.Equal(counted, b.goroutines)
	}, time.Minute, 10*time.Millisecond)
}

func TestWrongAnswers(t *testing.T) {
	t.Parallel()
	c := &client{policy: "fixed", name: "client-1"}
	answered := func(change func(a *answer)) *answer {
		a := &answer{Policy: "fixed", Client: "client-1", Allowed: true}
		a.Limits = append(a.Limits, struct {
			Allowed   bool  `json:"allowed"`
			Limit     int64 `json:"limit"`
			Remaining int64 `json:"remaining"`
		}{true, limit, limit - 1})
		change(a)
		return a
	}
	deny := func(a *answer) {
		a.Allowed, a.Limits[0].Allowed, a.Limits[0].Remaining, a.RetryAfter = false, false, 0, 1
	}
	assert.NoError(t, answered(func(*answer) {}).wrong(c, http.StatusOK))
	assert.NoError(t, answered(deny).wrong(c, http.StatusTooManyRequests))
	assert.Error(t, answered(deny).wrong(c, http.StatusOK))
	for name, change := range map[string]func(a *answer){
		"another client": func(a *answer) { a.Client = "client-2" },
		"another policy": func(a *answer) { a.Policy = "log" },
		"another limit":  func(a *answer) { a.Limits[0].Limit = 7 },
		"no limit":       func(a *answer) { a.Limits = nil },
		"less than none": func(a *answer) { a.Limits[0].Remaining = -1 },
		"more than all":  func(a *answer) { a.Limits[0].Remaining = limit + 1 },
		"one half of it": func(a *answer) { a.Limits[0].Allowed = false },
	} {
		assert.Error(t, answered(change).wrong(c, http.StatusOK), name)
	}
	assert.Error(t, answered(func(*answer) {}).wrong(c, http.StatusServiceUnavailable))
}

// Of one process that knows all, and of three: two don't know what the third
// does.
func TestWhatMayBeAdmitted(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		client     client
		one, three int64 // unexcused
	}{
		{client{admitted: 100}, 0, 0},
		{client{admitted: 101}, 1, 1},
		{client{admitted: 150, local: 60}, 50, 0},
		{client{admitted: 150, local: 20}, 50, 30},
		{client{admitted: 310, local: 310}, 210, 10},
		{client{admitted: 150, local: 60, spent: true}, 50, 50},
		{client{admitted: 90}, 0, 0},
	} {
		r := newRecord()
		r.clients = []*client{&tt.client, {policy: "log", admitted: 95}}
		tt.client.policy = "token"
		above, below, one := r.above(0)
		_, _, three := r.above(2)
		assert.Equal(t, []int64{max(0, tt.client.admitted-limit), tt.one, tt.three, max(0, limit-tt.client.admitted) + 5},
			[]int64{above, one["token"], three["token"], below}, "%+v", tt.client)
	}
}

// serve answers what comes on one connection, each time with the next reply,
// and then no more.
func serve(t *testing.T, replies ...string) (addr string) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		conn, err := l.Accept()
		if err != nil {
			return
		}
		defer conn.Close()
		in := bufio.NewReader(conn)
		for _, reply := range replies {
			request, err := http.ReadRequest(in)
			if err != nil {
				return
			}
			_, _ = io.Copy(io.Discard, request.Body)
			fmt.Fprintf(conn, "HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n%s", len(reply), reply)
		}
	}()
	t.Cleanup(func() {
		l.Close()
		<-ended
	})
	return l.Addr().String()
}

func TestARecordTellsRightFromWrong(t *testing.T) {
	t.Parallel()
	const right = `{"policy":"fixed","client":"client-00000000","allowed":true,"degraded":%v,"limits":[{"allowed":true,"limit":100,"remaining":1}]}`
	r := newRecord()
	c := r.newClients(1)[0]
	by := newCaller(serve(t, fmt.Sprintf(right, false), fmt.Sprintf(right, true), `{"policy":`))
	t.Cleanup(by.close)
	_, ok := r.check(by, c, 3)
	assert.True(t, ok)
	r.setFault(true)
	_, ok = r.check(by, c, 2)
	assert.True(t, ok)
	_, ok = r.check(by, c, 1)
	assert.False(t, ok)
	assert.Len(t, r.wrong, 1)
	assert.Equal(t, client{policy: "fixed", name: "client-00000000", admitted: 5, local: 2}, *c)
	assert.EqualValues(t, 2, r.during.TotalCount())
	assert.Zero(t, r.settled.TotalCount())
}

func TestJudge(t *testing.T) {
	t.Parallel()
	cfg := config{timeout: 50 * time.Millisecond}
	for want, change := range map[string]func(b *bed, r *row){
		"":                              func(*bed, *row) {},
		"1 were admitted above":         func(b *bed, _ *row) { b.clients[0].admitted++ },
		"2 wrong answers, such as: one": func(b *bed, _ *row) { b.wrong = []string{"one", "two"} },
		"1 callers had no answer":       func(b *bed, _ *row) { b.stuck = 1 },
		"3 goroutines more":             func(_ *bed, r *row) { r.Leaked = 3 },
		"a check took 90.177535ms, longer than 80ms": func(b *bed, _ *row) { loadgen.Record(b.during, 90*time.Millisecond) },
		"the store decided again after":              func(_ *bed, r *row) { r.Back = 3 * time.Second },
	} {
		b, r := &bed{record: newRecord(), cfg: cfg}, row{Fault: "it", Processes: 1, Machine: 10 * time.Millisecond}
		b.clients = []*client{{policy: "fixed", admitted: limit}}
		loadgen.Record(b.during, 78*time.Millisecond)
		change(b, &r)
		b.judge(&r)
		broken := (&Report{Rows: []row{r}}).Broken()
		if want == "" {
			assert.NoError(t, broken)
			continue
		}
		assert.ErrorContains(t, broken, "faults: it: "+want)
		assert.Len(t, r.Missed, 1)
		assert.Contains(t, printed(&Report{Rows: []row{r}}), "MISSED")
	}
}

// While a process is stopped, nobody asks anything: that takes no longer for it.
func TestAWatchNoticesThatNobodyAsks(t *testing.T) {
	t.Parallel()
	const stopped = 300 * time.Millisecond
	b := &bed{record: newRecord(), cfg: config{timeout: 50 * time.Millisecond}}
	b.weirs = []*testbed.Process{{Addr: serve(t, make([]string, 10_000)...)}}
	longest := b.watch()
	// The shell's parent is this process.
	require.NoError(t, exec.Command("sh", "-c", fmt.Sprintf("kill -STOP $PPID; sleep %v; kill -CONT $PPID", stopped.Seconds())).Run())
	assert.GreaterOrEqual(t, longest(), stopped*9/10)
}

// Where requests may be lost, a lone process doesn't know what has counted.
func TestJudgeOfALossyBed(t *testing.T) {
	t.Parallel()
	for _, lossy := range []bool{false, true} {
		b, r := &bed{record: newRecord(), lossy: lossy}, row{Processes: 1}
		b.clients = []*client{{admitted: limit + 3, local: 3}}
		b.judge(&r)
		assert.Equal(t, lossy, len(r.Missed) == 0)
	}
}

func TestABrokenReportNamesAllRows(t *testing.T) {
	t.Parallel()
	r := &Report{Rows: []row{{Fault: "a", misses: misses{[]string{"one", "two"}}}, {Fault: "b"}, {Fault: "c", misses: misses{[]string{"three"}}}}}
	assert.EqualError(t, r.Broken(), errors.Join(errors.New("faults: a: one"), errors.New("faults: a: two"), errors.New("faults: c: three")).Error())
}

// printed returns what a report prints.
func printed(r *Report) string {
	var out bytes.Buffer
	r.Print(&out)
	return out.String()
}
