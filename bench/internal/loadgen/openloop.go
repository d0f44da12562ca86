package loadgen

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"iter"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/HdrHistogram/hdrhistogram-go"

	"weir/bench/internal/traffic"
)

const (
	// longestSleep is how long an open loop sleeps before it looks whether it is
	// to end.
	longestSleep = 50 * time.Millisecond

	// Patience is how long an open loop waits for late answers.
	Patience = 10 * time.Second

	// LagAllowed is what the bench's own delay of 99% of the checks may be, or
	// else one in LagShare of their latency.
	LagAllowed = time.Millisecond
	LagShare   = 5
)

// A Pace is how many checks are due.
type Pace struct {
	Rate   float64 // per second
	Length time.Duration
	Seed   uint64 // of a Poisson process; with 0 checks are evenly spaced
}

// due yields when.
func (p Pace) due() iter.Seq[time.Duration] {
	pattern := traffic.Steady
	if p.Seed != 0 {
		pattern = traffic.Poisson
	}
	return pattern.Generate(p.Seed, p.Rate, p.Length)
}

// A line is a connection of an open loop. The check that is on its way was due
// so long after the loop's start.
type line struct {
	Connection
	intended atomic.Int64
}

// A Sample is what an open loop saw.
type Sample struct {
	Pace    Pace
	Due     int64
	Sent    int64
	Unsent  int64         // when the time for late ones was over
	Elapsed time.Duration // until the last answer, at least the pace's length

	// Lag is how much later than due checks were sent though a connection was
	// free, which is the bench's own fault.
	Lag *hdrhistogram.Histogram

	mu       sync.Mutex
	Statuses map[int]int64
	Degraded int64                   // answers given without the store
	Latency  *hdrhistogram.Histogram // since they were due
	Wrong    int64                   // answers
	Example  string                  // of a wrong answer
	Err      error                   // the first, of a connection
}

// NewSample returns one of nothing.
func NewSample(p Pace) *Sample {
	return &Sample{
		Pace: p, Statuses: make(map[int]int64), Lag: NewHistogram(), Latency: NewHistogram(),
	}
}

// Add counts what o saw at another time.
func (s *Sample) Add(o *Sample) {
	s.Due += o.Due
	s.Sent += o.Sent
	s.Unsent += o.Unsent
	s.Elapsed += o.Elapsed
	s.Degraded += o.Degraded
	s.Wrong += o.Wrong
	for status, n := range o.Statuses {
		s.Statuses[status] += n
	}
	s.Lag.Merge(o.Lag)
	s.Latency.Merge(o.Latency)
	s.Example, s.Err = cmp.Or(s.Example, o.Example), cmp.Or(s.Err, o.Err)
}

// count counts an answer that came at done.
func (s *Sample) count(l *line, status int, body []byte, done time.Duration) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.Statuses[status]++
	if bytes.Contains(body, []byte(`"degraded":true`)) {
		s.Degraded++
	}
	if err := wrong(l, status, body); err != nil {
		if s.Wrong++; s.Example == "" {
			s.Example = err.Error()
		}
	}
	Record(s.Latency, done-time.Duration(l.intended.Load()))
	s.Elapsed = max(s.Elapsed, done)
}

func (s *Sample) failed(err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.Err = cmp.Or(s.Err, err)
}

// Behind reports whether checks were sent so late by the bench's own fault that
// the latencies say more about the bench than about the server.
func (s *Sample) Behind() bool {
	lag := Percentile(s.Lag, 99)
	return lag > LagAllowed && lag > Percentile(s.Latency, 99)/LagShare
}

// unanswered returns how many checks were sent in vain.
func (s *Sample) unanswered() int64 { return s.Sent - s.Latency.TotalCount() }

// Fault returns an error that says what went wrong other than slowness, if
// anything did.
func (s *Sample) Fault() error {
	var faults []string
	if s.Err != nil {
		faults = append(faults, s.Err.Error())
	}
	if n := s.unanswered(); n > 0 {
		faults = append(faults, fmt.Sprintf("not answered: %d", n))
	}
	if s.Unsent > 0 {
		faults = append(faults, fmt.Sprintf("not sent: %d", s.Unsent))
	}
	if s.Wrong > 0 {
		faults = append(faults, fmt.Sprintf("unexpected answers: %d, such as %s", s.Wrong, s.Example))
	}
	if len(faults) == 0 {
		return nil
	}
	return errors.New(strings.Join(faults, "; "))
}

// OpenLoop sends checks when they are due, whether earlier ones are answered or
// not, as long as a connection is free. It waits for the answers, for Patience
// longer than the pace lasts; what is unsent or unanswered then is so in the
// sample. client picks the clients. The first error of a connection ends the
// loop. After a sample with unanswered checks or an error the connections can't
// be used again.
func (all Connections) OpenLoop(ctx context.Context, p Pace, client func() int64) *Sample {
	return all.openLoop(ctx, p, client, Patience, Pause)
}

// openLoop has one goroutine that sends all checks, and one for each connection that
// reads.
func (all Connections) openLoop(ctx context.Context, p Pace, client func() int64, patience time.Duration, pause func(time.Duration)) *Sample {
	ctx, cancel := context.WithTimeout(ctx, p.Length+patience)
	defer cancel()
	s := NewSample(p)
	idle := make(chan *line, len(all))
	var ended atomic.Bool
	var readers sync.WaitGroup
	start := time.Now()
	for _, c := range all {
		line := &line{Connection: c}
		idle <- line
		readers.Go(func() {
			for {
				status, body, err := line.Receive()
				switch {
				case err == nil:
					s.count(line, status, body, time.Since(start))
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
		RaisePriority()
		s.send(ctx, client, idle, start, pause)
	})
	sender.Wait()
	for range all {
		select {
		case <-idle:
		case <-ctx.Done():
		}
	}
	ended.Store(true)
	all.Expire()
	readers.Wait()
	for _, c := range all {
		c.Renew()
	}
	s.Elapsed = max(s.Elapsed, p.Length)
	return s
}

// send sends each check when it is due, or as soon afterwards as a connection
// is idle, until ctx ends.
func (s *Sample) send(ctx context.Context, client func() int64, idle <-chan *line, start time.Time, pause func(time.Duration)) {
	free := time.Duration(0) // when a connection became free after all had been busy
	for intended := range s.Pace.due() {
		s.Due++
		n := client()
		for wait := intended - time.Since(start); wait > 0 && ctx.Err() == nil; wait = intended - time.Since(start) {
			pause(min(wait, longestSleep))
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
			s.Unsent++
			continue
		}
		Record(s.Lag, time.Since(start)-max(intended, free))
		line.intended.Store(int64(intended))
		s.Sent++
		if err := line.Send(n); err != nil {
			s.failed(err)
			line.Close() // which ends the run
		}
	}
}
