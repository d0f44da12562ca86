package plain

import (
	"io"
	"net"
	"net/http"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// A peer that is silent or slow is left in time, whatever it does. Deadlines are set once
// a second at most, so that it may be a second early.
func TestPeersHaveTheirTime(t *testing.T) {
	t.Parallel()
	const begin = "POST /plain HTTP/1.1\r\nHost: h\r\nContent-Length: 5\r\n\r\n"
	for name, test := range map[string]struct {
		peer func(t *testing.T, c net.Conn) // until it is left
		want time.Duration
	}{
		"sends nothing":     {func(t *testing.T, c net.Conn) { requireLeft(t, c) }, 10 * time.Second},
		"sends half a head": {func(t *testing.T, c net.Conn) { write(t, c, begin[:20]); requireLeft(t, c) }, 10 * time.Second},
		"sends half a body": {func(t *testing.T, c net.Conn) {
			write(t, c, begin+"he")
			answer, err := io.ReadAll(c)
			require.NoError(t, err)
			assert.Contains(t, string(answer), "Connection: close\r\n\r\nread pipe: i/o timeout")
		}, 10 * time.Second},
		"is idle": {func(t *testing.T, c net.Conn) { ask(t, c, get); requireLeft(t, c) }, time.Minute},
		"is idle, and was busy": {func(t *testing.T, c net.Conn) {
			for range 25 {
				ask(t, c, get)
				time.Sleep(100 * time.Millisecond)
			}
			requireLeft(t, c)
		}, time.Minute + 2400*time.Millisecond},
		"is slow, and then idle": {func(t *testing.T, c net.Conn) {
			write(t, c, begin)
			time.Sleep(9 * time.Second)
			ask(t, c, "hello")
			requireLeft(t, c)
		}, time.Minute + 9*time.Second},
		"is idle, and then slow": {func(t *testing.T, c net.Conn) {
			ask(t, c, get)
			time.Sleep(50 * time.Second)
			write(t, c, begin[:20])
			requireLeft(t, c)
		}, time.Minute},
		"reads nothing": {func(t *testing.T, c net.Conn) {
			write(t, c, get)
			_, err := io.WriteString(c, get) // which nobody reads before the answer has been taken
			require.Error(t, err)
		}, 15 * time.Second},
		"is watched, and then idle": {func(t *testing.T, c net.Conn) {
			ask(t, c, "GET /plain/watch HTTP/1.1\r\nHost: h\r\n\r\n")
			requireLeft(t, c)
		}, time.Minute + 12*time.Second},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				client, server := net.Pipe()
				s := NewServer(&http.Server{
					ReadTimeout: 10 * time.Second, WriteTimeout: 15 * time.Second, IdleTimeout: time.Minute,
					Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
						_, err := io.Copy(io.Discard, r.Body)
						if r.URL.Path == "/plain/watch" {
							require.NoError(t, r.Context().Err())
							time.Sleep(12 * time.Second) // longer than the time of a request
							require.NoError(t, r.Context().Err())
						}
						w.Header().Set("Content-Type", "text/plain")
						if err != nil {
							_, _ = io.WriteString(w, err.Error())
						}
					}),
				}, func(_, _ string) bool { return true })
				require.NoError(t, s.others.Close()) // or net/http would answer half a head
				began := time.Now()
				done := make(chan time.Duration, 1)
				go func() {
					s.serve(s.add(server), nil)
					done <- time.Since(began)
				}()
				test.peer(t, client)
				took := <-done
				assert.LessOrEqual(t, took, test.want)
				assert.GreaterOrEqual(t, took, test.want-slack)
			})
		})
	}
}

func write(t *testing.T, c net.Conn, text string) {
	t.Helper()
	_, err := io.WriteString(c, text)
	require.NoError(t, err)
}

// ask sends what ends a request, and reads the answer, which has no body.
func ask(t *testing.T, c net.Conn, text string) {
	t.Helper()
	write(t, c, text)
	answer := make([]byte, 1000)
	n, err := c.Read(answer)
	require.NoError(t, err)
	require.Contains(t, string(answer[:n]), "Content-Length: 0\r\n\r\n")
}

func requireLeft(t *testing.T, c net.Conn) {
	t.Helper()
	rest, err := io.ReadAll(c)
	require.NoError(t, err)
	require.Empty(t, rest)
}
