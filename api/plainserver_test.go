package api

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"math/rand/v2"
	"net"
	"net/http"
	"regexp"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"weir/api/plain"
	"weir/api/policy"
	"weir/counters/racetest"
)

// plainInMemory returns a server of connections in memory, which have no loop: a goroutine that
// waits for files never ends where time is simulated.
func plainInMemory(s *service) webServer { return inMemory(s.PlainServer(s.HTTPServer())) }

func inMemory(s *plain.Server) *plain.Server {
	s.Together = nil
	return s
}

// A wire is one end of a connection in memory, each of whose directions can be closed
// by itself.
type wire struct {
	net.Conn // what comes
	out      net.Conn
	remote   net.Addr
}

// newWire returns both ends of a connection from an address.
func newWire(remote string) (client, server *wire) {
	toServer, fromClient := net.Pipe()
	toClient, fromServer := net.Pipe()
	return &wire{fromServer, toServer, wireAddr("server")}, &wire{fromClient, toClient, wireAddr(remote)}
}

type wireAddr string

func (wireAddr) Network() string  { return "memory" }
func (a wireAddr) String() string { return string(a) }

func (w *wire) RemoteAddr() net.Addr               { return w.remote }
func (w *wire) Write(p []byte) (int, error)        { return w.out.Write(p) }
func (w *wire) SetWriteDeadline(t time.Time) error { return w.out.SetWriteDeadline(t) }
func (w *wire) CloseWrite() error                  { return w.out.Close() }
func (w *wire) Close() error {
	_ = w.out.Close()
	return w.Conn.Close()
}

// A socket is the server's end of a real connection, which loops can wait for, from any address.
type socket struct {
	*net.TCPConn
	remote net.Addr
}

func (s socket) RemoteAddr() net.Addr { return s.remote }

// newSocket returns both ends of a real connection.
func newSocket(remote string) (client *net.TCPConn, server socket) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	must(err)
	defer l.Close()
	dialed, err := net.Dial("tcp", l.Addr().String())
	must(err)
	accepted, err := l.Accept()
	must(err)
	client = dialed.(*net.TCPConn)
	must(client.SetLinger(0)) // there are many, whose ports are free at once
	return client, socket{accepted.(*net.TCPConn), wireAddr(remote)}
}

// A wireListener accepts one connection.
type wireListener chan net.Conn

func listenOn(c net.Conn) wireListener {
	l := make(wireListener, 1)
	l <- c
	return l
}

func (l wireListener) Accept() (net.Conn, error) {
	if c, ok := <-l; ok {
		return c, nil
	}
	return nil, net.ErrClosed
}
func (l wireListener) Close() error   { return nil }
func (l wireListener) Addr() net.Addr { return wireAddr("server") }

// A makeServer returns a server of a service that isn't serving yet.
type makeServer func(*service) webServer

type webServer interface {
	Serve(net.Listener) error
	Close() error
}

// A visit is what a client sends.
type visit struct {
	data  string
	parts uint64 // 0 for all at once, otherwise the seed of where it is cut
	slow  bool   // more than the time of a request passes between the parts, or half of that
	half  bool   // the client then closes its direction of the connection
	token bool   // the service needs one
}

func (v visit) cut() []string {
	if v.parts == 0 || len(v.data) < 2 {
		return []string{v.data}
	}
	random := rand.New(rand.NewPCG(v.parts, 0))
	var parts []string
	rest := v.data
	for range 1 + random.IntN(6) {
		if len(rest) > 1 {
			n := 1 + random.IntN(len(rest)-1)
			if random.IntN(3) == 0 {
				n = min(1+random.IntN(5), len(rest)-1)
			}
			parts, rest = append(parts, rest[:n]), rest[n:]
		}
	}
	return append(parts, rest)
}

// configure sees to it that the service needs a token, if the visit has one, and answers Envoy.
func (v visit) configure(c *Config) {
	if v.token {
		c.Tokens = []Token{{Secret: "secret"}}
	}
	c.Handlers = map[string]http.Handler{"POST /json": http.HandlerFunc(answerInJSON)}
}

