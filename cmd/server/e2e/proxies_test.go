package e2e

import (
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"slices"
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
)

// A proxy asks weir about each request, as its file in deploy says.
type proxy struct {
	name string
	// start returns the address of the proxy in front of the app. The edits
	// change its file.
	start func(t *testing.T, weirs []string, app string, edits ...edit) (address string)
	// patient gives weir more time than the file does: the machine may be busy.
	patient []edit
	// slower does so, but not for long: it goes on to another.
	slower []edit
	// balanced is for a proxy behind a load balancer.
	balanced []edit
	// tells is whether the proxy then passes on all addresses that it was told,
	// so that weir has to trust the balancer, too.
	tells bool
	// open lets requests pass while weir can't be asked.
	open []edit
	// down is the status of a request while weir can't be asked.
	down int
	// quiet is whether an admitted request's RateLimit is the app's alone.
	quiet bool
	// single is whether its file names one weir.
	single bool
	// waits is whether it waits long for a weir that hangs.
	waits bool
}

var proxies = []proxy{
	{
		name: "nginx", start: startNginx, down: http.StatusServiceUnavailable,
		patient:  []edit{{"connect_timeout 50ms", "connect_timeout 10s"}, {"read_timeout 100ms", "read_timeout 10s"}},
		slower:   []edit{{"connect_timeout 50ms", "connect_timeout 1s"}, {"read_timeout 100ms", "read_timeout 1s"}},
		open:     []edit{{"#error_page", "error_page"}},
		balanced: []edit{{"#set_real_ip_from", "set_real_ip_from"}, {"10.0.0.0/8", balancer}},
	},
	{
		name: "Caddy", start: startCaddy, down: http.StatusServiceUnavailable,
		patient:  []edit{{"dial_timeout 50ms", "dial_timeout 10s"}, {"header_timeout 100ms", "header_timeout 10s"}, {"try_duration 200ms", "try_duration 10s"}},
		slower:   []edit{{"dial_timeout 50ms", "dial_timeout 1s"}, {"header_timeout 100ms", "header_timeout 1s"}, {"try_duration 200ms", "try_duration 10s"}},
		open:     []edit{{"respond @unasked 503", ""}, {"#reverse_proxy", "reverse_proxy"}},
		balanced: []edit{{"#trusted_proxies", "trusted_proxies"}, {"10.0.0.0/8", balancer}},
		tells:    true,
	},
	{
		name: "HAProxy", start: startHAProxy, down: http.StatusServiceUnavailable,
		patient:  []edit{{"connect 50ms", "connect 10s"}, {"server 100ms", "server 10s"}, {"inter 500ms", "inter 10s"}},
		slower:   []edit{{"connect 50ms", "connect 1s"}, {"server 100ms", "server 1s"}, {"inter 500ms", "inter 10s"}},
		open:     []edit{{"int(503)", "int(200)"}},
		balanced: []edit{{"#http-request set-src", "http-request set-src"}, {"10.0.0.0/8", balancer}},
	},
	{
		name: "Traefik", start: startTraefik, down: http.StatusInternalServerError, quiet: true, single: true, waits: true,
		balanced: []edit{{"#trustForwardHeader", "trustForwardHeader"}},
		tells:    true,
	},
	{
		name: "Envoy", start: startEnvoy, down: http.StatusServiceUnavailable,
		patient: []edit{{"timeout: 0.1s", "timeout: 10s"}},
		single:  true,
		tells:   true,
		open:    []edit{{"failure_mode_allow: false", "failure_mode_allow: true"}},
	},
}

// balancer is the address of a load balancer in front of the proxies.
const balancer = "127.0.0.9"

// An app is what the proxies protect. It answers with the request's body.
type app struct {
	address string
	asked   atomic.Int64
	last    atomic.Pointer[http.Request]
}

func startApp(t *testing.T) *app {
	t.Helper()
	a := &app{}
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		a.asked.Add(1)
		a.last.Store(r)
		_, _ = io.Copy(w, r.Body)
	}))
	t.Cleanup(server.Close)
	a.address = strings.TrimPrefix(server.URL, "http://")
	return a
}

// A countingRelay counts the connections that it passes on.
type countingRelay struct {
	address     string
	connections atomic.Int64
}

