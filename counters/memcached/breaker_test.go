package memcached

import (
	"bufio"
	"context"
	"fmt"
	"net"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"weir/counters"
	"weir/counters/memcached/pipeline"
	"weir/counters/memcachedtest"
)

// patience is how long a test waits for something that has to happen.
const patience = time.Minute

func TestCircuit(t *testing.T) {
	t.Parallel()
	type event struct {
		at   time.Duration // since the start
		what outcome
		n    int // how often
		open bool
	}
	const ms = time.Millisecond
	for _, test := range []struct {
		what    string
		timeout time.Duration
		events  []event
	}{
		{"a lone caller meets five timeouts", 50 * ms, []event{
			{50 * ms, unanswered, 1, false}, {100 * ms, unanswered, 1, false}, {150 * ms, unanswered, 1, false},
			{200 * ms, unanswered, 1, false}, {250 * ms, unanswered, 1, true}, {251 * ms, unanswered, 9, true},
			{900 * ms, answered, 1, false},
		}},
		{"many callers wait for one hiccup", 50 * ms, []event{
			{50 * ms, unanswered, 256, false}, {99 * ms, unanswered, 256, false}, {100 * ms, answered, 1, false},
			{290 * ms, unanswered, 256, false},
		}},
		{"many callers wait for a server that is gone", 50 * ms, []event{
			{50 * ms, unanswered, 256, false}, {100 * ms, unanswered, 256, false}, {249 * ms, unanswered, 256, false},
			{250 * ms, unanswered, 1, true},
		}},
		{"a caller once a second", 50 * ms, []event{
			{1000 * ms, unanswered, 1, false}, {2000 * ms, unanswered, 1, false}, {3000 * ms, unanswered, 1, false},
			{4000 * ms, unanswered, 1, false}, {5000 * ms, unanswered, 1, true},
		}},
		{"every other is answered", 50 * ms, []event{
			{50 * ms, unanswered, 4, false}, {300 * ms, answered, 1, false}, {350 * ms, unanswered, 4, false},
			{700 * ms, answered, 1, false}, {950 * ms, unanswered, 4, false},
		}},
		{"a short timeout", 5 * ms, []event{
			{5 * ms, unanswered, 1, false}, {55 * ms, unanswered, 10, false}, {104 * ms, unanswered, 10, false},
			{105 * ms, unanswered, 1, true},
		}},
		{"a long timeout", 5 * time.Second, []event{
			{5 * time.Second, unanswered, 9, false}, {7 * time.Second, down, 1, true},
		}},
		{"it can't be dialed", 50 * ms, []event{
			{1 * ms, down, 1, true}, {2 * ms, down, 1, true}, {3 * ms, answered, 1, false}, {4 * ms, answered, 1, false},
		}},
	} {
		t.Run(test.what, func(t *testing.T) {
			var c circuit
			start := time.Unix(0, 0)
			for _, e := range test.events {
				for range e.n {
					c = c.after(e.what, start.Add(e.at), silence(test.timeout))
				}
				require.Equal(t, e.open, c.open(), "after %v", e.at)
			}
		})
	}
}

// One goroutine probes, and only while the breaker is open, whoever closes it.
func TestBreakerProbesWhileItIsOpen(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		var probers, underWay, probes atomic.Int32
		takes, answers := time.Millisecond, false
		var b breaker
		b.run = func(f func(context.Context)) bool {
			go func() {
				assert.EqualValues(t, 1, probers.Add(1))
				f(t.Context())
				probers.Add(-1)
			}()
			return true
		}
		b.probe = func() {
			assert.EqualValues(t, 1, underWay.Add(1))
			probes.Add(1)
			time.Sleep(takes)
			underWay.Add(-1)
			if answers {
				b.note(answered, nil)
			} else {
				b.note(unanswered, context.DeadlineExceeded)
			}
		}
		requireProbes := func(within time.Duration, n int32) {
			t.Helper()
			before := probes.Load()
			time.Sleep(within)
			synctest.Wait()
			require.Equal(t, n, probes.Load()-before)
		}

		b.note(unanswered, context.DeadlineExceeded)
		requireProbes(time.Second, 0)
		require.NoError(t, b.refuse())

		b.note(down, context.DeadlineExceeded)
		require.ErrorIs(t, b.refuse(), counters.ErrUnavailable)
		requireProbes(1010*time.Millisecond, 10)
		takes = 2 * time.Second
		requireProbes(2050*time.Millisecond, 1)

		// Others close it and open it again while a probe is under way.
		b.note(answered, nil)
		require.NoError(t, b.refuse())
		b.note(down, context.DeadlineExceeded)
		require.Error(t, b.refuse())
		takes = time.Millisecond
		requireProbes(1200*time.Millisecond, 11)

		answers = true
		requireProbes(5*time.Second, 1)
		require.NoError(t, b.refuse())
		require.Zero(t, probers.Load())

		// A probe that another answer has forestalled is the last.
		answers = false
		b.note(down, context.DeadlineExceeded)
		synctest.Wait()
		b.note(answered, nil)
		requireProbes(5*time.Second, 1)
		require.Zero(t, probers.Load())
	})
}

