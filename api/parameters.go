package api

import (
	"maps"
	"net/url"
	"slices"
	"strconv"
	"strings"

	"github.com/labstack/echo/v4"
)

// onlyNumber returns the whole number that the parameter of that name is, or missing if there is
// none. The error is a problem, of a number that isn't from 1 to most, or another parameter.
func onlyNumber(c echo.Context, name string, missing, most int) (int, error) {
	parameters, err := parametersOf(c, name)
	if err != nil {
		return 0, err
	}
	if text, ok := parameters[name]; ok {
		return wholeNumber(name, text, most)
	}
	return missing, nil
}

// parametersOf returns the parameters of the query of c. The error is a problem, also of one that
// isn't among known or is given twice.
func parametersOf(c echo.Context, known ...string) (map[string]string, error) {
	query, err := queryOf(c, known...)
	if err != nil {
		return nil, err
	}
	parameters := make(map[string]string, len(query))
	for name, values := range query {
		if len(values) > 1 {
			return nil, badRequest("%s is given %d times and must be given once", name, len(values))
		}
		parameters[name] = values[0]
	}
	return parameters, nil
}

// queryOf returns the query of c. The error is a problem, also of a parameter that isn't among
// known. c.QueryParams leaves out what it can't read, so that a default would hold in its place.
func queryOf(c echo.Context, known ...string) (url.Values, error) {
	if c.Request().URL.RawQuery == "" {
		return nil, nil
	}
	query, err := url.ParseQuery(c.Request().URL.RawQuery)
	if err != nil {
		return nil, badRequest("the query can't be read: %v", err)
	}
	for _, name := range slices.Sorted(maps.Keys(query)) {
		switch {
		case slices.Contains(known, name):
		case len(known) == 0:
			return nil, badRequest("there is no parameter %q; this request has none", name)
		case len(known) == 1:
			return nil, badRequest("there is no parameter %q; there is %s", name, known[0])
		default:
			last := len(known) - 1
			return nil, badRequest("there is no parameter %q; there are %s and %s", name, strings.Join(known[:last], ", "), known[last])
		}
	}
	return query, nil
}

// wholeNumber returns the number that text is, the value of a parameter. The error is a problem.
func wholeNumber(name, text string, most int) (int, error) {
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
