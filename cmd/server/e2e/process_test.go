package e2e

import (
	"bufio"
	"crypto/tls"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptrace"
	"net/url"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"weir/cmd/server/servertest"
	"weir/counters/memcachedtest"
)

// unhurried lets the store take its time on a busy machine, where a test counts
// admissions and no check may be degraded.
var unhurried = []string{"-store-timeout", "5s"}

// startProcesses starts one process for each list of Memcached servers.
func startProcesses(t testing.TB, servers []string, args ...string) []*process {
	t.Helper()
	var processes []*process
	for _, s := range servers {
		processes = append(processes, startProcess(t, append(append([]string{"-memcached", s}, unhurried...), args...)...))
	}
	return processes
}

// withinMinute returns what run returns. If a calendar minute ended meanwhile,
// counts began to leave the window, and it runs again with another client.
func withinMinute[T any](t *testing.T, run func(client string) T) T {
	t.Helper()
	for i := range 3 {
		begin := time.Now().Truncate(time.Minute)
		result := run(fmt.Sprint("client-", i))
		if time.Now().Truncate(time.Minute).Equal(begin) {
			return result
		}
	}
	require.Fail(t, "every run took over a minute's end")
	panic("unreachable")
}

// topUp lets a lone caller check until it is denied, and returns the cost that
// was admitted.
func topUp(t *testing.T, p *process, policy, client string, cost int64) (admitted int64) {
	t.Helper()
	for p.Check(t, policy, client, cost).Allowed {
		admitted += cost
	}
	return admitted
}

func TestResetOfABucketReachesEveryProcess(t *testing.T) {
	t.Parallel()
	a := memcachedtest.Start(t).Addr
	processes := startProcesses(t, []string{a, a})
	for _, policy := range []string{"token", "leaky", "log"} {
		topUp(t, processes[0], policy, "c", 100)
		require.False(t, processes[1].Check(t, policy, "c", 100).Allowed)
		status, _, _, err := processes[0].Send(http.MethodDelete, "/v1/policies/"+policy+"/clients/c", "", "")
		require.NoError(t, err)
		require.Equal(t, http.StatusNoContent, status)
		require.Eventually(t, func() bool { return processes[1].Check(t, policy, "c", 100).Allowed }, servertest.Patience, 10*time.Millisecond)
	}
}

// On SIGTERM a held answer is given at once, with the wait that is left.
func TestTerminateReleasesWhatIsHeld(t *testing.T) {
	t.Parallel()
	file := servertest.WriteFile(t, "p.yaml", `
policies:
  queue:
    limits: [{algorithm: leaky_bucket, limit: 1, window: 1h, burst: 50}]
    hold: true
`)
	p := startProcess(racing{t}, "-config", file)
	require.Zero(t, p.Check(t, "queue", "c", 1).Wait)
	answers := make(chan servertest.Answer, 1)
	go func() { answers <- p.Check(t, "queue", "c", 1) }()
	require.Eventually(t, func() bool {
		_, body := p.Get(t, "/v1/policies/queue/clients/c")
		return strings.Contains(body, `"remaining":48`)
	}, servertest.Patience, time.Millisecond)
	p.terminate(t)
	a := <-answers
	assert.True(t, a.Allowed)
	assert.Positive(t, a.Wait)
	p.requireExit(t)
}

// The content type is that of curl -d.
func TestEmbeddedStoreAdmits100(t *testing.T) {
	t.Parallel()
	p := startProcess(t)
	answers := withinMinute(t, func(client string) (answers []servertest.Answer) {
		for range 101 {
			answers = append(answers, p.Ask(t, http.MethodPost, "/v1/check", "application/x-www-form-urlencoded",
				`{"policy":"fixed","client":"`+client+`"}`))
		}
		return answers
	})
	for i, a := range answers[:100] {
		require.Equal(t, http.StatusOK, a.Status)
		require.EqualValues(t, 99-i, a.Limits[0].Remaining)
	}
	assert.Equal(t, http.StatusTooManyRequests, answers[100].Status)
	assert.NotEmpty(t, answers[100].Header.Get("Retry-After"))
}

