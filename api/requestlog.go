package api

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"log/slog"
	"strings"

	"github.com/labstack/echo/v4"
	"github.com/labstack/echo/v4/middleware"
)

// requestLogger returns middleware that logs each request at level debug.
func requestLogger(log *slog.Logger, showClients bool) echo.MiddlewareFunc {
	return middleware.RequestLoggerWithConfig(middleware.RequestLoggerConfig{
		LogMethod: true, LogURIPath: true, LogStatus: true, LogLatency: true, LogRemoteIP: true, LogRequestID: true,
		HandleError: true,
		LogValuesFunc: func(c echo.Context, v middleware.RequestLoggerValues) error {
			path, peer := v.URIPath, v.RemoteIP
			if !showClients {
				path, peer = hideClient(path, peer)
			}
			log.LogAttrs(c.Request().Context(), slog.LevelDebug, "request",
				slog.String("method", v.Method), slog.String("path", path), slog.Int("status", v.Status),
				slog.Duration("took", v.Latency), slog.String("peer", peer), slog.String("id", v.RequestID))
			return nil
		},
	})
}

// A checkLogger logs each check by policies at level debug.
type checkLogger struct {
	log         *slog.Logger
	showClients bool
}

// write logs the answer to a check with the names of the limits that deny, or else of
// all that it asked.
func (l *checkLogger) write(a *answer) {
	client := a.client
	if !l.showClients {
		client = hashClient(client)
	}
	d := a.decision()
	var limits []string
	for i := range a.limits {
		if limit := &a.limits[i]; d == decisionAllowed || d == decisionError || !limit.Allowed {
			limits = append(limits, limit.Name)
		}
	}
	l.log.LogAttrs(context.Background(), slog.LevelDebug, "check",
		slog.String("policy", a.policy.Name), slog.String("client", client), slog.String("decision", decisionNames[d]),
		slog.String("limits", strings.Join(limits, ",")), slog.Bool("degraded", a.degraded != nil))
}

// hideClient returns the path and the peer of a request with what may name a
// client replaced by its hash: what follows /clients/ in any path, so that a
// path with a mistake tells nothing either, and the address of forward auth.
func hideClient(path, peer string) (hiddenPath, hiddenPeer string) {
	const clients = "/clients/"
	if before, client, ok := strings.Cut(path, clients); ok {
		path = before + clients + hashClient(client)
	}
	if strings.HasPrefix(path, "/v1/auth/") {
		peer = hashClient(peer)
	}
	return path, peer
}

// hashClient returns the first 16 digits of the client's SHA-256.
func hashClient(client string) string {
	sum := sha256.Sum256([]byte(client))
	return hex.EncodeToString(sum[:8])
}