// answerInJSON is a handler that answers, or refuses, as that of Envoy's limits does.
func answerInJSON(w http.ResponseWriter, r *http.Request) {
	body, err := io.ReadAll(http.MaxBytesReader(w, r.Body, 4<<20))
	if err != nil || !json.Valid(body) {
		http.Error(w, fmt.Sprintf("no JSON: %q, %v", body, err), http.StatusBadRequest)
		return
	}
	w.Header().Set("Content-Type", "application/json")
	if bytes.Contains(body, []byte("bob")) {
		w.WriteHeader(http.StatusTooManyRequests)
	}
	_, _ = w.Write(body)
}

// pay pays the visit to a new service by a server, and returns all that is answered but
// dates, and when the connection is closed.
func (v visit) pay(t *testing.T, by makeServer) (answer string, closed time.Duration) {
	synctest.Test(t, func(t *testing.T) {
		s := newServiceWith(v.configure, v.policies()...)
		client, server := newWire("192.0.2.1:1234")
		listener, srv := listenOn(server), by(s)
		var running sync.WaitGroup
		running.Go(func() { _ = srv.Serve(listener) })
		began := time.Now()
		running.Go(func() {
			for _, part := range v.cut() {
				_, _ = io.WriteString(client, part)
				if time.Sleep(time.Millisecond); v.slow {
					time.Sleep(11 * time.Second >> (v.parts >> 2 & 1))
				}
			}
			if v.half {
				_ = client.CloseWrite()
			}
		})
		all, err := io.ReadAll(client)
		require.NoError(t, err)
		closed = time.Since(began)
		answer = dates.ReplaceAllString(string(all), "")
		_ = client.Close()
		close(listener)
		_ = srv.Close()
		running.Wait()
		time.Sleep(time.Second) // net/http lingers behind connections that it has closed
	})
	return answer, closed
}

var dates = regexp.MustCompile(`Date: [^\r]*\r\n`)

// agree requires that a client can't tell the servers apart.
func (v visit) agree(t *testing.T) {
	t.Helper()
	want, wantClosed := v.pay(t, func(s *service) webServer { return s.HTTPServer() })
	got, gotClosed := v.pay(t, plainInMemory)
	require.Equal(t, want, got, "%+q", v)
	// Neither looks whether a client has left that has sent another request, but what it
	// has taken off the connection by then depends on its buffer.
	if !v.half || len(v.data) < 1024 || !strings.Contains(v.data, "queue") {
		require.InDelta(t, wantClosed, gotClosed, float64(time.Second), "%+q", v)
	}
}

// plainWithLoops returns the plain server with its loops.
func plainWithLoops(s *service) webServer { return s.PlainServer(s.HTTPServer()) }

// payOnLoopback pays the visit to a new service by a server with real sockets, after a check that
// is answered if checked says so, and returns all that is answered but dates.
func (v visit) payOnLoopback(t *testing.T, by makeServer, checked bool) string {
	t.Helper()
	s := way{many: true}.newServiceWith(v.configure, v.policies()...)
	l, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	srv, served := by(s), make(chan struct{})
	go func() {
		defer close(served)
		_ = srv.Serve(l)
	}()
	client, err := net.Dial("tcp", l.Addr().String())
	require.NoError(t, err)
	require.NoError(t, client.SetDeadline(time.Now().Add(20*time.Second)))
	var first, all bytes.Buffer
	if checked {
		_, err := io.WriteString(client, checkOf("api", "alice"))
		require.NoError(t, err)
		r, err := http.ReadResponse(bufio.NewReader(client), nil)
		require.NoError(t, err)
		require.NoError(t, r.Write(&first))
	}
	go func() {
		for _, part := range v.cut() {
			if _, err := io.WriteString(client, part); err != nil {
				return // the server has closed it
			}
			time.Sleep(time.Millisecond)
		}
		_ = client.(*net.TCPConn).CloseWrite()
	}()
	// A server that closes with something unread resets. net/http reads 4 KiB at once.
	if _, err = all.ReadFrom(client); err != nil && v.parts == 0 && len(v.data) <= 4<<10 {
		all.WriteString("no end of it")
	}
	_ = client.Close()
	_ = srv.Close()
	<-served
	return dates.ReplaceAllString(first.String()+all.String(), "")
}

