package limitertest

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"weir/counters"
	"weir/counters/memcachedtest"
)

// Race has callers ask at the same time, each so many times, and returns how often one
// was admitted. A caller's number and that of its request begin at 0.
func Race(callers, requests int, admits func(caller, request int) bool) int64 {
	return RaceOfCosts(callers, requests, func(caller, request int) int64 {
		if admits(caller, request) {
			return 1
		}
		return 0
	})
}

// RaceOfCosts is Race of requests of which each returns the cost that was admitted. It
// returns their sum.
func RaceOfCosts(callers, requests int, admits func(caller, request int) int64) int64 {
	var admitted atomic.Int64
	var asking sync.WaitGroup
	start := make(chan struct{})
	for caller := range callers {
		asking.Go(func() {
			<-start
			for request := range requests {
				admitted.Add(admits(caller, request))
			}
		})
	}
	close(start)
	asking.Wait()
	return admitted.Load()
}

// Races tests that callers of several instances, which share a Memcached, are admitted the
// limit together, and not one more. At now a slot begins, if there are slots. open returns
// a new instance on the server at an address; half a minute after now it still counts what
// came then. The limiter is atOnce if it denies nothing that fits because of what others
// are denied: elsewhere callers that race for the last places may all have to ask again.
func Races(t *testing.T, now time.Time, atOnce bool, open func(t *testing.T, address string) counters.Limiter) {
	one := func(int) int64 { return 1 }
	server := memcachedtest.Start(t)
	for _, race := range []struct {
		name                         string
		instances, callers, requests int // callers of each instance, requests of each caller
		limit                        int64
		cost                         func(caller int) int64
		apart                        time.Duration // between every other request, if they are at two moments
		least                        int64         // that is admitted in the race, be the limiter atOnce or not
	}{
		{"four instances", 4, 32, 10, 100, one, 0, 0},
		{"eight instances", 8, 16, 20, 500, one, 0, 0},
		{"on both sides of a boundary between slots", 4, 16, 12, 100, one, time.Millisecond, 95},
		{"thousands of callers, costs of all sizes", 4, 1000, 1, 5000, func(caller int) int64 { return int64(1 + caller%9) }, 0, 0},
	} {
		t.Run(race.name, func(t *testing.T) {
			limiters := make([]counters.Limiter, race.instances)
			for i := range limiters {
				limiters[i] = open(t, server.Addr)
			}
			callers := race.instances * race.callers
			storm := func(now time.Time, requests int, cost func(caller int) int64) int64 {
				return RaceOfCosts(callers, requests, func(caller, request int) int64 {
					r := counters.Request{Client: race.name, Cost: cost(caller), Limit: race.limit, Now: now}
					switch {
					case race.apart == 0: // they come in any order
						r.Now = now.Add(time.Duration(caller*requests+request) * time.Microsecond)
					case (caller+request)%2 == 0:
						r.Now = now.Add(-race.apart)
					}
					d, err := takeConnected(limiters[caller%race.instances], r)
					if !assert.NoError(t, err) || !d.Allowed {
						assert.False(t, d.Contended)
						return 0
					}
					return r.Cost
				})
			}
			admitted := storm(now, race.requests, race.cost)
			if atOnce && race.cost(1) == 1 {
				assert.Equal(t, race.limit, admitted)
			}
			assert.GreaterOrEqual(t, admitted, race.least)
			assert.LessOrEqual(t, admitted, race.limit)
			if race.apart > 0 { // what is of the slot before weighs less later
				return
			}
			// A second later nobody believes any more in what was passing through. As these may be
			// denied by each other again, there may have to be more of them.
			for i := time.Duration(1); admitted < race.limit && i <= 20; i++ {
				admitted += storm(now.Add(i*time.Second), 1, one)
			}
			assert.Equal(t, race.limit, admitted)
			for _, l := range limiters {
				l.(interface{ Flush() }).Flush()
			}
			assertCounted(t, open(t, server.Addr), counters.Request{Client: race.name, Cost: 1, Limit: race.limit, Now: now.Add(21 * time.Second)})
		})
	}
}