func startCountingRelay(t *testing.T, to string) *countingRelay {
	t.Helper()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	r := &countingRelay{address: listener.Addr().String()}
	ctx, end := context.WithCancel(context.Background())
	var copies sync.WaitGroup
	pass := func(from, to net.Conn) {
		_, _ = io.Copy(to, from) // until either side closes
		from.Close()
		to.Close()
	}
	copies.Go(func() {
		for {
			client, err := listener.Accept()
			if err != nil {
				return
			}
			r.connections.Add(1)
			server, err := net.Dial("tcp", to)
			if err != nil {
				client.Close()
				continue
			}
			context.AfterFunc(ctx, func() { client.Close(); server.Close() })
			copies.Go(func() { pass(client, server) })
			copies.Go(func() { pass(server, client) })
		}
	})
	t.Cleanup(func() {
		listener.Close()
		end()
		copies.Wait()
	})
	return r
}

// A user asks the app through a proxy.
type user struct {
	url    string
	client *http.Client
}

// newUser returns a user at an address of loopback.
func newUser(t *testing.T, proxy, from string) *user {
	t.Helper()
	dialer := net.Dialer{LocalAddr: &net.TCPAddr{IP: net.ParseIP(from)}}
	transport := &http.Transport{DialContext: dialer.DialContext}
	t.Cleanup(transport.CloseIdleConnections)
	return &user{"http://" + proxy, &http.Client{Transport: transport, Timeout: servertest.Patience}}
}

// reply is what a user gets.
type reply struct {
	status int
	header http.Header
	body   string
	took   time.Duration
}

// left returns what the RateLimit header says is left, or -1.
func (r reply) left() int {
	var left, reset int
	if _, err := fmt.Sscanf(r.header.Get("RateLimit"), `"per-minute";r=%d;t=%d`, &left, &reset); err != nil {
		return -1
	}
	return left
}

// ask sends a GET, or a POST if there is a body. The headers are names and
// values in turn.
func (u *user) ask(t *testing.T, path, body string, headers ...string) reply {
	t.Helper()
	method := http.MethodGet
	if body != "" {
		method = http.MethodPost
	}
	r, err := http.NewRequest(method, u.url+path, strings.NewReader(body))
	require.NoError(t, err)
	for pair := range slices.Chunk(headers, 2) {
		r.Header.Set(pair[0], pair[1])
	}
	start := time.Now()
	resp, err := u.client.Do(r)
	require.NoError(t, err)
	defer resp.Body.Close()
	data, err := io.ReadAll(resp.Body)
	require.NoError(t, err)
	return reply{resp.StatusCode, resp.Header, string(data), time.Since(start)}
}

// shipped starts weir with the policies that the files ask for. Proxies are at
// 127.0.0.1 and users aren't.
func shipped(t *testing.T, args ...string) *process {
	t.Helper()
	return startProcess(t, append([]string{"-config", "../../../deploy/policies.yaml", "-trusted-proxies", "127.0.0.1/32"}, args...)...)
}

