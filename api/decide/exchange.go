package decide

import (
	"context"
	"slices"
	"sync"
	"time"

	"weir/api/policy"
	"weir/counters"
)

// A manyTaker is a Limiter that can decide for many clients in one exchange with
// the store.
type manyTaker interface {
	// TakesMany reports whether it can, on its store.
	TakesMany() bool
	// TakeMany does what Take would for each of the requests, of which those of one
	// client follow one another, and calls done with its number as soon as that is
	// known, or with the zero Taken if Take has to be called. Calls of done may come
	// concurrently.
	TakeMany(ctx context.Context, requests []counters.Request, done func(i int, t counters.Taken))
}

// takesMany returns the limiter of l if it takes many, or nil.
func takesMany(l *policy.Limit) manyTaker {
	if limiter, ok := l.Limiter.(manyTaker); ok && limiter.TakesMany() {
		return limiter
	}
	return nil
}

// enoughTogether is how many checks have to wait for the same further limit to ask it at once,
// without the others of their run.
const enoughTogether = 128

// A run asks limits for checks that are decided at one moment. Those that ask the same
// limiter for different clients share its exchanges with the store; the others
// are asked one by one, many at once.
type run struct {
	ctx *counters.Deadline
	now time.Time // when it began
	few int       // so many askings of a limiter, or fewer, are asked one by one
	// by asks the remaining limits of an asking, and ends its check. It needs the store if a limit
	// remains, or if something has to be given back.
	by interface{ finish(one *asking) }

	exchanges sync.WaitGroup   // goroutines that ask a limit for many
	alone     counters.Workers // who ask for one client

	mu      sync.Mutex
	waiting map[manyTaker][]*asking // for others who ask the same limiter
	timer   *time.Timer             // when those who wait ask; nil if nobody does
}

func newRun(ctx *counters.Deadline, now time.Time, timeout time.Duration, few int) run {
	return run{ctx: ctx, now: now, few: few, alone: newWorkers(timeout), waiting: make(map[manyTaker][]*asking)}
}

// An asking is limits of one check that are asked in their order. One goroutine
// at a time uses it.
type asking struct {
	*Answer
	decider *Decider // of a check that is decided by itself
	number  int      // of that
	told    bool     // its outcome has been
	limits  []LimitCheck
	next    int   // the first of limits that is still to be asked; their number if none is
	err     error // why nothing was decided
}

// begin has limits of a client asked, which no other asking of the run asks for it:
// together with others if they take many, once wait is called, else at once.
func (r *run) begin(one *asking) {
	if limiter := takesMany(one.limits[0].Limit); limiter != nil {
		r.waitFor(limiter, one)
	} else {
		r.askAlone(one)
	}
}

// at returns the time by which an asking is decided. The checks of a run are a nanosecond apart:
// a lease is named by its time, and two leases of a client would have the same name if a reset came
// between their checks.
func (r *run) at(one *asking) time.Time { return r.now.Add(time.Duration(one.number)) }

// wait has the limits of all waiting askings asked, and returns when all askings have ended.
func (r *run) wait() {
	r.askWaiting(true)
	r.exchanges.Wait()
	r.alone.Wait()
}

// waitFor has an asking wait for others that ask the same limiter. It returns how many wait for it
// now.
func (r *run) waitFor(limiter manyTaker, one *asking) int {
	r.mu.Lock()
	defer r.mu.Unlock()
	waiting := r.waiting[limiter]
	if waiting == nil {
		waiting = waitingScratch.Get(0)
	}
	r.waiting[limiter] = append(waiting, one)
	return len(waiting) + 1
}

// askWaiting has the limits of the waiting askings asked. With here, it asks one of the limiters
// itself, and so may wait for the store.
func (r *run) askWaiting(here bool) {
	asks := make([]func(), 0, 8) // which cost no allocation
	r.mu.Lock()
	for limiter, askings := range r.waiting {
		if len(askings) > r.few {
			asks = append(asks, func() {
				r.askTogether(limiter, askings)
				r.askWaiting(false)
			})
			continue
		}
		for _, one := range askings {
			r.askAlone(one)
		}
	}
	clear(r.waiting)
	if r.timer != nil && r.timer.Stop() {
		r.exchanges.Done()
	}
	r.timer = nil
	r.mu.Unlock()
	for i, ask := range asks {
		if here && i == len(asks)-1 {
			ask()
		} else {
			r.exchanges.Go(counters.Grown(ask))
		}
	}
}

// askSoon has the limits of the waiting askings asked after the Patience of a worker, if nobody has
// them asked before: a silent server may hold up the others of the run.
func (r *run) askSoon() {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.timer == nil {
		r.exchanges.Add(1)
		r.timer = time.AfterFunc(r.alone.Patience, func() {
			defer r.exchanges.Done()
			r.askWaiting(false)
		})
	}
}

var (
	askingScratch  counters.Scratch[asking]
	waitingScratch counters.Scratch[*asking]
	requestScratch counters.Scratch[counters.Request]
)

// askTogether asks a limiter for many clients. If it panics, the checks that have no answer
// yet fail.
func (r *run) askTogether(limiter manyTaker, askings []*asking) {
	requests, told := requestScratch.Get(len(askings)), make([]bool, len(askings))
	for i, one := range askings {
		l := &one.limits[one.next]
		l.asked, requests[i] = true, l.request(r.at(one))
	}
	if p := contain(func() {
		limiter.TakeMany(r.ctx, requests, func(i int, t counters.Taken) {
			told[i] = true
			r.try(askings[i], func() { r.taken(askings[i], requests[i], t) })
		})
	}); p != nil {
		for i, one := range askings {
			if !told[i] {
				one.err = p
			}
		}
		return
	}
	requestScratch.Put(requests)
	waitingScratch.Put(askings)
}

// taken goes on with an asking whose limit has been asked, or has to be asked by
// Take. What takes no further operation is done at once.
func (r *run) taken(one *asking, request counters.Request, t counters.Taken) {
	switch {
	case t.Panic != nil:
		one.err = &Panic{t.Panic, t.Stack}
		return
	case !t.Done:
		r.askAlone(one)
		return
	}
	l := &one.limits[one.next]
	one.next++
	if l.noteTake(one.Policy, t.Decision, t.Err, request) {
		one.next = len(one.limits)
	}
	if one.next == len(one.limits) {
		// If one of several limits denies, what others have counted may have to be given
		// back, or the answer has to say how they stand: that may take the store.
		if len(one.limits) == 1 || !one.mayRefund() {
			r.by.finish(one)
		} else {
			r.askAlone(one)
		}
		return
	}
	limiter := takesMany(one.limits[one.next].Limit)
	if limiter == nil {
		r.askAlone(one)
	} else if r.waitFor(limiter, one) == enoughTogether {
		r.askWaiting(false)
	} else {
		r.askSoon()
	}
}

// mayRefund reports whether one of the limits denies, and there is one in which denied
// requests don't count.
func (one *asking) mayRefund() bool {
	return slices.ContainsFunc(one.limits, func(l LimitCheck) bool { return l.asked && l.denies(one.Policy) }) &&
		slices.ContainsFunc(one.limits, func(l LimitCheck) bool { return !l.countsDenied(one.Policy) })
}

// askAlone goes on with an asking in a goroutine of its own.
func (r *run) askAlone(one *asking) {
	r.alone.Go(func() { r.try(one, func() { r.by.finish(one) }) })
}

// try calls f for an asking. A panic is its own outcome: the others go on.
func (r *run) try(one *asking, f func()) {
	if p := contain(f); p != nil {
		one.err = p
	}
}