// RacingBatches tests that batches of the same clients that overlap, at several instances and
// beside single checks, are admitted each client's limit, and again after a reset. For open
// see Races.
func RacingBatches(t *testing.T, now time.Time, open func(t *testing.T, addresses ...string) ManyLimiter) {
	const instances, batches, size, clients, limit = 4, 8, 40, 60, 20
	a, b := memcachedtest.Start(t), memcachedtest.Start(t)
	request := func(client int, cost int64, now time.Time) counters.Request {
		return counters.Request{Client: fmt.Sprint("c", client), Cost: cost, Limit: limit, Now: now}
	}
	limiters := make([]ManyLimiter, instances)
	for i := range limiters {
		limiters[i] = open(t, a.Addr, b.Addr)
		for n := range clients { // connects
			_, err := takeConnected(limiters[i], request(n, 0, now))
			require.NoError(t, err)
		}
	}
	fill := func(now time.Time) {
		var admitted [clients]atomic.Int64
		var asking sync.WaitGroup
		for _, l := range limiters {
			for range batches {
				asking.Go(func() {
					numbers := rand.Perm(clients)[:size]
					asked := make([]counters.Request, size)
					for i, n := range numbers {
						asked[i] = request(n, 1+int64(n%3), now)
					}
					for i, taken := range TakeAll(Unhurried, l, asked) {
						if assert.NoError(t, taken.Err) && taken.Allowed {
							admitted[numbers[i]].Add(asked[i].Cost)
						}
						assert.False(t, taken.Contended)
					}
				})
				asking.Go(func() {
					n := rand.IntN(clients)
					if d, err := l.Take(Unhurried, request(n, 1, now)); assert.NoError(t, err) && d.Allowed {
						admitted[n].Add(1)
					}
				})
			}
		}
		asking.Wait()
		for n := range clients {
			assert.LessOrEqual(t, admitted[n].Load(), int64(limit))
			for i := range 10 { // a second later nobody believes any more in what was passing through
				r := request(n, 1, now.Add(time.Second))
				for d, err := limiters[i%instances].Take(Unhurried, r); d.Allowed; d, err = limiters[i%instances].Take(Unhurried, r) {
					require.NoError(t, err)
					admitted[n].Add(1)
				}
			}
			require.EqualValues(t, limit, admitted[n].Load(), "client %d", n)
		}
	}
	fill(now)
	for _, l := range limiters {
		l.Flush()
	}
	for n := range clients {
		assertCounted(t, limiters[0], request(n, 1, now.Add(2*time.Second)))
		require.NoError(t, limiters[n%instances].Reset(Unhurried, fmt.Sprint("c", n), now.Add(3*time.Second)))
	}
	fill(now.Add(5 * time.Second))
}

// takeConnected is Take, again for as long as the store surely wasn't asked: on a busy machine
// it may take some dials to connect.
func takeConnected(l counters.Limiter, r counters.Request) (d counters.Decision, err error) {
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	for d, err = l.Take(ctx, r); errors.Is(err, counters.ErrNotSent) && ctx.Err() == nil; d, err = l.Take(ctx, r) {
		time.Sleep(10 * time.Millisecond)
	}
	return d, err
}

// assertCounted asserts that the store has counted the limit of a request, and no more: what was
// denied has been given back.
func assertCounted(t *testing.T, l counters.Limiter, r counters.Request) {
	t.Helper()
	larger := r
	larger.Limit++
	_, err := takeConnected(l, counters.Request{Client: "another", Limit: 1, Now: r.Now})
	require.NoError(t, err)
	d, err := l.Peek(Unhurried, larger)
	require.NoError(t, err)
	assert.EqualValues(t, 1, d.Remaining, r.Client)
}
