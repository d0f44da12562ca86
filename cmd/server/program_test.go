package main

import (
	"context"
	"crypto/tls"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"weir/cmd/server/servertest"
	"weir/counters/memcachedtest"
)

// running is a program in this process.
type running struct {
	servertest.Service
	program *program
	log     *servertest.Log
	hangup  chan os.Signal
	end     func() error // ends it and returns what run returned
}

// fromOutside says what reads HTTP, if the environment of the tests does: processes inherit that.
func fromOutside() []string { return env(map[string]string{"WEIR_HTTP": os.Getenv("WEIR_HTTP")}) }

// startProgram runs a program on a free port until the test ends.
func startProgram(t *testing.T, args ...string) *running {
	t.Helper()
	r := &running{log: servertest.NewLog(), hangup: make(chan os.Signal)}
	cfg, err := parseConfig(append([]string{"-listen", "127.0.0.1:0"}, args...), fromOutside(), io.Discard)
	require.NoError(t, err)
	p, err := newProgram(cfg, r.log)
	require.NoError(t, err)
	ctx, cancel := context.WithCancel(context.Background())
	r.program = p
	result := make(chan error, 1)
	go func() { result <- p.run(ctx, r.hangup) }()
	r.Service = servertest.NewService(t, servertest.AwaitGreeting(t, r.log), nil)
	ended := false
	r.end = func() error {
		ended = true
		r.Client.CloseIdleConnections()
		cancel()
		return <-result
	}
	t.Cleanup(func() {
		if !ended {
			require.NoError(t, r.end())
		}
	})
	return r
}

func TestGreetingSaysWhereAndWhat(t *testing.T) {
	t.Parallel()
	r := startProgram(t)
	assert.Regexp(t, `^http://127\.0\.0\.1:[1-9]\d*$`, r.URL)
	assert.Contains(t, r.log.String(),
		`with the built-in policies and counts in this process only, because -memcached names no server" version=`+version()+
			` policies=9 store_timeout=50ms clock_skew=50ms shutdown_grace=10s`+"\n")

	file := servertest.WriteFile(t, "p.yaml", limit("algorithm: fixed_window, limit: 1, window: 1m"))
	r = startProgram(t, "-config", file, "-memcached", "127.0.0.1:1,127.0.0.1:2", "-store-timeout", "20ms", "-clock-skew", "0s")
	assert.Contains(t, r.log.String(), `with the policies of `+file+` and counts on Memcached" version=`+version()+
		" policies=1 memcached=127.0.0.1:1,127.0.0.1:2 store_timeout=20ms clock_skew=0s shutdown_grace=10s\n")
}

func TestBuiltInPolicies(t *testing.T) {
	t.Parallel()
	r := startProgram(t)
	for _, policy := range []string{"fixed", "sliding", "sliding-15s", "sliding-1s", "strict", "default", "token", "leaky", "log"} {
		a := r.Check(t, policy, "c", 30)
		assert.Equal(t, http.StatusOK, a.Status)
		assert.EqualValues(t, 30, a.Used(0), policy)
	}
	status, body := r.Get(t, "/readyz")
	assert.Equal(t, http.StatusOK, status)
	assert.JSONEq(t, `{"ready":true,"draining":false,"servers":[{"server":"embedded","up":true}]}`, body)
}

func TestRunEndsWhenItCannotServe(t *testing.T) {
	t.Parallel()
	cfg, err := parseConfig([]string{"-listen", "127.0.0.1:0"}, env(nil), io.Discard)
	require.NoError(t, err)
	p, err := newProgram(cfg, io.Discard)
	require.NoError(t, err)
	require.NoError(t, p.listener.Close())
	assert.ErrorContains(t, p.run(context.Background(), nil), "serving ended: ")
}

const (
	limit3 = "policies:\n  p: {limits: [{name: l, algorithm: fixed_window, limit: 3, window: 366d}]}\n"
	limit5 = "policies:\n  p: {limits: [{name: l, algorithm: fixed_window, limit: 5, window: 366d}]}\n  q: {limits: [{algorithm: fixed_window, limit: 9, window: 366d}]}\n"
	// p is right and has changed, q is wrong.
	halfBad = "policies:\n  p: {limits: [{name: l, algorithm: fixed_window, limit: 7, window: 366d}]}\n  q: {}\n"
)

// requireLimit checks that the policy p is in force with the given limit.
func (r *running) requireLimit(t *testing.T, limit int64) {
	t.Helper()
	require.EqualValues(t, limit, r.Check(t, "p", "c", 0).Limits[0].Limit)
}

