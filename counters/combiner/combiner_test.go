package combiner

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"runtime"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"
)

// A harness has a combiner whose leaders stop on their way and wait for the
// test. It lives in a synctest bubble.
type harness struct {
	combiner *Combiner[int, int]
	places   map[string]*Place[int, int]
	turns    chan *turn
}

// A turn is one call of the lead function.
type turn struct {
	ctx   context.Context
	batch *Batch[int, int]
	end   chan func()
}

func newHarness() *harness {
	h := &harness{turns: make(chan *turn), places: make(map[string]*Place[int, int])}
	h.combiner = New(func(ctx context.Context, batch *Batch[int, int]) {
		u := &turn{ctx, batch, make(chan func())}
		h.turns <- u
		(<-u.end)()
	})
	return h
}

// place returns the place of that name. Only the test's own goroutine may ask for it.
func (h *harness) place(name string) *Place[int, int] {
	if h.places[name] == nil {
		h.places[name] = new(Place[int, int])
	}
	return h.places[name]
}

// turn waits for the next turn, which must be about these questions.
func (h *harness) turn(t *testing.T, want ...int) *turn {
	t.Helper()
	u := <-h.turns
	require.Equal(t, want, u.questions())
	return u
}

func (u *turn) questions() []int { return questions(u.batch.Calls()) }

func questions(calls []*Call[int, int]) []int {
	var all []int
	for _, call := range calls {
		all = append(all, call.Request)
	}
	return all
}

// join has the leader of a batch join those behind it.
func join(b *Batch[int, int]) []*Call[int, int] {
	b.place.Lock()
	defer b.place.Unlock()
	return b.Join()
}

// answerAll ends the turn: each answer is ten times its question.
func (u *turn) answerAll() {
	u.finish(func() {
		for _, call := range u.batch.Calls() {
			call.Answer(10*call.Request, nil)
		}
	})
}

// finish makes the leader do last and return.
func (u *turn) finish(last func()) {
	u.end <- last
	synctest.Wait()
}

// A caller is a goroutine in Do.
type caller struct {
	returned chan struct{}
	answer   int
	more     string // the answers to what else it asked, as it led
	err      error
	panicked any
}

// call returns when the new caller leads or waits, so that callers arrive in
// the order of the test's calls.
func (h *harness) call(ctx context.Context, name string, question int, more ...int) *caller {
	c, p := &caller{returned: make(chan struct{})}, h.place(name)
	go func() {
		defer close(c.returned)
		defer func() { c.panicked = recover() }()
		c.answer, c.err = h.combiner.Do(ctx, p, question, more, func(_ int, answer int, err error) {
			c.more += fmt.Sprintln(answer, err)
		})
	}()
	synctest.Wait()
	return c
}

func (c *caller) waits() bool {
	select {
	case <-c.returned:
		return false
	default:
		return true
	}
}

func requireAnswer(t *testing.T, answer int, c *caller) {
	t.Helper()
	require.False(t, c.waits(), "still waits")
	require.NoError(t, c.err)
	require.Equal(t, answer, c.answer)
}

func requireError(t *testing.T, err error, c *caller) {
	t.Helper()
	require.False(t, c.waits(), "still waits")
	require.ErrorIs(t, c.err, err)
	require.Zero(t, c.answer)
}

func (h *harness) requireIdle(t *testing.T) {
	t.Helper()
	for name, p := range h.places {
		require.Nil(t, p.batch, name)
	}
}

// checkContext is a context whose Done doesn't fire at its deadline.
type checkContext struct {
	context.Context
	deadline time.Time
}

func (c *checkContext) Deadline() (time.Time, bool) { return c.deadline, true }

// within returns a context that ends after d, without its Done ever firing.
func within(d time.Duration) context.Context {
	return &checkContext{context.Background(), time.Now().Add(d)}
}