func TestProxiesLimit(t *testing.T) {
	t.Parallel()
	for _, p := range proxies {
		t.Run(p.name, func(t *testing.T) {
			t.Parallel()
			weir, app := startCountingRelay(t, shipped(t).Address()), startApp(t)
			address := p.start(t, []string{weir.address}, app.address, p.patient...)
			visitor, neighbour := newUser(t, address, "127.0.0.2"), newUser(t, address, "127.0.0.3")
			requests := int64(0)
			ask := func(from *user, path, body string, headers ...string) reply {
				requests++
				return from.ask(t, path, body, headers...)
			}
			// requireAdmitted also checks what the limit has left then.
			requireAdmitted := func(r reply, left int) {
				t.Helper()
				require.Equal(t, http.StatusOK, r.status, r.body)
				if p.quiet {
					r.header = app.last.Load().Header
				}
				require.Equal(t, left, r.left(), "%v", r.header)
				require.Equal(t, `"per-minute";q=100;w=60`, r.header.Get("RateLimit-Policy"))
				require.NotContains(t, r.header, "Retry-After")
			}

			// A header names the client.
			requireAdmitted(ask(visitor, "/", "", "X-Api-Key", "alice"), 99)
			assert.Equal(t, "alice", app.last.Load().Header.Get("X-Api-Key"))

			// The app gets the request as it is.
			r := ask(visitor, "/orders?cost=50&client=bob", "two of them", "X-Api-Key", "alice")
			requireAdmitted(r, 98)
			assert.Equal(t, "two of them", r.body)
			assert.Equal(t, http.MethodPost, app.last.Load().Method)
			assert.Equal(t, "/orders?cost=50&client=bob", app.last.Load().RequestURI)

			// At its limit the client learns when to come again.
			for left := 97; left >= 0; left-- {
				requireAdmitted(ask(visitor, "/", "", "X-Api-Key", "alice"), left)
			}
			asked := app.asked.Load()
			for range 200 {
				r := ask(visitor, "/orders", "two of them", "X-Api-Key", "alice")
				require.Equal(t, http.StatusTooManyRequests, r.status, r.body)
				require.Zero(t, r.left(), "%v", r.header)
				require.Equal(t, `"per-minute";q=100;w=60`, r.header.Get("RateLimit-Policy"))
				wait, err := strconv.Atoi(r.header.Get("Retry-After"))
				require.NoError(t, err)
				require.InDelta(t, 55, wait, 11)
				require.NotContains(t, r.body, "alice")
			}
			assert.Equal(t, asked, app.asked.Load(), "the app isn't asked")

			// Others aren't concerned. Without a header the address names
			// the client, and nobody can give himself another.
			requireAdmitted(ask(visitor, "/", "", "X-Api-Key", "bob"), 99)
			requireAdmitted(ask(visitor, "/", ""), 99)
			requireAdmitted(ask(neighbour, "/", ""), 99)
			requireAdmitted(ask(visitor, "/", "", "X-Forwarded-For", "198.51.100.7"), 98)
			requireAdmitted(ask(neighbour, "/", "", "X-Forwarded-For", "127.0.0.2"), 98)

			for client := range 6 {
				for left := 99; left >= 0; left-- {
					requireAdmitted(ask(visitor, "/", "", "X-Api-Key", fmt.Sprint("client-", client)), left)
				}
			}
			assert.LessOrEqual(t, weir.connections.Load(), requests/100, "connections to weir for %d requests", requests)
		})
	}
}

// A client that isn't counted gets no headers, nor what stands for one in a
// proxy's file.
func TestProxiesOfTheExempt(t *testing.T) {
	t.Parallel()
	const policy = "{limits: [{algorithm: sliding_log, limit: 9, window: 1h}], clients: {ops: {exempt: true}}, identify: [header:X-Api-Key]}"
	policies := servertest.WriteFile(t, "policies.yaml", "policies:\n  default: "+policy+"\n")
	for _, p := range proxies {
		t.Run(p.name, func(t *testing.T) {
			t.Parallel()
			app := startApp(t)
			ops := newUser(t, p.start(t, []string{shipped(t, "-config", policies).Address()}, app.address, p.patient...), "127.0.0.2")
			r := ops.ask(t, "/", "", "X-Api-Key", "ops")
			require.Equal(t, http.StatusOK, r.status, r.body)
			for _, name := range []string{"Ratelimit", "Ratelimit-Policy", "Retry-After"} {
				assert.NotContains(t, r.header, name)
				assert.NotContains(t, app.last.Load().Header, name)
			}
		})
	}
}

// Who sends no key, too long a key, or two, learns that the request is wrong,
// whatever the proxy can tell from an answer.
func TestProxiesRefuseWrongKeys(t *testing.T) {
	t.Parallel()
	const policy = "{limits: [{algorithm: sliding_log, limit: 9, window: 1h}], identify: [header:X-Api-Key]}"
	policies := servertest.WriteFile(t, "policies.yaml", "policies:\n  default: "+policy+"\n")
	for _, p := range proxies {
		t.Run(p.name, func(t *testing.T) {
			t.Parallel()
			app := startApp(t)
			visitor := newUser(t, p.start(t, []string{shipped(t, "-config", policies).Address()}, app.address, p.patient...), "127.0.0.2")
			assert.Equal(t, http.StatusBadRequest, visitor.ask(t, "/", "").status)
			assert.Equal(t, http.StatusBadRequest, visitor.ask(t, "/", "", "X-Api-Key", strings.Repeat("a", 1025)).status)
			assert.Zero(t, app.asked.Load())
			assert.Equal(t, http.StatusOK, visitor.ask(t, "/", "", "X-Api-Key", "alice").status)
		})
	}
}

