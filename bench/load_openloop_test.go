package main

import (
	"bufio"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"net/http"
	"sync"
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

// fakeLoop returns an open loop on a server that answers the check with number n,
// in the order of their starts, as told. Both run in the clock of a synctest bubble.
func fakeLoop(t *testing.T, connections int, answers func(n int) answer) *openLoop {
	t.Helper()
	numbers := make(chan int, 1)
	numbers <- 0
	var clients []*client
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
		clients = append(clients, newClient(ours, "fake", workload{fixedWindow, hot}.request()))
	}
	t.Cleanup(func() {
		closeClients(clients)
		server.Wait()
	})
	l := newOpenLoop(clients, newZipf(1, 1))
	l.pause = time.Sleep
	return l
}

func (l *openLoop) runEvenly(t *testing.T, rate float64, length, patience time.Duration) *sample {
	t.Helper()
	return l.run(t.Context(), newArrivals(pace{rate, rate, length}, nil), rand.New(rand.NewPCG(1, 1)), patience)
}

func assertDuration(t *testing.T, want, got time.Duration, name string) {
	t.Helper()
	assert.InDelta(t, inMilliseconds(want), inMilliseconds(got), max(0.002, 0.01*inMilliseconds(want)), name)
}

// A check is due every 10 ms and takes 1 ms, but the one due at 500 ms takes 100 ms,
// on the only connection. Those due at 510, 520, ... 600 ms start at 600, 601, ...
// 609 ms and take 91, 82, ... 10 ms.
func TestAStalledServerShowsInTheLatencies(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := fakeLoop(t, 1, func(n int) answer {
			if n == 50 {
				return answer{100 * ms, 200, ""}
			}
			return answer{ms, 200, ""}
		})
		s := l.runEvenly(t, 100, 2*time.Second, time.Second)
		require.NoError(t, s.fault())
		assert.Equal(t, []int64{200, 200, 0, 200}, []int64{s.due, s.sent, s.unsent, s.statuses[200]})
		assert.Equal(t, 2*time.Second, s.elapsed)

		// Of 200 latencies 189 are 1 ms; the others are 10, 19, ... 91, and 100 ms.
		assertDuration(t, ms, percentile(s.latency, 94.5), "the last of 189")
		assertDuration(t, 10*ms, percentile(s.latency, 95), "the 190th")
		assertDuration(t, 82*ms, percentile(s.latency, 99), "the 198th")
		assertDuration(t, 100*ms, percentile(s.latency, 100), "the last")
		assert.InDelta(t, (189*1+505+100)/200.0, s.latency.Mean()/1e6, 0.02)

		assertDuration(t, ms, percentile(s.service, 99), "who counts from the start sees one slow check")
		assertDuration(t, 100*ms, percentile(s.service, 100), "service")
		assertDuration(t, 72*ms, percentile(s.late, 99), "late starts are 9, 18, ... 90 ms")
		assertDuration(t, 0, percentile(s.lag, 100), "and none of them the bench's fault")
		assert.False(t, s.behind())

		f := newLoadFigures(s)
		assert.InDelta(t, 100.0, f.Rate, 1e-9)
		assert.InDelta(t, 100.0, f.Achieved, 1e-9)
		assertDuration(t, 82*ms, f.Latency.P99, "p99")
		assertDuration(t, ms, f.Latency.ServiceP99, "service p99")
		assertDuration(t, 100*ms, f.Latency.Max, "max")
	})
}

func TestAnOpenLoopUsesFreeConnections(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := fakeLoop(t, 2, func(n int) answer {
			if n == 50 {
				return answer{100 * ms, 200, ""}
			}
			return answer{ms, 429, ""}
		})
		s := l.runEvenly(t, 100, 2*time.Second, time.Second)
		require.NoError(t, s.fault())
		assertDuration(t, ms, percentile(s.latency, 99.5), "all but one")
		assertDuration(t, 100*ms, percentile(s.latency, 100), "the last")
		assertDuration(t, 0, percentile(s.late, 100), "late")
		assert.Equal(t, map[int]int64{200: 1, 429: 199}, s.statuses)
	})
}

func TestTheLastAnswersAreWaitedFor(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := fakeLoop(t, 3, func(int) answer { return answer{500 * ms, 200, ""} })
		s := l.runEvenly(t, 10, time.Second, 2*time.Second)
		// Three at a time: those due at 0, 0.1 and 0.2 s end at 0.5, 0.6 and 0.7 s, and
		// so on; the tenth is the first of the fourth round.
		require.NoError(t, s.fault())
		assert.Equal(t, 2*time.Second, s.elapsed)
		assert.InDelta(t, 5.0, newLoadFigures(s).Achieved, 1e-9)
		assertDuration(t, 1100*ms, percentile(s.latency, 100), "the tenth, due at 0.9 s")
		// The connections can be used again.
		s = l.runEvenly(t, 2, time.Second, 2*time.Second)
		require.NoError(t, s.fault())
		assert.Equal(t, int64(2), s.statuses[200])
	})
}