func TestCombinerGathersWhileALeaderWorks(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		h, ctx := newHarness(), t.Context()

		a := h.call(ctx, "k", 1)
		first := <-h.turns
		b, c, d := h.call(ctx, "k", 2), h.call(ctx, "k", 3), h.call(ctx, "k", 4)
		require.Equal(t, []int{1}, first.questions())

		first.answerAll()
		requireAnswer(t, 10, a)
		second := <-h.turns
		e := h.call(ctx, "k", 5)
		require.Equal(t, []int{2, 3, 4}, second.questions())
		require.True(t, b.waits() && c.waits() && d.waits())

		second.answerAll()
		requireAnswer(t, 20, b)
		requireAnswer(t, 30, c)
		requireAnswer(t, 40, d)
		third := h.turn(t, 5)

		third.answerAll()
		requireAnswer(t, 50, e)
		h.requireIdle(t)
	})
}

func TestCombinerPlacesDoNotWaitForEachOther(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		h := newHarness()
		var callers []*caller
		var turns []*turn
		for i := range 100 {
			callers = append(callers, h.call(t.Context(), fmt.Sprint("k", i), i))
			turns = append(turns, <-h.turns)
		}
		for i, u := range turns {
			require.Equal(t, []int{i}, u.questions())
			u.answerAll()
			requireAnswer(t, 10*i, callers[i])
		}
		h.requireIdle(t)
	})
}

func TestCombinerJoin(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		h, ctx := newHarness(), t.Context()

		a := h.call(ctx, "k", 1)
		attempt := <-h.turns
		require.Equal(t, []int{1}, questions(join(attempt.batch)))
		b := h.call(ctx, "k", 2)
		cancelled, cancel := context.WithCancel(ctx)
		c := h.call(cancelled, "k", 3)
		d := h.call(ctx, "k", 4)
		cancel()
		synctest.Wait()
		requireError(t, context.Canceled, c)
		require.Equal(t, []int{1, 2, 4}, questions(join(attempt.batch)))
		e := h.call(ctx, "k", 5)
		require.Equal(t, []int{1, 2, 4, 5}, questions(join(attempt.batch)))

		attempt.answerAll()
		requireAnswer(t, 10, a)
		requireAnswer(t, 20, b)
		requireAnswer(t, 40, d)
		requireAnswer(t, 50, e)
		h.requireIdle(t)
	})
}

func TestCombinerPassesErrorsOn(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		h, ctx := newHarness(), t.Context()
		down := errors.New("store is down")

		a := h.call(ctx, "k", 1)
		first := <-h.turns
		b, c := h.call(ctx, "k", 2), h.call(ctx, "k", 3)
		first.finish(func() { first.batch.Calls()[0].Err = down })
		requireError(t, down, a)

		second := <-h.turns
		second.finish(func() {
			calls := second.batch.Calls()
			calls[0].Err, calls[1].Result = down, 30
		})
		requireError(t, down, b)
		requireAnswer(t, 30, c)
	})
}

func TestCombinerAnswersDoNotOutliveTheirCall(t *testing.T) {
	t.Parallel()
	down := errors.New("store is down")
	var p Place[int, int]
	c := New(func(_ context.Context, batch *Batch[int, int]) {
		for _, call := range batch.Calls() {
			if call.Request == 0 {
				call.Err = down
			} else {
				call.Result = 10 * call.Request
			}
		}
	})
	for range 10 {
		answer, err := c.Do(t.Context(), &p, 1, nil, nil)
		require.NoError(t, err)
		require.Equal(t, 10, answer)
		answer, err = c.Do(t.Context(), &p, 0, nil, nil)
		require.ErrorIs(t, err, down)
		require.Zero(t, answer)
	}
}