func (r *running) requireReloads(t *testing.T, ok, failed string) {
	t.Helper()
	_, metrics := r.Get(t, "/metrics")
	require.Contains(t, metrics, `weir_config_reloads_total{outcome="ok"} `+ok+"\n")
	require.Contains(t, metrics, `weir_config_reloads_total{outcome="error"} `+failed+"\n")
}

func replace(t *testing.T, file, content string) {
	t.Helper()
	require.NoError(t, os.WriteFile(file+".new", []byte(content), 0o600))
	require.NoError(t, os.Rename(file+".new", file))
}

func TestReloadOnHangup(t *testing.T) {
	t.Parallel()
	file := servertest.WriteFile(t, "p.yaml", limit3)
	r := startProgram(t, "-config", file)
	r.requireLimit(t, 3)
	r.requireReloads(t, "0", "0")
	assert.EqualValues(t, 2, r.Check(t, "p", "c", 2).Used(0))

	// The same again.
	r.hangup <- syscall.SIGHUP
	r.log.Wait(t, "policies loaded")
	r.requireReloads(t, "1", "0")
	assert.EqualValues(t, 2, r.Check(t, "p", "c", 0).Used(0), "the counts stay")

	// No file.
	require.NoError(t, os.Rename(file, file+".gone"))
	r.hangup <- syscall.SIGHUP
	assert.Contains(t, r.log.Wait(t, "the policies stay as they were"), "no such file or directory")
	r.requireLimit(t, 3)
	r.requireReloads(t, "1", "1")

	// It comes back as it was: the mistake is over.
	require.NoError(t, os.Rename(file+".gone", file))
	assert.NotRegexp(t, "added|changed|removed", r.log.Wait(t, "policies loaded"))
	r.requireLimit(t, 3)
	r.requireReloads(t, "2", "1")
}

func TestReloadOnChange(t *testing.T) {
	t.Parallel()
	file := servertest.WriteFile(t, "p.yaml", limit3)
	r := startProgram(t, "-config", file)
	assert.EqualValues(t, 2, r.Check(t, "p", "c", 2).Used(0))

	replace(t, file, limit5)
	assert.Contains(t, r.log.Wait(t, "policies loaded"), "policies=2")
	r.requireLimit(t, 5)
	assert.EqualValues(t, 2, r.Check(t, "p", "c", 0).Used(0), "the counts stay")
	assert.Equal(t, http.StatusOK, r.Check(t, "q", "c", 1).Status)
	r.requireReloads(t, "1", "0")

	replace(t, file, halfBad)
	refusal := r.log.Wait(t, "the policies stay as they were")
	assert.Contains(t, refusal, file+`:3: policy \"q\" has no limits; it needs at least one`)
	r.requireLimit(t, 5)
	assert.Equal(t, http.StatusOK, r.Check(t, "q", "c", 1).Status)
	r.requireReloads(t, "1", "1")

	// The policies stay while there is no file, and the log says so once. The
	// next file is loaded.
	require.NoError(t, os.Remove(file))
	warning := r.log.Wait(t, "the policy file can't be read")
	assert.Contains(t, warning, "level=WARN")
	assert.Contains(t, warning, file+": no such file or directory")
	r.requireLimit(t, 5)
	r.requireReloads(t, "1", "2")
	replace(t, file, limit3)
	assert.Contains(t, r.log.Wait(t, "policies loaded"), "policies=1")
	r.requireLimit(t, 3)
	assert.Equal(t, http.StatusNotFound, r.Check(t, "q", "c", 1).Status)
	r.requireReloads(t, "2", "2")
}

func TestReloadSaysWhatHasChanged(t *testing.T) {
	t.Parallel()
	file := servertest.WriteFile(t, "p.yaml", limit3)
	r := startProgram(t, "-config", file)
	replace(t, file, limit5)
	assert.Regexp(t, ` policies=2 added=q changed=p\n?$`, r.log.Wait(t, "policies loaded"))
	replace(t, file, halfBad)
	r.log.Wait(t, "the policies stay as they were")
	replace(t, file, limit5+"# nothing else\n")
	assert.Regexp(t, ` policies=2\n?$`, r.log.Wait(t, "policies loaded"))
	many := "policies:\n"
	for i := range 12 {
		many += fmt.Sprintf("  p%02d: {limits: [{algorithm: fixed_window, limit: 3, window: 1m}]}\n", i)
	}
	replace(t, file, many)
	assert.Regexp(t, ` policies=12 added="p00,p01,p02,p03,p04,p05,p06,p07,p08,p09 and 2 more" removed=p,q\n?$`, r.log.Wait(t, "policies loaded"))
}

