package decide

import (
	"context"
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"weir/api/policy"
	"weir/counters"
	"weir/counters/memory"
	"weir/subwindow"
)

// A manyLimiter takes many, and records who asks it how.
type manyLimiter struct {
	counters.Limiter
	mu       sync.Mutex
	together []int // requests of each exchange
	alone    int
	bug      string // a client whose decision panics
	asked    func() // unless it is nil
}

func (l *manyLimiter) TakesMany() bool { return true }

func (l *manyLimiter) TakeMany(ctx context.Context, requests []counters.Request, done func(i int, t counters.Taken)) {
	l.mu.Lock()
	l.together = append(l.together, len(requests))
	l.mu.Unlock()
	if l.asked != nil {
		l.asked()
	}
	for i, r := range requests {
		t := counters.Taken{Done: true}
		if r.Client == l.bug {
			t.Panic = "a bug"
		} else {
			t.Decision, t.Err = l.Limiter.Take(ctx, r)
		}
		done(i, t)
	}
}

func (l *manyLimiter) Take(ctx context.Context, r counters.Request) (counters.Decision, error) {
	l.mu.Lock()
	l.alone++
	l.mu.Unlock()
	if l.asked != nil {
		l.asked()
	}
	return l.Limiter.Take(ctx, r)
}

// newEngine returns what decides by the policies user and route, which admit 5 a
// minute, and the limiter of user.
func newEngine(t *testing.T) (*Engine, *manyLimiter) {
	policies := policy.Policies{}
	var first *manyLimiter
	for _, name := range []string{"user", "route"} {
		window, err := subwindow.NewFixedWindow(time.Minute)
		require.NoError(t, err)
		limiter, err := subwindow.New(memory.New(nil), window, counters.Options{Policy: name, Limit: "l", ClockSkew: -1, StoreTimeout: -1})
		require.NoError(t, err)
		many := &manyLimiter{Limiter: limiter}
		if first == nil {
			first = many
		}
		policies[name] = &policy.Policy{Name: name, OnStoreError: policy.StoreErrorLocal, Limits: []policy.Limit{
			{Name: "l", Algorithm: "fixed_window", Limit: 5, Window: time.Minute, Limiter: many},
		}}
	}
	queue := NewQueue(MaxBatch, time.Minute, never)
	return NewEngine(Config{StoreTimeout: time.Minute, Now: time.Now}, queue, policies, func(*policy.Policy) Observer { return unheard{} }), first
}

// clients are enough to be asked together in any case.
var clients = strings.Split("a b c d e f g h i j", " ")

func checksOf(policy string, clients ...string) (checks []Check) {
	for _, client := range clients {
		checks = append(checks, Check{Policy: policy, Client: client, Cost: 1})
	}
	return checks
}

// Different clients of a limit share an exchange with the store, whether they are
// decided each by itself or all as one. One who is alone needs none to share.
func TestClientsOfALimitAreAskedTogether(t *testing.T) {
	t.Parallel()
	for _, test := range []struct {
		what     string
		checks   []Check
		together []int
		alone    int
	}{
		{"different clients", checksOf("user", clients...), []int{10}, 0},
		{"one that is there twice", append(checksOf("user", clients...), checksOf("user", "a")...), []int{9}, 2},
		{"one of each policy", append(checksOf("user", "a"), checksOf("route", "a")...), nil, 1},
		{"one client", checksOf("user", "a", "a", "a"), nil, 3},
		{"one check", checksOf("user", "a"), nil, 1},
	} {
		for _, all := range []bool{false, true} {
			t.Run(fmt.Sprint(test.what, " all=", all), func(t *testing.T) {
				t.Parallel()
				e, limiter := newEngine(t)
				if all {
					answers, err := e.All(t.Context(), test.checks)
					require.NoError(t, err)
					for _, a := range answers {
						assert.True(t, a.Allowed)
					}
				} else {
					for _, o := range e.Batch(t.Context(), test.checks) {
						require.NoError(t, o.Err)
						assert.True(t, o.Allowed)
					}
				}
				assert.Equal(t, test.together, limiter.together)
				assert.Equal(t, test.alone, limiter.alone)
			})
		}
	}
}

// If a limit denies, what others took in the same exchange is given back.
func TestADenialGivesBackWhatItsExchangeTook(t *testing.T) {
	t.Parallel()
	e, limiter := newEngine(t)
	checks := checksOf("user", clients...)
	checks[1].Cost = 3
	for _, allowed := range []bool{true, false, false} {
		answers, err := e.All(t.Context(), checks)
		require.NoError(t, err)
		require.Equal(t, allowed, answers[0].Allowed)
		assert.EqualValues(t, 4, answers[0].Limits[0].Remaining)
	}
	assert.Equal(t, []int{10, 10, 10}, limiter.together, "2 are left, so nobody knew")
}

// A panic in an exchange fails its own check of a batch, and all that are decided
// as one, in the goroutine of their caller.
func TestAPanicInAnExchange(t *testing.T) {
	t.Parallel()
	e, limiter := newEngine(t)
	limiter.bug = "b"
	checks := checksOf("user", clients...)
	outcomes := e.Batch(t.Context(), checks)
	assert.NoError(t, outcomes[0].Err)
	assert.EqualError(t, outcomes[1].Err, "a bug")
	assert.NoError(t, outcomes[2].Err)
	assert.PanicsWithError(t, "a bug", func() { _, _ = e.All(t.Context(), checks) })
}