func TestCombinerCallerLeavesAtItsDeadline(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		h := newHarness()
		start := time.Now()

		a := h.call(within(50*time.Millisecond), "k", 1)
		first := <-h.turns
		time.Sleep(10 * time.Millisecond)
		b := h.call(within(50*time.Millisecond), "k", 2) // until 60 ms
		time.Sleep(10 * time.Millisecond)
		c := h.call(within(10*time.Millisecond), "k", 3) // until 30 ms
		d := h.call(within(50*time.Millisecond), "k", 4) // until 70 ms

		<-c.returned
		require.Equal(t, 30*time.Millisecond, time.Since(start))
		requireError(t, context.DeadlineExceeded, c)
		<-b.returned
		require.Equal(t, 60*time.Millisecond, time.Since(start))
		requireError(t, context.DeadlineExceeded, b)

		require.True(t, a.waits(), "only its lead function ends a leader")
		first.answerAll()
		requireAnswer(t, 10, a)
		second := h.turn(t, 4)
		second.answerAll()
		requireAnswer(t, 40, d)
		h.requireIdle(t)
	})
}

func TestCombinerCallerLeavesARunningBatch(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		h := newHarness()
		start := time.Now()
		cancelled, cancel := context.WithCancel(t.Context())

		h.call(t.Context(), "k", 1)
		first := <-h.turns
		b := h.call(within(20*time.Millisecond), "k", 2)
		c := h.call(cancelled, "k", 3)
		d := h.call(t.Context(), "k", 4)
		first.answerAll()
		second := h.turn(t, 2, 3, 4)
		claimed, other := second.batch.Calls()[0], second.batch.Calls()[1]
		require.True(t, claimed.Claim())

		cancel()
		synctest.Wait()
		requireError(t, context.Canceled, c)
		<-b.returned
		require.Equal(t, 20*time.Millisecond, time.Since(start))
		requireError(t, context.DeadlineExceeded, b)
		require.True(t, claimed.Left())
		require.False(t, other.Claim(), "it has left before")

		// Callers that take records from the pool get their own answers.
		later := []*caller{h.call(t.Context(), "k", 5), h.call(t.Context(), "k", 6)}
		require.Equal(t, []int{2, 3, 4}, second.questions())
		second.answerAll()
		requireAnswer(t, 40, d)
		require.True(t, later[0].waits() && later[1].waits())
		third := h.turn(t, 5, 6)
		third.answerAll()
		requireAnswer(t, 50, later[0])
		requireAnswer(t, 60, later[1])
		h.requireIdle(t)
		var err *LeftError[int, int]
		require.ErrorAs(t, b.err, &err)
		require.Same(t, claimed, err.Call)
		require.NotErrorIs(t, b.err, ErrWithdrawn)
		require.ErrorIs(t, c.err, ErrWithdrawn)
	})
}

// Who leaves after its leader has answered, and before the batch is over, takes
// the answer along.
func TestCombinerCallerLeavesWithItsAnswer(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		h := newHarness()
		first := h.call(t.Context(), "k", 1)
		turn := <-h.turns
		b := h.call(within(20*time.Millisecond), "k", 2)
		c := h.call(within(40*time.Millisecond), "k", 3)
		turn.answerAll()
		requireAnswer(t, 10, first)
		second := h.turn(t, 2, 3)
		call := second.batch.Calls()[0]
		require.True(t, call.Claim())
		require.True(t, call.Answer(20, nil))
		<-b.returned
		requireAnswer(t, 20, b)
		second.finish(func() { second.batch.Calls()[1].Answer(30, nil) })
		requireAnswer(t, 30, c)
		h.requireIdle(t)
	})
}

func TestCombinerDeadlinesCloseTogetherShareASweep(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		h := newHarness()
		start := time.Now()
		h.call(t.Context(), "k", 0)
		first := <-h.turns
		var callers []*caller
		for i := range 100 { // until 50, 50.1, ... 59.9 ms
			budget := 50*time.Millisecond + time.Duration(i)*100*time.Microsecond
			callers = append(callers, h.call(within(budget), "k", i))
		}
		for i, c := range callers {
			<-c.returned
			requireError(t, context.DeadlineExceeded, c)
			sweep := 50 + (i+9)/10
			require.Equal(t, time.Duration(sweep)*time.Millisecond, time.Since(start))
		}
		first.answerAll()
		h.requireIdle(t)
	})
}

