package contention

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"weir/bench/internal/benchtest"
	"weir/bench/internal/loadgen"
	"weir/counters"
)

func TestMain(m *testing.M) { benchtest.Main(m, ShareCommand, Share) }

func TestPlainBucket(t *testing.T) {
	t.Parallel()
	// 10 tokens, and 10 a second.
	start := time.Unix(1000, 0)
	b := plainBucket{tokens: 10, at: start.UnixNano()}
	for _, step := range []struct {
		at      time.Duration
		cost    int64
		allowed bool
		tokens  float64
	}{
		{0, 4, true, 6},
		{0, 7, false, 6},
		{100 * time.Millisecond, 7, true, 0},
		{150 * time.Millisecond, 1, false, 0},
		{200 * time.Millisecond, 1, true, 0},
		{450 * time.Millisecond, 2, true, 0.5},
		{400 * time.Millisecond, 1, false, 0.5},
		{500 * time.Millisecond, 1, true, 0},
		{time.Hour, 11, false, 0},
		{time.Hour, 10, true, 0},
		{time.Hour + 50*time.Millisecond, 0, true, 0.5},
		{time.Hour, 0, true, 0.5}, // the clock jumps back
		{time.Hour + 50*time.Millisecond, 0, true, 0.5},
	} {
		var allowed bool
		b, allowed = b.step(counters.Request{Cost: step.cost, Limit: 10, Now: start.Add(step.at)})
		assert.Equal(t, step.allowed, allowed, "cost %d at %v", step.cost, step.at)
		assert.InDelta(t, step.tokens, b.tokens, 1e-6, "cost %d at %v", step.cost, step.at)
		assert.Equal(t, b, decodePlainBucket(b.encode()))
	}
}

func TestPlainLoopIsExactUnderContention(t *testing.T) {
	t.Parallel()
	m := benchtest.Memcached(t)
	l := newPlainLimiter(m.Addr)
	t.Cleanup(func() { assert.NoError(t, l.pool.Close()) })

	const callers, each, limit = 8, 20, 50
	now := time.Now() // of all requests, so that the bucket doesn't refill meanwhile
	ctx := &counters.Deadline{At: now.Add(time.Minute)}
	var admitted atomic.Int64
	var done sync.WaitGroup
	for range callers {
		done.Go(func() {
			for range each {
				d, err := l.Take(ctx, counters.Request{Client: "c", Cost: 1, Limit: limit, Now: now})
				assert.NoError(t, err)
				if d.Allowed {
					admitted.Add(1)
				}
			}
		})
	}
	done.Wait()
	assert.Equal(t, int64(limit), admitted.Load())
}

func TestPlainLoopGivesUpAtItsDeadline(t *testing.T) {
	t.Parallel()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	served := make(chan struct{})
	go func() {
		defer close(served)
		conn, err := l.Accept()
		if !assert.NoError(t, err) {
			return
		}
		defer conn.Close()
		full := plainBucket{tokens: 5}.encode()
		for r := bufio.NewReader(conn); ; {
			line, err := r.ReadString('\n')
			if err != nil {
				return
			}
			answer := fmt.Sprintf("VALUE plain:c 0 %d 7\r\n%s\r\nEND\r\n", len(full), full)
			if strings.HasPrefix(line, "cas ") {
				_, err = io.CopyN(io.Discard, r, int64(len(full)+2))
				assert.NoError(t, err)
				answer = "EXISTS\r\n" // another was faster, each time
			}
			_, err = io.WriteString(conn, answer)
			assert.NoError(t, err)
		}
	}()
	t.Cleanup(func() {
		assert.NoError(t, l.Close())
		<-served
	})
	plain := newPlainLimiter(l.Addr().String())
	t.Cleanup(func() { assert.NoError(t, plain.pool.Close()) })

	now := time.Now()
	_, err = plain.Take(&counters.Deadline{At: now.Add(30 * time.Millisecond)}, counters.Request{Client: "c", Cost: 1, Limit: 5, Now: now})
	require.ErrorIs(t, err, counters.ErrTimeout)
	assert.False(t, time.Now().Before(now.Add(30*time.Millisecond)))
}

// An instant is a limiter that admits everything, or answers with its error.
type instant struct{ err error }

func (e instant) Take(context.Context, counters.Request) (counters.Decision, error) {
	return counters.Decision{Allowed: e.err == nil}, e.err
}

// A contended limiter always loses, and remembers how much time it was given.
type contended struct {
	given time.Duration
}

func (c *contended) Take(ctx context.Context, r counters.Request) (counters.Decision, error) {
	deadline, _ := ctx.Deadline()
	c.given = deadline.Sub(r.Now)
	return counters.Decision{Contended: true}, nil
}