// A file that is gone is as bad as one with a mistake, for as long as it is.
func TestAPolicyFileThatVanishes(t *testing.T) {
	t.Parallel()
	file := servertest.WriteFile(t, "p.yaml", limit3)
	r := startProgram(t, "-config", file)
	right := func(want string) {
		t.Helper()
		_, metrics := r.Get(t, "/metrics")
		require.Contains(t, metrics, "\nweir_config_last_reload_successful "+want+"\n")
	}
	for range 2 {
		right("1")
		require.NoError(t, os.Rename(file, file+".gone"))
		assert.Contains(t, r.log.Wait(t, "the policy file can't be read"), "level=WARN")
		right("0")
		r.requireLimit(t, 3)
		require.NoError(t, os.Rename(file+".gone", file))
		assert.Contains(t, r.log.Wait(t, "policies loaded"), "level=INFO")
	}
	right("1")
	r.requireReloads(t, "2", "2")
}

// Why a policy file can't be read is told once, and again when it is for another reason.
func TestAPolicyFileThatCannotBeReadForAnotherReason(t *testing.T) {
	t.Parallel()
	file := servertest.WriteFile(t, "p.yaml", limit3)
	r := startProgram(t, "-config", file)
	require.NoError(t, os.Remove(file))
	assert.Contains(t, r.log.Wait(t, "the policy file can't be read"), "no such file or directory")
	replace(t, file, strings.Repeat("#", 2<<20))
	assert.Contains(t, r.log.Wait(t, "the policy file can't be read"), "larger than 1 MB")
	replace(t, file, limit5)
	r.log.Wait(t, "policies loaded")
	r.requireReloads(t, "1", "2")
}

func TestEachMistakeOfABadReloadIsALine(t *testing.T) {
	t.Parallel()
	file := servertest.WriteFile(t, "p.yaml", limit3)
	r := startProgram(t, "-config", file)
	replace(t, file, "policies:\n  p: {limit: 3}\n  q: {}\n")
	var refusals []string
	for range 3 {
		refusals = append(refusals, r.log.Wait(t, "the policies stay as they were"))
	}
	assert.Contains(t, refusals[0], "level=ERROR")
	assert.Contains(t, refusals[0], file+`:2: `)
	assert.Contains(t, refusals[1], file+`:2: policy \"p\" has no limits`)
	assert.Contains(t, refusals[2], file+`:3: policy \"q\" has no limits`)
	r.requireLimit(t, 3)
	r.requireReloads(t, "0", "1")
}

func TestMetricsOfTheProgram(t *testing.T) {
	t.Parallel()
	began := time.Now().Truncate(time.Millisecond)
	file := servertest.WriteFile(t, "p.yaml", limit3)
	r := startProgram(t, "-config", file, "-view-clients", "64")
	r.Check(t, "p", "c", 1)
	metric := func(name string) float64 {
		_, metrics := r.Get(t, "/metrics")
		_, rest, found := strings.Cut(metrics, "\n"+name+" ")
		require.True(t, found, name)
		value, _, _ := strings.Cut(rest, "\n")
		number, err := strconv.ParseFloat(value, 64)
		require.NoError(t, err)
		return number
	}
	loaded := func() time.Time {
		return time.UnixMilli(int64(metric("weir_config_last_reload_success_timestamp_seconds") * 1000))
	}
	first := loaded()
	assert.WithinRange(t, first, began, time.Now())
	assert.EqualValues(t, 1, metric("weir_views"))
	assert.EqualValues(t, 64, metric("weir_views_limit"))

	replace(t, file, halfBad)
	r.log.Wait(t, "the policies stay as they were")
	assert.Equal(t, first, loaded())
	assert.Zero(t, metric("weir_config_last_reload_successful"))
	replace(t, file, limit5)
	r.log.Wait(t, "policies loaded")
	assert.True(t, loaded().After(first))
	assert.EqualValues(t, 1, metric("weir_config_last_reload_successful"))
	assert.EqualValues(t, 128, metric("weir_views_limit"), "of two limits")
}

// A window with very many slots remembers fewer clients than -view-clients says.
func TestWhatCanBeRememberedIsBoundedInBytes(t *testing.T) {
	t.Parallel()
	r := startProgram(t, "-view-clients", "100000", "-config", servertest.WriteFile(t, "p.yaml",
		"policies: {p: {limits: [{algorithm: sliding_window, limit: 10, window: 1h, sub_windows: 3600}]}}"))
	_, metrics := r.Get(t, "/metrics")
	assert.Regexp(t, `(?m)^weir_views_limit (4[5-7]\d\d)$`, metrics)
}