func TestCombinerLastToExpireLeads(t *testing.T) {
	t.Parallel()
	deadlines := func(d ...time.Duration) []time.Duration { return d }
	for _, test := range []struct {
		name      string
		deadlines []time.Duration // 0: none
		leader    int
	}{
		{"equal budgets", deadlines(51, 52, 53), 2},
		{"same deadline", deadlines(50, 50, 50), 2},
		{"a patient caller", deadlines(51, 90, 53), 1},
		{"no deadline", deadlines(51, 0, 53), 1},
		{"no deadlines", deadlines(0, 52, 0), 2},
	} {
		t.Run(test.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				h := newHarness()
				h.call(t.Context(), "k", 0)
				first := <-h.turns
				var contexts []context.Context
				var callers []*caller
				for i, d := range test.deadlines {
					ctx := context.WithValue(t.Context(), caller{}, i)
					if d > 0 {
						ctx = &checkContext{ctx, time.Now().Add(d * time.Millisecond)}
					}
					contexts = append(contexts, ctx)
					callers = append(callers, h.call(ctx, "k", i))
				}
				first.answerAll()
				second := h.turn(t, 0, 1, 2)
				require.Equal(t, test.leader, second.ctx.Value(caller{}))
				want, ok := contexts[test.leader].Deadline()
				got, gotOK := second.ctx.Deadline()
				require.Equal(t, want, got)
				require.Equal(t, ok, gotOK)
				second.answerAll()
				for i, c := range callers {
					requireAnswer(t, 10*i, c)
				}
			})
		})
	}
}

func TestCombinerLeaderThatHangsUpFailsNobody(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		h := newHarness()
		ctx, cancel := context.WithCancel(t.Context())
		a := h.call(ctx, "k", 1)
		first := <-h.turns
		b := h.call(t.Context(), "k", 2)
		join(first.batch)
		cancel()
		synctest.Wait()
		require.Equal(t, ctx, first.ctx, "to end by its deadline")
		first.answerAll()
		requireAnswer(t, 10, a)
		requireAnswer(t, 20, b)
	})
}

// A slowContext is cancelled, and whoever asks for the reason has to wait until
// the test lets it go on.
type slowContext struct {
	context.Context
	done    chan struct{}
	asked   chan struct{}
	proceed chan struct{}
}

func newSlowContext() *slowContext {
	return &slowContext{context.Background(), make(chan struct{}), make(chan struct{}), make(chan struct{})}
}

func (c *slowContext) Done() <-chan struct{} { return c.done }

func (c *slowContext) Err() error {
	c.asked <- struct{}{}
	<-c.proceed
	return context.Canceled
}

// hangUp cancels the context and returns when its caller has noticed and is
// about to leave.
func (c *slowContext) hangUp() {
	close(c.done)
	<-c.asked
}

func (c *slowContext) letGo() {
	close(c.proceed)
	synctest.Wait()
}