// agreeOnLoopback requires of connections with real sockets, which may have a loop, that a
// client can't tell the servers apart.
func (v visit) agreeOnLoopback(t *testing.T, checked bool) {
	t.Helper()
	// Who sends more may be reset before it has read, and who asks for a batch may leave
	// before that begins.
	if len(v.data) >= 9000 || strings.Contains(v.data, "/batch") {
		return
	}
	want := v.payOnLoopback(t, func(s *service) webServer { return s.HTTPServer() }, checked)
	require.Equal(t, want, v.payOnLoopback(t, plainWithLoops, checked), "%+q", v)
}

// policies returns those of the service.
func (v visit) policies() []*policy.Policy {
	queue := newPolicy("queue", leaky("queue", 1, time.Minute, 5))
	queue.Hold = true
	nginx := newPolicy("nginx", fixed("per-minute", 1, time.Minute))
	nginx.AuthDenyStatus, nginx.Identify = http.StatusForbidden, []policy.Identifier{{Header: "X-Api-Key"}, {}}
	odd := newPolicy("odd", fixed("per-minute", 1, time.Minute))
	odd.AuthDenyStatus = 499
	routes := newPolicy("routes", fixed("per-minute", 3, time.Minute))
	routes.Routes = []policy.Route{{Method: http.MethodPost, Path: "/login", Cost: 2}}
	policies := []*policy.Policy{newPolicy("api", fixed("per-minute", 2, time.Minute)), queue, nginx, odd, routes}
	if strings.Contains(v.data, "many") { // whose limits take longer to make than most visits
		many := newPolicy("many")
		for i := range 40 {
			many.Limits = append(many.Limits, fixed(fmt.Sprint("limit-", i), 2, time.Minute))
		}
		policies = append(policies, many)
	}
	return policies
}

// post returns a request with a body, and with headers that end with CR LF.
func post(path, headers, body string) string {
	return fmt.Sprintf("POST %s HTTP/1.1\r\nHost: weir\r\n%sContent-Length: %d\r\n\r\n%s", path, headers, len(body), body)
}

func checkOf(policy, client string) string {
	return post("/v1/check", "", fmt.Sprintf(`{"policy":%q,"client":%q}`, policy, client))
}

