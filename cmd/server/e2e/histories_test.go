package e2e

import (
	"encoding/json"
	"flag"
	"fmt"
	"io"
	"math"
	"math/rand/v2"
	"net"
	"net/http"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"weir/api/policy"
	"weir/cmd/server/servertest"
	"weir/counters"
	"weir/counters/memcachedtest"
)

var (
	historiesFor  = flag.Duration("histories", 15*time.Second, "how `long` TestHistories goes on")
	historiesFrom = flag.Uint64("history", 1, "the `seed` that TestHistories begins with")
)

// Whatever befalls store and processes, no order of the checks breaks a
// promise. The seed decides what is asked and what goes wrong; the machine
// decides the order.
func TestHistories(t *testing.T) {
	t.Parallel()
	binary(racing{t}) // takes none of the time
	var next atomic.Uint64
	next.Store(*historiesFrom)
	begin := time.Now()
	var atOnce sync.WaitGroup
	for range 4 { // which mostly wait
		atOnce.Go(func() {
			for time.Since(begin) < *historiesFor {
				seed := next.Add(1) - 1
				t.Run(fmt.Sprint(seed), func(t *testing.T) {
					h := newHistory(seed)
					h.happen(t, seed)
					t.Log(h.summary())
					for _, v := range h.judge() {
						assert.Fail(t, "a promise is broken", h.timeline(v))
					}
				})
			}
		})
	}
	atOnce.Wait()
}

// Clocks that differ by far more than -clock-skew break strict's promise, and
// that is seen.
func TestHistoriesSeeClocksTooFarApart(t *testing.T) {
	t.Parallel()
	const skew = 200 * time.Millisecond
	h := &history{
		name: "clocks too far apart", skew: skew, timeout: skew, offsets: []time.Duration{0, 5 * skew},
		policies: []promisedPolicy{{name: "strict", onError: policy.StoreErrorAllow, limits: []promise{
			{algorithm: "sliding_window", estimate: strict, limit: 20, window: 2 * time.Second, slots: 20},
		}}},
	}
	r := h.run(t, memcachedtest.Start(t).Addr, h.file())
	begin := time.Now()
	for len(h.judge()) == 0 && time.Since(begin) < 3*servertest.Patience {
		r.storm(rand.New(rand.NewPCG(1, 2)), "busy", time.Now().Add(2*time.Second), 0)
	}
	broken := h.judge()
	require.NotEmpty(t, broken)
	require.Contains(t, broken[0].what, "sliding_window strict admitted")
}

// newHistory returns what the seed decides before anything happens.
func newHistory(seed uint64) *history {
	random := rand.New(rand.NewPCG(seed, 0))
	h := &history{
		name:    fmt.Sprintf("seed %d (-run TestHistories -history %d)", seed, seed),
		skew:    pick[time.Duration](random, 0, 20, 50, 100) * time.Millisecond,
		timeout: pick[time.Duration](random, 100, 200, 400) * time.Millisecond,
		offsets: make([]time.Duration, 2+random.IntN(3)),
		calm:    math.MaxInt64,
	}
	for i := range h.offsets {
		h.offsets[i] = time.Duration(random.Int64N(int64(h.skew) + 1))
	}
	h.offsets[0], h.offsets[1] = 0, h.skew
	window := pick[time.Duration](random, 500, 1000, 2000) * time.Millisecond
	n := pick[int64](random, 7, 20, 50)
	slots := pick(random, 1, 4, 10, 20)
	fixed := promise{algorithm: "fixed_window", limit: n, window: window}
	sliding := promise{algorithm: "sliding_window", estimate: weighted, limit: n, window: window, slots: slots}
	most := sliding
	most.estimate = capped
	full := sliding
	full.estimate = strict
	token := promise{algorithm: "token_bucket", limit: n, burst: n + n/2, window: window}
	leaky := token
	leaky.algorithm = "leaky_bucket"
	log := promise{algorithm: "sliding_log", limit: n, window: window}
	counting := log
	counting.entries = 8
	wide := fixed
	wide.limit += n / 2
	// In these, costs are still in use when a reset has to be seen everywhere.
	day, week, slow, diary, ledger := fixed, full, token, log, counting
	for _, l := range []*promise{&day, &week, &slow, &diary, &ledger} {
		l.window *= 10
	}
	week.slots = 50
	for name, limits := range map[string][]promise{
		"fixed": {fixed}, "weighted": {sliding}, "capped": {most}, "strict": {full}, "token": {token}, "leaky": {leaky}, "log": {log}, "counting": {counting},
		"windows": {wide, full}, "mixed": {wide, token, full}, "mixed-log": {wide, counting},
		"long-windows": {day, week}, "long-bucket": {slow}, "long-log": {diary}, "long-counting": {ledger},
	} {
		h.policies = append(h.policies, promisedPolicy{name: name, limits: limits})
	}
	slices.SortFunc(h.policies, func(a, b promisedPolicy) int { return strings.Compare(a.name, b.name) })
	for i := range h.policies {
		h.policies[i].countDenied = random.IntN(4) == 0
		h.policies[i].onError = pick(random, policy.StoreErrorLocal, policy.StoreErrorAllow, policy.StoreErrorDeny)
	}
	return h
}