// Who sends two keys gets no limit of its own for each pair.
func TestProxiesPassOnEachKey(t *testing.T) {
	t.Parallel()
	for _, p := range proxies {
		if p.name == "Envoy" {
			continue // joins them to one
		}
		t.Run(p.name, func(t *testing.T) {
			t.Parallel()
			app := startApp(t)
			visitor := newUser(t, p.start(t, []string{shipped(t).Address()}, app.address, p.patient...), "127.0.0.2")
			for _, keys := range []int{2, 99} { // nor does who sends as many as HAProxy takes end it
				r, err := http.NewRequest(http.MethodHead, visitor.url, nil)
				require.NoError(t, err)
				r.Header["X-Api-Key"] = append(slices.Repeat([]string{"alice"}, keys-1), "other")
				r.Header.Set("User-Agent", "")
				resp, err := visitor.client.Do(r)
				require.NoError(t, err)
				_ = resp.Body.Close()
				assert.Equal(t, http.StatusBadRequest, resp.StatusCode)
			}
			assert.Zero(t, app.asked.Load())
			// A comma is part of a key.
			for _, key := range []string{"a,b", "b"} {
				r := visitor.ask(t, "/", "", "X-Api-Key", key)
				if p.quiet {
					r.header = app.last.Load().Header
				}
				assert.Equal(t, 99, r.left(), key)
			}
		})
	}
}

// The files work with a weir that was started without a policy file, too.
func TestProxiesAskForABuiltInPolicy(t *testing.T) {
	t.Parallel()
	for _, p := range proxies {
		t.Run(p.name, func(t *testing.T) {
			t.Parallel()
			app := startApp(t)
			visitor := newUser(t, p.start(t, []string{startProcess(t).Address()}, app.address, p.patient...), "127.0.0.2")
			for range 100 {
				require.Equal(t, http.StatusOK, visitor.ask(t, "/", "").status)
			}
			assert.Equal(t, http.StatusTooManyRequests, visitor.ask(t, "/", "").status)
			assert.EqualValues(t, 100, app.asked.Load())
		})
	}
}

// Many users at a time need as many connections to weir, which are kept.
func TestProxiesKeepTheConnectionsOfMany(t *testing.T) {
	t.Parallel()
	const users, warm, more = 100, 2000, 4000
	for _, p := range proxies[:3] { // the programs; the others have Go's client
		t.Run(p.name, func(t *testing.T) {
			weir := startCountingRelay(t, shipped(t).Address())
			address := p.start(t, []string{weir.address}, startApp(t).address, p.patient...)
			transport := &http.Transport{MaxIdleConnsPerHost: users}
			t.Cleanup(transport.CloseIdleConnections)
			visitor := &user{"http://" + address, &http.Client{Transport: transport, Timeout: servertest.Patience}}
			ask := func(requests int64) {
				var asked atomic.Int64
				var asking sync.WaitGroup
				for range users {
					asking.Go(func() {
						for asked.Add(1) <= requests {
							// All but the first are denied.
							r := visitor.ask(t, "/", "", "X-Api-Key", "alice")
							assert.Contains(t, []int{http.StatusOK, http.StatusTooManyRequests}, r.status)
						}
					})
				}
				asking.Wait()
			}
			ask(warm)
			before := weir.connections.Load()
			ask(more)
			assert.LessOrEqual(t, weir.connections.Load()-before, int64(more/100))
		})
	}
}

// Each file tells weir the method and path of a request, and lets no user say
// other ones.
func TestProxiesTellTheRoute(t *testing.T) {
	t.Parallel()
	const policy = "{limits: [{name: l, algorithm: sliding_log, limit: 9, window: 1h}], routes: [{method: POST, path: /login, limits: {l: 1}}]}"
	policies := servertest.WriteFile(t, "policies.yaml", "policies:\n  default: "+policy+"\n")
	for _, p := range proxies {
		t.Run(p.name, func(t *testing.T) {
			t.Parallel()
			app := startApp(t)
			visitor := newUser(t, p.start(t, []string{shipped(t, "-config", policies).Address()}, app.address, p.patient...), "127.0.0.2")
			assert.Equal(t, http.StatusOK, visitor.ask(t, "/login?next=/", "alice").status)
			assert.Equal(t, http.StatusTooManyRequests, visitor.ask(t, "/login/again", "alice",
				"X-Forwarded-Method", http.MethodGet, "X-Forwarded-Uri", "/").status)
			assert.Equal(t, http.StatusOK, visitor.ask(t, "/login", "").status, "a GET")
			assert.Equal(t, http.StatusOK, visitor.ask(t, "/", "alice").status)
			assert.EqualValues(t, 3, app.asked.Load())
		})
	}
}