// two is a store on two real servers, with a key on each.
type two struct {
	*Store
	servers [2]*memcachedtest.Server
	keys    [2]string
}

// timeout is long enough for a busy machine.
const timeout = 200 * time.Millisecond

func openTwo(t *testing.T) *two {
	t.Helper()
	w := &two{servers: [2]*memcachedtest.Server{memcachedtest.Start(t), memcachedtest.Start(t)}}
	cfg := Config{Servers: []string{w.servers[0].Addr, w.servers[1].Addr}, Timeout: timeout}
	var err error
	w.Store, err = newStore(cfg, cfg.dialer, nil)
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, w.Close()) })
	for i := 0; w.keys[0] == "" || w.keys[1] == ""; i++ {
		key := fmt.Sprint("weir:p/l:1000:c", i, "_1")
		w.keys[w.members.Load().ring.pick(key)] = key
	}
	require.Eventually(t, func() bool { return w.add(0, timeout) == nil }, patience, time.Millisecond)
	require.NoError(t, w.add(1, patience))
	return w
}

func openStore(t *testing.T, servers ...string) *Store {
	t.Helper()
	s, err := New(Config{Servers: servers, Timeout: timeout})
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, s.Close()) })
	return s
}

func addTo(s *Store, key string, within time.Duration) error {
	_, err := s.Add(&counters.Deadline{At: time.Now().Add(within)}, counters.Addition{Key: key, Delta: 1, TTL: time.Minute})
	return err
}

// add counts on server i.
func (w *two) add(i int, within time.Duration) error { return addTo(w.Store, w.keys[i], within) }

// awaitOpen counts on server 0 until its breaker is open, and returns how
// often.
func (w *two) awaitOpen(t *testing.T) (failures int) {
	t.Helper()
	for ; w.members.Load().backends[0].breaker.refuse() == nil; failures++ {
		require.Error(t, w.add(0, timeout))
		require.Less(t, failures, openFailures)
	}
	require.True(t, w.Ping()[0].BreakerOpen)
	return failures
}

// requireAtOnce checks that no operation on server 0 waits for it.
func (w *two) requireAtOnce(t *testing.T) {
	t.Helper()
	ctx, key := &counters.Deadline{At: time.Now().Add(time.Hour)}, w.keys[0]
	done := make(chan struct{})
	go func() {
		defer close(done)
		_, addErr := w.Add(ctx, counters.Addition{Key: key, Delta: 1, TTL: time.Minute, Read: []string{"a"}, Counts: make([]int64, 1)})
		_, loadErr := w.Load(ctx, key)
		_, _, swapErr := w.Swap(ctx, key, counters.State{}, nil, time.Minute)
		for what, err := range map[string]error{
			"Add": addErr, "Read": w.Read(ctx, []string{key}, make([]int64, 1)), "Subtract": w.Subtract(ctx, key, 1),
			"Load": loadErr, "Swap": swapErr, "Put": w.Put(ctx, key, nil, time.Minute), "Delete": w.Delete(ctx, []string{key}), "Ping": w.Ping()[0].Err,
		} {
			assert.ErrorIs(t, err, counters.ErrUnavailable, what)
			assert.ErrorIs(t, err, counters.ErrNotSent, what)
		}
	}()
	select {
	case <-done:
	case <-time.After(patience):
		require.Fail(t, "an operation waits for a server whose breaker is open")
	}
}