// requestCorpus is what both servers must agree about in any case.
func requestCorpus() []string {
	const host = " HTTP/1.1\r\nHost: weir\r\n"
	check := checkOf("api", "alice")
	body := `{"policy":"api","client":"alice"}`
	batch := post("/v1/check/batch", "Content-Type: application/json\r\n", `{"checks":[`+body+`,{"policy":"none","client":"bob"},{"policy":"api","client":""}]}`)
	all := post("/v1/check/batch", "", `{"all":true,"checks":[`+body+`,{"policy":"api","client":"bob"}]}`)
	auth := "GET /v1/auth/nginx" + host + "X-Api-Key: k\r\n\r\n"
	length := func(value string) string {
		return "POST /v1/check" + host + "Content-Length:" + value + "\r\n\r\n" + body + check
	}
	header := func(line string) string { return post("/v1/check", line, body) + check }
	first := func(line string) string { return line + "\r\nHost: weir\r\nContent-Length: 33\r\n\r\n" + body + check }
	corpus := []string{
		"POST /v1/check HTTP/1.1\r\n\r\n" + check, "", "\r\n", "\n\n\n\n\n", "x", "GET", "GET / HTTP/1.1\r\n\r\n",
		// What is plain, alone and one behind the other.
		check, check + check + check, batch, all, auth, auth + auth + check + batch,
		check + "\r\n" + check, check + "\r\n\r\n\r\n" + check, check + "\n\n\n\n", check + "\r\n", check + "\r\n\r\n" + "GET", auth + "\r\n" + auth,
		strings.Replace(check, "/check", "/%63heck", 1) + check, post("/v1/%73ettle", "", "{}"), post("/v1/settle", "", "{}"), post("/v1/settle", "", `{"receipt":"w1.x"}`) + check,
		checkOf("many", "alice"), checkOf("many", "alice") + checkOf("many", "alice") + checkOf("many", "alice"),
		checkOf("queue", "a") + checkOf("queue", "a") + checkOf("queue", "a"), checkOf("queue", "a") + checkOf("queue", "a"),
		"GET /v1/auth/odd" + host + "\r\nGET /v1/auth/odd" + host + "\r\n",
		"GET /v1/auth/nginx" + host + "\r\nGET /v1/auth/nginx" + host + "\r\n",
		"POST /v1/auth/routes/login" + host + "\r\nPUT /v1/auth/routes/login?x=%41" + host + "X-Forwarded-For: 1.2.3.4\r\n\r\n",
		"GET /v1/auth/routes/a%2Fb%zz" + host + "\r\n", "GET /v1/auth/routes/a%2Fb/%41" + host + "\r\n", "GET /v1/auth/%61pi" + host + "\r\n", "GET /v1/%61uth/api" + host + "\r\n",
		"GET /v1/auth/api/\xc3\xa9" + host + "\r\n", "GET /v1/auth/api?a=b c" + host + "\r\n", "GET /v1/auth/api#x" + host + "\r\n", "GET /v1/auth/" + host + "\r\n", "GET /v1/auth/none/x" + host + "\r\n",
		"HEAD /v1/auth/api" + host + "\r\n", "OPTIONS /v1/auth/api" + host + "\r\n", "PURGE /v1/auth/api" + host + "\r\n", "DELETE /v1/auth/api" + host + "\r\n" + check,
		"GET /v1/auth/api" + host + "Content-Length: 5\r\n\r\nhello" + check, "GET /v1/auth/api" + host + "Content-Length: 500000\r\n\r\n" + strings.Repeat("x", 500_000),
		post("/v1/check", "", ""), post("/v1/check", "", "{"), post("/v1/check", "", "[]"), post("/v1/check?x", "", body), post("/v1/check?pretty", "", "{}"), post("/v1/check/", "", body), post("//v1/check", "", body),
		post("/v1/check", "Content-Type: text/plain\r\n", body) + check, post("/v1/check", "Content-Type: application/json; charset=utf-8\r\n", body),
		post("/v1/check", "", strings.Repeat(" ", 70_000)+body) + check, post("/v1/check/batch", "", strings.Repeat(" ", 300_000)+body) + check,
		post("/v1/check", "", strings.Repeat(" ", 10_000)+body) + check, post("/v1/check", "", body+" x"), post("/v1/check", "", "\x00"),
		post("/v1/check", "Authorization: Bearer secret\r\n", body) + check, post("/v1/check", "Authorization: Bearer  secret \r\n", body),
		"POST /v1/check" + host + "\r\n" + check, "GET /healthz" + host + "\r\n" + check, check + "GET /healthz" + host + "\r\n" + check, check + "GET /nothing" + host + "\r\n" + "GET /v1/check" + host + "\r\n" + batch,
		check + "DELETE /v1/policies/api/clients/alice" + host + "\r\n" + check,
		post("/json", "", body) + post("/json", "", `["bob"]`) + check, post("/json", "", "") + check, post("/json", "", "{") + check, post("/json/", "", "{}") + check, "GET /json" + host + "\r\n" + check,
		post("/json", "Expect: 100-continue\r\n", body) + check, post("/json", "", strings.Repeat(" ", 10_000)) + check, post("/json", "", strings.Repeat(" ", 300_000)+"{}") + check,
		// Lengths that two servers may read differently.
		length(" +33"), length(" -1"), length(" 033"), length(" 33 "), length("33"), length("  33"), length("\t33"), length(" 33\t"), length(" 3 3"), length(""), length(" "), length(" 0x21"), length(" 33,33"), length(" 33, 34"),
		length(" 9223372036854775807"), length(" 18446744073709551649"), length(" 0"), length(" 00"), length(" 34"), length(" 32"), length(" 262143"), length(" 262144"), length(" ٣٣"), length(" 33\r\nContent-Length: 33"), length(" 33\r\nContent-Length: 34"), length(" 33\r\ncontent-length: 0"),
		length(" 33\r\nTransfer-Encoding: chunked"), length(" 33\r\nTransfer-Encoding:\tchunked"), length(" 33\r\nTransfer-Encoding : chunked"), length(" 33\r\nTransfer-Encoding: identity"), length(" 33\r\nTransfer-Encoding:"), length(" 33\r\ntransfer-encoding: xchunked"), length(" 33\r\nTransfer_Encoding: chunked"), length(" 33\r\n Transfer-Encoding: chunked"), length(" 33\r\nX: y\r\n\tTransfer-Encoding: chunked"), length(" 33\r\nX: y\nTransfer-Encoding: chunked"), length(" 33\r\nX: y\rTransfer-Encoding: chunked"), length(" 33\r\nTransfer-Encoding: chunked\r\nTransfer-Encoding: chunked"), length(" 33\r\nTransfer-\r\nEncoding: chunked"),
		"POST /v1/check" + host + "Transfer-Encoding: chunked\r\n\r\n21\r\n" + body + "\r\n0\r\n\r\n" + check,
		"POST /v1/check" + host + "Transfer-Encoding: chunked\r\n\r\n21;x\r\n" + body + "\r\n0\r\nX: y\r\n\r\n" + check,
		"POST /v1/check" + host + "Transfer-Encoding: chunked\r\n\r\n21\n" + body + "\n0\n\n" + check,
		// Headers that aren't plain.
		header("X:y\r\n"), header("X: \r\n"), header("X:\r\n"), header("X : y\r\n"), header(" X: y\r\n"), header("X\r\n"), header(": y\r\n"), header("X: y\r\n z\r\n"), header("X: y\r\n\tz\r\n"), header("X: y \r\n"), header("X: y\t\r\n"), header("X: \ty\r\n"), header("X: a\tb\r\n"),
		header("X: y\n"), header("X: y\r\r\n"), header("X: y\x00z\r\n"), header("X: \x7f\r\n"), header("X: caf\xc3\xa9\r\n"), header("X: \xff\r\n"), header("X\xc3\xa9: y\r\n"), header("X(): y\r\n"), header("X_y: z\r\n"), header("x-Y-z: 1\r\n"), header("X: 1\r\nx: 2\r\n"), header("\r\n"), header("\n"), header("\r"),
		header("Expect: 100-continue\r\n"), header("Expect: x\r\n"), header("Upgrade: h2c\r\nConnection: Upgrade\r\n"), header("Connection: close\r\n"), header("Connection: keep-alive\r\n"), header("Connection: Keep-Alive, close\r\n"), header("connection: CLOSE\r\n"), header("Connection: x\r\n"), header("Trailer: X\r\n"), header("Pragma: no-cache\r\n"), header("Host: other\r\n"), header("host: weir\r\n"), header("Te: trailers\r\n"),
		header("X: " + strings.Repeat("y", 3000) + "\r\n"), header("X: " + strings.Repeat("y", 9000) + "\r\n"), header("X: " + strings.Repeat("y", 100_000) + "\r\n"), header(strings.Repeat("X: y\r\n", 100)), header(manyHeaders(60)), header(manyHeaders(70)), header(manyHeaders(1000)),
		header("X-Request-Id: 7\r\n"),
		// Request lines that aren't plain.
		first("post /v1/check HTTP/1.1"), first("POST  /v1/check HTTP/1.1"), first("POST /v1/check  HTTP/1.1"), first(" POST /v1/check HTTP/1.1"), first("POST\t/v1/check HTTP/1.1"), first("POST /v1/check HTTP/1.1 "), first("POST /v1/check HTTP/1.0"), first("POST /v1/check HTTP/2.0"), first("POST /v1/check HTTP/1.2"), first("POST /v1/check http/1.1"), first("POST /v1/check HTTP/1.10"), first("POST /v1/check"), first("POST /v1/check HTTP/0.9"), first("POST /v1/check HTTP/1.1\r"),
		first("POST http://weir/v1/check HTTP/1.1"), first("POST http://other/v1/check HTTP/1.1"), first("POST weir:80 HTTP/1.1"), first("CONNECT weir:80 HTTP/1.1"), first("OPTIONS * HTTP/1.1"), first("POST * HTTP/1.1"), first("POST /v1/check%00 HTTP/1.1"), first("POST /v1/check\x00 HTTP/1.1"), first("POST /v1/che%63k HTTP/1.1"), first("POST /v1/./check HTTP/1.1"), first("POST /v1/auth/../check HTTP/1.1"), first("POST /v1/auth/api%zz HTTP/1.1"), first("POST /v1/auth/api?%zz HTTP/1.1"), first("POST /v1/auth/a:b@c HTTP/1.1"), first("POST /v1/auth/[x] HTTP/1.1"),
		first("POST /v1/auth/api/" + strings.Repeat("y", 9000) + " HTTP/1.1"), first("\x16\x03\x01\x00\x05"), first("PRI * HTTP/2.0"), "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
		"POST /v1/check HTTP/1.1\nHost: weir\nContent-Length: 33\n\n" + body + check, "POST /v1/check HTTP/1.1\r\nContent-Length: 33\r\n\r\n" + body,
		"POST /v1/check HTTP/1.1\r\nHost: we ir\r\nContent-Length: 33\r\n\r\n" + body, "POST /v1/check HTTP/1.1\r\nHost: we/ir\r\nContent-Length: 33\r\n\r\n" + body, "POST /v1/check HTTP/1.1\r\nHost:\r\nContent-Length: 33\r\n\r\n" + body,
		"POST /v1/check HTTP/1.1\r\nHost: [::1]:8080\r\nContent-Length: 33\r\n\r\n" + body + check,
		// What is refused before all of it is read.
		"GET /v1/auth/api/%zz" + host + "Cookie: " + strings.Repeat("x", 1500) + "\r\n\r\n", post("/v1/check", "Host: we ir\r\n", strings.Repeat(" ", 3000)), check + check + post("/v1/check", "Content-Length: 5\r\n", strings.Repeat(" ", 1500)),
		"GET /v1/auth/api HTTP/1.0\r\n\r\n" + auth, "GET /v1/auth/api HTTP/1.0\r\nConnection: keep-alive\r\n\r\n" + auth,
	}
	for _, whole := range []string{check, batch, auth} { // cut anywhere
		for i := 1; i < len(whole); i += 7 {
			corpus = append(corpus, whole[:i], check+whole[:i])
		}
	}
	return corpus
}