func TestCombinerLeavingAtTheMomentOfHandOver(t *testing.T) {
	t.Parallel()
	// Callers a, b and c; a leads, b and c wait, and c, who has no deadline,
	// would lead next.
	timeline := func(name string, play func(t *testing.T, h *harness, first *turn, b, c *caller, slow *slowContext)) {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				h := newHarness()
				a := h.call(t.Context(), "k", 1)
				first := <-h.turns
				slow := newSlowContext()
				b := h.call(within(time.Hour), "k", 2)
				c := h.call(slow, "k", 3)
				play(t, h, first, b, c, slow)
				requireAnswer(t, 10, a)
				h.requireIdle(t)
			})
		})
	}
	timeline("before it", func(t *testing.T, h *harness, first *turn, b, c *caller, slow *slowContext) {
		slow.hangUp()
		slow.letGo()
		requireError(t, context.Canceled, c)
		first.answerAll()
		second := h.turn(t, 2)
		second.answerAll()
		requireAnswer(t, 20, b)
	})
	timeline("notices before, elected before it has left", func(t *testing.T, h *harness, first *turn, b, c *caller, slow *slowContext) {
		slow.hangUp()
		first.answerAll()
		require.True(t, b.waits())
		slow.letGo()
		requireError(t, context.Canceled, c)
		second := h.turn(t, 2)
		second.answerAll()
		requireAnswer(t, 20, b)
	})
	timeline("elected, then notices", func(t *testing.T, h *harness, first *turn, b, c *caller, slow *slowContext) {
		first.answerAll()
		<-slow.asked
		d := h.call(within(time.Minute), "k", 4)
		slow.letGo()
		requireError(t, context.Canceled, c)
		second := h.turn(t, 2, 4)
		second.answerAll()
		requireAnswer(t, 20, b)
		requireAnswer(t, 40, d)
	})
	timeline("elected when all others have left", func(t *testing.T, h *harness, first *turn, b, c *caller, slow *slowContext) {
		slow.hangUp()
		first.answerAll()
		<-b.returned // after an hour
		requireError(t, context.DeadlineExceeded, b)
		slow.letGo()
		requireError(t, context.Canceled, c)
	})
	timeline("last to leave before it", func(t *testing.T, h *harness, first *turn, b, c *caller, slow *slowContext) {
		<-b.returned
		slow.hangUp()
		slow.letGo()
		requireError(t, context.Canceled, c)
		first.answerAll()
	})
	timeline("taken up before it has left", func(t *testing.T, h *harness, first *turn, b, c *caller, slow *slowContext) {
		slow.hangUp()
		join(first.batch)
		slow.letGo()
		requireError(t, context.Canceled, c)
		require.Equal(t, []int{1, 2, 3}, first.questions())
		first.answerAll()
		requireAnswer(t, 20, b)
	})
	timeline("answered before it has left", func(t *testing.T, h *harness, first *turn, b, c *caller, slow *slowContext) {
		slow.hangUp()
		join(first.batch)
		first.answerAll()
		require.True(t, c.waits())
		slow.letGo()
		requireAnswer(t, 30, c) // it counted, and the caller hears of it
		requireAnswer(t, 20, b)
	})
}

func TestCombinerElectedAfterItsDeadline(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		h := newHarness()
		h.call(t.Context(), "k", 1)
		first := <-h.turns
		b := h.call(within(50*time.Millisecond), "k", 2)
		time.Sleep(50*time.Millisecond - time.Nanosecond)
		first.end <- func() { time.Sleep(time.Nanosecond) } // both at the same moment
		<-b.returned
		select {
		case u := <-h.turns:
			require.Fail(t, "led after its deadline", "%v", u.questions())
		default:
		}
		requireError(t, context.DeadlineExceeded, b)
		synctest.Wait()
		h.requireIdle(t)
	})
}

func TestCombinerLeaderFails(t *testing.T) {
	t.Parallel()
	crash := errors.New("crash")
	for _, test := range []struct {
		name     string
		last     func()
		panicked any
		message  string
	}{
		{"panics with an error", func() { panic(crash) }, crash, ErrLeaderFailed.Error() + ": crash"},
		{"panics with a string", func() { panic("boom") }, "boom", ErrLeaderFailed.Error() + ": boom"},
		{"ends its goroutine", runtime.Goexit, nil, ErrLeaderFailed.Error()},
	} {
		t.Run(test.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				h, ctx := newHarness(), t.Context()
				a := h.call(ctx, "k", 1)
				first := <-h.turns
				b, c := h.call(ctx, "k", 2), h.call(ctx, "k", 3)
				join(first.batch)
				d := h.call(ctx, "k", 4)
				first.finish(func() {
					first.batch.Calls()[1].Result = 20 // no good: the batch fails as a whole
					test.last()
				})

				require.False(t, a.waits())
				require.Equal(t, test.panicked, a.panicked)
				for _, member := range []*caller{b, c} {
					requireError(t, ErrLeaderFailed, member)
					require.EqualError(t, member.err, test.message)
					require.Equal(t, test.panicked == error(crash), errors.Is(member.err, crash))
				}
				second := h.turn(t, 4)
				second.answerAll()
				requireAnswer(t, 40, d)
				h.requireIdle(t)
			})
		})
	}
}