func TestRetryAfterIsTrue(t *testing.T) {
	t.Parallel()
	file := servertest.WriteFile(t, "p.yaml", `
policies:
  fixed: {limits: [{algorithm: fixed_window, limit: 3, window: 1s}]}
  sliding: {limits: [{algorithm: sliding_window, limit: 3, window: 1s}]}
`)
	p := startProcesses(t, []string{memcachedtest.Start(t).Addr}, "-config", file)[0]
	for _, policy := range []string{"fixed", "sliding"} {
		a := p.Check(t, policy, "c", 3)
		for a.Allowed {
			a = p.Check(t, policy, "c", 3)
		}
		assert.Equal(t, http.StatusTooManyRequests, a.Status)
		// Whole seconds, rounded up; a sliding window asks for at most one slot
		// more.
		assert.Contains(t, []string{"1", "2"}, a.Header.Get("Retry-After"))
		assert.Positive(t, a.RetryAfter)
		assert.LessOrEqual(t, a.RetryAfter, 1.1)
		// Nothing but time makes it true.
		time.Sleep(time.Duration(a.RetryAfter * float64(time.Second)))
		assert.Equal(t, http.StatusOK, p.Check(t, policy, "c", 3).Status)
	}
}

// rawClient speaks HTTP/1.1 on one connection, and knows whether the server had
// closed it before a request was written. Unlike http.Client it opens no
// connection in advance, which the server would close if it stayed unused.
type rawClient struct {
	address string
	odd     bool // its requests are for net/http, whatever reads plain ones
	conn    *net.TCPConn
	answers *bufio.Reader
}

// errClosed: the server had closed the connection before the request was
// written.
var errClosed = errors.New("closed before the request")

func (c *rawClient) dial() error {
	conn, err := net.Dial("tcp", c.address)
	if err != nil {
		return err
	}
	c.conn, c.answers = conn.(*net.TCPConn), bufio.NewReader(conn)
	return nil
}

// check sends one check and reads its answer. It closes the connection when the
// answer says so.
func (c *rawClient) check(body string) (a servertest.Answer, err error) {
	if c.closed() {
		return a, errClosed
	}
	if err := c.conn.SetDeadline(time.Now().Add(servertest.Patience)); err != nil {
		return a, err
	}
	more := ""
	if c.odd {
		more = "Odd:  spaces\r\n"
	}
	if _, err := fmt.Fprintf(c.conn, "POST /v1/check HTTP/1.1\r\nHost: weir\r\n%sContent-Length: %d\r\n\r\n%s", more, len(body), body); err != nil {
		return a, fmt.Errorf("writing a request: %w", err)
	}
	resp, err := http.ReadResponse(c.answers, nil)
	if err != nil {
		return a, fmt.Errorf("no answer to a request: %w", err)
	}
	if err := json.NewDecoder(resp.Body).Decode(&a); err != nil {
		return a, fmt.Errorf("half an answer to a request: %w", err)
	}
	if _, err := io.Copy(io.Discard, resp.Body); err != nil {
		return a, fmt.Errorf("half an answer to a request: %w", err)
	}
	if resp.StatusCode != http.StatusOK && resp.StatusCode != http.StatusTooManyRequests {
		return a, fmt.Errorf("the answer is %s: %s", resp.Status, a.Detail)
	}
	if resp.Close {
		c.conn.Close()
	}
	return a, nil
}

// closed reports whether the server's end of the connection is closed, without
// waiting.
func (c *rawClient) closed() bool {
	raw, err := c.conn.SyscallConn()
	if err != nil || c.conn.SetDeadline(time.Time{}) != nil { // or that of the last check may be over
		return true
	}
	var n int
	readErr := raw.Read(func(fd uintptr) bool {
		n, _, err = syscall.Recvfrom(int(fd), make([]byte, 1), syscall.MSG_PEEK|syscall.MSG_DONTWAIT)
		return true
	})
	return readErr != nil || n == 0 || !errors.Is(err, syscall.EAGAIN)
}

