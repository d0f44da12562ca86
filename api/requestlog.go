package api

import (
	"crypto/rand"
	"log/slog"
	"net/http"
	"strings"

	"github.com/labstack/echo/v4"
	"github.com/labstack/echo/v4/middleware"

	"weir/api/telemetry"
)

// requestLogger returns middleware that logs each request at level debug.
func requestLogger(log *slog.Logger, showClients bool) echo.MiddlewareFunc {
	return middleware.RequestLoggerWithConfig(middleware.RequestLoggerConfig{
		LogMethod: true, LogURIPath: true, LogStatus: true, LogLatency: true, LogRemoteIP: true,
		HandleError: true,
		LogValuesFunc: func(c echo.Context, v middleware.RequestLoggerValues) error {
			path, peer := v.URIPath, v.RemoteIP
			if !showClients {
				path, peer = hideClient(path, peer)
			}
			attributes := []slog.Attr{
				slog.String("method", v.Method), slog.String("path", path), slog.Int("status", v.Status),
				slog.Duration("took", v.Latency), slog.String("peer", peer), slog.String("id", c.Response().Header().Get(echo.HeaderXRequestID)),
			}
			if parent := c.Request().Header.Get("Traceparent"); parent != "" {
				attributes = append(attributes, slog.String("traceparent", parent))
			}
			log.LogAttrs(c.Request().Context(), slog.LevelDebug, "request", attributes...)
			return nil
		},
	})
}

// giveRequestID is middleware that gives the answer an id unless it has the one of its request.
func giveRequestID(next echo.HandlerFunc) echo.HandlerFunc {
	return func(c echo.Context) error {
		if h := c.Response().Header(); h[echo.HeaderXRequestID] == nil {
			h.Set(echo.HeaderXRequestID, rand.Text())
		}
		return next(c)
	}
}

// maxRequestID is the longest X-Request-Id that comes back.
const maxRequestID = 128

// returnRequestID gives the answer to r the id that r has, if it has one that is short and
// plain.
func returnRequestID(h http.Header, r *http.Request) {
	ids := r.Header[echo.HeaderXRequestID]
	isOdd := func(c rune) bool { return c <= ' ' || c > '~' }
	if len(ids) == 1 && ids[0] != "" && len(ids[0]) <= maxRequestID && !strings.ContainsFunc(ids[0], isOdd) {
		h[echo.HeaderXRequestID] = []string{ids[0]}
	}
}

// hideClient returns the path and the peer of a request with what may name a
// client replaced by its hash: what follows /clients/ or /overrides/ in any path, so that
// a path with a mistake tells nothing either, and the address of forward auth.
func hideClient(path, peer string) (hiddenPath, hiddenPeer string) {
	for _, named := range []string{"/clients/", "/overrides/"} {
		if before, client, ok := strings.Cut(path, named); ok {
			client, state := strings.CutSuffix(client, "/state")
			if path = before + named + telemetry.HashClient(client); state {
				path += "/state"
			}
			break
		}
	}
	if strings.HasPrefix(path, "/v1/auth/") {
		peer = telemetry.HashClient(peer)
	}
	return path, peer
}
