package client_test

import (
	"context"
	"errors"
	"net/http"
	"net/http/httptest"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"weir/api/client"
	"weir/api/policy"
	"weir/cas"
	"weir/counters"
	"weir/counters/memory"
)

// places returns a limit of how many are under way at once.
func places(named string, limit int64, lease time.Duration) policy.Limit {
	l := limitOf("in-flight", "concurrency", limit, lease, func(o counters.Options) (counters.Limiter, error) {
		return cas.NewConcurrency(memory.New(nil), lease, limit, cas.Config{Options: o})
	}, named)
	l.Lease = lease
	return l
}

func left(t *testing.T, c *client.Client, policy string) int64 {
	t.Helper()
	a, err := c.Peek(t.Context(), policy, "alice")
	require.NoError(t, err)
	return a.Limits[0].Remaining
}

func TestACostIsSettled(t *testing.T) {
	t.Parallel()
	_, c := start(t, client.Config{}, newPolicy("llm", fixed("llm", 100)))
	a, err := c.Check(t.Context(), client.Check{Policy: "llm", Client: "alice", Cost: 60, Settle: true})
	require.NoError(t, err)
	require.NotEmpty(t, a.Receipt.Text)
	settled, err := c.Settle(t.Context(), a.Receipt, 18)
	require.NoError(t, err)
	assert.Equal(t, client.Settlement{Limits: []client.SettledLimit{{Name: "per-minute", Refunded: 42, Remaining: 82}}}, settled)
	again, err := c.Settle(t.Context(), a.Receipt, 18)
	require.NoError(t, err)
	assert.True(t, again.Already)
	nothing, err := c.Settle(t.Context(), client.Receipt{}, 5)
	require.NoError(t, err)
	assert.Zero(t, nothing)
	_, err = c.Settle(t.Context(), client.Receipt{Text: "w1.x"}, 5)
	var p *client.Problem
	require.ErrorAs(t, err, &p)
	assert.Equal(t, http.StatusBadRequest, p.Status)

	charged, err := c.Charge(t.Context(), client.Charge{Policy: "llm", Client: "alice", Cost: 90})
	require.NoError(t, err)
	assert.Zero(t, charged.Limits[0].Remaining)
	for range 2 {
		charged, err = c.Charge(t.Context(), client.Charge{Policy: "llm", Client: "bob", Cost: 90, ID: "7"})
		require.NoError(t, err)
		assert.EqualValues(t, 10, charged.Limits[0].Remaining)
	}
}

// JSON has one text for all that isn't UTF-8: of two such charges the second wouldn't count.
func TestChargesOfBytesAreRefused(t *testing.T) {
	t.Parallel()
	w, c := start(t, client.Config{}, newPolicy("llm", fixed("llm", 100)))
	for _, id := range []string{"\xfe", "\xff"} {
		_, err := c.Charge(t.Context(), client.Charge{Policy: "llm", Client: "alice", ID: id})
		var p *client.Problem
		require.ErrorAs(t, err, &p)
		assert.Equal(t, http.StatusBadRequest, p.Status)
	}
	assert.Empty(t, w.asked())
}

// What others give back makes room long before a denial's Retry-After.
func TestADenialDoesNotOutliveASettlement(t *testing.T) {
	t.Parallel()
	_, c := start(t, client.Config{}, newPolicy("llm", fixed("llm", 100)))
	q := client.Check{Policy: "llm", Client: "alice", Cost: 60, Settle: true}
	first := check(t, c, q)
	require.False(t, check(t, c, q).Allowed)
	require.False(t, c.CheckMany(t.Context(), []client.Check{q})[0].Allowed)
	_, err := c.Settle(t.Context(), first.Receipt, 18)
	require.NoError(t, err)
	assert.True(t, check(t, c, q).Allowed)
}

