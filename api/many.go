package api

import (
	"context"
	"fmt"
	"runtime/debug"
	"slices"
	"sync"
	"time"

	"github.com/labstack/echo/v4"

	"weir/counters"
)

// A manyTaker is a Limiter that can decide for many clients together.
type manyTaker interface {
	// TakesMany reports whether it can, on its store.
	TakesMany() bool
	// TakeMany does what Take would for each of the requests, whose clients
	// differ, and calls done with its number as soon as that is known, or with
	// the zero Taken if Take has to be called. Calls of done may come
	// concurrently.
	TakeMany(ctx context.Context, requests []counters.Request, done func(i int, t counters.Taken))
}

// enoughTogether is how many checks ask a further limit together, though others
// of the batch will follow.
const enoughTogether = 128

// A batchRun decides the checks of a batch. Those that are the only ones of
// their clients and policies ask limit by limit, many together. The others are
// decided one by one.
type batchRun struct {
	*Server
	c        echo.Context
	ctx      *counters.Deadline
	now      time.Time // when it began
	policies *activePolicies
	checks   []check
	outcomes []decided

	together sync.WaitGroup   // goroutines that ask a limit for many
	alone    counters.Workers // who decide for one client

	mu      sync.Mutex
	waiting map[manyTaker][]*batched // for others who ask the same limit
	timer   *time.Timer              // when those who wait ask; nil if nobody does
}

// batched is a check whose limits are being asked. One goroutine at a time uses
// it.
type batched struct {
	*answer
	number int  // in the batch
	asked  int  // how many limits have been
	ended  bool // no further limit is to be asked
}

// manyTaker returns the limiter to ask next, or nil if it asks for one client
// only.
func (one *batched) manyTaker() manyTaker {
	if limiter, ok := one.limits[one.asked].Limiter.(manyTaker); ok && limiter.TakesMany() {
		return limiter
	}
	return nil
}

// mayRefund reports whether one of the limits denies, and denied requests don't
// count.
func (one *batched) mayRefund() bool {
	return !one.policy.CountDenied && slices.ContainsFunc(one.limits, func(l limitAnswer) bool {
		return l.asked && (l.undecided(one.policy) || l.overrules())
	})
}

// canTakeMany reports whether the first limit of the policy of that name can be
// asked for many clients together.
func (p *activePolicies) canTakeMany(name string) bool {
	policy, ok := p.byName[name]
	if !ok || len(policy.Limits) == 0 {
		return ok
	}
	limiter, ok := policy.Limits[0].Limiter.(manyTaker)
	return ok && limiter.TakesMany()
}

// beginBatch waits until a batch of so many checks may begin, and returns when
// it does, until when it must end, and what has to be called when it has. All its
// checks share the store timeout of one, however many they are.
func (s *Server) beginBatch(c echo.Context, checks int) (now time.Time, ctx *counters.Deadline, leave func()) {
	held, leave := s.batches.enter(c.Request().Context(), checks)
	now = s.cfg.Now()
	return now, &counters.Deadline{At: now.Add(max(0, s.cfg.StoreTimeout-held))}, leave
}

// run decides all.
func (r *batchRun) run() {
	groups := groupByClient(r.checks)
	many := len(groups) > 1 && r.c.Request().Context().Err() == nil
	if many {
		r.waiting = make(map[manyTaker][]*batched)
	}
	checks := make([]batched, 0, len(groups)) // never grows
	for _, g := range groups {
		if many && len(g.rest) == 0 && r.policies.canTakeMany(r.checks[g.first].policy) {
			checks = append(checks, batched{number: g.first})
			r.prepare(&checks[len(checks)-1])
		} else {
			r.alone.Go(func() {
				r.decideGroup(r.c, r.ctx, r.checks, g.numbers(), r.outcomes)
				r.batches.decided.Add(1)
			})
		}
	}
	r.askWaiting()
	r.together.Wait()
	r.alone.Wait()
}

// prepare finds the limits of a check, and has the first of them asked.
func (r *batchRun) prepare(one *batched) {
	defer r.rescue(one)
	q := r.checks[one.number]
	a, err := r.policies.byName[q.policy].prepare(q)
	if err != nil {
		r.outcomes[one.number] = decided{nil, err}
		return
	}
	one.answer = a
	if len(a.limits) > 0 {
		r.waitFor(one.manyTaker(), one)
	} else {
		r.finish(one)
	}
}

