package envoy

import (
	"bytes"
	"context"
	"errors"
	"io"
	"math/rand/v2"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	common "github.com/envoyproxy/go-control-plane/envoy/extensions/common/ratelimit/v3"
	rls "github.com/envoyproxy/go-control-plane/envoy/service/ratelimit/v3"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"golang.org/x/net/http2"
	"golang.org/x/net/http2/hpack"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/wrapperspb"
)

// say sends bytes on a connection of its own, and returns the grpc-status of the
// first answer; "" if the server ends the connection without one. Unless it
// waits for an answer, it ends its own side.
func (f *fixture) say(t testing.TB, data []byte, waits bool) string {
	t.Helper()
	conn, err := net.Dial("tcp", f.conn.Target())
	require.NoError(t, err)
	defer conn.Close()
	_, _ = conn.Write(data) // the server may have ended it
	if !waits {
		_ = conn.(*net.TCPConn).CloseWrite()
	}
	require.NoError(t, conn.SetReadDeadline(time.Now().Add(20*time.Second)))
	framer := http2.NewFramer(io.Discard, conn)
	framer.ReadMetaHeaders = hpack.NewDecoder(4096, nil)
	for {
		frame, err := framer.ReadFrame()
		if err != nil {
			var timeout net.Error
			require.False(t, errors.As(err, &timeout) && timeout.Timeout(), "neither an answer nor an end")
			return ""
		}
		if headers, ok := frame.(*http2.MetaHeadersFrame); ok {
			for _, field := range headers.Fields {
				if field.Name == "grpc-status" {
					return field.Value
				}
			}
		}
	}
}

// frames returns an HTTP/2 connection with the frames that write writes.
func frames(t testing.TB, write func(*http2.Framer)) []byte {
	t.Helper()
	b := bytes.NewBufferString(http2.ClientPreface)
	framer := http2.NewFramer(b, nil)
	require.NoError(t, framer.WriteSettings())
	write(framer)
	return b.Bytes()
}

// call writes a call of ShouldRateLimit whose message, with its prefix, is data.
func call(framer *http2.Framer, stream uint32, data []byte, headers ...string) {
	var block bytes.Buffer
	encoder := hpack.NewEncoder(&block)
	for i, all := 0, append([]string{":method", "POST", ":scheme", "http", ":path", rls.RateLimitService_ShouldRateLimit_FullMethodName,
		":authority", "weir", "content-type", "application/grpc", "te", "trailers"}, headers...); i < len(all); i += 2 {
		_ = encoder.WriteField(hpack.HeaderField{Name: all[i], Value: all[i+1]})
	}
	_ = framer.WriteHeaders(http2.HeadersFrameParam{StreamID: stream, BlockFragment: block.Bytes(), EndHeaders: true})
	_ = framer.WriteData(stream, true, data)
}

// message returns a request as it stands in a frame.
func message(t testing.TB, r *rls.RateLimitRequest) []byte {
	t.Helper()
	encoded, err := proto.Marshal(r)
	require.NoError(t, err)
	n := len(encoded)
	return append([]byte{0, byte(n >> 24), byte(n >> 16), byte(n >> 8), byte(n)}, encoded...)
}

