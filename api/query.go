package api

import (
	"net/url"
	"strconv"

	"github.com/labstack/echo/v4"
)

// number returns the whole number, from 1 to most, that the only parameter of the query is.
func number(c echo.Context, name string, missing, most int) (int, error) {
	for other := range c.QueryParams() {
		if other != name {
			return 0, badRequest("there is no parameter %q; there is %s", other, name)
		}
	}
	text := c.QueryParam(name)
	if text == "" {
		return missing, nil
	}
	n, err := strconv.Atoi(text)
	if err != nil || n < 1 || n > most {
		return 0, badRequest("%s is %q and must be a whole number from 1 to %d", name, text, most)
	}
	return n, nil
}

// unescaped returns a parameter of the path of c as its caller means it.
func unescaped(c echo.Context, parameter, what string) (string, error) {
	// echo matches the escaped path when Go would escape it differently.
	if c.Request().URL.RawPath == "" {
		return parameter, nil
	}
	text, err := url.PathUnescape(parameter)
	if err != nil {
		err = badRequest("the %s in the path is not well escaped: %v", what, err)
	}
	return text, err
}