// What weir couldn't be asked to settle is settled when it can be, at the latest by Close.
func TestASettlementIsDoneLater(t *testing.T) {
	t.Parallel()
	for _, when := range []string{"as soon as weir answers", "at Close"} {
		t.Run(when, func(t *testing.T) {
			t.Parallel()
			w := startWeir(newPolicy("llm", fixed("llm", 100)))
			defer w.Close()
			c, err := client.New(client.Config{URL: w.URL, Timeout: patience})
			require.NoError(t, err)
			a, err := c.Check(t.Context(), client.Check{Policy: "llm", Client: "alice", Cost: 60, Settle: true})
			require.NoError(t, err)
			w.answers(func(w http.ResponseWriter, _ *http.Request) bool {
				w.WriteHeader(http.StatusBadGateway)
				return true
			})
			_, err = c.Settle(t.Context(), a.Receipt, 10)
			require.ErrorIs(t, err, client.ErrSettledLater)
			w.answers(nil)
			if when == "at Close" {
				c.Close()
				assert.EqualValues(t, 90, left(t, c, "llm"))
				return
			}
			assert.Eventually(t, func() bool { return left(t, c, "llm") == 90 }, patience, 10*time.Millisecond)
			c.Close()
		})
	}
}

// Of a receipt that was kept as its text alone only weir knows when its time is over.
func TestASettlementByTheTextOfAReceiptIsDoneLater(t *testing.T) {
	t.Parallel()
	w, c := start(t, client.Config{}, newPolicy("llm", fixed("llm", 100)))
	a, err := c.Check(t.Context(), client.Check{Policy: "llm", Client: "alice", Cost: 60, Settle: true})
	require.NoError(t, err)
	w.asked()
	w.answers(func(w http.ResponseWriter, _ *http.Request) bool {
		w.WriteHeader(http.StatusBadGateway)
		return true
	})
	_, err = c.Settle(t.Context(), client.Receipt{Text: a.Receipt.Text}, 10)
	require.ErrorIs(t, err, client.ErrSettledLater)
	asked := 0
	require.Eventually(t, func() bool { asked += len(w.asked()); return asked >= 2 }, patience, 10*time.Millisecond)
	w.answers(nil)
	assert.Eventually(t, func() bool { return left(t, c, "llm") == 90 }, time.Minute, 10*time.Millisecond)
}

// A proxy that is too busy, or hasn't got all in time, says nothing about the receipt.
func TestASettlementThatAProxyRefusesIsDoneLater(t *testing.T) {
	t.Parallel()
	for _, status := range []int{http.StatusRequestTimeout, http.StatusTooManyRequests} {
		t.Run(http.StatusText(status), func(t *testing.T) {
			t.Parallel()
			w, c := start(t, client.Config{}, newPolicy("llm", fixed("llm", 100)))
			a, err := c.Check(t.Context(), client.Check{Policy: "llm", Client: "alice", Cost: 60, Settle: true})
			require.NoError(t, err)
			w.answers(func(w http.ResponseWriter, _ *http.Request) bool {
				w.WriteHeader(status)
				return true
			})
			_, err = c.Settle(t.Context(), a.Receipt, 10)
			require.ErrorIs(t, err, client.ErrSettledLater)
			w.answers(nil)
			assert.Eventually(t, func() bool { return left(t, c, "llm") == 90 }, patience, 10*time.Millisecond)
		})
	}
}

// Settlements that are being tried again keep their room.
func TestNoMoreSettlementsWaitThanMay(t *testing.T) {
	t.Parallel()
	w, c := start(t, client.Config{})
	w.answers(func(w http.ResponseWriter, _ *http.Request) bool {
		w.WriteHeader(http.StatusBadGateway)
		return true
	})
	r := client.Receipt{Text: "w1.x", Until: time.Now().Add(time.Hour)}
	var filling sync.WaitGroup
	for range 200 {
		filling.Go(func() {
			for range client.MaxWaiting / 200 {
				_, err := c.Settle(t.Context(), r, 1)
				assert.ErrorIs(t, err, client.ErrSettledLater)
			}
		})
	}
	filling.Wait()
	h := w.holds()
	<-h.arrived
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Millisecond)
	defer cancel()
	_, err := c.Settle(ctx, r, 1)
	assert.ErrorIs(t, err, context.DeadlineExceeded)
	assert.NotErrorIs(t, err, client.ErrSettledLater)
	close(h.release)
}

