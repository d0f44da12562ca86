package load

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"net/http"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/HdrHistogram/hdrhistogram-go"

	"weir/bench/internal/loadgen"
)

// longestPause is how long an open loop sleeps before it looks whether it is to
// end.
const longestPause = 50 * time.Millisecond

// The bench's own delay of 99% of the checks may be up to lagAllowed, or up to
// one in lagShare of their latency.
const (
	lagAllowed = time.Millisecond
	lagShare   = 5
)

// A connection is a loadgen.Client or a loadgen.GRPCClient.
type connection interface {
	Check(n int64) (status int, body []byte, err error)
	Send(n int64) error
	Receive() (status int, body []byte, err error)
	Expire()
	Renew()
	Close()
}

// A line is a connection of an open loop. Its times are since the loop's start
// and those of the check that is on its way.
type line struct {
	connection
	intended, started atomic.Int64
}

// An openLoop starts checks when they are due, whether earlier ones are
// answered or not, as long as a connection is free. One goroutine sends all of
// them; each connection has one that reads.
type openLoop struct {
	lines   []*line
	clients loadgen.Zipf
	pause   func(time.Duration)
	// limited reports whether an answer is by a limit.
	limited func(body []byte) bool
}

func newOpenLoop[C connection](connections []C, clients loadgen.Zipf) *openLoop {
	l := &openLoop{clients: clients, pause: loadgen.Pause, limited: func([]byte) bool { return true }}
	for _, c := range connections {
		l.lines = append(l.lines, &line{connection: c})
	}
	return l
}

// A sample is what an open loop saw.
type sample struct {
	pace    loadgen.Pace
	due     int64
	sent    int64
	unsent  int64         // when the time for late ones was over
	elapsed time.Duration // until the last answer, at least the pace's length

	// late is how much later than due checks were sent; lag the part of it in
	// which a connection was free, which is the bench's own fault.
	late, lag *hdrhistogram.Histogram

	mu       sync.Mutex
	statuses map[int]int64
	degraded int64                   // answers given without the store
	without  int64                   // answers without a limit
	latency  *hdrhistogram.Histogram // since they were due
	service  *hdrhistogram.Histogram // since they were sent
	example  string                  // of an answer with an unexpected status
	err      error                   // the first, of a connection
}

func newSample(p loadgen.Pace) *sample {
	return &sample{
		pace: p, statuses: make(map[int]int64),
		late: loadgen.NewHistogram(), lag: loadgen.NewHistogram(), latency: loadgen.NewHistogram(), service: loadgen.NewHistogram(),
	}
}

// add counts what o saw at another time.
func (s *sample) add(o *sample) {
	s.due += o.due
	s.sent += o.sent
	s.unsent += o.unsent
	s.elapsed += o.elapsed
	s.degraded += o.degraded
	s.without += o.without
	for status, n := range o.statuses {
		s.statuses[status] += n
	}
	s.late.Merge(o.late)
	s.lag.Merge(o.lag)
	s.latency.Merge(o.latency)
	s.service.Merge(o.service)
	if s.example == "" {
		s.example = o.example
	}
	if s.err == nil {
		s.err = o.err
	}
}

// answered counts an answer that came at done, by a limit or not.
func (s *sample) answered(l *line, status int, body []byte, limited bool, done time.Duration) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.statuses[status]++
	if bytes.Contains(body, []byte(`"degraded":true`)) {
		s.degraded++
	}
	if !unexpected(status) && !limited {
		s.without++
	}
	if s.example == "" && (unexpected(status) || !limited) {
		s.example = fmt.Sprintf("status %d: %s", status, readable(body))
	}
	loadgen.Record(s.latency, done-time.Duration(l.intended.Load()))
	loadgen.Record(s.service, done-time.Duration(l.started.Load()))
	s.elapsed = max(s.elapsed, done)
}

// readable returns a body, quoted if it isn't text.
func readable(body []byte) string {
	if bytes.ContainsFunc(body, func(r rune) bool { return r < ' ' && r != '\n' }) {
		return strconv.Quote(string(body))
	}
	return string(body)
}

func (s *sample) failed(err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.err == nil {
		s.err = err
	}
}

