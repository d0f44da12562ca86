package api

import (
	"log/slog"
	"strings"

	"github.com/labstack/echo/v4"
	"github.com/labstack/echo/v4/middleware"

	"weir/api/telemetry"
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

// hideClient returns the path and the peer of a request with what may name a
// client replaced by its hash: what follows /clients/ in any path, so that a
// path with a mistake tells nothing either, and the address of forward auth.
func hideClient(path, peer string) (hiddenPath, hiddenPeer string) {
	const clients = "/clients/"
	if before, client, ok := strings.Cut(path, clients); ok {
		path = before + clients + telemetry.HashClient(client)
	}
	if strings.HasPrefix(path, "/v1/auth/") {
		peer = telemetry.HashClient(peer)
	}
	return path, peer
}
