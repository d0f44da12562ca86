package xds

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	discovery "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	ratelimit "github.com/envoyproxy/go-control-plane/ratelimit/config/ratelimit/v3"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"
	"google.golang.org/grpc"
	"google.golang.org/protobuf/types/known/anypb"
	"google.golang.org/protobuf/types/known/durationpb"

	"weir/cmd/server/servertest"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// perMinute is a config of one descriptor.
func perMinute(domain string, limit uint32) *ratelimit.RateLimitConfig {
	return &ratelimit.RateLimitConfig{Name: "name of " + domain, Domain: domain, Descriptors: []*ratelimit.RateLimitDescriptor{
		{Key: "k", RateLimit: &ratelimit.RateLimitPolicy{Unit: ratelimit.RateLimitUnit_MINUTE, RequestsPerUnit: limit}},
	}}
}

// A watcher is a client under test. It refuses sets with a domain that is called wrong.
type watcher struct {
	sets   chan []Resource    // that it was given to apply
	pauses chan time.Duration // that it wanted to make
	log    *servertest.Log
}

func watch(t *testing.T, server string) *watcher {
	t.Helper()
	w := &watcher{make(chan []Resource, 100), make(chan time.Duration, 1000), servertest.NewLog()}
	c := &client{
		Config: Config{Server: server, Node: "node-1", Log: slog.New(slog.NewTextHandler(w.log, nil)), Apply: func(_ context.Context, set []Resource, unreadable error) error {
			if unreadable != nil {
				return unreadable
			}
			w.sets <- set
			for _, r := range set {
				if strings.Contains(r.YAML, "wrong") {
					return errors.New(strings.Repeat("mistake\n", 30) + "the last one")
				}
			}
			return nil
		}},
		pause: func(ctx context.Context, d time.Duration) {
			w.pauses <- d
			sleep(ctx, time.Millisecond)
		},
	}
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan struct{})
	go func() { c.watch(ctx); close(ended) }()
	t.Cleanup(func() { cancel(); <-ended })
	return w
}

func TestSetsAreAskedForAndAcknowledged(t *testing.T) {
	ads, _ := servertest.StartADS(t, "", nil)
	w := watch(t, ads.Addr)
	first := ads.Next(t)
	assert.Equal(t, "node-1", first.GetNode().GetId())
	assert.Equal(t, "type.googleapis.com/ratelimit.config.ratelimit.v3.RateLimitConfig", first.GetTypeUrl())
	assert.Empty(t, first.GetVersionInfo()+first.GetResponseNonce())

	ads.Set(t, "1", perMinute("b", 7), perMinute("a", 0))
	ack := ads.Next(t)
	assert.Equal(t, "1", ack.GetVersionInfo())
	assert.Equal(t, "1", ack.GetResponseNonce())
	assert.Nil(t, ack.GetErrorDetail())
	set := <-w.sets
	require.Len(t, set, 2)
	assert.Equal(t, "name of a", set[0].Name)
	assert.YAMLEq(t, `{domain: a, descriptors: [{key: k, rate_limit: {unit: MINUTE}}]}`, set[0].YAML)
	assert.YAMLEq(t, `{domain: b, descriptors: [{key: k, rate_limit: {unit: MINUTE, requests_per_unit: 7}}]}`, set[1].YAML)

	ads.Set(t, "2") // an empty world is one too
	ack = ads.Next(t)
	assert.Equal(t, "2", ack.GetVersionInfo())
	assert.Empty(t, <-w.sets)
}

// A set that is wrong is refused with what is wrong, and not tried again while it is the same,
// however often the server sends it.
func TestAWrongSetIsRefused(t *testing.T) {
	ads, _ := servertest.StartADS(t, "", nil)
	w := watch(t, ads.Addr)
	ads.Set(t, "1", perMinute("a", 1))
	version, wrong := ads.NextAck(t)
	require.Equal(t, "1", version)
	require.Empty(t, wrong)
	ads.Set(t, "2", perMinute("wrong", 1))
	for range 5 {
		version, wrong = ads.NextAck(t)
		assert.Equal(t, "1", version, "is in force")
		assert.Equal(t, strings.Repeat("mistake\n", 20)+"and 11 more", wrong)
	}
	for range 4 {
		d := <-w.pauses
		assert.True(t, d >= time.Second && d < 2*time.Second, "%v", d)
	}
	ads.Set(t, "3", perMinute("a", 1))
	for wrong != "" {
		version, wrong = ads.NextAck(t)
	}
	assert.Equal(t, "3", version)
	require.Len(t, w.sets, 3)

	other, err := anypb.New(durationpb.New(1))
	require.NoError(t, err)
	ads.SetRaw("4", other)
	version, wrong = ads.NextAck(t)
	assert.Equal(t, "3", version)
	assert.Contains(t, wrong, "resource 1 of 1: ")
}