// A lateLimiter panics when it is first asked. The next time, the one that has panicked goes on
// before.
type lateLimiter struct {
	*manyLimiter
	late func()
}

func (l *lateLimiter) TakeMany(ctx context.Context, requests []counters.Request, done func(i int, t counters.Taken)) {
	if l.late == nil {
		l.late = func() {
			for i := range requests {
				done(i, counters.Taken{Done: true})
			}
		}
		panic("a bug")
	}
	l.late()
	l.manyLimiter.TakeMany(ctx, requests, done)
}

// A limiter that is still at work after its panic doesn't disturb later batches.
func TestALimiterStillAtWorkAfterAPanic(t *testing.T) {
	e, limiter := newEngine(t)
	e.deciders["user"].Policy.Limits[0].Limiter = &lateLimiter{manyLimiter: limiter}
	checks := checksOf("user", clients...)
	for _, o := range e.Batch(t.Context(), checks) {
		require.EqualError(t, o.Err, "a bug")
	}
	for _, o := range e.Batch(t.Context(), checks) {
		require.NoError(t, o.Err)
		assert.True(t, o.Allowed)
		assert.EqualValues(t, 4, o.Limits[0].Remaining)
	}
}

// A check whose outcome can't be told is told to have panicked: somebody waits for it.
func TestAPanicWhileAnOutcomeIsTold(t *testing.T) {
	t.Parallel()
	e, _ := newEngine(t)
	checks := checksOf("user", clients...)
	var mu sync.Mutex
	told := make(map[int][]error)
	e.CheckMany(checks, time.Now(), nil, func(i int, o Outcome) {
		mu.Lock()
		defer mu.Unlock()
		told[i] = append(told[i], o.Err)
		if i == 1 && o.Err == nil {
			panic("a bug")
		}
	})
	require.Len(t, told, len(checks))
	require.Len(t, told[1], 2)
	assert.EqualError(t, told[1][1], "a bug")
	assert.Equal(t, []error{nil}, told[2])
}

// Checks and the work that is done beside them don't wait for each other.
func TestWhatIsDoneBesideChecks(t *testing.T) {
	t.Parallel()
	for _, checks := range [][]Check{checksOf("user", "a"), checksOf("user", clients...)} {
		e, limiter := newEngine(t)
		asked, done := make(chan struct{}), make(chan struct{})
		limiter.asked = func() {
			close(asked)
			<-done
		}
		e.CheckMany(checks, time.Now(), func() {
			<-asked
			close(done)
		}, func(_ int, o Outcome) { assert.NoError(t, o.Err) })
	}
}

// A panic beside checks is its caller's, once all checks are told.
func TestAPanicBesideChecks(t *testing.T) {
	t.Parallel()
	e, limiter := newEngine(t)
	done, told := make(chan struct{}), 0
	limiter.asked = func() { <-done }
	assert.PanicsWithError(t, "a bug", func() {
		e.CheckMany(checksOf("user", clients...), time.Now(), func() {
			defer close(done)
			panic("a bug")
		}, func(int, Outcome) { told++ })
	})
	assert.Equal(t, len(clients), told)
}

// The errors say what is wrong with which check.
func TestChecksThatCannotBeMade(t *testing.T) {
	t.Parallel()
	e, _ := newEngine(t)
	checks := append(checksOf("user", "a"), checksOf("none", "b")...)
	outcomes := e.Batch(t.Context(), checks)
	assert.NoError(t, outcomes[0].Err)
	assert.Equal(t, UnknownPolicy("none"), outcomes[1].Err)
	answers, err := e.All(t.Context(), checks)
	assert.Len(t, answers, 1)
	assert.Equal(t, &AtError{1, UnknownPolicy("none")}, err)
	gone, leave := context.WithCancel(t.Context())
	leave()
	_, err = e.All(gone, checks)
	assert.Equal(t, ErrLeft, err)
	for _, o := range e.Batch(gone, checks) {
		assert.Equal(t, ErrLeft, o.Err)
	}
}

// A finder has one limit for all clients.
type finder struct{ limit *policy.Limit }

func (f finder) Find(client string) (*policy.Limit, string) { return f.limit, client }
func (f finder) All() []*policy.Limit                       { return []*policy.Limit{f.limit} }

// A policy whose limits Envoy asks takes no checks, in a batch of any size neither.
func TestBatchOfFinder(t *testing.T) {
	e, limiter := newEngine(t)
	p := *e.deciders["user"].Policy
	p.Finder = finder{&p.Limits[0]}
	e.deciders["user"] = NewDecider(e.Config, &p, unheard{})
	checks := []Check{{Policy: "user", Client: "a", Cost: 1}, {Policy: "user", Client: "b", Cost: 1}}
	for n := range checks {
		for _, o := range e.Batch(t.Context(), checks[:n+1]) {
			assert.EqualError(t, o.Err, `policy "user" takes no checks; Envoy asks by it`)
		}
	}
	assert.Empty(t, limiter.together)
}