func TestABenchThatIsBehindSaysSo(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := fakeLoop(t, 4, func(int) answer { return answer{10 * ms, 200, ""} })
		l.pause = func(d time.Duration) { time.Sleep(d + 3*ms) }
		s := l.runEvenly(t, 50, time.Second, time.Second)
		require.NoError(t, s.fault())
		assertDuration(t, 3*ms, percentile(s.lag, 99), "lag")
		assertDuration(t, 3*ms, percentile(s.late, 99), "late")
		assertDuration(t, 13*ms, percentile(s.latency, 99), "latency")
		assert.True(t, s.behind(), "3 of 13 ms are more than a fifth")
		assert.Nil(t, newLoadFigures(s).Latency)
		assert.Empty(t, newLoadRow("p", s, nil).Curve)

		l.pause = func(d time.Duration) { time.Sleep(d + 2*ms) }
		assert.False(t, l.runEvenly(t, 50, time.Second, time.Second).behind(), "2 of 12 ms are less than a fifth")

		l = fakeLoop(t, 4, func(int) answer { return answer{ms, 200, ""} })
		l.pause = func(d time.Duration) { time.Sleep(d + 900*time.Microsecond) }
		assert.False(t, l.runEvenly(t, 50, time.Second, time.Second).behind(), "0.9 of 1.9 ms are less than what is allowed")
	})
}

func TestChecksThatAreNeverAnswered(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := fakeLoop(t, 1, func(n int) answer {
			if n == 2 {
				return answer{time.Hour, 200, ""}
			}
			return answer{ms, 200, ""}
		})
		start := time.Now()
		s := l.runEvenly(t, 10, time.Second, 3*time.Second)
		assert.Equal(t, 4*time.Second, time.Since(start), "with patience")
		assert.Equal(t, []int64{10, 3, 7, 1}, []int64{s.due, s.sent, s.unsent, s.unanswered()})
		assert.EqualError(t, s.fault(), "not answered: 1; not sent: 7")
	})
}

func TestAClosedConnectionEndsTheRun(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := fakeLoop(t, 1, func(n int) answer {
			if n == 4 {
				return answer{}
			}
			return answer{ms, 200, ""}
		})
		start := time.Now()
		s := l.runEvenly(t, 10, 10*time.Second, time.Second)
		assert.LessOrEqual(t, time.Since(start), 450*ms, "when the sender looks next")
		assert.ErrorIs(t, s.err, io.EOF)
		assert.Equal(t, []int64{100, 5, 95, 1}, []int64{s.due, s.sent, s.unsent, s.unanswered()})
		assert.ErrorContains(t, s.fault(), "EOF; not answered: 1; not sent: 95")
	})
}

func TestUnexpectedAnswersAreFaults(t *testing.T) {
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
		assert.Equal(t, map[int]int64{200: 8, 404: 1, 503: 1}, s.statuses)
		assert.Equal(t, int64(2), s.degraded)
		assert.EqualError(t, s.fault(), "unexpected answers: 2, such as status 503: no store")

		step := newSearchStep(s, time.Second)
		assert.Contains(t, step.Failed, "503")
	})
}

func TestSamplesAddUp(t *testing.T) {
	sampled := func(due, sent, unsent int64, latency time.Duration) *sample {
		s := newSample(pace{1, 1, time.Second})
		s.due, s.sent, s.unsent, s.elapsed, s.degraded = due, sent, unsent, time.Second, 1
		s.statuses[200] = sent
		record(s.latency, latency)
		record(s.service, latency/2)
		record(s.late, latency/4)
		record(s.lag, latency/8)
		return s
	}
	total := newSample(pace{1, 1, 2 * time.Second})
	total.add(sampled(10, 9, 1, 80*ms))
	last := sampled(20, 20, 0, 160*ms)
	last.err, last.example = io.EOF, "status 500"
	total.add(last)
	assert.Equal(t, []int64{30, 29, 1, 2, 29}, []int64{total.due, total.sent, total.unsent, total.degraded, total.statuses[200]})
	assert.Equal(t, 2*time.Second, total.elapsed)
	assertDuration(t, 80*ms, percentile(total.latency, 50), "latency")
	assertDuration(t, 160*ms, percentile(total.latency, 100), "latency")
	assertDuration(t, 80*ms, percentile(total.service, 100), "service")
	assertDuration(t, 40*ms, percentile(total.late, 100), "late")
	assertDuration(t, 20*ms, percentile(total.lag, 100), "lag")
	assert.ErrorIs(t, total.err, io.EOF)
	assert.Equal(t, "status 500", total.example)
}
