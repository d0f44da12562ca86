package main

import (
	"errors"
	"fmt"
	"net/http"
	"os"
	"strings"
	"syscall"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"weir/cmd/server/servertest"
	"weir/counters/memcachedtest"
)

// reloadWith has the file edited and loaded again.
func (r *running) reloadWith(t *testing.T, file string, edit func(string) string) {
	t.Helper()
	text, err := os.ReadFile(file)
	require.NoError(t, err)
	require.NoError(t, os.WriteFile(file, []byte(edit(string(text))), 0o600))
	r.hangup <- syscall.SIGHUP
	r.hangup <- syscall.SIGHUP // is taken when the first has been done
}

// A policy file that the shell has opened, as in -config <(...), is read once, and stays right.
func TestAPolicyFileThatIsAPipe(t *testing.T) {
	t.Parallel()
	r, w, err := os.Pipe()
	require.NoError(t, err)
	defer r.Close()
	_, err = w.WriteString("policies:\n  api: {limits: [{algorithm: fixed_window, limit: 3, window: 1m}]}\n")
	require.NoError(t, errors.Join(err, w.Close()))
	p := startProgram(t, "-config", fmt.Sprintf("/dev/fd/%d", r.Fd()))
	p.hangup <- syscall.SIGHUP
	p.hangup <- syscall.SIGHUP // is taken when the first has been done
	assert.True(t, p.Check(t, "api", "alice", 3).Allowed)
	assert.NotContains(t, p.log.String(), "the policies stay as they were")
}

// Who changes on_store_error does so in an outage: what is known stays known.
func TestAChangeOfOnStoreErrorForgetsNobody(t *testing.T) {
	t.Parallel()
	file, policies := servertest.OneOfEach(t, "deny")
	memcached := memcachedtest.Start(t)
	p := startProgram(t, "-config", file, "-memcached", memcached.Addr, "-store-timeout", "1s")
	for _, policy := range policies {
		require.True(t, p.Check(t, policy, "spent", 100).Allowed)
		require.True(t, p.Check(t, policy, "known", 60).Allowed)
	}
	memcached.Pause()
	p.reloadWith(t, file, func(text string) string { return strings.ReplaceAll(text, "deny", "local") })
	for _, policy := range policies {
		a := p.Check(t, policy, "spent", 1)
		assert.Equal(t, http.StatusTooManyRequests, a.Status, policy)
		require.True(t, p.Check(t, policy, "known", 40).Allowed, policy)
		assert.False(t, p.Check(t, policy, "known", 1).Allowed, policy)
	}
	p.reloadWith(t, file, func(text string) string { return strings.ReplaceAll(text, "local", "allow") })
	for _, policy := range policies {
		assert.False(t, p.Check(t, policy, "spent", 1).Allowed, policy)
		assert.False(t, p.Check(t, policy, "known", 1).Allowed, policy)
	}
}

// What was admitted in an outage by limits that are gone since is counted, at
// the latest when the program ends. What can't be stands in the log.
func TestWhatIsOwedIsCountedInTheEnd(t *testing.T) {
	t.Parallel()
	for _, back := range []bool{true, false} {
		file, policies := servertest.OneOfEach(t, "local")
		memcached := memcachedtest.Start(t)
		same, _ := servertest.OneOfEach(t, "local")                            // as the other would notice that the file changes
		args := []string{"-memcached", memcached.Addr, "-store-timeout", "1s"} // what is told in the end has a few of these
		p, other := startProgram(t, append(args, "-config", file)...), startProgram(t, append(args, "-config", same)...)
		memcached.Pause()
		for _, policy := range policies {
			require.True(t, p.Check(t, policy, "c", 7).Allowed)
			require.True(t, p.Check(t, policy, "d", 7).Allowed)
		}
		const unrelated = "policies:\n  q: {limits: [{algorithm: fixed_window, limit: 9, window: 1d}]}\n"
		p.reloadWith(t, file, func(string) string { return unrelated })
		p.reloadWith(t, file, func(string) string { return unrelated + "\n" })
		if back {
			memcached.Resume()
		}
		require.NoError(t, p.end())
		if back {
			for _, policy := range policies {
				servertest.RequireUsed(t, other.Service, policy, "c", 7)
				servertest.RequireUsed(t, other.Service, policy, "d", 7)
			}
			assert.NotContains(t, p.log.String(), "is not counted")
		} else {
			assert.Contains(t, p.log.String(), `level=WARN msg="what was admitted without Memcached is not counted there" clients=10`)
		}
	}
}

// A route's own limits count apart, by any algorithm, on all instances
// together, and go on counting when their number changes.
func TestRoutesCountApartOnAllInstances(t *testing.T) {
	t.Parallel()
	file, policies := servertest.OneOfEach(t, "deny")
	text, err := os.ReadFile(file)
	require.NoError(t, err)
	routed := strings.ReplaceAll(string(text), "window: 1d}]", "window: 1d}], routes: [{method: POST, path: /login, limits: {l: 5}}]")
	require.NoError(t, os.WriteFile(file, []byte(routed), 0o600))
	memcached := memcachedtest.Start(t)
	args := []string{"-config", file, "-memcached", memcached.Addr, "-store-timeout", "5s"}
	one, other := startProgram(t, args...), startProgram(t, args...)
	requireStatus := func(s servertest.Service, method, path string, want int) {
		t.Helper()
		status, header, body, err := s.Send(method, "/v1/auth/"+path, "", "")
		require.NoError(t, err)
		require.Equal(t, want, status, "%s %s: %v %s", method, path, header, body)
	}
	for _, policy := range policies {
		for i := range 5 {
			requireStatus([]servertest.Service{one.Service, other.Service}[i%2], "POST", policy+"/login", http.StatusOK)
		}
		requireStatus(one.Service, "POST", policy+"/login/x", http.StatusTooManyRequests)
		requireStatus(other.Service, "POST", policy+"/login", http.StatusTooManyRequests)
		requireStatus(one.Service, "GET", policy+"/login", http.StatusOK)
		servertest.RequireUsed(t, other.Service, policy, "127.0.0.1", 1)
	}
	one.reloadWith(t, file, func(text string) string { return strings.ReplaceAll(text, "l: 5", "l: 7") })
	for _, policy := range policies {
		requireStatus(one.Service, "POST", policy+"/login", http.StatusOK)
		requireStatus(one.Service, "POST", policy+"/login", http.StatusOK)
		requireStatus(one.Service, "POST", policy+"/login", http.StatusTooManyRequests)
		servertest.RequireUsed(t, one.Service, policy, "127.0.0.1", 1)
	}
	one.reloadWith(t, file, func(text string) string { return strings.ReplaceAll(text, "/login", "/signin") })
	for _, policy := range policies {
		requireStatus(one.Service, "POST", policy+"/login", http.StatusOK)
		servertest.RequireUsed(t, one.Service, policy, "127.0.0.1", 2)
		requireStatus(one.Service, "POST", policy+"/signin", http.StatusOK)
		servertest.RequireUsed(t, one.Service, policy, "127.0.0.1", 2)
	}
}
