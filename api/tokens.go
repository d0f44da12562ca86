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

// of returns the one of t that r carries, or the zero Token if there is none. The error is a
// problem.
func (t tokens) of(r *http.Request) (Token, error) {
	if len(t) == 0 {
		return Token{}, nil
	}
	scheme, secret, _ := strings.Cut(r.Header.Get(echo.HeaderAuthorization), " ")
	if !strings.EqualFold(scheme, "Bearer") {
		return Token{}, newProblem(http.StatusUnauthorized, "a bearer token is needed: Authorization: Bearer <token>")
	}
	token, ok := t[sha256.Sum256([]byte(strings.TrimSpace(secret)))]
	if !ok {
		return Token{}, newProblem(http.StatusUnauthorized, "the bearer token is not one of the configured tokens")
	}
	return token, nil
}