// waitFor has a check wait for others who ask the same limiter. It returns how
// many do.
func (r *batchRun) waitFor(limiter manyTaker, one *batched) int {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.waiting[limiter] = append(r.waiting[limiter], one)
	return len(r.waiting[limiter])
}

// askWaiting has those who wait ask.
func (r *batchRun) askWaiting() {
	r.mu.Lock()
	defer r.mu.Unlock()
	for limiter, checks := range r.waiting {
		delete(r.waiting, limiter)
		r.together.Go(func() {
			r.askTogether(limiter, checks)
			r.askWaiting()
		})
	}
	if r.timer != nil && r.timer.Stop() {
		r.together.Done()
	}
	r.timer = nil
}

// askSoon has those who wait ask, at the latest when others of their batch may
// be held up by a server that is silent.
func (r *batchRun) askSoon() {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.timer == nil {
		r.together.Add(1)
		r.timer = time.AfterFunc(r.cfg.StoreTimeout/shifts, func() {
			defer r.together.Done()
			r.askWaiting()
		})
	}
}

// askTogether asks a limiter for many clients. A panic fails the checks that it
// has left behind.
func (r *batchRun) askTogether(limiter manyTaker, checks []*batched) {
	requests, told := make([]counters.Request, len(checks)), make([]bool, len(checks))
	for i, one := range checks {
		requests[i] = one.begin(&one.limits[one.asked], r.now)
	}
	defer func() {
		if v := recover(); v != nil {
			err := r.logPanic(r.c, fmt.Errorf("%v", v), debug.Stack())
			for i, one := range checks {
				if !told[i] {
					r.outcomes[one.number] = decided{nil, err}
				}
			}
		}
	}()
	limiter.TakeMany(r.ctx, requests, func(i int, t counters.Taken) {
		told[i] = true
		r.taken(checks[i], requests[i], t)
	})
}

// taken goes on with a check whose limit has been asked, or has to be asked by
// Take. What takes no further operation is done at once.
func (r *batchRun) taken(one *batched, request counters.Request, t counters.Taken) {
	defer r.rescue(one)
	switch {
	case t.Panic != nil:
		r.outcomes[one.number] = decided{nil, r.logPanic(r.c, fmt.Errorf("%v", t.Panic), t.Stack)}
		return
	case !t.Done:
		r.askAlone(one)
		return
	}
	l := &one.limits[one.asked]
	one.asked++
	one.ended = one.end(l, t.Decision, t.Err, request) || one.asked == len(one.limits)
	if one.ended {
		// Who is denied by one of several limits has something to take back, or
		// asks how the others stand.
		if len(one.limits) == 1 || !one.mayRefund() {
			r.finish(one)
		} else {
			r.askAlone(one)
		}
		return
	}
	limiter := one.manyTaker()
	if limiter == nil {
		r.askAlone(one)
	} else if r.waitFor(limiter, one) == enoughTogether {
		r.askWaiting()
	} else {
		r.askSoon()
	}
}

// askAlone goes on with a check in a goroutine of its own.
func (r *batchRun) askAlone(one *batched) {
	r.alone.Go(func() {
		defer r.rescue(one)
		if one.asked == 0 && r.c.Request().Context().Err() != nil {
			r.outcomes[one.number] = decided{nil, errCallerLeft()}
			return
		}
		r.finish(one)
	})
}

// finish asks the limits that haven't been, and puts in the outcome.
func (r *batchRun) finish(one *batched) {
	if !one.ended {
		one.ask(r.ctx, r.now, one.limits[one.asked:])
	}
	one.settle(r.ctx, r.now)
	a, err := r.policies.close(one.answer, r.now)
	if err == nil && a.degraded == nil {
		r.batches.decided.Add(1)
	}
	r.outcomes[one.number] = decided{a, err}
}

// rescue makes a panic the outcome of a check: the others go on.
func (r *batchRun) rescue(one *batched) {
	if v := recover(); v != nil {
		r.outcomes[one.number] = decided{nil, r.logPanic(r.c, fmt.Errorf("%v", v), debug.Stack())}
	}
}
