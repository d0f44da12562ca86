package servertest

import (
	"crypto/tls"
	"fmt"
	"net"
	"sync"
	"testing"
	"time"

	discovery "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	ratelimit "github.com/envoyproxy/go-control-plane/ratelimit/config/ratelimit/v3"
	"github.com/stretchr/testify/require"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/anypb"
)

// An ADS is an xDS server with one set of limits for everybody, which it sends whenever a
// request names another version: a set that was refused it sends again at once, as
// go-control-plane does. Make it with StartADS.
type ADS struct {
	discovery.UnimplementedAggregatedDiscoveryServiceServer
	Addr     string
	Requests chan *discovery.DiscoveryRequest // all that have come

	mu      sync.Mutex
	version string // "" before the first set
	set     []*anypb.Any
	changed chan struct{} // is closed with the next version
	drop    chan struct{} // is closed to end all streams
	streams int           // that there were
}

// StartADS serves on a free port, or on addr again, until stop, at the latest until the test
// ends. Without a config it serves without TLS.
func StartADS(t testing.TB, addr string, config *tls.Config) (a *ADS, stop func()) {
	t.Helper()
	if addr == "" {
		addr = "127.0.0.1:0"
	}
	listener, err := net.Listen("tcp", addr)
	require.NoError(t, err)
	a = &ADS{
		Addr: listener.Addr().String(), Requests: make(chan *discovery.DiscoveryRequest, 10_000),
		changed: make(chan struct{}), drop: make(chan struct{}),
	}
	var options []grpc.ServerOption
	if config != nil {
		options = append(options, grpc.Creds(credentials.NewTLS(config)))
	}
	server := grpc.NewServer(options...)
	discovery.RegisterAggregatedDiscoveryServiceServer(server, a)
	go func() { _ = server.Serve(listener) }()
	t.Cleanup(server.Stop)
	return a, server.Stop
}

// Set makes a set the one that is sent.
func (a *ADS) Set(t testing.TB, version string, configs ...*ratelimit.RateLimitConfig) {
	t.Helper()
	set := make([]*anypb.Any, len(configs))
	for i, c := range configs {
		var err error
		set[i], err = anypb.New(c)
		require.NoError(t, err)
	}
	a.SetRaw(version, set...)
}

// SetRaw makes a set the one that is sent.
func (a *ADS) SetRaw(version string, set ...*anypb.Any) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.version, a.set = version, set
	close(a.changed)
	a.changed = make(chan struct{})
}

// Drop ends all streams.
func (a *ADS) Drop() {
	a.mu.Lock()
	defer a.mu.Unlock()
	close(a.drop)
	a.drop = make(chan struct{})
}

// Streams returns how many streams there have been.
func (a *ADS) Streams() int {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.streams
}

// Next returns the next request.
func (a *ADS) Next(t testing.TB) *discovery.DiscoveryRequest {
	t.Helper()
	select {
	case r := <-a.Requests:
		return r
	case <-time.After(Patience):
		require.Fail(t, "no request")
		return nil
	}
}

// NextAck returns the next request that answers, and what it says is wrong.
func (a *ADS) NextAck(t testing.TB) (version, wrong string) {
	t.Helper()
	for {
		if r := a.Next(t); r.GetResponseNonce() != "" {
			return r.GetVersionInfo(), r.GetErrorDetail().GetMessage()
		}
	}
}

// StreamAggregatedResources serves a stream.
func (a *ADS) StreamAggregatedResources(stream discovery.AggregatedDiscoveryService_StreamAggregatedResourcesServer) error {
	a.mu.Lock()
	a.streams++
	drop := a.drop
	a.mu.Unlock()
	requests := make(chan *discovery.DiscoveryRequest)
	go func() {
		for {
			r, err := stream.Recv()
			if err != nil {
				return
			}
			select {
			case requests <- r:
			case <-stream.Context().Done():
				return
			}
		}
	}()
	var waits *discovery.DiscoveryRequest // for an answer
	for nonce := 1; ; {
		a.mu.Lock()
		version, set, changed := a.version, a.set, a.changed
		a.mu.Unlock()
		if waits != nil && version != "" && waits.GetVersionInfo() != version {
			err := stream.Send(&discovery.DiscoveryResponse{VersionInfo: version, Resources: set, TypeUrl: waits.GetTypeUrl(), Nonce: fmt.Sprint(nonce)})
			if err != nil {
				return err
			}
			waits = nil
			nonce++
		}
		select {
		case waits = <-requests:
			a.Requests <- waits
		case <-changed:
		case <-drop:
			return status.Error(codes.Unavailable, "dropped")
		case <-stream.Context().Done():
			return stream.Context().Err()
		}
	}
}
