package e2e

import (
	"bytes"
	"crypto/tls"
	"net/http"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	common "github.com/envoyproxy/go-control-plane/envoy/extensions/common/ratelimit/v3"
	rls "github.com/envoyproxy/go-control-plane/envoy/service/ratelimit/v3"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"golang.org/x/net/http2"
	"golang.org/x/net/http2/hpack"
	"google.golang.org/protobuf/proto"

	"weir/cmd/server/servertest"
	"weir/counters/memcachedtest"
)

// A stream is a request as frames of HTTP/2 write it.
type stream struct {
	path    string
	content string
	message []byte // the body; nil for none
}

// sendStreams opens connections on which each opens many streams at once, and resets
// them at once if it is to. It returns when the server has read all, or has ended the
// connection, with how many streams a connection may have.
func sendStreams(t *testing.T, address string, config *tls.Config, connections, streams int, s stream, resets bool) (allowed []uint32) {
	t.Helper()
	var frames, block bytes.Buffer
	frames.WriteString(http2.ClientPreface)
	framer, encoder := http2.NewFramer(&frames, nil), hpack.NewEncoder(&block)
	require.NoError(t, framer.WriteSettings())
	for i := range streams {
		block.Reset()
		for _, field := range []hpack.HeaderField{
			{Name: ":method", Value: http.MethodPost}, {Name: ":scheme", Value: "https"}, {Name: ":authority", Value: "weir"},
			{Name: ":path", Value: s.path}, {Name: "content-type", Value: s.content}, {Name: "te", Value: "trailers"},
		} {
			require.NoError(t, encoder.WriteField(field))
		}
		id := uint32(2*i + 1)
		require.NoError(t, framer.WriteHeaders(http2.HeadersFrameParam{StreamID: id, BlockFragment: block.Bytes(), EndStream: s.message == nil, EndHeaders: true}))
		if s.message != nil {
			require.NoError(t, framer.WriteData(id, true, s.message))
		}
		if resets {
			require.NoError(t, framer.WriteRSTStream(id, http2.ErrCodeCancel))
		}
	}
	require.NoError(t, framer.WritePing(false, [8]byte{1}))
	allowed = make([]uint32, connections)
	var sending sync.WaitGroup
	for i := range allowed {
		sending.Go(func() {
			conn, err := tls.Dial("tcp", address, config)
			if !assert.NoError(t, err) {
				return
			}
			defer conn.Close()
			_ = conn.SetDeadline(time.Now().Add(servertest.Patience))
			read := make(chan struct{})
			go func() {
				defer close(read)
				for replies := http2.NewFramer(nil, conn); ; {
					frame, err := replies.ReadFrame()
					if err != nil {
						return
					}
					switch frame := frame.(type) {
					case *http2.SettingsFrame:
						if most, ok := frame.Value(http2.SettingMaxConcurrentStreams); ok {
							allowed[i] = most
						}
					case *http2.PingFrame:
						if frame.IsAck() {
							return
						}
					}
				}
			}()
			_, _ = conn.Write(frames.Bytes()) // the server may have ended it
			<-read
		})
	}
	sending.Wait()
	return allowed
}

// Whoever opens streams and resets them at once, or opens more than it may, has no more
// requests under way than others may have, and others are answered.
func TestStreamsThatAreReset(t *testing.T) {
	t.Parallel()
	const connections, streams, most = 3, 3000, 250
	ca := servertest.NewAuthority(t)
	cert, key := ca.Issue(t, "server")
	message, err := proto.Marshal(&rls.RateLimitRequest{Domain: "shop", Descriptors: []*common.RateLimitDescriptor{descriptor("user", "mallory")}})
	require.NoError(t, err)
	message = append([]byte{0, 0, 0, 0, byte(len(message))}, message...)
	for _, listens := range []string{"http", "grpc"} {
		for _, resets := range []bool{true, false} {
			memcached := memcachedtest.Start(t)
			r := startProcess(t, "-tls-cert", cert, "-tls-key", key, "-grpc-listen", "127.0.0.1:0", "-envoy-config", servertest.WriteFile(t, "shop.yaml", envoyShop),
				"-memcached", memcached.Addr, "-store-timeout", "1s")
			r.Service = servertest.NewService(t, r.URL, &tls.Config{RootCAs: ca.Pool()})
			address, s := r.Address(), stream{path: "/v1/auth/fixed", content: "text/plain"}
			if listens == "grpc" {
				address = grpcAddress.FindStringSubmatch(r.log.String())[1]
				s = stream{"/envoy.service.ratelimit.v3.RateLimitService/ShouldRateLimit", "application/grpc", message}
			}
			goroutines := func() int {
				_, metrics := r.Get(t, "/metrics")
				_, text, _ := strings.Cut(metrics, "\ngo_goroutines ")
				text, _, _ = strings.Cut(text, "\n")
				n, err := strconv.Atoi(text)
				require.NoError(t, err)
				return n
			}
			before, highest := goroutines(), 0
			memcached.Pause() // so that nothing ends soon
			var attacking sync.WaitGroup
			ended := make(chan struct{})
			attacking.Go(func() {
				defer close(ended)
				allowed := sendStreams(t, address, &tls.Config{RootCAs: ca.Pool(), NextProtos: []string{"h2"}}, connections, streams, s, resets)
				assert.Equal(t, []uint32{most, most, most}, allowed, listens)
			})
			for over := false; !over; {
				select {
				case <-ended:
					over = true
				default:
				}
				highest = max(highest, goroutines()) // which is an answer, too
			}
			attacking.Wait()
			assert.Less(t, highest, before+connections*most+1000, "%s, resets: %v", listens, resets)
			memcached.Resume()
			require.Eventually(t, func() bool { return !r.Check(t, "fixed", "other", 0).Degraded }, servertest.Patience, 10*time.Millisecond)
		}
	}
}