func TestPlacesAreHeld(t *testing.T) {
	t.Parallel()
	_, c := start(t, client.Config{}, newPolicy("jobs", places("jobs", 2, time.Minute)))
	q := client.Check{Policy: "jobs", Client: "alice"}
	one, err := c.Hold(t.Context(), q)
	require.NoError(t, err)
	two, err := c.Hold(t.Context(), q)
	require.NoError(t, err)
	_, err = c.Hold(t.Context(), q)
	var denied *client.DeniedError
	require.ErrorAs(t, err, &denied)
	assert.Positive(t, denied.Answer.RetryAfter)
	one.Release()
	one.Release()
	assert.EqualValues(t, 1, left(t, c, "jobs"))
	again, err := c.Hold(t.Context(), q)
	require.NoError(t, err, "the denial wasn't remembered")
	for _, l := range []*client.Lease{two, again} {
		settled, err := l.Settle(1)
		require.NoError(t, err)
		assert.False(t, settled.Already)
	}
	assert.EqualValues(t, 2, left(t, c, "jobs"))
}

func TestADenialSaysWhenToTryAgainIfThatHelps(t *testing.T) {
	t.Parallel()
	blocked := newPolicy("jobs", places("jobs", 1, time.Minute))
	setClient(blocked, "mallory", policy.Terms{Blocked: true})
	_, c := start(t, client.Config{}, blocked)
	_, err := c.Hold(t.Context(), client.Check{Policy: "jobs", Client: "mallory"})
	assert.EqualError(t, err, "client: denied, however long it waits")
	l, err := c.Hold(t.Context(), client.Check{Policy: "jobs", Client: "alice"})
	require.NoError(t, err)
	_, err = c.Hold(t.Context(), client.Check{Policy: "jobs", Client: "alice"})
	assert.ErrorContains(t, err, "client: denied; try again in 1m0")
	l.Release()
}

// A lease outlasts its time as long as it is held, and is known to be lost when weir says so.
func TestALeaseIsRenewed(t *testing.T) {
	t.Parallel()
	w, c := start(t, client.Config{}, newPolicy("jobs", places("jobs", 1, time.Second)))
	var renewals atomic.Int32
	w.answers(func(_ http.ResponseWriter, r *http.Request) bool {
		if r.URL.Path == "/v1/renew" {
			renewals.Add(1)
		}
		return false
	})
	l, err := c.Hold(t.Context(), client.Check{Policy: "jobs", Client: "alice"})
	require.NoError(t, err)
	assert.Eventually(t, func() bool { return renewals.Load() >= 3 }, patience, time.Millisecond)
	select {
	case <-l.Lost():
		t.Fatal("lost")
	default:
	}
	w.answers(func(w http.ResponseWriter, r *http.Request) bool {
		if r.URL.Path == "/v1/renew" {
			w.WriteHeader(http.StatusConflict)
		}
		return r.URL.Path == "/v1/renew"
	})
	select {
	case <-l.Lost():
	case <-time.After(patience):
		t.Fatal("still held")
	}
	l.Release()
}

// A handler has a place while it serves, and has none when it has panicked.
func TestAHandlerHoldsAPlace(t *testing.T) {
	t.Parallel()
	_, c := start(t, client.Config{}, newPolicy("jobs", places("jobs", 1, time.Minute)))
	check := func(*http.Request) client.Check { return client.Check{Policy: "jobs", Client: "alice"} }
	inside := make(chan int64, 3)
	serve := func(panics error) (status int, cause any) {
		handler := c.Concurrent(check)(http.HandlerFunc(func(http.ResponseWriter, *http.Request) {
			inside <- left(t, c, "jobs")
			if panics != nil {
				panic(panics)
			}
		}))
		defer func() { cause = recover() }()
		recorder := httptest.NewRecorder()
		handler.ServeHTTP(recorder, httptest.NewRequest(http.MethodGet, "/", nil))
		return recorder.Code, nil
	}
	status, _ := serve(nil)
	assert.Equal(t, http.StatusOK, status)
	assert.Zero(t, <-inside)
	_, cause := serve(errors.New("a bug"))
	assert.Error(t, cause.(error))
	assert.Zero(t, <-inside)
	assert.EqualValues(t, 1, left(t, c, "jobs"))
	l, err := c.Hold(t.Context(), check(nil))
	require.NoError(t, err)
	status, _ = serve(nil)
	assert.Equal(t, http.StatusTooManyRequests, status)
	assert.Empty(t, inside)
	l.Release()
}

