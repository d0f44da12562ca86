package api

import (
	"bufio"
	"bytes"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// loopDoor is the plain door with its loops.
func loopDoor(s *service) webServer { return s.PlainServer(s.HTTPServer()) }

// payOnLoopback pays the visit to a new service by a door with real sockets, after a check that
// is answered if checked says so, and returns all that is answered but dates.
func (v visit) payOnLoopback(t *testing.T, by door, checked bool) string {
	t.Helper()
	s := way{many: true}.newServiceWith(func(c *Config) {
		if v.token {
			c.Tokens = []Token{{Secret: "secret"}}
		}
	}, doorPolicies()...)
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
	_, _ = all.ReadFrom(client) // a server that closes with something unread resets
	_ = client.Close()
	_ = srv.Close()
	<-served
	return dates.ReplaceAllString(first.String()+all.String(), "")
}

// What a client sees doesn't say whether its requests were decided with those of others.
func TestTheLoopAnswersAsOthers(t *testing.T) {
	t.Parallel()
	var visits []visit
	for i, data := range doorCorpus() {
		if len(data) < 9000 { // who sends more may be reset before it has read
			visits = append(visits, visit{data: data, parts: uint64(i % 5 / 4 * i), token: i%3 == 0})
		}
	}
	for seed := range uint64(100) {
		v := mixture(seed)
		v.parts = 0
		visits = append(visits, v)
	}
	for _, v := range visits {
		if strings.Contains(v.data, "/batch") { // its caller may leave before it begins
			continue
		}
		for _, checked := range []bool{false, true} {
			want := v.payOnLoopback(t, func(s *service) webServer { return s.HTTPServer() }, checked)
			require.Equal(t, want, v.payOnLoopback(t, loopDoor, checked), "%+q", v)
		}
	}
}

// Checks of one client that come at once are decided as one after the other would be.
func TestChecksTogetherAdmitTheLimit(t *testing.T) {
	t.Parallel()
	const limit, callers, each = 100, 20, 20
	s := way{many: true}.newService(newPolicy("api", fixed("per-minute", limit, time.Minute)), newPolicy("tokens", token("tokens", limit, time.Minute, limit)))
	l, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	srv := loopDoor(s)
	served := make(chan struct{})
	go func() {
		defer close(served)
		_ = srv.Serve(l)
	}()
	t.Cleanup(func() {
		_ = srv.Close()
		<-served
	})
	for _, policy := range []string{"api", "tokens"} {
		statuses := make(chan int, callers*each)
		allAtOnce(callers, func(int) {
			transport := &http.Transport{}
			defer transport.CloseIdleConnections()
			for range each {
				body := fmt.Sprintf(`{"policy":%q,"client":"alice"}`, policy)
				r, err := (&http.Client{Transport: transport}).Post("http://"+l.Addr().String()+"/v1/check", "application/json", strings.NewReader(body))
				if assert.NoError(t, err) {
					_ = r.Body.Close()
					statuses <- r.StatusCode
				}
			}
		})
		close(statuses)
		counts := make(map[int]int)
		for status := range statuses {
			counts[status]++
		}
		assert.Equal(t, map[int]int{http.StatusOK: limit, http.StatusTooManyRequests: callers*each - limit}, counts, policy)
	}
}

// A panic fails its own check, whoever is asked about together with it.
func TestAPanicFailsItsOwnCheckOfTheLoop(t *testing.T) {
	t.Parallel()
	buggy := fixed("buggy", 1, time.Minute)
	buggy.Limiter = panickingLimiter{}
	s := way{many: true}.newService(newPolicy("buggy", buggy), newPolicy("api", fixed("per-minute", 100, time.Minute)))
	l, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	srv, served := loopDoor(s), make(chan struct{})
	go func() {
		defer close(served)
		_ = srv.Serve(l)
	}()
	t.Cleanup(func() {
		_ = srv.Close()
		<-served
	})
	allAtOnce(40, func(i int) {
		c, err := net.Dial("tcp", l.Addr().String())
		must(err)
		defer c.Close()
		answers := bufio.NewReader(c)
		for round := range 10 {
			of, want := "api", http.StatusOK
			if (i+round)%3 == 0 {
				of, want = "buggy", http.StatusInternalServerError
			}
			_, err = io.WriteString(c, checkOf(of, fmt.Sprint("client-", i)))
			must(err)
			r, err := http.ReadResponse(answers, nil)
			if assert.NoError(t, err) {
				_, _ = io.Copy(io.Discard, r.Body)
				assert.Equal(t, want, r.StatusCode)
			}
		}
	})
	assert.Contains(t, s.log.String(), `level=ERROR msg=panic path=/v1/check error="a bug" stack=`)
}
