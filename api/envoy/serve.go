package envoy

import (
	"context"
	"crypto/tls"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"runtime/debug"
	"time"

	rls "github.com/envoyproxy/go-control-plane/envoy/service/ratelimit/v3"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials"
	_ "google.golang.org/grpc/encoding/gzip" // requests may be compressed
	"google.golang.org/grpc/health"
	healthpb "google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/keepalive"
	"google.golang.org/grpc/reflection"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/encoding/protojson"
)

const (
	// maxMessageBytes is how large a request may be.
	maxMessageBytes = 4 << 20
	// minPing is how often a connection may be asked whether it is alive.
	minPing = 10 * time.Second
	// maxStreams is how many requests a connection may have under way. Their handlers
	// count until they have ended, though the caller has reset them.
	maxStreams = 250
	// workers are goroutines that answer one request after another, so that their
	// stacks don't have to grow for each; when all are busy, there are more.
	workers = 256
	// handshakeTimeout bounds opening a connection.
	handshakeTimeout = 10 * time.Second
)

// A Server serves a Service over gRPC, with Kuadrant's reservations, health and reflection. Make it with
// NewServer.
type Server struct {
	grpc     *grpc.Server
	health   *health.Server
	stopping context.Context
	stop     context.CancelFunc
}

// NewServer returns a server that isn't listening. It serves without TLS if
// config is nil. A connection that is older than age, a tenth more or less, gets no more
// requests, and is closed when those under way are answered, or after grace; 0 is any age.
// Panics of s go to log.
func NewServer(s *Service, config *tls.Config, age, grace time.Duration, log *slog.Logger) *Server {
	server := &Server{health: health.NewServer()}
	server.stopping, server.stop = context.WithCancel(context.Background())
	options := []grpc.ServerOption{
		grpc.MaxRecvMsgSize(maxMessageBytes),
		grpc.MaxConcurrentStreams(maxStreams),
		grpc.ConnectionTimeout(handshakeTimeout),
		grpc.KeepaliveEnforcementPolicy(keepalive.EnforcementPolicy{MinTime: minPing, PermitWithoutStream: true}),
		grpc.KeepaliveParams(keepalive.ServerParameters{MaxConnectionAge: age, MaxConnectionAgeGrace: grace}),
		grpc.WaitForHandlers(true),
		grpc.NumStreamWorkers(workers),
		grpc.UnaryInterceptor(recovering(log)),
		grpc.StreamInterceptor(server.streaming),
	}
	if config != nil {
		options = append(options, grpc.Creds(credentials.NewTLS(config)))
	}
	server.grpc = grpc.NewServer(options...)
	server.health.SetServingStatus("ratelimit", healthpb.HealthCheckResponse_SERVING)
	rls.RegisterRateLimitServiceServer(server.grpc, s)
	server.grpc.RegisterService(kuadrantService(s), s)
	healthpb.RegisterHealthServer(server.grpc, server.health)
	reflection.Register(server.grpc)
	return server
}

// recovering turns a panic into an error: it must not end the process.
func recovering(log *slog.Logger) grpc.UnaryServerInterceptor {
	return func(ctx context.Context, r any, info *grpc.UnaryServerInfo, handle grpc.UnaryHandler) (answer any, err error) {
		defer func() {
			if v := recover(); v != nil {
				log.LogAttrs(ctx, slog.LevelError, "request failed", slog.String("method", info.FullMethod),
					slog.String("error", fmt.Sprint(v)), slog.String("stack", string(debug.Stack())))
				answer, err = nil, status.Error(codes.Internal, "the request failed inside weir; its log says why")
			}
		}()
		return handle(ctx, r)
	}
}

// streaming ends a stream when the server stops: one that watches the health, or reflection's,
// would last for as long as its caller likes.
func (s *Server) streaming(srv any, stream grpc.ServerStream, _ *grpc.StreamServerInfo, handle grpc.StreamHandler) error {
	ended := make(chan error, 1)
	go func() { ended <- handle(srv, stream) }()
	select {
	case err := <-ended:
		return err
	case <-s.stopping.Done():
		return status.Error(codes.Unavailable, "weir is going away")
	}
}

// Serve serves on l, which it closes, until Stop.
func (s *Server) Serve(l net.Listener) error { return s.grpc.Serve(l) }

// SetReady says to health checks whether the server has limits to answer by. A new server says that
// it has.
func (s *Server) SetReady(ready bool) {
	status := healthpb.HealthCheckResponse_NOT_SERVING
	if ready {
		status = healthpb.HealthCheckResponse_SERVING
	}
	for _, service := range []string{"", "ratelimit"} {
		s.health.SetServingStatus(service, status)
	}
}

// Drain says to health checks that the server goes away.
func (s *Server) Drain() { s.health.Shutdown() }

// Stop drains, ends streams, refuses new requests and returns when those under way are
// answered. Connections that wait to be accepted are cut. What is left when ctx ends is
// cut off; the error says so.
func (s *Server) Stop(ctx context.Context) error {
	s.Drain()
	s.stop()
	stopped := make(chan struct{})
	go func() {
		s.grpc.GracefulStop()
		close(stopped)
	}()
	select {
	case <-stopped:
		return nil
	case <-ctx.Done():
		s.grpc.Stop()
		<-stopped
		return fmt.Errorf("gRPC requests were still under way: %w", ctx.Err())
	}
}

// ServeHTTP answers a RateLimitRequest in JSON with a RateLimitResponse: with
// status 200, or 429 over the limit, or 400 and a text if the request is wrong.
func (s *Service) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	body, err := io.ReadAll(http.MaxBytesReader(w, r.Body, maxMessageBytes))
	if err != nil {
		http.Error(w, fmt.Sprintf("the request can't be read; it may have %d bytes: %v", maxMessageBytes, err), http.StatusBadRequest)
		return
	}
	var request rls.RateLimitRequest
	if err := protojson.Unmarshal(body, &request); err != nil {
		http.Error(w, "the body must be a RateLimitRequest in JSON: "+err.Error(), http.StatusBadRequest)
		return
	}
	// A check that has begun goes on, even if its caller leaves.
	response, err := s.ShouldRateLimit(context.WithoutCancel(r.Context()), &request)
	if err != nil {
		http.Error(w, status.Convert(err).Message(), http.StatusBadRequest)
		return
	}
	answer, err := protojson.Marshal(response)
	if err != nil {
		http.Error(w, "the answer has no form in JSON", http.StatusInternalServerError)
		return
	}
	w.Header().Set("Content-Type", "application/json")
	if response.GetOverallCode() == rls.RateLimitResponse_OVER_LIMIT {
		w.WriteHeader(http.StatusTooManyRequests)
	}
	_, _ = w.Write(answer)
}

// ServeConfig answers with the limits in force, a line for each.
func (s *Service) ServeConfig(w http.ResponseWriter, _ *http.Request) {
	w.Header().Set("Content-Type", "text/plain; charset=utf-8")
	_, _ = io.WriteString(w, s.active.Load().Config.String())
}