// Whose request ends before its turn comes holds nothing.
func TestWhoLeavesWhileItWaitsHoldsNoPlace(t *testing.T) {
	t.Parallel()
	held := places("jobs", 2, time.Minute)
	held.CountsRequests = true
	_, c := start(t, client.Config{}, newPolicy("jobs", held, queue("jobs", 2, time.Minute)))
	check := func(*http.Request) client.Check { return client.Check{Policy: "jobs", Client: "alice"} }
	handler := c.Concurrent(check)(hello)
	first := httptest.NewRecorder()
	handler.ServeHTTP(first, httptest.NewRequest(http.MethodGet, "/", nil))
	require.Equal(t, http.StatusOK, first.Code)
	ctx, cancel := context.WithTimeout(t.Context(), 400*time.Millisecond) // of 30 s that it would wait
	defer cancel()
	second := httptest.NewRecorder()
	handler.ServeHTTP(second, httptest.NewRequest(http.MethodGet, "/", nil).WithContext(ctx))
	require.Equal(t, http.StatusServiceUnavailable, second.Code)
	// Where its check had no answer by then, what that admits is given back when it comes.
	assert.Eventually(t, func() bool { return left(t, c, "jobs") == 2 }, time.Minute, time.Millisecond)
}

// Who holds a place has waited for its turn, or has none.
func TestAHolderWaitsForItsTurn(t *testing.T) {
	t.Parallel()
	held := places("jobs", 9, time.Minute)
	held.CountsRequests = true
	_, c := start(t, client.Config{}, newPolicy("jobs", held, queue("jobs", 5, time.Second)))
	begun := time.Now()
	for range 3 {
		l, err := c.Hold(t.Context(), client.Check{Policy: "jobs", Client: "alice"})
		require.NoError(t, err)
		defer l.Release()
	}
	// The clock of weir stands still: they wait for 0, 200 and 400 ms.
	assert.GreaterOrEqual(t, time.Since(begun), 600*time.Millisecond)
	ctx, cancel := context.WithTimeout(t.Context(), 300*time.Millisecond)
	defer cancel()
	_, err := c.Hold(ctx, client.Check{Policy: "jobs", Client: "alice"})
	assert.ErrorIs(t, err, context.DeadlineExceeded)
	assert.Eventually(t, func() bool { return left(t, c, "jobs") == 6 }, patience, 10*time.Millisecond)
}

// A Release that is deferred behind a Settle doesn't take the place of it, though that waits
// for weir.
func TestAReleaseDoesNotReplaceASettlementThatWaits(t *testing.T) {
	t.Parallel()
	w, c := start(t, client.Config{}, newPolicy("llm", fixed("llm", 100), places("llm", 100, time.Minute)))
	for _, step := range []struct{ reserved, used, left int64 }{{60, 10, 90}, {10, 50, 40}} {
		l, err := c.Hold(t.Context(), client.Check{Policy: "llm", Client: "alice", Cost: step.reserved})
		require.NoError(t, err)
		w.answers(func(w http.ResponseWriter, _ *http.Request) bool {
			w.WriteHeader(http.StatusBadGateway)
			return true
		})
		_, err = l.Settle(-1)
		require.ErrorContains(t, err, "cost -1 must be from 0")
		_, err = l.Settle(step.used)
		require.ErrorIs(t, err, client.ErrSettledLater)
		w.answers(nil)
		l.Release()
		assert.Eventually(t, func() bool { return left(t, c, "llm") == step.left }, patience, 10*time.Millisecond)
	}
}

