// Package weirecho puts weir in front of handlers of echo.
package weirecho

import (
	"github.com/labstack/echo/v4"

	"weir/api/client"
)

// Middleware lets a handler serve only what l allows; client.Admit answers the
// rest. check says what a request asks for. If it names the client by
// c.RealIP, set echo.Echo.IPExtractor: without it anybody can choose that.
func Middleware(l client.Limiter, check func(c echo.Context) client.Check) echo.MiddlewareFunc {
	return func(next echo.HandlerFunc) echo.HandlerFunc {
		return func(c echo.Context) error {
			if !client.Admit(c.Response(), c.Request(), l, check(c)) {
				return nil
			}
			return next(c)
		}
	}
}

// Concurrent is Middleware that holds the places of the check while a handler serves a
// request, and gives them back when it returns, or panics.
func Concurrent(limits *client.Client, check func(c echo.Context) client.Check) echo.MiddlewareFunc {
	return func(next echo.HandlerFunc) echo.HandlerFunc {
		return func(c echo.Context) error {
			lease := limits.AdmitHeld(c.Response(), c.Request(), check(c))
			if lease == nil {
				return nil
			}
			defer lease.Release()
			return next(c)
		}
	}
}
