// Package xds gets the limits of Envoy's rate limit service from an xDS server: sets of
// ratelimit.config.ratelimit.v3.RateLimitConfig, each of which is the state of the world,
// over the aggregated stream, as envoyproxy/ratelimit asks for them.
//
// It knows gRPC, and nothing of what a set means: the callback decides that.
package xds

import (
	"context"
	"crypto/tls"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"slices"
	"strings"
	"time"

	core "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	discovery "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	ratelimit "github.com/envoyproxy/go-control-plane/ratelimit/config/ratelimit/v3"
	rpc "google.golang.org/genproto/googleapis/rpc/status"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/keepalive"
	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/types/known/anypb"
)

const (
	typeURL = "type.googleapis.com/ratelimit.config.ratelimit.v3.RateLimitConfig"

	// maxSetBytes is how large a set may be; gRPC's own 4 MiB is some 30,000 descriptors.
	maxSetBytes = 64 << 20
	// ping is how often an idle connection is asked whether it is alive. gRPC servers
	// close connections that ask more than once in 5 minutes, unless told otherwise.
	ping = 6 * time.Minute
	// firstPause and lastPause bound the pause before the next connection.
	firstPause, lastPause = time.Second, 30 * time.Second
	// refusedPause is how long a set that was refused already waits for its refusal: there
	// are servers that send it again at once.
	refusedPause = 2 * time.Second
	// maxMistakes is how many lines about a set are sent to the server, and maxMistakeBytes how
	// long each may be: servers limit the size of a message.
	maxMistakes     = 20
	maxMistakeBytes = 1000
)

// A Resource is a RateLimitConfig: its name, and what else it says as a file of
// envoyproxy/ratelimit would.
type Resource struct {
	Name, YAML string
}

// Config says where the sets come from, and where they go.
type Config struct {
	// Server is the address of the xDS server, and Node the id that it knows this one by.
	Server, Node string
	// TLS returns how to connect, for each connection anew; nil is without TLS.
	TLS func() *tls.Config
	// Apply puts a set in force, unless it is unreadable. The error says what is wrong with it;
	// then nothing has changed. It gets one set at a time, and none that is the same as that before.
	Apply func(ctx context.Context, set []Resource, unreadable error) error
	Log   *slog.Logger
}

// Watch gets the sets until ctx ends.
func Watch(ctx context.Context, c Config) { (&client{Config: c, pause: sleep}).watch(ctx) }

// A client is a Config and what it has been sent.
type client struct {
	Config
	pause func(context.Context, time.Duration)

	heard  bool // a set has come, be it right or wrong
	last   []Resource
	wrong  error // what is wrong with last
	missed int   // connections that have failed since the last set that was right
}

func sleep(ctx context.Context, d time.Duration) {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
	case <-ctx.Done():
	}
}

// jitter returns between half of d and d, so that many instances don't come at once.
func jitter(d time.Duration) time.Duration { return d/2 + rand.N(d/2) }

func (c *client) watch(ctx context.Context) {
	for {
		err := c.connection(ctx)
		if ctx.Err() != nil {
			return
		}
		d := jitter(min(lastPause, firstPause<<min(c.missed, 10)))
		c.missed++
		c.Log.Warn("no stream from the xDS server; the limits stay as they are", slog.String("server", c.Server),
			slog.Duration("again_in", d.Round(time.Millisecond)), slog.Any("error", err))
		c.pause(ctx, d)
	}
}

