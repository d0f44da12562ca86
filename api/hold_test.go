package api

import (
	"context"
	"net/http"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"weir/api/policy"
)

// newQueue returns a service on the real clock that holds answers: one an hour,
// at most 50 waiting.
func newQueue(t *testing.T, more ...*policy.Policy) *service {
	t.Helper()
	queue := newPolicy("queue", leaky("queue", 1, time.Hour, 50))
	queue.Hold = true
	return newServiceWith(func(cfg *Config) { cfg.Now = time.Now }, append(more, queue)...)
}

// hour asserts that r was not held: the whole wait is left.
func hour(t *testing.T, r result) {
	t.Helper()
	require.Equal(t, http.StatusOK, r.Code, "%s", r.Body)
	assert.GreaterOrEqual(t, r.Wait, time.Hour.Seconds())
}

func TestAnAnswerIsHeldUntilItsTurn(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		quick := newPolicy("quick", leaky("queue", 2, time.Second, 3), token("most", 100, time.Second, 0))
		quick.Hold = true
		s := newQueue(t, quick)
		begin := time.Now()
		for turn := range 3 {
			r := s.admits(t, `{"policy":"quick","client":"c"}`)
			assert.Equal(t, time.Duration(turn)*500*time.Millisecond, time.Since(begin))
			assert.Zero(t, r.Wait, "nothing of it is left")
		}
		assert.Zero(t, s.held.Load())
		s.denies(t, `{"policy":"quick","client":"c","cost":3}`)
	})
}

// A receipt can be settled for so long from its check, and not from when its answer is given.
func TestWhatIsHeldIsTakenOffSettleWithin(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		slow := newPolicy("slow", leaky("queue", 1, 2*time.Second, 10))
		slow.Hold, slow.SettleWithin = true, 5*time.Second
		s := newQueue(t, slow)
		const check = `{"policy":"slow","client":"c","settle":true}`
		assert.Contains(t, s.admits(t, check).Body, `"settle_within":5,`)
		held := s.admits(t, check)
		assert.Contains(t, held.Body, `"settle_within":3,`)
		time.Sleep(3 * time.Second)
		assert.Equal(t, http.StatusOK, s.do(t, http.MethodPost, "/v1/settle", `{"receipt":"`+held.Receipt+`","cost":0}`).Code)
	})
}

func TestOnlyCheckIsHeld(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		plain, trial := newPolicy("plain", leaky("queue", 1, time.Hour, 50)), newPolicy("trial", leaky("queue", 1, time.Hour, 50))
		trial.Hold, trial.Shadow = true, true
		s := newQueue(t, plain, trial)
		for _, policy := range []string{"plain", "trial", "queue"} {
			check := `{"policy":"` + policy + `","client":"c"}`
			assert.Zero(t, s.admits(t, check).Wait, "the first has its turn at once")
			if policy != "queue" {
				hour(t, s.check(t, check))
			}
			batch := s.do(t, http.MethodPost, "/v1/check/batch", `{"checks":[`+check+`]}`)
			require.Len(t, batch.Results, 1)
			assert.GreaterOrEqual(t, batch.Results[0].Wait, time.Hour.Seconds())
			auth := "/v1/auth/" + policy
			begin := time.Now()
			for range 2 { // the second would have to wait
				require.Equal(t, http.StatusOK, s.do(t, http.MethodGet, auth, "").Code)
			}
			assert.Zero(t, time.Since(begin))
			hour(t, s.do(t, http.MethodGet, "/v1/policies/"+policy+"/clients/c", ""))
		}
	})
}

// holdOne lets a caller be held, and returns its answer to come. It needs virtual time.
func holdOne(t *testing.T, s *service, ctx context.Context) <-chan result {
	t.Helper()
	const check = `{"policy":"queue","client":"c"}`
	s.admits(t, check)
	answers := make(chan result, 1)
	go func() {
		answers <- s.serve(t, newRequest(http.MethodPost, "/v1/check", check).WithContext(ctx))
	}()
	synctest.Wait()
	require.EqualValues(t, 1, s.held.Load())
	return answers
}

func TestDrainingReleasesWhatIsHeld(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s := newQueue(t)
		answers := holdOne(t, s, context.Background())
		s.Drain()
		released := <-answers
		hour(t, released)
		assert.Equal(t, "close", released.Header.Get("Connection"), "or the next request on it would be lost")
		s.Drain()
		r := s.check(t, `{"policy":"queue","client":"c"}`)
		assert.Equal(t, 7200.0, r.Wait, "and nothing is held from then on")
		assert.Zero(t, s.held.Load())
	})
}

// A caller that leaves keeps its turn: the next one gets a later one.
func TestACallerThatLeavesIsNotHeld(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s := newQueue(t)
		ctx, leave := context.WithCancel(context.Background())
		answers := holdOne(t, s, ctx)
		requireMetrics(t, s, "weir_held_requests 1")
		leave()
		<-answers
		requireMetrics(t, s, "weir_held_requests 0")
		assert.Zero(t, s.held.Load())
		r := s.do(t, http.MethodGet, "/v1/policies/queue/clients/c", "")
		assert.EqualValues(t, 48, r.Limits[0].Remaining)
		assert.Equal(t, 7200.0, r.Wait)
	})
}

func TestNoMoreAreHeldThanTheCap(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s := newQueue(t)
		s.admits(t, `{"policy":"queue","client":"c"}`)
		s.held.Store(maxHeld)
		hour(t, s.check(t, `{"policy":"queue","client":"c"}`))
		assert.EqualValues(t, maxHeld, s.held.Load())
	})
}

// An answer that is held still has time to be written.
func TestHoldEndsBeforeTheWriteTimeout(t *testing.T) {
	t.Parallel()
	assert.LessOrEqual(t, maxHold+5*time.Second, newQueue(t).HTTPServer().WriteTimeout)
}