// Who has its answer leaves with that, and what a leader that crashes later says is no longer for it.
// (The race detector sees if it is.)
func TestCombinerLeaderFailsAfterWhoWasAnsweredHasLeft(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		h := newHarness()
		h.call(t.Context(), "k", 1)
		first := <-h.turns
		b := h.call(within(time.Second), "k", 2)
		join(first.batch)
		first.finish(func() {
			require.True(t, first.batch.Calls()[1].Answer(20, nil))
			time.Sleep(2 * time.Second)
			panic("boom")
		})
		time.Sleep(3 * time.Second)
		synctest.Wait()
		requireAnswer(t, 20, b)
		h.requireIdle(t)
	})
}

// A move is one step of a random timeline.
type move struct {
	Kind   string
	Key    string
	Caller int           // cancel: which of all callers so far; arrive: how much more it asks
	Budget time.Duration // arrive: until its deadline; 0: none
}

func (m move) String() string {
	return fmt.Sprintf("%s(%s caller=%d budget=%v)", m.Kind, m.Key, m.Caller, m.Budget)
}

func moves() *rapid.Generator[[]move] {
	return rapid.SliceOfN(rapid.Custom(func(t *rapid.T) move {
		return move{
			Kind:   rapid.SampledFrom([]string{"arrive", "arrive", "arrive", "cancel", "join", "answer", "panic", "tick"}).Draw(t, "kind"),
			Key:    rapid.SampledFrom([]string{"k", "other"}).Draw(t, "key"),
			Caller: rapid.IntRange(0, 50).Draw(t, "caller"),
			Budget: time.Duration(rapid.IntRange(0, 5).Draw(t, "budget")) * 10 * time.Millisecond,
		}
	}), 20, 100)
}

// The model is one queue of callers per key. The first `taken` of them are in
// the running batch.
type queueModel struct {
	callers []*modelCaller
	taken   int
	leader  *modelCaller
	begun   int // how many were in the batch when the leader added what else it asks
}

// questions are those of the running batch.
func (q *queueModel) questions() (all []int) {
	for i, m := range q.callers[:q.taken] {
		if i == q.begun {
			all = append(all, q.leader.more...)
		}
		all = append(all, m.question)
	}
	if q.taken > 0 && q.begun == q.taken {
		all = append(all, q.leader.more...)
	}
	return all
}

type modelCaller struct {
	question int
	more     []int
	deadline time.Time
	cancel   func()
	real     *caller
	answer   int
	err      error
	returned bool
	leads    bool // and has been answered
}

func (m *modelCaller) expiresBefore(other *modelCaller) bool {
	return !m.deadline.IsZero() && (other.deadline.IsZero() || m.deadline.Before(other.deadline))
}

func (q *queueModel) leave(m *modelCaller, err error) {
	i := slices.Index(q.callers, m)
	if m.returned || i < 0 || m == q.leader {
		return
	}
	m.returned, m.err = true, err
	if i >= q.taken {
		q.callers = slices.Delete(q.callers, i, i+1)
	}
}

