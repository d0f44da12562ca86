package limitertest

import (
	"fmt"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"weir/counters"
)

// Alone tests what processes that share a store admit, and say, while it is gone: at a
// limit of 100 a minute. The limiters remember at most a thousand clients.
func Alone(t *testing.T, now time.Time, newStore func() Store, newLimiter func(t *testing.T, store Store) counters.Limiter) {
	const limit = 100
	type processes struct {
		*Processes
		pause  time.Duration // before each request
		ask    func(i int, client string, cost int64) counters.Decision
		charge func(i int, client string, cost int64)
	}
	begin := func(t *testing.T, n int) *processes {
		now := now
		p := &processes{pause: time.Millisecond}
		p.Processes = NewProcesses(t, n, newStore(), func(s Store) (counters.Limiter, error) { return newLimiter(t, s), nil })
		p.ask = func(i int, client string, cost int64) counters.Decision {
			now = now.Add(p.pause)
			return p.Take(i, counters.Request{Client: client, Cost: cost, Limit: limit, Now: now})
		}
		p.charge = func(i int, client string, cost int64) {
			_ = p.Limiters[i].Charge(Unhurried, counters.Request{Client: client, Cost: cost, Limit: limit, Now: now})
		}
		return p
	}
	t.Run("what is charged stands for itself", func(t *testing.T) {
		const n, used, charged = 4, 20, 40
		p := begin(t, n)
		for i := range used {
			p.ask(i%n, "c", 1)
		}
		p.Fail(ErrUnsent)
		p.charge(0, "c", charged)
		admitted := 0
		for range limit {
			if p.ask(0, "c", 1).Allowed {
				admitted++
			}
		}
		assert.InDelta(t, (limit-used-charged)/n, admitted, 3)
	})
	for _, cost := range []int64{1, 5, 30} {
		t.Run(fmt.Sprint("costs of ", cost), func(t *testing.T) {
			const n = 4
			p, random := begin(t, n), rand.New(rand.NewPCG(1, 1))
			for i := range 400 {
				p.ask(random.IntN(n), fmt.Sprint("c", i%10), 1)
			}
			p.Fail(ErrUnsent)
			p.pause = time.Minute / (10 * limit)
			var admitted int64
			for i := range 10 * limit {
				if p.ask(i%n, "c1", cost).Allowed {
					admitted += cost
				}
			}
			// What is left, and what a minute makes room for; and each may always admit one, in
			// each of two calendar minutes.
			assert.LessOrEqual(t, admitted, max(limit-40+limit+n*cost/2, 2*n*cost))
		})
	}
	t.Run("what a check of cost 0 has learned", func(t *testing.T) {
		p := begin(t, 2)
		p.charge(0, "c", limit)
		p.ask(1, "c", 0)
		p.Fail(ErrUnsent)
		assert.False(t, p.ask(1, "c", 1).Allowed)
	})
	// However a client asks, a process learns what share of it is its own.
	shared := func(t *testing.T, come func(p *processes, i int, client string)) (admitted int) {
		const n, clients, visits = 8, 100, 6
		p, random := begin(t, n), rand.New(rand.NewPCG(1, 1))
		p.pause = 0 // all is of one window
		for i := range clients * visits {
			come(p, random.IntN(n), fmt.Sprint("c", i%clients))
		}
		p.Fail(ErrUnsent)
		for i := range n * limit {
			if p.ask(i%n, "new", 1).Allowed {
				admitted++
			}
		}
		return admitted
	}
	for how, come := range map[string]func(p *processes, i int, client string){
		"cost 0, and then the cost": func(p *processes, i int, client string) {
			p.ask(i, client, 0)
			p.ask(i, client, 1)
		},
		"cost 0, and then a charge": func(p *processes, i int, client string) {
			p.ask(i, client, 0)
			p.charge(i, client, 1)
		},
		"only charges": func(p *processes, i int, client string) { p.charge(i, client, 1) },
	} {
		t.Run(how, func(t *testing.T) {
			checks := shared(t, func(p *processes, i int, client string) { p.ask(i, client, 1) })
			assert.InDelta(t, checks, shared(t, come), limit/2)
		})
	}
	t.Run("what remains", func(t *testing.T) {
		const n = 4
		p := begin(t, n)
		for i := range 40 {
			p.ask(i%n, "c", 1)
		}
		p.Fail(ErrUnsent)
		denied := 0
		for i := range 300 {
			if i == 200 { // the others may still have to tell
				p.Fail(nil)
			}
			cost := int64(1 + i%5)
			if d := p.ask(i%n, "c", cost); !d.Allowed {
				denied++
				require.Less(t, d.Remaining, cost, "%d: %+v", i, d)
			}
			if none := p.ask(i%n, "c", 0); !none.Allowed {
				require.Zero(t, none.Remaining)
			}
		}
		require.Greater(t, denied, 100)
	})
	t.Run("a refund after others have made it be forgotten", func(t *testing.T) {
		p := begin(t, 1)
		store, l := p.Stores[0], p.Limiters[0]
		store.Fail(ErrUnsent)
		r := counters.Request{Client: "c", Cost: 10, Limit: limit, Now: now}
		d, err := l.TakeLocal(r, ErrUnsent)
		require.NoError(t, err)
		for i := range 3000 {
			other := r
			other.Client = fmt.Sprint("other", i)
			_, err = l.TakeLocal(other, ErrUnsent)
			require.NoError(t, err)
		}
		require.NoError(t, l.Refund(Unhurried, r, d))
		store.Fail(nil)
		l.(interface{ Flush() }).Flush()
		seen, err := newLimiter(t, store.Store).Peek(Unhurried, r)
		require.NoError(t, err)
		assert.EqualValues(t, limit, seen.Remaining)
	})
	t.Run("a late refund that sees a reset first", func(t *testing.T) {
		store, now := newStore(), now
		broken := &BrokenStore{Store: store}
		a, b := newLimiter(t, broken), newLimiter(t, store)
		request := func(cost int64) counters.Request {
			return counters.Request{Client: "c", Cost: cost, Limit: limit, Now: now}
		}
		early := request(10)
		taken, err := a.Take(Unhurried, early)
		require.NoError(t, err)
		now = now.Add(3 * time.Second)
		broken.Fail(ErrUnsent)
		d, err := a.TakeLocal(request(30), ErrUnsent)
		require.NoError(t, err)
		require.True(t, d.Allowed)
		now = now.Add(time.Second)
		require.NoError(t, b.Reset(t.Context(), "c", now))
		now = now.Add(time.Second)
		broken.Fail(nil)
		taken.Receipt.At = early.Now.UnixNano()
		require.NoError(t, a.Refund(Unhurried, request(10), taken))
		a.(interface{ Flush() }).Flush()
		now = now.Add(time.Second)
		_, err = a.Take(Unhurried, request(1))
		require.NoError(t, err)
		seen, err := b.Peek(Unhurried, request(1))
		require.NoError(t, err)
		assert.EqualValues(t, limit-1, seen.Remaining, "the reset was after all else")
	})
}