// behind reports whether checks were sent so late by the bench's own fault that
// the latencies say more about the bench than about the server.
func (s *sample) behind() bool {
	lag := loadgen.Percentile(s.lag, 99)
	return lag > lagAllowed && lag > loadgen.Percentile(s.latency, 99)/lagShare
}

// unanswered returns how many checks were sent in vain.
func (s *sample) unanswered() int64 { return s.sent - s.latency.TotalCount() }

func unexpected(status int) bool {
	return status != http.StatusOK && status != http.StatusTooManyRequests
}

// fault returns an error that says what went wrong other than slowness, if
// anything did.
func (s *sample) fault() error {
	var faults []string
	if s.err != nil {
		faults = append(faults, s.err.Error())
	}
	if n := s.unanswered(); n > 0 {
		faults = append(faults, fmt.Sprintf("not answered: %d", n))
	}
	if s.unsent > 0 {
		faults = append(faults, fmt.Sprintf("not sent: %d", s.unsent))
	}
	var wrong int64
	for status, n := range s.statuses {
		if unexpected(status) {
			wrong += n
		}
	}
	if wrong > 0 {
		faults = append(faults, fmt.Sprintf("unexpected answers: %d, such as %s", wrong, s.example))
	}
	if s.without > 0 {
		faults = append(faults, fmt.Sprintf("answers without a limit: %d, such as %s", s.without, s.example))
	}
	if len(faults) == 0 {
		return nil
	}
	return errors.New(strings.Join(faults, "; "))
}

// run sends the checks that are due and waits for the answers, for patience
// longer than the arrivals last; what is unsent or unanswered then is so in the
// sample. random picks the clients. The first error of a connection ends the
// run. After a sample with unanswered checks or an error the connections can't
// be used again.
func (l *openLoop) run(ctx context.Context, due *loadgen.Arrivals, random *rand.Rand, patience time.Duration) *sample {
	ctx, cancel := context.WithTimeout(ctx, due.Length+patience)
	defer cancel()
	s := newSample(due.Pace)
	idle := make(chan *line, len(l.lines))
	var ended atomic.Bool
	var readers sync.WaitGroup
	start := time.Now()
	for _, line := range l.lines {
		idle <- line
		readers.Go(func() {
			for {
				status, body, err := line.Receive()
				switch {
				case err == nil:
					s.answered(line, status, body, l.limited(body), time.Since(start))
					idle <- line
				case ended.Load():
					return
				default:
					s.failed(err)
					cancel()
					return
				}
			}
		})
	}
	var sender sync.WaitGroup
	sender.Go(func() {
		loadgen.RaisePriority()
		l.send(ctx, s, due, random, idle, start)
	})
	sender.Wait()
	for range l.lines {
		select {
		case <-idle:
		case <-ctx.Done():
		}
	}
	ended.Store(true)
	for _, line := range l.lines {
		line.Expire()
	}
	readers.Wait()
	for _, line := range l.lines {
		line.Renew()
	}
	s.elapsed = max(s.elapsed, due.Length)
	return s
}

// send sends each check when it is due, or as soon afterwards as a connection
// is idle, until ctx ends.
func (l *openLoop) send(ctx context.Context, s *sample, due *loadgen.Arrivals, random *rand.Rand, idle <-chan *line, start time.Time) {
	free := time.Duration(0) // when a connection became free after all had been busy
	for {
		intended, ok := due.Next()
		if !ok {
			return
		}
		s.due++
		client := l.clients.Client(random.Float64())
		for wait := intended - time.Since(start); wait > 0 && ctx.Err() == nil; wait = intended - time.Since(start) {
			l.pause(min(wait, longestPause))
		}
		var line *line
		select {
		case line = <-idle:
		default:
			select {
			case line = <-idle:
				free = time.Since(start)
			case <-ctx.Done():
			}
		}
		if line == nil || ctx.Err() != nil {
			s.unsent++
			for _, ok := due.Next(); ok; _, ok = due.Next() {
				s.due++
				s.unsent++
			}
			return
		}
		started := time.Since(start)
		loadgen.Record(s.late, started-intended)
		loadgen.Record(s.lag, started-max(intended, free))
		line.intended.Store(int64(intended))
		line.started.Store(int64(started))
		s.sent++
		if err := line.Send(client); err != nil {
			s.failed(err)
			line.Close() // which ends the run
		}
	}
}
