package api

import (
	"cmp"
	"crypto/sha256"
	"encoding/hex"
	"net/http"
	"strings"

	"github.com/labstack/echo/v4"
)

// A Token is a bearer token of /v1/*.
type Token struct {
	Secret string
	// Name says in logs whose it is; "" stands for the first digits of its hash.
	Name string
	// ChecksOnly says that it may make checks and look, and change nothing for others.
	ChecksOnly bool
}

// tokens are bearer tokens by their hashes, so that the time that a look-up takes
// tells nothing about them.
type tokens map[[sha256.Size]byte]Token

func newTokens(list []Token) tokens {
	t := make(tokens, len(list))
	for _, token := range list {
		sum := sha256.Sum256([]byte(token.Secret))
		token.Name = cmp.Or(token.Name, hex.EncodeToString(sum[:4]))
		t[sum] = token
	}
	return t
}

// of returns the token that r has, and reports whether it is one of t.
func (t tokens) of(r *http.Request) (Token, bool) {
	_, secret, _ := strings.Cut(r.Header.Get(echo.HeaderAuthorization), " ")
	token, ok := t[sha256.Sum256([]byte(strings.TrimSpace(secret)))]
	return token, ok
}

// check returns a problem unless r carries one of t, or there is none.
func (t tokens) check(r *http.Request) error {
	if len(t) == 0 {
		return nil
	}
	scheme, _, _ := strings.Cut(r.Header.Get(echo.HeaderAuthorization), " ")
	if !strings.EqualFold(scheme, "Bearer") {
		return newProblem(http.StatusUnauthorized, "a bearer token is needed: Authorization: Bearer <token>")
	}
	if _, ok := t.of(r); !ok {
		return newProblem(http.StatusUnauthorized, "the bearer token is not one of the configured tokens")
	}
	return nil
}