// What isn't a call harms nobody, and what is one gets a status.
func TestBadFrames(t *testing.T) {
	t.Parallel()
	f := serve(t, Off, false, limited("user", "", 10))
	good := &rls.RateLimitRequest{Domain: "d", Descriptors: []*common.RateLimitDescriptor{entries("user", "a")}}
	for name, test := range map[string]struct {
		data []byte
		want string // the status; "" if the connection just ends
	}{
		"nothing":        {nil, ""},
		"HTTP/1.1":       {[]byte("GET / HTTP/1.1\r\nHost: weir\r\n\r\n"), ""},
		"garbage":        {bytes.Repeat([]byte{0xff}, 1<<16), ""},
		"half a preface": {[]byte(http2.ClientPreface[:10]), ""},
		"a giant frame":  {frames(t, func(w *http2.Framer) { _ = w.WriteRawFrame(http2.FrameData, 0, 1, make([]byte, 1<<20)) }), ""},
		"data of nobody": {frames(t, func(w *http2.Framer) { _ = w.WriteData(7, true, []byte("x")) }), ""},
		"headers no hpack": {frames(t, func(w *http2.Framer) {
			_ = w.WriteRawFrame(http2.FrameHeaders, http2.FlagHeadersEndHeaders, 1, bytes.Repeat([]byte{0xff}, 99))
		}), ""},
		"no message":     {frames(t, func(w *http2.Framer) { call(w, 1, nil) }), "13"},
		"half a message": {frames(t, func(w *http2.Framer) { call(w, 1, message(t, good)[:7]) }), "13"},
		"no protobuf":    {frames(t, func(w *http2.Framer) { call(w, 1, []byte{0, 0, 0, 0, 3, 0xff, 0xff, 0xff}) }), "13"},
		"a long message": {frames(t, func(w *http2.Framer) { call(w, 1, []byte{0, 0xff, 0xff, 0xff, 0xff}) }), "8"},
		"compressed":     {frames(t, func(w *http2.Framer) { call(w, 1, []byte{1, 0, 0, 0, 1, 0}, "grpc-encoding", "brotli") }), "12"},
		"another method": {frames(t, func(w *http2.Framer) { call(w, 1, message(t, good), ":path", "/x") }), ""},
		"a good one":     {frames(t, func(w *http2.Framer) { call(w, 1, message(t, good)) }), "0"},
	} {
		assert.Equal(t, test.want, f.say(t, test.data, test.want != ""), name)
	}
	assert.EqualValues(t, 8, f.ask(t, entries("user", "a")).Statuses[0].LimitRemaining, "only the good one counts")
}

// Fields that a later version may have make no difference in protocol buffers,
// and are a mistake in JSON.
func TestUnknownFields(t *testing.T) {
	t.Parallel()
	f := serve(t, Off, false, limited("user", "", 10))
	d := entries("user", "a")
	d.ProtoReflect().SetUnknown([]byte{0xf8, 0x07, 0x01}) // field 127 is 1
	r := f.ask(t, d)
	assert.EqualValues(t, 9, r.Statuses[0].LimitRemaining)
	w := httptest.NewRecorder()
	f.ServeHTTP(w, httptest.NewRequest(http.MethodPost, "/json", strings.NewReader(`{"domain":"d","descriptors":[{"entries":[{"key":"user","value":"a","kind":1}]}]}`)))
	assert.Equal(t, http.StatusBadRequest, w.Code)
	assert.Contains(t, w.Body.String(), `unknown field "kind"`)
}

// Callers who leave get a status at once, leave nothing behind (see TestMain),
// and take no more than others.
func TestCanceledCalls(t *testing.T) {
	t.Parallel()
	f := serve(t, Off, false, limited("user", "", 200), limited("wide", "", 10_000))
	var admitted atomic.Int64
	var callers sync.WaitGroup
	for range 16 {
		callers.Go(func() {
			for range 50 {
				ctx, cancel := context.WithTimeout(t.Context(), time.Duration(rand.Int64N(int64(2*time.Millisecond))))
				r, err := f.RateLimitServiceClient.ShouldRateLimit(ctx, &rls.RateLimitRequest{
					Domain: "d", Descriptors: []*common.RateLimitDescriptor{entries("user", "a"), entries("wide", "a")},
				})
				cancel()
				if code := status.Code(err); code != codes.OK {
					assert.Contains(t, []codes.Code{codes.DeadlineExceeded, codes.Canceled}, code)
				} else if r.OverallCode == ok {
					admitted.Add(1)
				}
			}
		})
	}
	callers.Wait()
	// Those who left may have been admitted too: both limits know of the same.
	user := entries("user", "a")
	user.HitsAddend = wrapperspb.UInt64(0)
	wide := entries("wide", "a")
	wide.HitsAddend = wrapperspb.UInt64(0)
	require.EventuallyWithT(t, func(c *assert.CollectT) {
		left := f.ask(t, user, wide).Statuses
		taken := 200 - int64(left[0].LimitRemaining)
		assert.LessOrEqual(c, admitted.Load(), taken)
		assert.EqualValues(c, 10_000-taken, left[1].LimitRemaining)
	}, time.Minute, 10*time.Millisecond)
}