func manyHeaders(n int) string {
	var b strings.Builder
	for i := range n {
		fmt.Fprintf(&b, "X-%d: y\r\n", i)
	}
	return b.String()
}

// mixture returns a visit of requests that are put together at random, from pieces of
// which a few are odd.
func mixture(seed uint64) visit {
	random := rand.New(rand.NewPCG(seed, 1))
	among := func(some ...string) string { return some[random.IntN(len(some))] }
	seldom := func(odd string) string { return among("", "", "", "", "", "", "", "", "", odd) }
	var b strings.Builder
	for range 1 + random.IntN(5) {
		client := among("alice", "bob", "é", "a client")
		body := among(
			`{"policy":"`+among("api", "many", "queue", "none")+`","client":"`+client+`"}`, `{"policy":"api","client":"`+client+`","cost":`+among("0", "2", "3", "-1")+`}`,
			`{"checks":[{"policy":"api","client":"`+client+`"},{"policy":"api","client":"bob"}]`+among("", `,"all":true`)+`}`, `{"receipt":"w1.x","cost":1}`, "", "{")
		fmt.Fprintf(&b, "%s%s %s%s%s HTTP/1.%s%s\r\n", seldom("\r\n"), among("POST", "POST", "POST", "GET", "PUT", "HEAD"+seldom("X")), seldom("http://weir"),
			among("/v1/check", "/v1/check", "/v1/check/batch", "/v1/auth/api", "/v1/auth/nginx/x", "/v1/auth/routes/login", "/v1/charge", "/v1/settle", "/v1/renew", "/healthz", "/json"), seldom("?x=y"), among("1", "1", "1", "1", "1", "1", "0"), seldom(" "))
		fields := []string{"Host: weir", fmt.Sprintf("Content-Length: %d", len(body))}
		for range random.IntN(4) {
			fields = append(fields, among("Content-Type: application/json", "User-Agent: x/1.0", "Accept: */*", "X-Api-Key: "+client, "Authorization: Bearer secret", "X-Forwarded-For: 10.0.0.1", "Connection: keep-alive", "Pragma: no-cache",
				among("Connection: close", "Expect: 100-continue", "Transfer-Encoding: chunked", "Host: weir", "Content-Length: 3", "X : y", " folded", "X:", "Upgrade: x")))
		}
		random.Shuffle(len(fields), func(i, j int) { fields[i], fields[j] = fields[j], fields[i] })
		for _, field := range fields {
			b.WriteString(field + among("\r\n", "\r\n", "\r\n", "\r\n", "\r\n", "\r\n", "\r\n", "\r\n", "\r\n", "\r\n", "\r\n", "\r\n", "\r\n", "\r\n", "\n", " \r\n"))
		}
		b.WriteString("\r\n" + body)
	}
	data := b.String()
	if random.IntN(5) == 0 {
		data = data[:random.IntN(len(data))]
	}
	return visit{data: data, parts: random.Uint64N(2) * random.Uint64(), slow: random.IntN(8) == 0, half: random.IntN(2) == 0, token: random.IntN(4) == 0}
}