// finish ends the running batch and starts the next.
func (q *queueModel) finish(err error) {
	for _, m := range q.callers[:q.taken] {
		if !m.returned {
			m.returned, m.err = true, err
			if err == nil {
				m.answer = 10 * m.question
				m.leads = m == q.leader
			}
		}
	}
	q.callers = slices.Delete(q.callers, 0, q.taken)
	q.taken, q.begun, q.leader = len(q.callers), len(q.callers), nil
	for _, m := range q.callers {
		if q.leader == nil || !m.expiresBefore(q.leader) {
			q.leader = m
		}
	}
}

func TestCombinerAgainstModel(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(rt *rapid.T) {
		script := moves().Draw(rt, "script")
		var err error
		synctest.Test(t, func(t *testing.T) { err = playAgainstModel(script) })
		if err != nil {
			rt.Fatal(err)
		}
	})
}

func playAgainstModel(script []move) error {
	h := newHarness()
	queues := map[string]*queueModel{"k": {}, "other": {}}
	turns := map[string]*turn{}
	var all []*modelCaller
	// Deadlines are whole 10 ms and the test looks halfway between them, so
	// that the order of a deadline and a move is never in doubt.
	start := time.Now()
	time.Sleep(5 * time.Millisecond)

	check := func() error {
		synctest.Wait()
		for {
			select {
			case u := <-h.turns:
				key := "k"
				if u.batch.place == h.place("other") {
					key = "other"
				}
				if turns[key] != nil {
					return fmt.Errorf("two leaders of %s at a time", key)
				}
				turns[key] = u
				synctest.Wait()
				continue
			default:
			}
			break
		}
		for key, q := range queues {
			want, got := q.questions(), []int(nil)
			if u := turns[key]; u != nil {
				got = u.questions()
				if deadline, _ := u.ctx.Deadline(); !deadline.Equal(q.leader.deadline) {
					return fmt.Errorf("leader of %s: deadline %v, want %v", key, deadline, q.leader.deadline)
				}
			}
			if !slices.Equal(want, got) {
				return fmt.Errorf("batch of %s: %v, want %v", key, got, want)
			}
		}
		for _, m := range all {
			if m.real.waits() == m.returned {
				return fmt.Errorf("caller %d returned: %t, want %t", m.question, !m.real.waits(), m.returned)
			}
			if m.returned && (m.real.answer != m.answer || !errors.Is(m.real.err, m.err)) {
				return fmt.Errorf("caller %d: %d, %v, want %d, %v", m.question, m.real.answer, m.real.err, m.answer, m.err)
			}
			more := ""
			for _, question := range m.more {
				if m.leads {
					more += fmt.Sprintln(10*question, nil)
				}
			}
			if m.returned && m.real.more != more {
				return fmt.Errorf("caller %d is answered %q to what else it asks, want %q", m.question, m.real.more, more)
			}
		}
		return nil
	}
	play := func(step move) error {
		q, u := queues[step.Key], turns[step.Key]
		switch step.Kind {
		case "arrive":
			m := &modelCaller{question: len(all)}
			for i := range step.Caller % 3 {
				m.more = append(m.more, 1000*(i+1)+m.question)
			}
			ctx, cancel := context.WithCancel(context.Background())
			m.cancel = cancel
			if step.Budget > 0 {
				m.deadline = start.Add(time.Since(start).Truncate(10*time.Millisecond) + step.Budget)
				ctx = &checkContext{ctx, m.deadline}
			}
			all = append(all, m)
			q.callers = append(q.callers, m)
			if q.leader == nil {
				q.leader, q.taken, q.begun = m, 1, 1
			}
			m.real = h.call(ctx, step.Key, m.question, m.more...)
		case "cancel":
			if step.Caller < len(all) {
				m := all[step.Caller]
				m.cancel()
				for _, q := range queues {
					q.leave(m, context.Canceled)
				}
			}
		case "join":
			if u != nil {
				join(u.batch)
				q.taken = len(q.callers)
			}
		case "answer":
			if u != nil {
				delete(turns, step.Key)
				u.answerAll()
				q.finish(nil)
			}
		case "panic":
			if u != nil {
				delete(turns, step.Key)
				q.leader.returned = true // with a panic in place of an error
				q.finish(ErrLeaderFailed)
				u.finish(func() { panic("boom") })
			}
		case "tick":
			time.Sleep(10 * time.Millisecond)
			for _, q := range queues {
				for _, m := range slices.Clone(q.callers) {
					if !m.deadline.IsZero() && m.deadline.Before(time.Now()) {
						q.leave(m, context.DeadlineExceeded)
					}
				}
			}
		}
		return check()
	}
	defer func() {
		for _, m := range all {
			m.cancel()
		}
	}()
	var failed error
	for i, step := range script {
		if err := play(step); err != nil {
			failed = fmt.Errorf("after move %d, %v: %w", i, step, err)
			break
		}
	}
	for len(turns) > 0 {
		for key := range turns {
			if err := play(move{Kind: "answer", Key: key}); err != nil && failed == nil {
				failed = fmt.Errorf("at the end: %w", err)
			}
		}
	}
	for name, p := range h.places {
		if p.batch != nil && failed == nil {
			failed = fmt.Errorf("%s isn't idle", name)
		}
	}
	return failed
}