func TestContendedRequestsAreDenied(t *testing.T) {
	t.Parallel()
	var o outcome
	var l contended
	assert.False(t, o.decide(l.Take, share{AsServed: true}))
	assert.Equal(t, counters.DefaultTimeout, l.given)
	assert.Equal(t, []int64{0, 1, 1, 0}, []int64{o.Admitted, o.Denied, o.Contended, o.Errors})
	assert.False(t, o.decide(l.Take, share{}))
	assert.Equal(t, callTimeout, l.given)
}

func TestTheLastDecisionOfACallerIsLate(t *testing.T) {
	t.Parallel()
	s := share{Callers: 1}
	const length = 50 * time.Millisecond
	o, err := s.work(t.Context(), instant{}.Take, length)
	require.NoError(t, err)
	assert.Equal(t, int64(1), o.Late)
	assert.Equal(t, length, o.Elapsed)
	assert.Greater(t, o.decisions(), int64(1))
	assert.Equal(t, []int64{o.decisions()}, o.Decisions)
	assert.Positive(t, o.First)
	assert.Greater(t, o.Last, o.First)

	o, err = s.work(t.Context(), instant{errors.New("no answer")}.Take, length)
	require.NoError(t, err)
	assert.Zero(t, o.Late)
	assert.Zero(t, o.decisions())
	assert.Positive(t, o.Errors)
	assert.Equal(t, "no answer", o.FirstError)
}

func TestUnluckiest(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		decisions []int64
		want      float64
	}{
		{[]int64{5}, 1},
		{[]int64{10, 10, 10}, 1},
		{[]int64{10, 25, 25}, 0.5},
		{[]int64{0, 30}, 0},
		{[]int64{0, 0}, 0},
	} {
		o := newOutcome()
		o.Decisions = tt.decisions
		for i, n := range tt.decisions {
			if i%2 == 0 {
				o.Admitted += n
			} else {
				o.Denied += n
			}
		}
		assert.InDelta(t, tt.want, o.unluckiest(), 1e-9, "%v", tt.decisions)
	}
}

func TestOutcomesAddUp(t *testing.T) {
	t.Parallel()
	part := func(admitted int64, elapsed time.Duration, first, last int64) outcome {
		o := newOutcome()
		o.Admitted, o.Elapsed, o.Decisions, o.First, o.Last = admitted, elapsed, []int64{admitted}, first, last
		o.Contended = 1
		require.NoError(t, o.Latency.RecordValue(int64(time.Millisecond)))
		return o
	}
	together := newOutcome()
	together.join(part(3, time.Second, 20, 90))
	late := part(5, 2*time.Second, 10, 80)
	late.Late = 2
	together.join(late)
	idle := newOutcome()
	idle.Decisions = []int64{0}
	together.join(idle)
	assert.Equal(t, []int64{3, 5, 0}, together.Decisions)
	assert.Equal(t, 2*time.Second, together.Elapsed)
	assert.InDelta(t, 3.0, together.rate(), 1e-9, "six in time, in two seconds")
	assert.Equal(t, []int64{10, 90}, []int64{together.First, together.Last})

	turns := newOutcome()
	turns.add(together)
	turns.add(together)
	assert.Equal(t, []int64{6, 10, 0}, turns.Decisions)
	assert.Equal(t, 4*time.Second, turns.Elapsed)
	assert.Equal(t, int64(4), turns.Contended)
	assert.Equal(t, []int64{3, 5, 0}, together.Decisions)

	encoded, err := json.Marshal(turns)
	require.NoError(t, err)
	var decoded outcome
	require.NoError(t, json.Unmarshal(encoded, &decoded))
	assert.Equal(t, int64(4), decoded.Latency.TotalCount())
	row := newRateRow(fixedSlots, shape{2, 1}, decoded, 2)
	assert.InDelta(t, 1.5, row.Ratio, 1e-9)
	assert.Zero(t, row.Unluckiest)
	assert.InEpsilon(t, time.Millisecond, row.P99, 0.01)
}

func TestBroken(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		name   string
		report Report
		want   string
	}{
		{"errors of the plain loop", Report{Rates: []rateRow{{Loop: plainCAS, Errors: 5}}}, ""},
		{"errors", Report{Rates: []rateRow{{Loop: fixedSlots, Errors: 5, FirstError: "no answer"}}}, "5 errors, the first: no answer"},
		{"too many of a far bucket", Report{Far: []farRow{{Processes: 8, Callers: 32, RoundTrip: time.Millisecond, Admitted: 301, Most: 300.9}}}, "far, limited, 8 x 32 callers, 1ms: admitted 301; must be at most 300.9"},
		{"as many", Report{Far: []farRow{{Admitted: 300, Most: 300}}}, ""},
		{"no limit far away, and errors", Report{Far: []farRow{{Admitted: 300, Degraded: 0.5, FirstError: "no answer"}}}, ""},
	} {
		err := tt.report.Broken()
		if tt.want == "" {
			assert.NoError(t, err, tt.name)
		} else {
			assert.ErrorContains(t, err, tt.want, tt.name)
		}
	}
}