// Whatever a connection says, the server goes on to serve others.
func FuzzFrames(f *testing.F) {
	good := &rls.RateLimitRequest{Domain: "d", Descriptors: []*common.RateLimitDescriptor{entries("user", "a")}}
	f.Add(frames(f, func(w *http2.Framer) { call(w, 1, message(f, good)) })[len(http2.ClientPreface):])
	server := serve(f, Off, false, limited("user", "", 1_000_000_000))
	f.Fuzz(func(t *testing.T, data []byte) {
		server.say(t, append([]byte(http2.ClientPreface), data...), false)
		assert.Equal(t, ok, server.ask(t, entries("user", "b")).OverallCode)
	})
}

// Whatever a request has in it, each descriptor gets a status, or all of the
// request is invalid and has taken nothing.
func FuzzDescriptors(f *testing.F) {
	bucket := limited("bucket", "", 10)
	bucket.Rule.Limit.Algorithm = "token_bucket"
	server := serve(f, Draft11, false, limited("user", "", 10), limited("user", "bad", 0), limited("path", "/a/*", 5), bucket)
	full := entries("user", "a", "path", "/a/b")
	full.HitsAddend, full.Limit = wrapperspb.UInt64(3), &common.RateLimitDescriptor_RateLimitOverride{RequestsPerUnit: 3, Unit: 2}
	for _, r := range []*rls.RateLimitRequest{
		{}, {Domain: "d"}, {Domain: "d", HitsAddend: 7, Descriptors: []*common.RateLimitDescriptor{entries("user", "a"), entries("user", "a"), full, {IsNegativeHits: true}}},
		{Domain: "d", Descriptors: []*common.RateLimitDescriptor{entries("bucket", ""), entries("user", "bad"), entries("path", "/a/x")}},
	} {
		encoded, err := proto.Marshal(r)
		require.NoError(f, err)
		f.Add(encoded)
	}
	f.Fuzz(func(t *testing.T, data []byte) {
		r := new(rls.RateLimitRequest)
		if proto.Unmarshal(data, r) != nil {
			return
		}
		answer, err := server.Service.ShouldRateLimit(t.Context(), r)
		if err != nil {
			require.Equal(t, codes.InvalidArgument, status.Code(err), "%v", err)
			return
		}
		require.Len(t, answer.Statuses, len(r.Descriptors))
		denied := false
		for _, at := range answer.Statuses {
			require.NotEqual(t, rls.RateLimitResponse_UNKNOWN, at.Code)
			denied = denied || at.Code == over
		}
		require.Equal(t, denied, answer.OverallCode == over, "no limit here is lenient")
		_, err = proto.Marshal(answer)
		require.NoError(t, err)
	})
}

// Any body of /json is answered.
func FuzzJSON(f *testing.F) {
	server := serve(f, Legacy, false, limited("user", "", 10))
	for _, body := range []string{`{"domain":"d","descriptors":[{"entries":[{"key":"user","value":"a"}],"hitsAddend":"3"}]}`, `{`, `[]`, `{"domain":"d","hits_addend":4294967296}`} {
		f.Add([]byte(body))
	}
	f.Fuzz(func(t *testing.T, body []byte) {
		w := httptest.NewRecorder()
		server.ServeHTTP(w, httptest.NewRequest(http.MethodPost, "/json", bytes.NewReader(body)))
		require.Contains(t, []int{200, 400, 429}, w.Code, "%s", w.Body)
	})
}