// connection receives sets on a new connection until it ends.
func (c *client) connection(ctx context.Context) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	creds := insecure.NewCredentials()
	if c.TLS != nil {
		creds = credentials.NewTLS(c.TLS())
	}
	conn, err := grpc.NewClient(c.Server, grpc.WithTransportCredentials(creds),
		grpc.WithDefaultCallOptions(grpc.MaxCallRecvMsgSize(maxSetBytes)),
		grpc.WithKeepaliveParams(keepalive.ClientParameters{Time: ping}))
	if err != nil {
		return err
	}
	defer func() { _ = conn.Close() }()
	stream, err := discovery.NewAggregatedDiscoveryServiceClient(conn).StreamAggregatedResources(ctx)
	if err != nil {
		return err
	}
	node := &core.Node{Id: c.Node}
	// Without the version in force: a server that has started anew may have given its name
	// to another set.
	_ = stream.Send(&discovery.DiscoveryRequest{Node: node, TypeUrl: typeURL}) // if it fails, Recv says why
	for version := ""; ; {
		r, err := stream.Recv()
		if err != nil {
			return err
		}
		answer := &discovery.DiscoveryRequest{Node: node, TypeUrl: typeURL, ResponseNonce: r.GetNonce()}
		err = c.update(ctx, r)
		switch {
		case ctx.Err() != nil:
			return ctx.Err()
		case err != nil:
			answer.ErrorDetail = &rpc.Status{Code: int32(codes.InvalidArgument), Message: shorten(err.Error())}
		default:
			version, c.missed = r.GetVersionInfo(), 0
		}
		answer.VersionInfo = version
		_ = stream.Send(answer)
	}
}

// update puts the set of a response in force, or returns why not.
func (c *client) update(ctx context.Context, r *discovery.DiscoveryResponse) error {
	set, unreadable := read(r.GetResources())
	if unreadable != nil {
		set = []Resource{{YAML: unreadable.Error()}} // so that the same mistake is told once
	}
	if c.heard && slices.Equal(set, c.last) {
		if c.wrong != nil {
			c.pause(ctx, jitter(refusedPause))
		}
		return c.wrong
	}
	err := c.Apply(ctx, set, unreadable)
	if ctx.Err() == nil { // else it isn't known
		c.heard, c.last, c.wrong = true, set, err
	}
	return err
}

// read returns the resources of a response, in the order of their names: the same set may
// come in any.
func read(packed []*anypb.Any) ([]Resource, error) {
	set := make([]Resource, len(packed))
	for i, p := range packed {
		var config ratelimit.RateLimitConfig
		if err := p.UnmarshalTo(&config); err != nil {
			return nil, fmt.Errorf("resource %d of %d: %w", i+1, len(packed), err)
		}
		set[i].Name = config.GetName()
		config.Name = "" // no key of a file
		text, err := protojson.MarshalOptions{UseProtoNames: true}.Marshal(&config)
		if err != nil {
			return nil, fmt.Errorf("resource %q: %w", set[i].Name, err)
		}
		set[i].YAML = escape(string(text))
	}
	slices.SortStableFunc(set, func(a, b Resource) int { return strings.Compare(a.Name, b.Name) })
	return set, nil
}

// escape returns JSON without the characters that JSON may have as they are, and YAML may not,
// or takes for the end of a line.
func escape(json string) string {
	special := func(r rune) bool {
		return r >= 0x7f && r < 0xa0 || r == '\u2028' || r == '\u2029' || r == '\ufeff' || r == '\ufffe' || r == '\uffff'
	}
	if !strings.ContainsFunc(json, special) {
		return json
	}
	var b strings.Builder
	for _, r := range json {
		if special(r) {
			fmt.Fprintf(&b, `\u%04x`, r)
		} else {
			b.WriteRune(r)
		}
	}
	return b.String()
}

// shorten returns the first lines of a text that has a line for each mistake, and of long ones
// the beginning and the end.
func shorten(mistakes string) string {
	lines := strings.Split(mistakes, "\n")
	if more := len(lines) - maxMistakes; more > 0 {
		lines = append(lines[:maxMistakes], fmt.Sprintf("and %d more", more))
	}
	for i, line := range lines {
		if len(line) > maxMistakeBytes {
			lines[i] = line[:maxMistakeBytes/2] + "..." + line[len(line)-maxMistakeBytes/2:]
		}
	}
	return strings.ToValidUTF8(strings.Join(lines, "\n"), "\uFFFD")
}