// A server that comes again, perhaps with the same name for another set, is asked for all. What
// is in force already isn't put in force again.
func TestAServerThatComesAgainIsAskedForAll(t *testing.T) {
	ads, stop := servertest.StartADS(t, "", nil)
	w := watch(t, ads.Addr)
	ads.Set(t, "1", perMinute("a", 1))
	_, _ = ads.NextAck(t)
	ads.Drop()
	version, _ := ads.NextAck(t)
	assert.Equal(t, "1", version)
	assert.Len(t, w.sets, 1)
	assert.Equal(t, 2, ads.Streams())

	stop()
	w.log.Wait(t, "no stream from the xDS server; the limits stay as they are")
	again, _ := servertest.StartADS(t, ads.Addr, nil)
	again.Set(t, "1", perMinute("b", 1))
	first := again.Next(t)
	assert.Empty(t, first.GetVersionInfo())
	version, _ = again.NextAck(t)
	assert.Equal(t, "1", version)
	require.Len(t, w.sets, 2)
	<-w.sets
	assert.Contains(t, (<-w.sets)[0].YAML, `"b"`)
}

// The longer there is no server, the longer are the pauses, each of which is another. They are
// short again after a set.
func TestPausesGrowAndDiffer(t *testing.T) {
	ads, stop := servertest.StartADS(t, "", nil)
	stop()
	w := watch(t, ads.Addr)
	differ := false
	for missed := range 12 {
		d, most := <-w.pauses, min(lastPause, firstPause<<missed)
		assert.True(t, d >= most/2 && d < most, "%v after %d", d, missed)
		differ = differ || d != most/2
	}
	assert.True(t, differ)
	again, _ := servertest.StartADS(t, ads.Addr, nil)
	again.Set(t, "1", perMinute("a", 1))
	_, _ = again.NextAck(t)
	for len(w.pauses) > 0 {
		<-w.pauses
	}
	again.Drop()
	assert.Less(t, <-w.pauses, firstPause)
}

// A refuser begins each stream with a set that is refused, another each time unless same, and
// ends it.
type refuser struct {
	discovery.UnimplementedAggregatedDiscoveryServiceServer
	same    bool
	streams atomic.Int64
}

func (r *refuser) StreamAggregatedResources(stream discovery.AggregatedDiscoveryService_StreamAggregatedResourcesServer) error {
	n := r.streams.Add(1)
	if r.same {
		n = 1
	}
	set, err := anypb.New(perMinute(fmt.Sprint("wrong", n), 1))
	if err == nil {
		_, err = stream.Recv()
	}
	if err == nil {
		err = stream.Send(&discovery.DiscoveryResponse{VersionInfo: "1", Nonce: "1", TypeUrl: typeURL, Resources: []*anypb.Any{set}})
	}
	if err == nil {
		_, err = stream.Recv() // that it is refused
	}
	return err
}

// Sets that are refused make no pause shorter.
func TestPausesGrowWhereEachSetIsRefused(t *testing.T) {
	for _, same := range []bool{false, true} {
		listener, err := net.Listen("tcp", "127.0.0.1:0")
		require.NoError(t, err)
		server := grpc.NewServer()
		discovery.RegisterAggregatedDiscoveryServiceServer(server, &refuser{same: same})
		go func() { _ = server.Serve(listener) }()
		t.Cleanup(server.Stop)
		w := watch(t, listener.Addr().String())
		for missed := range 8 {
			if same && missed > 0 { // before it is refused again
				assert.LessOrEqual(t, <-w.pauses, refusedPause)
			}
			d, most := <-w.pauses, min(lastPause, firstPause<<missed)
			assert.True(t, d >= most/2 && d < most, "%v after %d", d, missed)
		}
		if same {
			assert.Len(t, w.sets, 1, "it is applied once")
		}
	}
}
