package memcached

import (
	"context"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"path/filepath"
	"runtime"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"weir/api"
	"weir/api/policy"
	"weir/api/telemetry"
	"weir/counters"
	"weir/counters/memcached/pipeline"
	"weir/counters/memcachedtest"
	"weir/subwindow"
)

// A spy notes the functions of weir, and of gomemcache, that are on the stack
// when a connection is written to.
type spy struct {
	root string // of weir's source

	mu     sync.Mutex
	frames []string
}

type spiedConn struct {
	*net.TCPConn
	spy *spy
}

func (c spiedConn) SyscallConn() (syscall.RawConn, error) {
	raw, err := c.TCPConn.SyscallConn()
	return spiedRawConn{raw, c.spy}, err
}

type spiedRawConn struct {
	syscall.RawConn
	spy *spy
}

func (c spiedRawConn) Control(f func(fd uintptr)) error {
	callers := make([]uintptr, 100)
	frames := runtime.CallersFrames(callers[:runtime.Callers(2, callers)])
	writes, weirs := false, []string{"the function that makes the system call"}
	for more := true; more; {
		var frame runtime.Frame
		frame, more = frames.Next()
		writes = writes || strings.HasSuffix(frame.Function, ".tryWrite")
		// Other packages' functions may be inlined into weir's, with their
		// names.
		if strings.HasPrefix(frame.File, c.spy.root) || strings.Contains(frame.File, "gomemcache") {
			weirs = append(weirs, frame.Function)
		}
	}
	if writes {
		c.spy.mu.Lock()
		c.spy.frames = weirs
		c.spy.mu.Unlock()
	}
	return c.RawConn.Control(f)
}

// A check goes a short way: handler, policy, limiter, store.
func TestABusyCheckPassesFewFunctions(t *testing.T) {
	_, file, _, _ := runtime.Caller(0)
	s := &spy{root: filepath.Join(filepath.Dir(file), "..", "..")}
	memcachedServer := memcachedtest.Start(t)
	store, err := newStore(Config{Servers: []string{memcachedServer.Addr}, Timeout: time.Second}, func(*server) pipeline.DialFunc {
		return func(ctx context.Context, network, address string) (net.Conn, error) {
			conn, err := pipeline.Dialer(nil, "", "")(ctx, network, address)
			if err != nil {
				return nil, err
			}
			return spiedConn{conn.(*net.TCPConn), s}, nil
		}
	}, nil)
	require.NoError(t, err)
	defer store.Close()

	// The middle of a slot that isn't over: deadlines count from it.
	now := time.Now().Add(500 * time.Millisecond).Truncate(time.Second).Add(500 * time.Millisecond)
	const timeout = 400 * time.Millisecond // less than there is left of the slot
	metrics := telemetry.NewMetrics(nil, "test")
	window, err := subwindow.NewWindow(time.Minute, 60, false)
	require.NoError(t, err)
	limiter, err := subwindow.New(metrics.InstrumentStore(store), window, counters.Options{Policy: "p", Limit: "l", StoreTimeout: timeout})
	require.NoError(t, err)
	handler := api.NewServer(api.Config{
		Policies: policy.Policies{"p": {
			Name:   "p",
			Limits: []policy.Limit{{Name: "l", Algorithm: "sliding_window", Limit: 100, Window: time.Minute, Limiter: limiter}},
		}},
		StoreTimeout: timeout, Metrics: metrics, Log: slog.New(slog.DiscardHandler),
		// The middle of a slot: at its start and near its end a check reads
		// others.
		Now: func() time.Time { return now },
	})
	for range 3 { // the first finds a new client
		answer := httptest.NewRecorder()
		handler.ServeHTTP(answer, httptest.NewRequest(http.MethodPost, "/v1/check", strings.NewReader(`{"policy":"p","client":"c"}`)))
		require.Equal(t, http.StatusOK, answer.Code, answer.Body)
	}
	assert.NotEmpty(t, s.frames)
	// The last is this test.
	assert.LessOrEqual(t, len(s.frames)-1, 16, "%s", strings.Join(s.frames, "\n"))
	t.Log(strings.Join(s.frames, "\n"))
}