// requireBack checks that server 0 is used again. How soon: TestBreakerProbesWhileItIsOpen.
func (w *two) requireBack(t *testing.T) {
	t.Helper()
	require.Eventually(t, func() bool {
		return w.add(0, timeout) == nil && w.Ping()[0] == counters.ServerStatus{Server: w.servers[0].Addr}
	}, patience, time.Millisecond)
}

// requireOther checks that all the time nothing happens to server 1.
func (w *two) requireOther(t *testing.T) (end func()) {
	stop := make(chan struct{})
	var running sync.WaitGroup
	running.Go(func() {
		for {
			select {
			case <-stop:
				return
			case <-time.After(time.Millisecond):
				assert.NoError(t, w.add(1, patience))
				assert.NoError(t, w.members.Load().backends[1].breaker.refuse())
			}
		}
	})
	return func() {
		close(stop)
		running.Wait()
	}
}

func TestBreakerOfAStalledServer(t *testing.T) {
	t.Parallel()
	w := openTwo(t)
	defer w.requireOther(t)()
	for _, stalled := range []time.Duration{0, 2500 * time.Millisecond} { // the second outlives the socket
		w.servers[0].Pause()
		require.Equal(t, openFailures, w.awaitOpen(t))
		w.requireAtOnce(t)
		time.Sleep(stalled)
		w.requireAtOnce(t)
		w.servers[0].Resume()
		w.requireBack(t)
	}
}

func TestBreakerOfAServerThatRestarts(t *testing.T) {
	t.Parallel()
	w := openTwo(t)
	defer w.requireOther(t)()
	for range 2 {
		w.servers[0].Kill()
		w.awaitOpen(t)
		w.requireAtOnce(t)
		w.servers[0].Restart()
		w.requireBack(t)
	}
}

// One dial is enough to know that nobody listens.
func TestBreakerOfAServerThatIsNotThere(t *testing.T) {
	t.Parallel()
	w := openTwo(t)
	w.servers[0].Kill()
	s := openStore(t, w.servers[0].Addr)
	require.ErrorIs(t, addTo(s, "k", time.Hour), counters.ErrNotSent)
	require.Error(t, s.members.Load().backends[0].breaker.refuse())
	addr := w.servers[0].Addr
	assert.EqualError(t, s.Ping()[0].Err, "counters: the store is not available: dial tcp "+addr+": connect: connection refused")
}

// Callers who wait together give up together. That is one timeout, not many.
func TestTimeoutsOfOneStallDoNotOpenTheBreaker(t *testing.T) {
	t.Parallel()
	w := openTwo(t)
	w.members.Load().backends[0].breaker.silence = time.Hour // a busy machine may end them one after the other
	w.servers[0].Pause()
	together := &counters.Deadline{At: time.Now().Add(time.Second)}
	var callers sync.WaitGroup
	for range 50 {
		callers.Go(func() {
			_, err := w.Add(together, counters.Addition{Key: w.keys[0], Delta: 1, TTL: time.Minute})
			assert.ErrorIs(t, err, counters.ErrTimeout)
		})
	}
	callers.Wait()
	over := &counters.Deadline{At: time.Now().Add(-time.Second)}
	for range 50 {
		err := w.Read(over, w.keys[:1], make([]int64, 1))
		assert.Equal(t, errOverdue, err)
	}
	require.NoError(t, w.members.Load().backends[0].breaker.refuse())
	w.servers[0].Resume()
}

// A server that isn't asked is known to be down after one ping.
func TestAnUnansweredPingOpensTheBreaker(t *testing.T) {
	t.Parallel()
	w := openTwo(t)
	w.servers[0].Pause()
	states := w.Ping()
	assert.EqualError(t, states[0].Err, "counters: the store is not available: i/o timeout")
	assert.True(t, states[0].BreakerOpen)
	require.Eventually(t, func() bool { return w.Ping()[1] == counters.ServerStatus{Server: w.servers[1].Addr} }, patience, time.Millisecond)
	w.requireAtOnce(t)
	w.servers[0].Resume()
	w.requireBack(t)
}