// Callers at a few places come, are answered, hang up, run out of time and see
// leaders crash, all at once. Each question is asked once, so a batch that
// holds one twice, or an answer to another's question, is an error.
func TestCombinerStress(t *testing.T) {
	const callers, rounds = 2000, 20
	led := make([]atomic.Int32, callers*rounds)
	var places [4]Place[int, int]
	leaders := make(map[*Place[int, int]]*atomic.Int32)
	for i := range places {
		leaders[&places[i]] = new(atomic.Int32)
	}
	c := New(func(_ context.Context, batch *Batch[int, int]) {
		leader := leaders[batch.place]
		if leader.Add(1) > 1 {
			t.Error("two leaders at a time")
		}
		defer leader.Add(-1)
		runtime.Gosched()
		for rand.IntN(3) == 0 {
			join(batch)
		}
		switch rand.IntN(20) {
		case 0:
			panic("boom")
		case 1:
			time.Sleep(time.Millisecond)
		}
		for _, call := range batch.Calls() {
			led[call.Request].Add(1)
			call.Result = call.Request
		}
	})
	var running sync.WaitGroup
	var answered, left atomic.Int64
	for i := range callers {
		running.Go(func() {
			for round := range rounds {
				question := i*rounds + round
				ctx, cancel := context.WithCancel(t.Context())
				switch rand.IntN(3) {
				case 0:
					time.AfterFunc(rand.N(2*time.Millisecond), cancel)
				case 1:
					ctx = &checkContext{ctx, time.Now().Add(rand.N(5 * time.Millisecond))}
				}
				func() {
					defer cancel()
					defer func() {
						if r := recover(); r != nil && r != "boom" {
							panic(r)
						}
					}()
					answer, err := c.Do(ctx, &places[rand.IntN(len(places))], question, nil, nil)
					switch {
					case err == nil:
						answered.Add(1)
						if answer != question || led[question].Load() != 1 {
							t.Errorf("question %d: answer %d, led %d times", question, answer, led[question].Load())
						}
					case errors.Is(err, context.Canceled), errors.Is(err, context.DeadlineExceeded):
						left.Add(1)
					case !errors.Is(err, ErrLeaderFailed):
						t.Errorf("question %d: %v", question, err)
					}
				}()
			}
		})
	}
	running.Wait()
	for question := range led {
		require.LessOrEqual(t, led[question].Load(), int32(1))
	}
	require.Positive(t, answered.Load())
	require.Positive(t, left.Load())
	for i := range places {
		require.Nil(t, places[i].batch)
	}
	t.Logf("%d answered, %d left", answered.Load(), left.Load())
}