// Behind a load balancer, users are told apart by what it says, and by nobody
// else's word.
func TestProxiesBehindABalancer(t *testing.T) {
	t.Parallel()
	policies := servertest.WriteFile(t, "policies.yaml", `policies:
  default: {limits: [{name: per-minute, algorithm: sliding_log, limit: 100, window: 1m}], routes: [{path: /login, limits: {per-minute: 1}}]}
`)
	for _, p := range proxies {
		t.Run(p.name, func(t *testing.T) {
			t.Parallel()
			app, trusted := startApp(t), "127.0.0.1/32"
			if p.tells {
				trusted += "," + balancer + "/32"
			}
			weir := shipped(t, "-config", policies, "-trusted-proxies", trusted)
			address := p.start(t, []string{weir.Address()}, app.address, append(p.balanced, p.patient...)...)
			balanced, direct := newUser(t, address, balancer), newUser(t, address, "127.0.0.2")
			// left sends a request with lines of X-Forwarded-For.
			left := func(from *user, forwarded ...string) int {
				r, err := http.NewRequest(http.MethodGet, from.url, nil)
				require.NoError(t, err)
				r.Header["X-Forwarded-For"] = forwarded
				resp, err := from.client.Do(r)
				require.NoError(t, err)
				defer resp.Body.Close()
				require.Equal(t, http.StatusOK, resp.StatusCode)
				if p.quiet {
					return reply{header: app.last.Load().Header}.left()
				}
				return reply{header: resp.Header}.left()
			}

			assert.Equal(t, 99, left(balanced, "203.0.113.7"))
			assert.Equal(t, 98, left(balanced, "203.0.113.7"))
			assert.Equal(t, 99, left(balanced, "203.0.113.8"), "another user")

			// The balancer adds to what its users say.
			assert.Equal(t, 97, left(balanced, "198.51.100.1, 203.0.113.7"))
			assert.Equal(t, 96, left(balanced, "198.51.100.1", "203.0.113.7"))
			assert.Equal(t, 95, left(balanced, "203.0.113.8, 203.0.113.7"))

			// Who comes another way has the address that it comes from.
			assert.Equal(t, 99, left(direct, "203.0.113.9"))
			assert.Equal(t, 98, left(direct, "203.0.113.10"))
			assert.Equal(t, 97, left(direct, "203.0.113.9, "+balancer))
			assert.Equal(t, 99, left(balanced, "203.0.113.9"))

			// The route stays what the proxy says, whatever the balancer lets pass.
			assert.Equal(t, http.StatusOK, balanced.ask(t, "/login", "", "X-Forwarded-For", "203.0.113.11").status)
			assert.Equal(t, http.StatusTooManyRequests, balanced.ask(t, "/login", "", "X-Forwarded-For", "203.0.113.11",
				"X-Forwarded-Method", "PUT", "X-Forwarded-Uri", "/").status)
		})
	}
}

// A rolling restart: of two instances one is always up, and no user notices.
func TestProxiesOutliveARollingRestart(t *testing.T) {
	t.Parallel()
	const users, most = 4, 40_000
	for _, p := range proxies {
		if p.single {
			continue
		}
		t.Run(p.name, func(t *testing.T) {
			instances := []*process{shipped(t), shipped(t)}
			address := p.start(t, []string{instances[0].Address(), instances[1].Address()}, startApp(t).address, p.patient...)
			var asked, refused atomic.Int64
			var answered [users]atomic.Int64
			restarted := make(chan struct{})
			var asking sync.WaitGroup
			for i := range users {
				visitor := newUser(t, address, fmt.Sprint("127.0.0.", 2+i))
				asking.Go(func() {
					for n := asked.Add(1); n <= most; n = asked.Add(1) {
						select {
						case <-restarted:
							return
						case <-time.After(time.Millisecond):
						}
						body := []string{"", "two of them"}[n%2] // a GET or a POST
						if r := visitor.ask(t, "/", body, "X-Api-Key", fmt.Sprint(n)); r.status != http.StatusOK {
							refused.Add(1)
							t.Logf("%d: %s", r.status, r.body)
						}
						answered[i].Add(1)
					}
				})
			}
			for i := range 2 * len(instances) {
				instance := &instances[i%len(instances)]
				(*instance).terminate(t)
				(*instance).requireExit(t)
				*instance = shipped(t, "-listen", (*instance).Address())
				// The next one may go when the proxy asks this one again, and has answered what it
				// asked before: HAProxy may wait for a second between the one and the other.
				require.Eventually(t, func() bool {
					_, metrics := (*instance).Get(t, "/metrics")
					return strings.Contains(metrics, `weir_http_requests_total{code="200",route="/v1/auth/{policy}"}`)
				}, servertest.Patience, 10*time.Millisecond)
				for i := range answered {
					before := answered[i].Load()
					require.Eventually(t, func() bool { return answered[i].Load() > before }, servertest.Patience, time.Millisecond)
				}
			}
			close(restarted)
			asking.Wait()
			assert.Less(t, asked.Load(), int64(most), "nobody asked at the end")
			assert.Zero(t, refused.Load(), "of %d requests", asked.Load())
		})
	}
}

