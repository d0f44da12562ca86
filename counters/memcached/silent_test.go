package memcached

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"math"
	"net"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"weir/cas"
	"weir/counters"
	"weir/counters/memcached/pipeline"
	"weir/subwindow"
)

// openSilent returns a store, for use in virtual time, on two servers that know
// nobody. Together they answer so many commands, and then no more.
func openSilent(t *testing.T, answers int64) *Store { return openInMemory(t, answers, 0, 0) }

// openInMemory is openSilent with servers whose answers come a round trip later, and the
// Timeout of a Config.
func openInMemory(t *testing.T, answers int64, roundTrip, timeout time.Duration) *Store {
	type answer struct {
		text string
		due  time.Time
	}
	var left atomic.Int64
	left.Store(answers)
	s, err := newStore(Config{Servers: []string{"192.0.2.1:1", "192.0.2.2:1"}, Timeout: timeout}, func(*server) pipeline.DialFunc {
		return func(context.Context, string, string) (net.Conn, error) {
			conn, peer := net.Pipe()
			pending := make(chan answer, 1<<16)
			go func() {
				for a := range pending {
					time.Sleep(time.Until(a.due))
					_, _ = io.WriteString(peer, a.text)
				}
			}()
			go func() {
				defer close(pending)
				for r := bufio.NewReader(peer); ; {
					line, err := r.ReadString('\n')
					if err != nil {
						return
					}
					command := strings.Fields(line)
					if command[0] == "add" {
						size, err := strconv.Atoi(command[4])
						assert.NoError(t, err)
						_, _ = r.Discard(size + len(crlf))
					}
					if left.Add(-1) >= 0 {
						pending <- answer{map[string]string{
							"add": "STORED\r\n", "incr": "1\r\n", "get": "END\r\n", "gets": "END\r\n", "version": "VERSION 1\r\n",
						}[command[0]], time.Now().Add(roundTrip)}
					}
				}
			}()
			return conn, nil
		}
	}, nil)
	require.NoError(t, err)
	return s
}

// A silent server costs an operation one timeout, not one for each of its steps.
func TestASilentServerCostsOneTimeout(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s := openSilent(t, 0)
		const timeout = 500 * time.Millisecond
		addition := counters.Addition{Key: "a", Delta: 1, TTL: time.Minute, Read: []string{"b"}, Counts: make([]int64, 1)}
		keys := make([]string, 400)
		for i := range keys {
			keys[i] = fmt.Sprintf("weir:p/l:1000:client-%d_1", i)
		}
		var operations sync.WaitGroup
		for name, operation := range map[string]func(context.Context) error{
			"Add":      func(ctx context.Context) error { _, err := s.Add(ctx, addition); return err },
			"Read":     func(ctx context.Context) error { return s.Read(ctx, []string{"a", "b"}, make([]int64, 2)) },
			"Subtract": func(ctx context.Context) error { return s.Subtract(ctx, "a", 1) },
			"Delete":   func(ctx context.Context) error { return s.Delete(ctx, []string{"a", "b"}) },
			"Raise": func(ctx context.Context) error {
				return s.Raise(ctx, []counters.Floor{{Key: "a", Count: 9, TTL: time.Minute}})
			},
			"Load": func(ctx context.Context) error { _, err := s.Load(ctx, "a"); return err },
			"Swap": func(ctx context.Context) error {
				_, _, err := s.Swap(ctx, "a", counters.State{}, []byte("1"), time.Minute)
				return err
			},
			"Put": func(ctx context.Context) error { return s.Put(ctx, "a", []byte("1"), time.Minute) },
			"AddMany": func(ctx context.Context) error {
				s.AddMany(ctx, keys, func(i int, to []counters.Addition) ([]counters.Addition, counters.Turn) {
					return append(to, counters.Addition{Key: keys[i], Delta: 1, TTL: time.Minute}), counters.Now
				}, func(_ int, added []counters.Added, err error) bool {
					if err == nil {
						err = added[0].Err
					}
					return !assert.ErrorIs(t, err, counters.ErrTimeout)
				})
				return counters.ErrTimeout
			},
			"SwapMany": func(ctx context.Context) error {
				s.SwapMany(ctx, keys, func(i int) (counters.Replacement, counters.Turn) {
					return counters.Replacement{Key: keys[i], Value: []byte("1"), TTL: time.Minute}, counters.Now
				}, func(_ int, _ counters.State, _ bool, err error) bool {
					return !assert.ErrorIs(t, err, counters.ErrTimeout)
				})
				return counters.ErrTimeout
			},
		} {
			operations.Go(func() {
				begin := time.Now()
				ctx, cancel := context.WithTimeout(t.Context(), timeout)
				defer cancel()
				assert.ErrorIs(t, operation(ctx), counters.ErrTimeout, name)
				assert.Equal(t, timeout, time.Since(begin), name)
			})
		}
		operations.Wait()
		require.NoError(t, s.Close())
	})
}