// Requests on open connections lose nothing when the server is terminated: each
// that was sent is answered. A connection that is refused is no loss, because
// the caller knows that nothing has been counted. It is so while connections pass to net/http, too.
func TestTerminateUnderLoad(t *testing.T) {
	t.Parallel()
	memcached := memcachedtest.Start(t)
	for range 4 {
		p := startProcesses(racing{t}, []string{memcached.Addr})[0]
		var warm, done sync.WaitGroup
		warm.Add(64)
		var answered atomic.Int64
		for i := range 64 {
			done.Go(func() {
				c := rawClient{address: p.Address()}
				checks := 0
				check := func() error {
					checks++
					c.odd = i%4 == 1 || i%4 == 2 && checks%64 == 0
					_, err := c.check(`{"policy":"fixed","client":"c"}`)
					return err
				}
				err := c.dial()
				if err == nil {
					err = check()
				}
				warm.Done()
				for err == nil {
					answered.Add(1)
					if err = check(); errors.Is(err, errClosed) {
						c.conn.Close()
						err = c.dial()
					}
				}
				c.conn.Close()
				assert.ErrorIs(t, err, syscall.ECONNREFUSED)
			})
		}
		warm.Wait()
		before := answered.Load()
		require.Eventually(t, func() bool { return answered.Load() > before+500 }, servertest.Patience, time.Millisecond)
		p.terminate(t)
		done.Wait()
		p.requireExit(t)
		assert.Contains(t, p.log.String(), "stopped")
	}
}

// A prompt transport tells of what fails whether its request was late: written only when its
// connection had been open for so long that a server that ends may close it.
type prompt struct{ http.RoundTripper }

var errLate = errors.New("the request was late")

func (p prompt) RoundTrip(r *http.Request) (*http.Response, error) {
	const inTime = 200 * time.Millisecond // a server waits for 300 ms
	var written atomic.Bool
	var begun time.Time
	resp, err := p.RoundTripper.RoundTrip(r.WithContext(httptrace.WithClientTrace(r.Context(), &httptrace.ClientTrace{
		GetConn: func(string) { begun = time.Now() },
		WroteRequest: func(w httptrace.WroteRequestInfo) {
			written.Store(w.Err == nil && time.Since(begun) < inTime)
		},
	})))
	if err != nil && !written.Load() && time.Since(begun) >= inTime {
		err = fmt.Errorf("%w: %w", errLate, err)
	}
	return resp, err
}

// newPrompt returns a service that opens a connection for each request.
func newPrompt(t *testing.T, url string, tlsConfig *tls.Config) servertest.Service {
	s := servertest.NewService(t, url, tlsConfig)
	s.Client.Transport.(*http.Transport).DisableKeepAlives = true
	s.Client.Transport = prompt{s.Client.Transport}
	return s
}

// Callers that open a connection for each check are answered, or refused when
// they connect: no connection is cut that the kernel has accepted. A reload
// disturbs none.
func TestTerminateAnswersOrRefusesNewConnections(t *testing.T) {
	t.Parallel()
	ca := servertest.NewAuthority(t)
	cert, key := ca.Issue(t, "server")
	for _, test := range []struct {
		name    string
		args    []string
		callers int64
	}{
		{"plain", nil, 64},
		{"TLS", []string{"-tls-cert", cert, "-tls-key", key}, 16},
	} {
		t.Run(test.name, func(t *testing.T) {
			for range 3 {
				p := startProcess(racing{t}, test.args...)
				var done sync.WaitGroup
				var answered atomic.Int64
				for range test.callers {
					done.Go(func() {
						s := newPrompt(t, p.URL, &tls.Config{RootCAs: ca.Pool()})
						for {
							status, _, body, err := s.Send(http.MethodPost, "/v1/check", "", `{"policy":"fixed","client":"c"}`)
							if errors.Is(err, syscall.ECONNREFUSED) {
								return
							}
							if errors.Is(err, errLate) {
								continue
							}
							if !assert.NoError(t, err) {
								return
							}
							assert.Contains(t, []int{http.StatusOK, http.StatusTooManyRequests}, status, "%s", body)
							answered.Add(1)
						}
					})
				}
				p.reloadAndTerminate(t, &answered, test.callers)
				done.Wait()
				p.requireExit(t)
			}
		})
	}
}