// An instance that hangs, or hangs up as it is asked, as one may that ends at that moment,
// costs nobody an answer: the proxy asks the other.
func TestProxiesOutliveAnInstanceThatHangs(t *testing.T) {
	t.Parallel()
	for _, p := range proxies {
		for name, hang := range map[string]func(*http.Request){
			"hangs":    func(r *http.Request) { <-r.Context().Done() },
			"hangs up": func(*http.Request) { panic(http.ErrAbortHandler) },
		} {
			if p.single {
				continue
			}
			t.Run(p.name+" "+name, func(t *testing.T) {
				t.Parallel()
				var asked atomic.Int64
				bad := httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
					if r.URL.Path != "/healthz" {
						asked.Add(1)
						hang(r)
					}
				}))
				t.Cleanup(bad.Close)
				weirs := []string{strings.TrimPrefix(bad.URL, "http://"), shipped(t).Address()}
				visitor := newUser(t, p.start(t, weirs, startApp(t).address, p.slower...), "127.0.0.2")
				for n := range 6 {
					r := visitor.ask(t, "/", []string{"", "two of them"}[n%2])
					assert.Equal(t, http.StatusOK, r.status, r.body)
				}
				assert.Positive(t, asked.Load(), "nobody asked it")
			})
		}
	}
}

// While weir is down a user is answered within 300 ms: 503, or by the app if
// the file is edited as it says.
func TestProxiesWithoutWeir(t *testing.T) {
	t.Parallel()
	for _, p := range proxies {
		for _, open := range []bool{false, true} {
			name, down, edits := p.name+" closed", p.down, []edit(nil)
			if open {
				name, down, edits = p.name+" open", http.StatusOK, p.open
			}
			if open && p.open == nil {
				continue
			}
			t.Run(name, func(t *testing.T) {
				t.Parallel()
				weir, app := shipped(t), startApp(t)
				visitor := newUser(t, p.start(t, []string{weir.Address()}, app.address, edits...), "127.0.0.2")
				// The 300 ms are the promise. Others use this machine: one answer
				// has to be as quick as all would be elsewhere, sooner or later.
				requireDown := func() {
					t.Helper()
					begin, quick := time.Now(), 0
					for n := 0; n < 20 || quick == 0; n++ {
						require.Less(t, time.Since(begin), servertest.Patience, "no answer within 300 ms")
						before := app.asked.Load()
						r := visitor.ask(t, "/", "still here")
						require.Equal(t, down, r.status, r.body)
						if open {
							require.Equal(t, "still here", r.body)
						}
						require.Equal(t, open, app.asked.Load() > before)
						require.Equal(t, -1, r.left())
						if r.took < 300*time.Millisecond {
							quick++
						}
					}
				}
				// requireUp waits until the proxy has noticed.
				requireUp := func() {
					t.Helper()
					require.Eventually(t, func() bool { return visitor.ask(t, "/", "").status == http.StatusOK }, servertest.Patience, 50*time.Millisecond)
				}
				requireUp()
				weir.kill()
				requireDown()

				weir = shipped(t, "-listen", weir.Address())
				requireUp()
				if p.waits {
					return
				}
				require.NoError(t, weir.cmd.Process.Signal(syscall.SIGSTOP))
				t.Cleanup(func() { _ = weir.cmd.Process.Signal(syscall.SIGCONT) })
				// It may answer what was on its way.
				require.Eventually(t, func() bool {
					r := visitor.ask(t, "/", "still here")
					return r.status == down && r.left() < 0
				}, servertest.Patience, time.Millisecond)
				require.NoError(t, weir.cmd.Process.Signal(syscall.SIGCONT))
				requireUp()
			})
		}
	}
}
