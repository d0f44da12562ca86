package main

import (
	"fmt"
	"os"
	"strings"

	"weir/api"
)

// readTokens reads the bearer tokens in a file, one a line: the token alone, or behind a
// word that says what it may do, operate or check; and then, if any, # and whose it is.
// Empty lines and lines that begin with # are left out.
func readTokens(file string) (tokens []api.Token, err error) {
	data, err := os.ReadFile(file)
	if err != nil {
		return nil, fmt.Errorf("-token-file: %w", err)
	}
	rights := map[string]bool{"operate": true, "check": true}
	type known struct {
		api.Token
		line int
	}
	bySecret := make(map[string]known)
	number := 0
	for line := range strings.Lines(strings.TrimPrefix(string(data), "\ufeff")) { // editors may put a byte order mark there
		number++
		words, name, _ := strings.Cut(" "+strings.TrimSpace(strings.ReplaceAll(line, "\t", " ")), " #")
		var t api.Token
		switch fields := strings.Fields(words); {
		case len(fields) == 0:
			continue
		case len(fields) == 1 && !rights[fields[0]]:
			t.Secret = fields[0]
		case len(fields) == 2 && rights[fields[0]]:
			t.Secret, t.ChecksOnly = fields[1], fields[0] == "check"
		default:
			return nil, fmt.Errorf("-token-file %s:%d: a line must be a token, \"operate\" and a token, or \"check\" and a token, and then # and whose it is", file, number)
		}
		t.Name = strings.TrimSpace(name)
		if first, again := bySecret[t.Secret]; again && first.Token != t {
			return nil, fmt.Errorf("-token-file %s:%d: the token of line %d again, with other rights or another name; leave one of the lines out", file, number, first.line)
		}
		bySecret[t.Secret] = known{t, number}
		tokens = append(tokens, t)
	}
	if len(tokens) == 0 {
		return nil, fmt.Errorf("-token-file %s has no token; it needs one a line", file)
	}
	return tokens, nil
}

// readUser reads the user and password in the first line of a file.
func readUser(file string) (user, password string, err error) {
	data, err := os.ReadFile(file)
	if err != nil {
		return "", "", fmt.Errorf("-memcached-user-file: %w", err)
	}
	line, _, _ := strings.Cut(string(data), "\n")
	user, password, ok := strings.Cut(strings.TrimSpace(line), ":")
	if !ok || user == "" || password == "" {
		return "", "", fmt.Errorf("-memcached-user-file %s must begin with a line user:password", file)
	}
	return user, password, nil
}