// Batches that wait for others when the process is to end are answered like those
// that have begun, and so are those that come with a reload.
func TestTerminateAnswersBatchesThatWait(t *testing.T) {
	t.Parallel()
	const callers, size = 16, 300
	p := startProcess(racing{t}, "-memcached", memcachedtest.Start(t).Addr, "-store-timeout", "500ms")
	var done sync.WaitGroup
	var answered atomic.Int64
	for i := range callers {
		done.Go(func() {
			s := newPrompt(t, p.URL, nil)
			checks := make([]string, size)
			for j := range checks {
				checks[j] = fmt.Sprintf(`{"policy":"default","client":"c%d-%d"}`, i, j)
			}
			batch := fmt.Sprintf(`{"all":%t,"checks":[%s]}`, i%4 == 0, strings.Join(checks, ","))
			for {
				status, _, body, err := s.Send(http.MethodPost, "/v1/check/batch", "", batch)
				if errors.Is(err, syscall.ECONNREFUSED) {
					return
				}
				if errors.Is(err, errLate) {
					continue
				}
				if !assert.NoError(t, err) {
					return
				}
				assert.Contains(t, []int{http.StatusOK, http.StatusTooManyRequests}, status)
				assert.Equal(t, size, strings.Count(string(body), `"policy":"default"`))
				answered.Add(1)
			}
		})
	}
	p.reloadAndTerminate(t, &answered, callers)
	done.Wait()
	p.requireExit(t)
}

// reloadAndTerminate has the process reload its policies and then end, each while
// so many callers are being answered.
func (p *process) reloadAndTerminate(t *testing.T, answered *atomic.Int64, callers int64) {
	t.Helper()
	underWay := func() {
		before := answered.Load()
		require.Eventually(t, func() bool { return answered.Load() > before+callers }, servertest.Patience, time.Millisecond)
	}
	underWay()
	require.NoError(t, p.cmd.Process.Signal(syscall.SIGHUP))
	p.log.Wait(t, "policies loaded")
	underWay()
	p.terminate(t)
}

// What callers send is answered even if the process had no turn for long.
func TestTerminateAnswersWhatArrivesWhileItStandsStill(t *testing.T) {
	t.Parallel()
	p := startProcess(racing{t})
	clients := make([]rawClient, 64)
	for i := range clients {
		clients[i].address = p.Address()
		require.NoError(t, clients[i].dial())
		_, err := clients[i].check(`{"policy":"fixed","client":"c"}`)
		require.NoError(t, err)
	}
	p.terminate(t)
	p.log.Wait(t, "draining")
	require.NoError(t, p.cmd.Process.Signal(syscall.SIGSTOP))
	var done sync.WaitGroup
	for i := range clients {
		done.Go(func() {
			assert.False(t, clients[i].closed())
			_, err := clients[i].check(`{"policy":"fixed","client":"c"}`)
			assert.NoError(t, err)
		})
	}
	time.Sleep(time.Second) // longer than open connections have to be quiet
	require.NoError(t, p.cmd.Process.Signal(syscall.SIGCONT))
	done.Wait()
	p.requireExit(t)
}

func TestTerminateIdle(t *testing.T) {
	t.Parallel()
	p := startProcess(racing{t})
	p.terminate(t)
	p.requireExit(t)
	assert.Contains(t, p.log.Wait(t, "draining"), "connections=0")

	// An idle connection doesn't keep the server from exiting.
	p = startProcess(racing{t})
	p.Get(t, "/healthz")
	p.terminate(t)
	p.requireExit(t)
	assert.Contains(t, p.log.Wait(t, "draining"), "connections=1")
}

func TestTerminateWhileMemcachedIsStalled(t *testing.T) {
	t.Parallel()
	memcached := memcachedtest.Start(t)
	wire := servertest.TapMemcached(t, memcached)
	p := startProcess(racing{t}, "-memcached", wire.Addr, "-store-timeout", "1s")
	memcached.Pause()
	answers := make(chan servertest.Answer, 1)
	go func() { answers <- p.Check(t, "fixed", "c", 1) }()
	wire.Sent.Wait(t, "incr ")
	p.terminate(t)
	a := <-answers
	assert.Equal(t, http.StatusOK, a.Status)
	assert.True(t, a.Degraded)
	p.requireExit(t)
}