// A handler that goes on when its client has hung up keeps its place.
func TestAHandlerWhoseClientHasHungUpKeepsItsPlace(t *testing.T) {
	t.Parallel()
	w, c := start(t, client.Config{}, newPolicy("jobs", places("jobs", 1, time.Second)))
	renewed := func() bool {
		return slices.ContainsFunc(w.asked(), func(r request) bool { return r.path == "/v1/renew" })
	}
	ctx, hangUp := context.WithCancel(t.Context())
	served := false
	handler := c.Concurrent(func(*http.Request) client.Check { return client.Check{Policy: "jobs", Client: "alice"} })(
		http.HandlerFunc(func(http.ResponseWriter, *http.Request) {
			hangUp()
			served = assert.Eventually(t, renewed, patience, 10*time.Millisecond)
		}))
	handler.ServeHTTP(httptest.NewRecorder(), httptest.NewRequest(http.MethodGet, "/", nil).WithContext(ctx))
	assert.True(t, served)
	assert.EqualValues(t, 1, left(t, c, "jobs"))
}

// Places that weir admits for a caller of Hold that has left are given back, whether others are
// in its batch or not. The cost stays, as with Config.FailOpen the caller has gone on.
func TestAPlaceOfACallerWhoHasLeftIsGivenBack(t *testing.T) {
	t.Parallel()
	for _, others := range []int{0, 3} {
		w, c := start(t, client.Config{Timeout: patience}, newPolicy("jobs", places("jobs", 5, time.Hour), fixed("jobs", 100)))
		asked, answer := make(chan struct{}, 10), make(chan struct{})
		w.answers(func(http.ResponseWriter, *http.Request) bool {
			asked <- struct{}{}
			<-answer
			return false
		})
		var holding sync.WaitGroup
		hold := func(ctx context.Context) (l *client.Lease, err error) {
			return c.Hold(ctx, client.Check{Policy: "jobs", Client: "alice"})
		}
		for i := range others { // two are under way, the third goes with the one that leaves
			holding.Go(func() {
				l, err := hold(t.Context())
				if assert.NoError(t, err) {
					l.Release()
				}
			})
			if i < 2 {
				<-asked
			}
		}
		ctx, leave := context.WithCancel(t.Context())
		gone := make(chan error)
		go func() {
			_, err := hold(ctx)
			gone <- err
		}()
		if others > 0 {
			require.Eventually(t, func() bool { return c.Waiting() == 2 }, patience, time.Millisecond)
			answer <- struct{}{}
		}
		<-asked
		leave()
		require.ErrorIs(t, <-gone, context.Canceled)
		close(answer)
		w.answers(nil)
		holding.Wait()
		assert.EventuallyWithT(t, func(t *assert.CollectT) {
			a, err := c.Peek(context.Background(), "jobs", "alice")
			require.NoError(t, err)
			assert.EqualValues(t, 5, a.Limits[0].Remaining)
			assert.EqualValues(t, 100-1-others, a.Limits[1].Remaining) // not before it is asked
		}, patience, 10*time.Millisecond)
	}
}

// Batches that all have left, and that weir doesn't answer, hold up nobody else.
func TestBatchesThatAllHaveLeftHoldUpNobody(t *testing.T) {
	t.Parallel()
	w, c := start(t, client.Config{Timeout: patience}, newPolicy("jobs", places("jobs", 5, time.Hour)), newPolicy("api", fixed("api", 100)))
	h := w.holds()
	defer close(h.release)
	gone := make(chan error)
	ctx, leave := context.WithCancel(t.Context())
	for range 2 {
		go func() {
			_, err := c.Hold(ctx, client.Check{Policy: "jobs", Client: "alice"})
			gone <- err
		}()
		<-h.arrived
	}
	w.answers(nil) // weir is well again, but what it has got stays unanswered
	leave()
	for range 2 {
		require.ErrorIs(t, <-gone, context.Canceled)
	}
	_, err := c.Check(t.Context(), client.Check{Policy: "api", Client: "bob"})
	assert.NoError(t, err)
}