func TestTokenFile(t *testing.T) {
	t.Parallel()
	r := startProgram(t, "-token-file", servertest.WriteFile(t, "tokens", "# team\nfirst\nsecond\n"))
	for authorization, want := range map[string]int{
		"":              http.StatusUnauthorized,
		"Bearer third":  http.StatusUnauthorized,
		"Bearer # team": http.StatusUnauthorized,
		"Basic first":   http.StatusUnauthorized,
		"Bearer first":  http.StatusOK,
		"bearer second": http.StatusOK,
	} {
		request, err := http.NewRequest(http.MethodGet, r.URL+"/v1/policies", nil)
		require.NoError(t, err)
		request.Header.Set("Authorization", authorization)
		resp, err := r.Client.Do(request)
		require.NoError(t, err)
		resp.Body.Close()
		assert.Equal(t, want, resp.StatusCode, authorization)
	}
	for _, path := range []string{"/healthz", "/readyz", "/metrics"} {
		status, _ := r.Get(t, path)
		assert.Equal(t, http.StatusOK, status, "%s needs no token", path)
	}
}

func TestHTTPS(t *testing.T) {
	t.Parallel()
	ca := servertest.NewAuthority(t)
	cert, key := ca.Issue(t, "server")
	r := startProgram(t, "-tls-cert", cert, "-tls-key", key)
	assert.Regexp(t, `^https://127\.0\.0\.1:`, r.URL)

	_, _, _, err := r.Send(http.MethodGet, "/healthz", "", "")
	assert.ErrorContains(t, err, "certificate", "the client doesn't trust the authority yet")

	trusting := servertest.NewService(t, r.URL, &tls.Config{RootCAs: ca.Pool()})
	assert.Equal(t, http.StatusOK, trusting.Check(t, "default", "c", 1).Status)
	resp, err := trusting.Client.Get(r.URL + "/healthz")
	require.NoError(t, err)
	resp.Body.Close()
	assert.Equal(t, "HTTP/2.0", resp.Proto)
}

func TestClientCertificates(t *testing.T) {
	t.Parallel()
	ca, strangers := servertest.NewAuthority(t), servertest.NewAuthority(t)
	cert, key := ca.Issue(t, "server")
	r := startProgram(t, "-tls-cert", cert, "-tls-key", key, "-tls-client-ca", ca.File)
	with := func(issuer *servertest.Authority) *tls.Config {
		config := &tls.Config{RootCAs: ca.Pool()}
		if issuer != nil {
			pair, err := tls.LoadX509KeyPair(issuer.Issue(t, "client"))
			require.NoError(t, err)
			// Certificates would leave out one that the server won't accept.
			config.GetClientCertificate = func(*tls.CertificateRequestInfo) (*tls.Certificate, error) { return &pair, nil }
		}
		return config
	}
	refusal := func(config *tls.Config) error {
		c, err := tls.Dial("tcp", r.Address(), config)
		if err != nil {
			return err
		}
		defer c.Close()
		// Only the first read tells a client of TLS 1.3 that it is refused.
		_, err = c.Read(make([]byte, 1))
		return err
	}

	assert.ErrorContains(t, refusal(with(nil)), "certificate required")
	assert.ErrorContains(t, refusal(with(strangers)), "unknown certificate authority")
	assert.Equal(t, http.StatusOK, servertest.NewService(t, r.URL, with(ca)).Check(t, "default", "c", 1).Status)
}

// However early the end comes, it isn't an error.
func TestShutdownAtOnce(t *testing.T) {
	t.Parallel()
	var ends sync.WaitGroup
	for range 100 {
		r := startProgram(t)
		ends.Go(func() { assert.NoError(t, r.end()) })
	}
	ends.Wait()
}

// run returns after the last reload, which here gets to read the policy file
// only when the server has stopped.
func TestShutdownAwaitsTheReload(t *testing.T) {
	t.Parallel()
	file := servertest.WriteFile(t, "p.yaml", limit3)
	r := startProgram(t, "-config", file)
	require.NoError(t, syscall.Mkfifo(file+".pipe", 0o600))
	require.NoError(t, os.Rename(file+".pipe", file))
	pipe, err := os.OpenFile(file, os.O_WRONLY, 0) // waits until the reload reads
	require.NoError(t, err)
	replace(t, file, limit5)

	ended := make(chan error, 1)
	go func() { ended <- r.end() }()
	r.log.Wait(t, "stopped")
	_, err = pipe.WriteString(limit5)
	require.NoError(t, err)
	require.NoError(t, pipe.Close())
	require.NoError(t, <-ended)
	assert.Contains(t, r.log.String(), "policies loaded")
}