// requireNormal waits until the store decides again.
func requireNormal(t *testing.T, p *process) (degraded int) {
	t.Helper()
	require.Eventually(t, func() bool {
		a := p.Check(t, "fixed", "after", 0)
		if a.Degraded {
			degraded++
		}
		return !a.Degraded
	}, servertest.Patience, time.Millisecond)
	return degraded
}

func TestMemcachedRestarts(t *testing.T) {
	t.Parallel()
	memcached := memcachedtest.Start(t)
	p := startProcess(racing{t}, "-memcached", memcached.Addr)
	ask20 := func() (degraded int64) {
		var count atomic.Int64
		var callers sync.WaitGroup
		for range 20 {
			callers.Go(func() {
				if p.Check(t, "fixed", "c", 1).Degraded {
					count.Add(1)
				}
			})
		}
		callers.Wait()
		return count.Load()
	}
	ask20() // on as many connections, which will break

	memcached.Kill()
	a := p.Check(t, "fixed", "c", 1)
	assert.True(t, a.Allowed)
	assert.True(t, a.Degraded)
	var status int
	var body string
	require.Eventually(t, func() bool { // on a busy machine the check may have had no time to find out why
		status, body = p.Get(t, "/readyz")
		return status == http.StatusServiceUnavailable
	}, servertest.Patience, 10*time.Millisecond)
	assert.Contains(t, body, `"server":"`+memcached.Addr+`","up":false,"error":"the store is not available`)

	memcached.Restart()
	t.Logf("%d of 20 concurrent answers were degraded after it was back", ask20())
	requireNormal(t, p)
	status, _ = p.Get(t, "/readyz")
	assert.Equal(t, http.StatusOK, status)
}

func TestMemcachedWithUserAndTLS(t *testing.T) {
	t.Parallel()
	dir := memcachedtest.PublicDir(t)
	user, wrong := filepath.Join(dir, "user"), filepath.Join(dir, "wrong")
	require.NoError(t, os.WriteFile(user, []byte("weir:secret\n"), 0o644))
	require.NoError(t, os.WriteFile(wrong, []byte("weir:guess\n"), 0o644))
	ca, strangers := servertest.NewAuthority(t), servertest.NewAuthority(t)
	cert, key := ca.Issue(t, "memcached")
	secured := []string{"-Y", user, "-Z", "-o", "ssl_chain_cert=" + cert + ",ssl_key=" + key}
	for _, test := range []struct {
		name      string
		memcached []string
		args      []string
		fails     string // what readyz says
	}{
		{"user", secured[:2], []string{"-memcached-user-file", user}, ""},
		{"wrong password", secured[:2], []string{"-memcached-user-file", wrong},
			"the server refused the credentials"},
		{"no user", secured[:2], nil, "the store is not available: "},
		{"TLS", secured[2:], []string{"-memcached-tls", "-memcached-ca", ca.File}, ""},
		{"TLS by a stranger", secured[2:], []string{"-memcached-tls", "-memcached-ca", strangers.File},
			"the store is not available: tls: failed to verify certificate: x509: certificate signed by unknown authority"},
		{"user by TLS", secured, []string{"-memcached-tls", "-memcached-ca", ca.File, "-memcached-user-file", user}, ""},
	} {
		t.Run(test.name, func(t *testing.T) {
			memcached := memcachedtest.Start(t, test.memcached...)
			p := startProcesses(t, []string{memcached.Addr}, test.args...)[0]
			status, body := p.Get(t, "/readyz")
			a := p.Check(t, "default", "c", 1)
			if test.fails == "" {
				assert.Equal(t, http.StatusOK, status, body)
				assert.False(t, a.Degraded)
				assert.EqualValues(t, 1, a.Used(0))
				return
			}
			assert.Equal(t, http.StatusServiceUnavailable, status)
			assert.Contains(t, body, test.fails)
			assert.NotContains(t, body, "guess", "a password is a secret")
			assert.True(t, a.Degraded)
		})
	}
}

