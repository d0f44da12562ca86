package loadgen

import (
	"io"
	"net/http"

	"github.com/labstack/echo/v4"
)

// NoopHandler reads each check and answers r: what a server costs that decides nothing.
func NoopHandler(r Reply) http.Handler {
	e := echo.New()
	contentType := r.Header.Get(echo.HeaderContentType)
	e.POST(CheckPath, func(c echo.Context) error {
		if _, err := io.Copy(io.Discard, c.Request().Body); err != nil {
			return err
		}
		header := c.Response().Header()
		for name, values := range r.Header {
			header[name] = values
		}
		return c.Blob(r.Status, contentType, r.Body)
	})
	return e
}