func pick[T any](random *rand.Rand, from ...T) T { return from[random.IntN(len(from))] }

// file returns the policy file.
func (h *history) file() string {
	var b strings.Builder
	b.WriteString("policies:\n")
	for _, p := range h.policies {
		fmt.Fprintf(&b, "  %s:\n    count_denied: %v\n    on_store_error: %s\n    limits:\n", p.name, p.countDenied, p.onError)
		for _, l := range p.limits {
			fmt.Fprintf(&b, "      - {name: %s, algorithm: %s, limit: %d, window: %v", strings.ReplaceAll(l.algorithm, "_", "-"), l.algorithm, l.limit, l.window)
			if l.burst > 0 {
				fmt.Fprintf(&b, ", burst: %d", l.burst)
			}
			if l.entries > 0 {
				fmt.Fprintf(&b, ", entries: %d", l.entries)
			}
			if l.slots > 0 {
				fmt.Fprintf(&b, ", sub_windows: %d, estimate: %s", l.slots, l.estimate)
			}
			b.WriteString("}\n")
		}
	}
	return b.String()
}

// happen lets the history happen: a storm of checks while things go wrong, one
// while nothing does, then lone clients.
func (h *history) happen(t *testing.T, seed uint64) {
	random := rand.New(rand.NewPCG(seed, 1))
	memcached := memcachedtest.Start(t)
	wire := relayTo(t, memcached, seed)
	r := h.run(t, wire.addr, h.file())

	end := time.Now().Add(3 * time.Second)
	var callers sync.WaitGroup
	resets := pick[time.Duration](random, 0, 100, 500) * time.Millisecond
	callers.Go(func() { r.storm(rand.New(rand.NewPCG(seed, 2)), "busy", end, resets) })
	for i, p := range h.policies {
		callers.Go(func() {
			random := rand.New(rand.NewPCG(seed, uint64(3+i)))
			for time.Until(end) > time.Second {
				r.renew(random, p, "renewed-meanwhile")
			}
		})
	}
	restart, kills := random.IntN(3) == 0, random.IntN(3)
	for time.Now().Before(end) {
		time.Sleep(time.Duration(random.IntN(250)) * time.Millisecond)
		pause := time.Duration(random.Int64N(int64(longestPause)))
		switch random.IntN(6) {
		case 0:
			h.note("connections are cut")
			wire.cut()
		case 1:
			h.note(fmt.Sprint("memcached stops for ", pause))
			memcached.Pause()
			time.Sleep(pause)
			memcached.Resume()
		case 2:
			i := random.IntN(len(r.processes))
			h.note(fmt.Sprintf("process %d stops for %v", i, pause))
			r.processes[i].pause(t, pause)
		case 3:
			if restart {
				restart = false
				h.note("memcached restarts")
				lost := span{call: h.now()}
				memcached.Kill()
				memcached.Restart()
				// Until then a cost that it has lost may be given back.
				lost.back = h.now() + h.late()
				h.losses = append(h.losses, lost)
			}
		case 4:
			if kills > 0 {
				kills--
				i := random.IntN(len(r.processes))
				h.note(fmt.Sprintf("process %d is killed", i))
				r.put(i, nil).kill()
				time.Sleep(pause)
				r.start(t, i)
				h.note(fmt.Sprintf("process %d is back", i))
			}
		default:
			most := pick[time.Duration](random, 0, 1, 5, 20) * time.Millisecond
			h.note(fmt.Sprintf("the way to memcached takes up to %v", most))
			wire.delay.Store(int64(most))
		}
	}
	callers.Wait()
	wire.delay.Store(0)
	h.note("all is quiet")
	r.resetAgain(t)
	time.Sleep(counters.MaxStaleness + h.skew + 2*h.timeout)
	h.calm = h.now()
	r.storm(rand.New(rand.NewPCG(seed, 100)), "late", time.Now().Add(500*time.Millisecond), 20*time.Millisecond)
	for i, p := range h.policies {
		callers.Go(func() { r.returnAlone(i%len(r.processes), p) })
		callers.Go(func() { r.renew(rand.New(rand.NewPCG(seed, uint64(101+i))), p, "renewed") })
	}
	callers.Wait()
}