// They begin again if the store didn't decide all, as on a busy machine.
func TestWeirdClientsHaveTheirOwnCounts(t *testing.T) {
	t.Parallel()
	for range 5 {
		if countWeirdClients(t) {
			return
		}
	}
	require.Fail(t, "the store doesn't decide")
}

// countWeirdClients returns false if the store didn't decide all checks.
func countWeirdClients(t *testing.T) (decided bool) {
	memcached := memcachedtest.Start(t)
	wire := servertest.TapMemcached(t, memcached)
	p := startProcesses(t, []string{wire.Addr})[0]
	clients := []string{
		"a", "a_1", "a_", "_", "a b", "a\nb", "a\r\nflush_all\r\n", "a\x00b", "\x00", "a\tb", " ", "\x7f", "é", "e\u0301", "🦫", "\ufffd",
		"~", "~x", "~aaaaaaaaaaaaaaaaaaaaaaaa", "a:b", "a/b", "%61", "..", "a?b#c", `"a"`, `a\b`, "0",
		strings.Repeat("x", 64), strings.Repeat("x", 65), strings.Repeat("x", 1024), strings.Repeat("🦫", 256),
	}
	spent := make(map[string]int64)
	decided = true
	spend := func(client string) {
		spent[client] = int64(len(spent) + 1)
		a := p.Check(t, "strict", client, spent[client])
		decided = decided && !a.Degraded
		assert.Equal(t, http.StatusOK, a.Status)
		assert.Equal(t, client, a.Client)
		assert.Equal(t, spent[client], a.Used(0), "%q has nothing of another's", client)
	}
	for _, client := range clients {
		spend(client)
	}
	if !decided {
		return false
	}
	keys := keysOfClients(memcached)
	assert.Len(t, keys, len(clients))
	// Clients with the name of another client's key, or of the hash in the key.
	for _, key := range keys {
		if len(spent) < 95 {
			spend(key)
		}
		if hash := strings.SplitN(key, ":", 4)[3]; strings.HasPrefix(hash, "~") && len(spent) < 95 {
			spend(hash[:strings.LastIndexByte(hash, '_')])
		}
	}
	for client, want := range spent {
		a := p.Ask(t, http.MethodGet, "/v1/policies/strict/clients/"+url.PathEscape(client), "", "")
		if decided = decided && !a.Degraded; !decided {
			return false
		}
		assert.Equal(t, client, a.Client)
		assert.Equal(t, want, a.Used(0), "%q", client)
	}

	keys = keysOfClients(memcached)
	assert.Len(t, keys, len(spent))
	for _, key := range keys {
		assert.LessOrEqual(t, len(key), 250)
		assert.Regexp(t, `^weir:strict/sliding-window:1000:[!-~]+_\d+$`, key)
	}
	commands := `(version|stats|incr \S+ \d+|add \S+ 0 \d+ \d+|\d+|gets? \S+( \S+)*)`
	for line := range strings.Lines(withoutReports(wire.Sent.String())) {
		require.Regexp(t, `^`+commands+`\r\n$`, line)
		require.Regexp(t, `^[ -~]+\r\n$`, line)
	}
	return true
}

// The ballast for the garbage collector takes no memory.
func TestHeapFloorIsNotTouched(t *testing.T) {
	t.Parallel()
	const floor = 32 << 20
	p := startProcess(t)
	response, err := http.Get("http://" + p.Address() + "/metrics")
	require.NoError(t, err)
	defer response.Body.Close()
	text, err := io.ReadAll(response.Body)
	require.NoError(t, err)
	bytes := func(metric string) (n float64) {
		for line := range strings.Lines(string(text)) {
			if value, ok := strings.CutPrefix(line, metric+" "); ok {
				n, err = strconv.ParseFloat(strings.TrimSpace(value), 64)
				require.NoError(t, err)
			}
		}
		return n
	}
	assert.Greater(t, bytes("go_memstats_next_gc_bytes"), 2.0*floor)
	assert.Greater(t, bytes("process_resident_memory_bytes"), 0.0)
	assert.Less(t, bytes("process_resident_memory_bytes"), 2.0*floor, "weir itself takes about 20 MB")
}
