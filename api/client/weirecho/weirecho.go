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