func (h *history) note(what string) { h.faults = append(h.faults, fault{h.now(), what}) }

// now returns the time of day, which is what processes limit by, since start.
func (h *history) now() time.Duration { return time.Now().Round(0).Sub(h.start) }

// A recorder checks clients of running processes, resets them, and records what
// comes back.
type recorder struct {
	*history
	args      []string
	mu        sync.Mutex
	processes []*process
}

// run starts the processes of the history on the store, with a policy file.
func (h *history) run(t *testing.T, store, file string) *recorder {
	r := &recorder{history: h, processes: make([]*process, len(h.offsets)), args: []string{
		"-config", servertest.WriteFile(t, "p.yaml", file), "-memcached", store,
		"-clock-skew", h.skew.String(), "-store-timeout", h.timeout.String(),
	}}
	for i := range h.offsets {
		r.start(t, i)
	}
	h.start = time.Now().Round(0)
	return r
}

// start starts a process, in the place of none or one that was killed.
func (r *recorder) start(t *testing.T, i int) {
	r.put(i, startShifted(t, r.offsets[i], r.args...))
}

// put makes p the process that is asked, or none if it is nil. It returns the
// one before.
func (r *recorder) put(i int, p *process) (before *process) {
	r.mu.Lock()
	defer r.mu.Unlock()
	before, r.processes[i] = r.processes[i], p
	return before
}

// send asks a process, and reports whether there was one to ask. The status is
// 0 if it didn't answer.
func (r *recorder) send(process int, method, path, contentType, body string) (status int, data []byte, asked bool) {
	r.mu.Lock()
	p := r.processes[process]
	r.mu.Unlock()
	if p == nil {
		return 0, nil, false
	}
	status, _, data, err := p.Service.Send(method, path, contentType, body)
	if err != nil {
		status = 0
	}
	return status, data, true
}

// storm lets some callers of every process check a busy client until end, and
// one more a quiet client. Unless resets is 0, both are reset so often.
func (r *recorder) storm(random *rand.Rand, busy string, end time.Time, resets time.Duration) {
	var callers sync.WaitGroup
	repeat := func(between time.Duration, act func(*rand.Rand)) {
		random := rand.New(rand.NewPCG(random.Uint64(), 0))
		callers.Go(func() {
			for time.Now().Before(end) {
				time.Sleep(time.Duration(random.Int64N(int64(between))))
				act(random)
			}
		})
	}
	check := func(i int, client string, most int64) func(*rand.Rand) {
		return func(random *rand.Rand) {
			r.check(i, pick(random, r.policies...), client, 1+random.Int64N(most), false)
		}
	}
	for i := range r.offsets {
		for range 5 {
			repeat(10*time.Millisecond, check(i, busy, 7))
		}
		repeat(time.Second, check(i, "quiet", 3))
	}
	if resets > 0 {
		repeat(2*resets, func(random *rand.Rand) {
			r.reset(random.IntN(len(r.offsets)), pick(random, r.policies...), pick(random, busy, "quiet"))
		})
	}
	callers.Wait()
}

// renew lets a lone client use up its limits at two processes, resets it at one
// of them, and a second later asks the other for all that it may have.
func (r *recorder) renew(random *rand.Rand, p promisedPolicy, client string) {
	order := random.Perm(len(r.offsets))
	a, b := order[0], order[1]
	most, settled := int64(math.MaxInt64), r.skew+r.timeout
	for _, l := range p.limits {
		most = min(most, l.capacity())
		if l.slots > 0 {
			settled += 2 * l.width()
		}
	}
	for i := range int64(20) {
		e, _ := r.check(order[i%2], p, client, 1+most/4+i%3, false)
		if e.status == http.StatusTooManyRequests {
			break
		}
	}
	r.check(b, p, client, 1, false)
	r.check(a, p, client, 1, false)
	time.Sleep(min(settled, time.Second))
	r.check(a, p, client, 1, false)
	if r.reset(b, p, client).status != http.StatusNoContent {
		r.reset(b, p, client)
	}
	time.Sleep(time.Second)
	r.check(a, p, client, most, false)
	r.check(b, p, client, 1, false)
}

