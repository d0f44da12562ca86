package loadgen

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

const ms = time.Millisecond

// An answer is how a fake server deals with a check.
type answer struct {
	after  time.Duration // 0 closes the connection instead
	status int
	body   string
}

func always(a answer) func(int) answer { return func(int) answer { return a } }

// allBut answers all checks alike but the one with number k.
func allBut(k int, exception, usual answer) func(int) answer {
	return func(n int) answer {
		if n == k {
			return exception
		}
		return usual
	}
}

// A fake is an open loop.
type fake struct {
	Connections
	pause func(time.Duration)
}

// fakeLoop returns an open loop on a server that answers the check with number
// n, in the order of their starts, as told. Both run in the clock of a synctest
// bubble.
func fakeLoop(t *testing.T, connections int, answers func(n int) answer) *fake {
	t.Helper()
	numbers := make(chan int, 1)
	numbers <- 0
	var clients Connections
	var server sync.WaitGroup
	for range connections {
		ours, theirs := net.Pipe()
		server.Go(func() {
			defer theirs.Close()
			for r := bufio.NewReader(theirs); ; {
				request, err := http.ReadRequest(r)
				if err != nil {
					return
				}
				n := <-numbers
				numbers <- n + 1
				_, _ = io.Copy(io.Discard, request.Body) // from a pipe that doesn't fail
				a := answers(n)
				if a.after == 0 {
					return
				}
				time.Sleep(a.after)
				if _, err := fmt.Fprintf(theirs, "HTTP/1.1 %d x\r\nContent-Length: %d\r\n\r\n%s", a.status, len(a.body), a.body); err != nil {
					return
				}
			}
		})
		c, err := newHTTPConnection(func() (net.Conn, error) { return ours, nil }, "fake", Check("p", 0))
		require.NoError(t, err)
		clients = append(clients, c)
	}
	t.Cleanup(func() {
		clients.Close()
		server.Wait()
	})
	return &fake{clients, time.Sleep}
}

func (l *fake) runEvenly(t *testing.T, rate float64, length, patience time.Duration) *Sample {
	t.Helper()
	return l.openLoop(t.Context(), Pace{Rate: rate, Length: length}, func() int64 { return 0 }, patience, l.pause)
}

func assertDuration(t *testing.T, want, got time.Duration, name string) {
	t.Helper()
	assert.InDelta(t, want.Seconds(), got.Seconds(), max(2e-6, 0.01*want.Seconds()), name)
}

// A check is due every 10 ms and takes 1 ms, but the one due at 500 ms takes
// 100 ms, on the only connection. Those due at 510, 520, ... 600 ms start at
// 600, 601, ... 609 ms and take 91, 82, ... 10 ms.
func TestAStalledServerShowsInTheLatencies(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		l := fakeLoop(t, 1, allBut(50, answer{100 * ms, 200, ""}, answer{ms, 200, ""}))
		s := l.runEvenly(t, 100, 2*time.Second, time.Second)
		require.NoError(t, s.Fault())
		assert.Equal(t, []int64{200, 200, 0, 200}, []int64{s.Due, s.Sent, s.Unsent, s.Statuses[200]})
		assert.Equal(t, 2*time.Second, s.Elapsed)

		// Of 200 latencies 189 are 1 ms; the others are 10, 19, ... 91, and 100
		// ms.
		assertDuration(t, ms, Percentile(s.Latency, 94.5), "the last of 189")
		assertDuration(t, 10*ms, Percentile(s.Latency, 95), "the 190th")
		assertDuration(t, 82*ms, Percentile(s.Latency, 99), "the 198th")
		assertDuration(t, 100*ms, Percentile(s.Latency, 100), "the last")
		assert.InDelta(t, (189*1+505+100)/200.0, s.Latency.Mean()/1e6, 0.02)

		assertDuration(t, 0, Percentile(s.Lag, 100), "being late is not the bench's fault")
		assert.False(t, s.Behind())

	})
}

func TestAnOpenLoopUsesFreeConnections(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		l := fakeLoop(t, 2, allBut(50, answer{100 * ms, 200, ""}, answer{ms, 429, ""}))
		s := l.runEvenly(t, 100, 2*time.Second, time.Second)
		require.NoError(t, s.Fault())
		assertDuration(t, ms, Percentile(s.Latency, 99.5), "all but one")
		assertDuration(t, 100*ms, Percentile(s.Latency, 100), "the last")
		assert.Equal(t, map[int]int64{200: 1, 429: 199}, s.Statuses)
	})
}

func TestTheLastAnswersAreWaitedFor(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		l := fakeLoop(t, 3, always(answer{500 * ms, 200, ""}))
		s := l.runEvenly(t, 10, time.Second, 2*time.Second)
		// Three at a time: those due at 0, 0.1 and 0.2 s end at 0.5, 0.6 and
		// 0.7 s, and so on; the tenth is the first of the fourth round.
		require.NoError(t, s.Fault())
		assert.Equal(t, 2*time.Second, s.Elapsed)
		assertDuration(t, 1100*ms, Percentile(s.Latency, 100), "the tenth, due at 0.9 s")
		// The connections can be used again.
		s = l.runEvenly(t, 2, time.Second, 2*time.Second)
		require.NoError(t, s.Fault())
		assert.Equal(t, int64(2), s.Statuses[200])
	})
}