// Requests that come while connections drain are answered by the policies of that moment: files,
// overrides and servers are looked at until the last answer.
func TestFilesAreReadWhileDraining(t *testing.T) {
	t.Parallel()
	file := servertest.WriteFile(t, "p.yaml", limit3)
	r := startProgram(t, "-config", file, "-shutdown-grace", servertest.Patience.String())
	conn, err := net.Dial("tcp", r.Address())
	require.NoError(t, err)
	defer conn.Close()
	const body = `{"policy":"p","client":"c"}`
	_, err = fmt.Fprintf(conn, "POST /v1/check HTTP/1.1\r\nHost: weir\r\nContent-Length: %d\r\n\r\n%s", len(body), body[:1])
	require.NoError(t, err)
	ended := make(chan error, 1)
	go func() { ended <- r.end() }()
	r.log.Wait(t, "draining")
	replace(t, file, limit5)
	r.log.Wait(t, "policies loaded")
	_, err = fmt.Fprint(conn, body[1:])
	require.NoError(t, err)
	answer, err := io.ReadAll(conn)
	require.NoError(t, err)
	assert.Contains(t, string(answer), `"limit":5,"remaining":4`)
	require.NoError(t, <-ended)
}

func TestRunReturnsTheErrorOfTheStore(t *testing.T) {
	t.Parallel()
	cfg, err := parseConfig([]string{"-listen", "127.0.0.1:0"}, env(nil), io.Discard)
	require.NoError(t, err)
	p, err := newProgram(cfg, io.Discard)
	require.NoError(t, err)
	p.closeStore = func() error { return io.ErrClosedPipe }
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	assert.ErrorIs(t, p.run(ctx, nil), io.ErrClosedPipe)
}

// A request that takes longer than the grace is lost, and run says so. It ends
// with its store timeout, and the store is closed only then.
func TestShutdownGrace(t *testing.T) {
	t.Parallel()
	ca := servertest.NewAuthority(t)
	cert, key := ca.Issue(t, "server")
	for name, args := range map[string][]string{"HTTP/1.1": nil, "HTTP/2.0": {"-tls-cert", cert, "-tls-key", key}} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			memcached := memcachedtest.Start(t)
			wire := servertest.TapMemcached(t, memcached)
			r := startProgram(t, append(args, "-memcached", wire.Addr, "-store-timeout", "500ms", "-shutdown-grace", "20ms", "-log-level", "debug")...)
			client := servertest.NewService(t, r.URL, &tls.Config{RootCAs: ca.Pool()})
			resp, err := client.Client.Get(r.URL + "/healthz")
			require.NoError(t, err)
			resp.Body.Close()
			require.Equal(t, name, resp.Proto)
			memcached.Pause()
			lost := make(chan error, 1)
			go func() {
				_, _, _, err := client.Send(http.MethodPost, "/v1/check", "application/json", `{"policy":"fixed","client":"c"}`)
				lost <- err
			}()
			wire.Sent.Wait(t, "incr ")
			closeStore, ended := r.program.closeStore, false
			r.program.closeStore = func() error {
				ended = strings.Contains(r.log.String(), "path=/v1/check ")
				return closeStore()
			}
			assert.EqualError(t, r.end(), "requests were still under way after -shutdown-grace 20ms")
			assert.True(t, ended, "the request, when the store is closed")
			assert.Error(t, <-lost)
		})
	}
}

// A client that is refused while it still sends sees the end of its answer before the connection is
// reset: otherwise it might lose the answer.
func TestARefusedClientReadsItsAnswerToTheEnd(t *testing.T) {
	t.Parallel()
	for _, by := range []string{"plain", "net"} {
		r := startProgram(t, "-http", by)
		conn, err := net.Dial("tcp", r.Address())
		require.NoError(t, err)
		defer conn.Close()
		_, err = io.WriteString(conn, "POST /v1/check HTTP/1.1\r\nHost: h\r\nContent-Length: 1000000\r\n\r\n"+strings.Repeat(" ", 20_000))
		require.NoError(t, err)
		answer, err := io.ReadAll(conn)
		require.NoError(t, err, by)
		assert.Contains(t, string(answer), "413 Request Entity Too Large")
	}
}

// A connection that nobody has sent anything on doesn't hold the end up.
func TestASilentConnectionIsClosedInTheEnd(t *testing.T) {
	t.Parallel()
	r := startProgram(t, "-shutdown-grace", "2s")
	conn, err := net.Dial("tcp", r.Address())
	require.NoError(t, err)
	defer conn.Close()
	r.Get(t, "/healthz") // it has been accepted before
	assert.NoError(t, r.end())
}