// returnAlone lets a lone client ask one process until it is denied, and again
// when it was told to, two times.
func (r *recorder) returnAlone(process int, p promisedPolicy) {
	denials := 0
	for i := int64(0); i < 20 && denials < 2; i++ {
		cost := p.limits[0].limit/4 + i%3
		e, wait := r.check(process, p, "busy", cost, false)
		if e.status == http.StatusTooManyRequests && r.quick(e) {
			if wait > 2*time.Second {
				return
			}
			denials++
			time.Sleep(wait)
			r.check(process, p, "busy", cost, true)
		}
	}
}

// check makes a check, if there is a process to ask. It returns the event and
// how long a denial lasts.
func (r *recorder) check(process int, p promisedPolicy, client string, cost int64, returns bool) (event, time.Duration) {
	e := event{process: process, policy: p.name, client: client, cost: cost, returns: returns, span: span{call: r.now()}}
	status, data, asked := r.send(process, http.MethodPost, "/v1/check", "application/json",
		fmt.Sprintf(`{"policy":%q,"client":%q,"cost":%d}`, p.name, client, cost))
	e.back = r.now()
	if !asked {
		return e, 0
	}
	var a servertest.Answer
	if status != 0 && json.Unmarshal(data, &a) == nil {
		e.status, e.allowed, e.degraded = status, a.Allowed, a.Degraded
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	r.events = append(r.events, e)
	return e, time.Duration(a.RetryAfter * float64(time.Second))
}

// reset resets a client, if there is a process to ask.
func (r *recorder) reset(process int, p promisedPolicy, client string) reset {
	done := reset{process: process, policy: p.name, client: client, span: span{call: r.now()}}
	status, _, asked := r.send(process, http.MethodDelete, "/v1/policies/"+p.name+"/clients/"+client, "", "")
	done.back, done.status = r.now(), status
	if asked {
		r.mu.Lock()
		defer r.mu.Unlock()
		r.resets = append(r.resets, done)
	}
	return done
}

// resetAgain does again what a process may have still to tell the store, so that it doesn't
// come later.
func (r *recorder) resetAgain(t *testing.T) {
	for _, accepted := range slices.Clone(r.resets) {
		if accepted.status == http.StatusAccepted && r.done(accepted) == math.MaxInt64 {
			require.Eventually(t, func() bool {
				return r.reset(accepted.process, promisedPolicy{name: accepted.policy}, accepted.client).status == http.StatusNoContent
			}, servertest.Patience, 10*time.Millisecond)
		}
	}
}

// pause stops the process for d, without ending it.
func (p *process) pause(t *testing.T, d time.Duration) {
	require.NoError(t, p.cmd.Process.Signal(syscall.SIGSTOP))
	time.Sleep(d)
	require.NoError(t, p.cmd.Process.Signal(syscall.SIGCONT))
}

// relay is a proxy in front of memcached that is slow and cuts connections.
type relay struct {
	addr  string
	delay atomic.Int64 // the most that it delays each piece
	mu    sync.Mutex
	conns map[net.Conn]struct{}
}

func relayTo(t *testing.T, m *memcachedtest.Server, seed uint64) *relay {
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	r := &relay{addr: listener.Addr().String(), conns: make(map[net.Conn]struct{})}
	var pumps sync.WaitGroup
	pumps.Go(func() {
		for number := uint64(0); ; number++ {
			client, err := listener.Accept()
			if err != nil {
				return
			}
			server, err := net.Dial("tcp", m.Addr)
			if err != nil {
				client.Close()
				continue
			}
			r.mu.Lock()
			r.conns[client], r.conns[server] = struct{}{}, struct{}{}
			r.mu.Unlock()
			pumps.Go(func() { r.pump(server, client, rand.New(rand.NewPCG(seed, 2*number))) })
			pumps.Go(func() { r.pump(client, server, rand.New(rand.NewPCG(seed, 2*number+1))) })
		}
	})
	t.Cleanup(func() {
		listener.Close()
		r.cut()
		m.Kill() // ends what was accepted meanwhile
		pumps.Wait()
	})
	return r
}

// pump passes on what comes, each piece later, until either side closes.
func (r *relay) pump(to io.WriteCloser, from net.Conn, random *rand.Rand) {
	piece := make([]byte, 64<<10)
	for {
		n, err := from.Read(piece)
		time.Sleep(time.Duration(random.Int64N(r.delay.Load() + 1)))
		if _, writeErr := to.Write(piece[:n]); err != nil || writeErr != nil {
			break
		}
	}
	to.Close()
	from.Close()
	r.mu.Lock()
	defer r.mu.Unlock()
	delete(r.conns, from)
}

// cut closes all connections, and loses what is under way.
func (r *relay) cut() {
	r.mu.Lock()
	defer r.mu.Unlock()
	for conn := range r.conns {
		conn.Close()
	}
}