func TestABenchThatIsBehindSaysSo(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		l := fakeLoop(t, 4, always(answer{10 * ms, 200, ""}))
		l.pause = func(d time.Duration) { time.Sleep(d + 3*ms) }
		s := l.runEvenly(t, 50, time.Second, time.Second)
		require.NoError(t, s.Fault())
		assertDuration(t, 3*ms, Percentile(s.Lag, 99), "lag")
		assertDuration(t, 13*ms, Percentile(s.Latency, 99), "latency")
		assert.True(t, s.Behind(), "3 of 13 ms are more than a fifth")

		l.pause = func(d time.Duration) { time.Sleep(d + 2*ms) }
		assert.False(t, l.runEvenly(t, 50, time.Second, time.Second).Behind(), "2 of 12 ms are less than a fifth")

		l = fakeLoop(t, 4, always(answer{ms, 200, ""}))
		l.pause = func(d time.Duration) { time.Sleep(d + 900*time.Microsecond) }
		assert.False(t, l.runEvenly(t, 50, time.Second, time.Second).Behind(), "0.9 of 1.9 ms are less than what is allowed")
	})
}

func TestChecksThatAreNeverAnswered(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		l := fakeLoop(t, 1, allBut(2, answer{time.Hour, 200, ""}, answer{ms, 200, ""}))
		start := time.Now()
		s := l.runEvenly(t, 10, time.Second, 3*time.Second)
		assert.Equal(t, 4*time.Second, time.Since(start), "with patience")
		assert.Equal(t, []int64{10, 3, 7, 1}, []int64{s.Due, s.Sent, s.Unsent, s.unanswered()})
		assert.EqualError(t, s.Fault(), "not answered: 1; not sent: 7")
	})
}

func TestAClosedConnectionEndsTheRun(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		l := fakeLoop(t, 1, allBut(4, answer{}, answer{ms, 200, ""}))
		start := time.Now()
		s := l.runEvenly(t, 10, 10*time.Second, time.Second)
		assert.LessOrEqual(t, time.Since(start), 450*ms, "when the sender looks next")
		assert.ErrorIs(t, s.Err, io.ErrUnexpectedEOF)
		assert.Equal(t, []int64{100, 5, 95, 1}, []int64{s.Due, s.Sent, s.Unsent, s.unanswered()})
		assert.ErrorContains(t, s.Fault(), "EOF; not answered: 1; not sent: 95")
	})
}

func TestUnexpectedAnswersAreFaults(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		l := fakeLoop(t, 1, func(n int) answer {
			switch n {
			case 3:
				return answer{ms, 503, "no store"}
			case 4:
				return answer{ms, 404, "no policy"}
			case 5, 6:
				return answer{ms, 200, `{"allowed":true,"degraded":true}`}
			default:
				return answer{ms, 200, `{"allowed":true,"degraded":false}`}
			}
		})
		s := l.runEvenly(t, 10, time.Second, time.Second)
		assert.Equal(t, map[int]int64{200: 8, 404: 1, 503: 1}, s.Statuses)
		assert.Equal(t, int64(2), s.Degraded)
		assert.EqualError(t, s.Fault(), "unexpected answers: 2, such as status 503: no store")
	})
}

func TestSamplesAddUp(t *testing.T) {
	t.Parallel()
	sampled := func(due, sent, unsent int64, latency time.Duration) *Sample {
		s := NewSample(Pace{Rate: 1, Length: time.Second})
		s.Due, s.Sent, s.Unsent, s.Elapsed, s.Degraded = due, sent, unsent, time.Second, 1
		s.Statuses[200] = sent
		Record(s.Latency, latency)
		Record(s.Lag, latency/8)
		return s
	}
	total := NewSample(Pace{Rate: 1, Length: 2 * time.Second})
	total.Add(sampled(10, 9, 1, 80*ms))
	last := sampled(20, 20, 0, 160*ms)
	last.Err, last.Example = io.EOF, "status 500"
	total.Add(last)
	assert.Equal(t, []int64{30, 29, 1, 2, 29}, []int64{total.Due, total.Sent, total.Unsent, total.Degraded, total.Statuses[200]})
	assert.Equal(t, 2*time.Second, total.Elapsed)
	assertDuration(t, 80*ms, Percentile(total.Latency, 50), "latency")
	assertDuration(t, 160*ms, Percentile(total.Latency, 100), "latency")
	assertDuration(t, 20*ms, Percentile(total.Lag, 100), "lag")
	assert.ErrorIs(t, total.Err, io.EOF)
	assert.Equal(t, "status 500", total.Example)
}

// Callers are asked when they are due, and count from then: what waits for the
// one before it is late.
func TestOpenLoopOfCallers(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		var calls atomic.Int64
		op := func(n int64) (bool, error) {
			if calls.Add(1) == 1 {
				time.Sleep(100 * ms)
			}
			return n != 0, nil
		}
		turn := &Turn{Clients: 4}
		s := Callers(op, 1).openLoop(t.Context(), Pace{Rate: 1000, Length: 50 * ms}, turn.Client, time.Second, time.Sleep)
		require.NoError(t, s.Fault())
		assert.Equal(t, map[int]int64{200: 37, 429: 13}, s.Statuses)
		assert.Equal(t, 100*ms, s.Elapsed)
		assert.GreaterOrEqual(t, time.Duration(s.Latency.Min()), 50*ms, "the last was due 49 ms after the start, and all waited for the first")
	})
}

func TestOpenLoopEnds(t *testing.T) {
	t.Parallel()
	run := func(ctx context.Context, op Operation) *Sample {
		return Callers(op, 2).openLoop(ctx, Pace{Rate: 1000, Length: time.Hour}, func() int64 { return 0 }, 0, Pause)
	}
	broken := errors.New("broken")
	assert.ErrorIs(t, run(t.Context(), func(int64) (bool, error) { return false, broken }).Err, broken)

	ctx, cancel := context.WithCancel(t.Context())
	s := run(ctx, func(int64) (bool, error) { cancel(); return true, nil })
	assert.Positive(t, s.Unsent)
}
