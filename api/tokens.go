package api

import (
	"crypto/sha256"
	"net/http"
	"strings"

	"github.com/labstack/echo/v4"
)

// tokens are bearer tokens by their hashes, so that the time that a look-up takes
// tells nothing about them. The value is the token's number in its file, from 1.
type tokens map[[sha256.Size]byte]int

// of returns the number of the token that r has, or 0 if that is none of t.
func (t tokens) of(r *http.Request) int {
	_, token, _ := strings.Cut(r.Header.Get(echo.HeaderAuthorization), " ")
	return t[sha256.Sum256([]byte(strings.TrimSpace(token)))]
}

// check returns a problem unless r carries one of t, or there is none. It looks tokens up by their hashes, so that its
// timing tells nothing about them.
func (t tokens) check(r *http.Request) error {
	if len(t) == 0 {
		return nil
	}
	scheme, _, _ := strings.Cut(r.Header.Get(echo.HeaderAuthorization), " ")
	if !strings.EqualFold(scheme, "Bearer") {
		return newProblem(http.StatusUnauthorized, "a bearer token is needed: Authorization: Bearer <token>")
	}
	if t.of(r) == 0 {
		return newProblem(http.StatusUnauthorized, "the bearer token is not one of the configured tokens")
	}
	return nil
}