// However many ask, a server is pinged once a second, on the shared socket.
func TestPingsAreShared(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		server, s := openSilentServer(t)
		server.talk.Store(true)
		ping100 := func() {
			var callers sync.WaitGroup
			for range 100 {
				callers.Go(func() { assert.Equal(t, []counters.ServerStatus{{Server: silentAddress}}, s.Ping()) })
			}
			callers.Wait()
		}
		for range 3 {
			ping100()
			require.Equal(t, "version, connection 1", server.next(t))
			time.Sleep(pingInterval - time.Nanosecond)
			ping100()
			require.Empty(t, server.asked)
			time.Sleep(time.Nanosecond)
		}
		require.NoError(t, s.Close())
	})
}

func TestCloseEndsTheProbe(t *testing.T) {
	t.Parallel()
	w := openTwo(t)
	w.servers[0].Pause()
	w.awaitOpen(t)
	backend := w.members.Load().backends[0]
	require.Eventually(t, func() bool {
		backend.mu.Lock()
		defer backend.mu.Unlock()
		return backend.inUse == 1
	}, patience, time.Millisecond, "a probe is under way")
	require.NoError(t, w.Close())
	assert.ErrorIs(t, w.add(0, time.Hour), counters.ErrUnavailable)
	assert.ErrorIs(t, w.add(1, time.Hour), counters.ErrUnavailable)
}

// A silentServer tells what it is asked, and says nothing until it is told to.
type silentServer struct {
	asked  chan string // "version, connection 1"
	talk   atomic.Bool
	thinks atomic.Int64 // nanoseconds before an answer
}

const silentAddress = "192.0.2.1:1"

// openSilentServer returns a silentServer, and a store on it for use in virtual time.
func openSilentServer(t *testing.T) (*silentServer, *Store) {
	t.Helper()
	silent := &silentServer{asked: make(chan string, 1000)}
	var connections atomic.Int64
	s, err := newStore(Config{Servers: []string{silentAddress}, Timeout: timeout}, func(*server) pipeline.DialFunc {
		return func(context.Context, string, string) (net.Conn, error) {
			conn, peer := net.Pipe()
			go silent.serve(peer, connections.Add(1))
			return conn, nil
		}
	}, nil)
	require.NoError(t, err)
	return silent, s
}

func (s *silentServer) serve(conn net.Conn, number int64) {
	for scan := bufio.NewScanner(conn); scan.Scan(); {
		s.asked <- fmt.Sprint(scan.Text(), ", connection ", number)
		if s.talk.Load() {
			time.Sleep(time.Duration(s.thinks.Load()))
			fmt.Fprint(conn, "VERSION 1\r\n")
		}
	}
}

// requireClosedAgain waits until the breaker is closed.
func requireClosedAgain(t *testing.T, s *Store) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	breaker := &s.members.Load().backends[0].breaker
	breaker.await(ctx)
	require.NoError(t, breaker.refuse())
}

// next waits until the server is asked something, and returns it.
func (s *silentServer) next(t *testing.T) string {
	t.Helper()
	select {
	case asked := <-s.asked:
		return asked
	case <-time.After(patience):
		require.Fail(t, "nobody asks")
		return ""
	}
}

// A server that says nothing is asked by one probe at a time, and the next one
// comes on a new connection.
func TestAServerOwesAnswersToOneProbe(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		server, s := openSilentServer(t)
		require.Error(t, s.Ping()[0].Err)
		require.Equal(t, "version, connection 1", server.next(t), "the ping")
		require.Equal(t, "version, connection 1", server.next(t), "the probe")
		for range 100 {
			require.ErrorIs(t, addTo(s, "k", time.Hour), counters.ErrNotSent)
		}
		require.Equal(t, "version, connection 2", server.next(t), "the next probe")
		require.Empty(t, server.asked)
		server.talk.Store(true)
		requireClosedAgain(t, s)
		require.NoError(t, s.Close())
	})
}

// A server that answers later than any operation waits isn't back.
func TestALateAnswerDoesNotCloseTheBreaker(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		server, s := openSilentServer(t)
		server.thinks.Store(int64(2 * timeout))
		server.talk.Store(true)
		s.members.Load().backends[0].breaker.note(down, context.DeadlineExceeded)
		for range 5 {
			require.Equal(t, "version, connection 1", server.next(t))
			require.Error(t, s.members.Load().backends[0].breaker.refuse())
		}
		server.thinks.Store(0)
		requireClosedAgain(t, s)
		require.NoError(t, s.Close())
	})
}