// A server that answers late is heard by all whose time isn't over.
func TestASlowServerIsHeardByOperationsThatWaitForIt(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s := openInMemory(t, math.MaxInt64, 4*time.Second, 5*time.Second)
		for range 10 {
			require.NoError(t, addTo(s, "a", 5*time.Second))
		}
		require.NoError(t, s.Close())
	})
}

// A server that answers only those who wait for longer than checks do is down.
func TestAServerThatAnswersTooLateForChecksIsDown(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s := openInMemory(t, math.MaxInt64, 2*counters.DefaultTimeout, counters.DefaultTimeout)
		var others sync.WaitGroup // such as what is refunded
		var err error
		for range 100 {
			others.Go(func() { _ = addTo(s, "a", time.Second) })
			err = addTo(s, "a", counters.DefaultTimeout/5)
		}
		assert.ErrorIs(t, err, counters.ErrUnavailable) // it isn't waited for any more
		others.Wait()
		require.NoError(t, s.Close())
		time.Sleep(time.Second) // what the servers have still to say
	})
}

// manyTakers returns what makes a limiter of each family on a store.
func manyTakers(t *testing.T) map[string]func(*Store) (manyTaker, error) {
	window, err := subwindow.NewWindow(time.Hour, 10, false)
	require.NoError(t, err)
	options := counters.Options{Policy: "p", Limit: "l", StoreTimeout: 800 * time.Millisecond}
	return map[string]func(*Store) (manyTaker, error){
		"window": func(s *Store) (manyTaker, error) { return subwindow.New(s, window, options) },
		"bucket": func(s *Store) (manyTaker, error) {
			return cas.NewTokenBucket(s, time.Hour, 0, cas.Config{Options: options})
		},
	}
}

type manyTaker interface {
	TakeMany(ctx context.Context, requests []counters.Request, done func(i int, t counters.Taken))
}

// takeNew has a thousand clients whom nobody has seen before decided within a time from now, and
// returns how many were admitted and how many failed.
func takeNew(l manyTaker, within time.Duration) (admitted, failed int) {
	asked := make([]counters.Request, 1000)
	now := time.Now()
	for i := range asked {
		asked[i] = counters.Request{Client: fmt.Sprint("client-", now.UnixNano(), i), Cost: 1, Limit: 5, Now: now}
	}
	var mu sync.Mutex
	l.TakeMany(&counters.Deadline{At: now.Add(within)}, asked, func(_ int, one counters.Taken) {
		mu.Lock()
		defer mu.Unlock()
		if one.Allowed {
			admitted++
		}
		if one.Err != nil {
			failed++
		}
	})
	return admitted, failed
}

// A batch whose servers fall silent in its middle ends with its store timeout.
func TestABatchWhoseServersFallSilentEndsInTime(t *testing.T) {
	t.Parallel()
	for name, open := range manyTakers(t) {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				s := openSilent(t, 1000)
				l, err := open(s)
				require.NoError(t, err)
				begin := time.Now()
				admitted, failed := takeNew(l, 800*time.Millisecond)
				assert.Equal(t, 800*time.Millisecond, time.Since(begin))
				assert.Positive(t, admitted)
				assert.Positive(t, failed)
				assert.Equal(t, 1000, admitted+failed)
				require.NoError(t, s.Close())
			})
		})
	}
}

// A thousand clients whom nobody has seen before take a few round trips, of
// which the default store timeout has 25 over a network.
func TestABatchOfNewClientsIsInTimeFarFromTheStore(t *testing.T) {
	t.Parallel()
	const roundTrip = 2 * time.Millisecond
	for name, open := range manyTakers(t) {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				s := openInMemory(t, math.MaxInt64, roundTrip, 0)
				l, err := open(s)
				require.NoError(t, err)
				for range 2 {
					begin := time.Now()
					admitted, failed := takeNew(l, counters.DefaultTimeout)
					assert.Equal(t, 1000, admitted)
					assert.Zero(t, failed)
					assert.LessOrEqual(t, time.Since(begin), 5*roundTrip)
				}
				require.NoError(t, s.Close())
			})
		})
	}
}