// What a client sees doesn't say which server has read its request.
func FuzzPlainServer(f *testing.F) {
	racetest.Sequential(f)
	add := func(v visit) { f.Add([]byte(v.data), v.parts, v.slow, v.half, v.token) }
	for i, data := range requestCorpus() {
		add(visit{data: data, half: i%2 > 0})
		add(visit{data: data, half: i%2 == 0, parts: uint64(i + 1), slow: i%4 == 0, token: i%3 == 0})
	}
	for seed := range uint64(100) {
		add(mixture(seed))
	}
	held := checkOf("queue", "a") + checkOf("queue", "a") + checkOf("queue", "a")
	add(visit{data: held[:len(held)-40], parts: 60, half: true})
	f.Fuzz(func(t *testing.T, data []byte, parts uint64, slow, half, token bool) {
		t.Parallel()
		v := visit{string(data), parts, slow, half, token}
		v.agree(t)
		if !strings.Contains(v.data, "queue") { // which holds checks for real time
			v.agreeOnLoopback(t, half)
		}
	})
}

// A plainHandler is a service's handler behind a plain.Server: each request has a
// connection, which loops wait for, but where time is simulated.
type plainHandler struct{ *service }

func (p plainHandler) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	h := p.HTTPServer()
	var counted atomic.Bool
	h.Handler = http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		p.Server.ServeHTTP(w, r)
		counted.Store(w.Header().Get("Content-Length") != "")
	})
	srv := p.PlainServer(h)
	var client interface {
		net.Conn
		CloseWrite() error
	}
	var server net.Conn
	if time.Now().Year() == 2000 { // when simulated time begins
		srv = inMemory(srv)
		client, server = newWire(r.RemoteAddr)
	} else {
		client, server = newSocket(r.RemoteAddr)
	}
	listener, served := listenOn(server), make(chan struct{})
	go func() {
		defer close(served)
		_ = srv.Serve(listener)
	}()
	defer func() {
		_ = client.Close()
		close(listener)
		_ = srv.Close()
		<-served
	}()
	defer context.AfterFunc(r.Context(), func() { _ = client.Close() })()
	go func() {
		if r.Write(client) != nil { // as its body breaks off
			_ = client.CloseWrite()
		}
	}()
	response, err := http.ReadResponse(bufio.NewReader(client), r)
	if err != nil {
		return // the caller has left
	}
	// As the handler has set them.
	maps.Copy(w.Header(), response.Header)
	w.Header().Del("Date")
	if !counted.Load() {
		w.Header().Del("Content-Length")
	}
	if response.Close {
		w.Header().Set("Connection", "close")
	}
	w.WriteHeader(response.StatusCode)
	_, err = io.Copy(w, response.Body)
	must(err)
}