func TestFarRows(t *testing.T) {
	t.Parallel()
	o := newOutcome()
	o.Admitted, o.Denied, o.Contended, o.Errors, o.FirstError = 150, 40, 10, 10, "no answer"
	o.Elapsed, o.First, o.Last = 2*time.Second, int64(time.Hour), int64(time.Hour+1500*time.Millisecond)
	for range 100 {
		require.NoError(t, o.Latency.RecordValue(int64(8*time.Millisecond)))
	}
	roundTrips := loadgen.NewHistogram()
	require.NoError(t, roundTrips.RecordValue(int64(2*time.Millisecond)))
	require.NoError(t, roundTrips.RecordValue(int64(9*time.Millisecond)))

	row := newFarRow(farRun{8, time.Millisecond, true}, o, roundTrips)
	assert.InDelta(t, 95.0, row.Rate, 1e-9)
	assert.InDelta(t, 0.05, row.Degraded, 1e-9, "10 of 200")
	assert.InDelta(t, 0.05, row.Contended, 1e-9, "10 of 200")
	assert.Equal(t, int64(150), row.Admitted)
	assert.InDelta(t, 250.0, row.Most, 1e-9, "100, and 100 a second for 1.5 s")
	assert.InEpsilon(t, 8*time.Millisecond, row.P99, 0.01)
	assert.InEpsilon(t, 2*time.Millisecond, row.RoundTripP50, 0.01)
	assert.InEpsilon(t, 9*time.Millisecond, row.RoundTripP99, 0.01)
	assert.Equal(t, "no answer", row.FirstError)
	assert.Equal(t, "far, limited, 8 x 32 callers, 1ms", row.String())

	row = newFarRow(farRun{8, 0, false}, newOutcome(), loadgen.NewHistogram())
	assert.Zero(t, row.Most)
	assert.Zero(t, row.Contended)
	assert.Equal(t, "far, rate, 8 x 32 callers, 0s", row.String())
}

// Two processes, a few milliseconds away, hammer a bucket of 100 that counts
// what it denies.
func TestFarTokenBucketOfTwoProcesses(t *testing.T) {
	t.Parallel()
	f := farRun{2, 3 * time.Millisecond, true}
	row, err := f.measure(t.Context(), config{duration: 500 * time.Millisecond})
	require.NoError(t, err)
	assert.LessOrEqual(t, float64(row.Admitted), row.Most)
	assert.GreaterOrEqual(t, row.RoundTripP50, 2970*time.Microsecond, "the histogram is right to 1%")
}

func TestQuickContention(t *testing.T) {
	t.Parallel()
	var r Report
	_, printed, err := benchtest.Run(t, Run, "contention", &r, "-quick", "-rows", "^rate, 2 x 32 |^far, rate, .* 300µs")
	require.NoError(t, err)
	assert.Contains(t, printed, "combined CAS loop")
	require.Len(t, r.Rates, len(loops))
	for i, row := range r.Rates {
		assert.Equal(t, loops[i], row.Loop)
		assert.Equal(t, []int{2, 32}, []int{row.Processes, row.Callers})
		assert.Positive(t, row.Rate, row.Loop)
		assert.LessOrEqual(t, row.P50, row.P99, row.Loop)
		assert.LessOrEqual(t, row.P99, row.P999, row.Loop)
		assert.LessOrEqual(t, row.Unluckiest, 1.0, row.Loop)
		if row.Loop == plainCAS {
			assert.InDelta(t, 1, row.Ratio, 1e-9)
		} else {
			assert.Zero(t, row.Errors, "%s: %s", row.Loop, row.FirstError)
		}
	}
	require.Len(t, r.Far, 1)
	assert.Equal(t, 300*time.Microsecond, r.Far[0].RoundTrip)
	assert.GreaterOrEqual(t, r.Far[0].RoundTripP50, 290*time.Microsecond)
	assert.Contains(t, printed, "seen p50")
}

func TestAProcessThatFailsSaysWhy(t *testing.T) {
	t.Parallel()
	c, err := startProcesses(t.Context(), share{Loop: "no such loop", Memcached: "127.0.0.1:1"}, 1)
	require.NoError(t, err)
	defer c.stop()
	_, err = c.run(time.Millisecond)
	assert.ErrorContains(t, err, `there is no loop "no such loop"`)
}
