package policy

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

func TestReadPath(t *testing.T) {
	t.Parallel()
	for target, want := range map[string]requestPath{
		"":                             {strict: "/", lenient: "/"},
		"/":                            {strict: "/", lenient: "/"},
		"*":                            {strict: "/*", lenient: "/*"},
		"/login":                       {strict: "/login", lenient: "/login"},
		"/login/":                      {strict: "/login/", lenient: "/login/"},
		"/login?next=/../a//b":         {strict: "/login", lenient: "/login"},
		"login":                        {strict: "/login", lenient: "/login"},
		"/a.b/c~d/@e:f":                {strict: "/a.b/c~d/@e:f", lenient: "/a.b/c~d/@e:f"},
		"/%6Cogin":                     {strict: "/login", lenient: "/login"},
		"/caf%C3%A9":                   {strict: "/café", lenient: "/café"},
		"/a%20b":                       {strict: "/a b", lenient: "/a b"},
		"/%256Cogin":                   {strict: "/%6Cogin", lenient: "/%6cogin"},
		"/100%":                        {strict: "/100%", lenient: "/100%"},
		"/%zz%4":                       {strict: "/%zz%4", lenient: "/%zz%4"},
		"/Login":                       {strict: "/Login", lenient: "/login"},
		"/login;jsessionid=7/x":        {strict: "/login;jsessionid=7/x", lenient: "/login/x"},
		"/login%3Bx":                   {strict: "/login;x", lenient: "/login"},
		"/login%3Fx":                   {strict: "/login?x", lenient: "/login"},
		"/login#x":                     {strict: "/login#x", lenient: "/login"},
		"/login%00":                    {strict: "/login\x00", lenient: "/login"},
		"/login%20":                    {strict: "/login ", lenient: "/login"},
		"/login%0A":                    {strict: "/login\n", lenient: "/login"},
		"/a//b":                        {strict: "/a//b", lenient: "/a/b"},
		"/a/./b/.":                     {strict: "/a/./b/.", lenient: "/a/b"},
		"/.well-known/x":               {strict: "/.well-known/x", lenient: "/.well-known/x"},
		"/a%2Fb":                       {strict: "/a\x00b", lenient: "/a/b"},
		`/a\b%5cc`:                     {strict: `/a\b\c`, lenient: "/a/b/c"},
		"/a/../b":                      {strict: "/a/../b", lenient: "/b", shrinks: []string{"a", "..", "b"}},
		"/../../b":                     {strict: "/../../b", lenient: "/b", shrinks: []string{"..", "..", "b"}},
		"/a/%2e%2E/b":                  {strict: "/a/../b", lenient: "/b", shrinks: []string{"a", "..", "b"}},
		"/a%2F..%2Fb":                  {strict: "/a\x00..\x00b", lenient: "/b", shrinks: []string{"a", "..", "b"}},
		"/a/..;x/b":                    {strict: "/a/..;x/b", lenient: "/b", shrinks: []string{"a", "..", "b"}},
		"/a/b/..":                      {strict: "/a/b/..", lenient: "/a", shrinks: []string{"a", "b", ".."}},
		"//host/login":                 {strict: "//host/login", lenient: "/host/login", shrinks: []string{"host", "login"}},
		`/\host/login`:                 {strict: `/\host/login`, lenient: "/host/login", shrinks: []string{"host", "login"}},
		"http://host/login?x":          {strict: "/login", lenient: "/login"},
		"http://host":                  {strict: "/", lenient: "/"},
		"http://host//login":           {strict: "//login", lenient: "/login", shrinks: []string{"login"}},
		"/redirect://host/login":       {strict: "/redirect://host/login", lenient: "/redirect:/host/login"},
		"/..a/...":                     {strict: "/..a/...", lenient: "/..a/..."},
		"/" + strings.Repeat("a/", 99): {strict: "/" + strings.Repeat("a/", 99), lenient: "/" + strings.Repeat("a/", 99)},
	} {
		assert.Equal(t, want, readPath(target), "%q", target)
	}
}

func TestRoutePaths(t *testing.T) {
	t.Parallel()
	for text, want := range map[string]string{
		"/": "/", "/login": "/login", "/Login/x.y": "/Login/x.y", "/caf%C3%A9": "/café", "/café": "/café", "/a%20b": "/a b", "/v1/a:b": "/v1/a:b",
	} {
		path, err := ParseRoutePath(text)
		require.NoError(t, err, text)
		assert.Equal(t, want, path)
	}
	for text, message := range map[string]string{
		"":           `path "" must begin with /`,
		"login":      `path "login" must begin with /`,
		"/login/":    `path "/login/" must be written as "/login"; it holds for all paths below it too`,
		"//":         `path "//" must be written as "/"; it holds for all paths below it too`,
		"/a//b":      `path "/a//b" must be written as "/a/b"; it holds for all paths below it too`,
		"/a/./b":     `path "/a/./b" must be written as "/a/b"; it holds for all paths below it too`,
		"/a%2Fb":     `path "/a%2Fb" must be written as "/a/b"; it holds for all paths below it too`,
		`/a\b`:       `path "/a\\b" must be written as "/a/b"; it holds for all paths below it too`,
		"/a;b":       `path "/a;b" must be written as "/a"; it holds for all paths below it too`,
		"/a/../b":    `path "/a/../b" must have no .. in it`,
		"/a/%2e%2e":  `path "/a/%2e%2e" must have no .. in it`,
		"/a?b=c":     `path "/a?b=c" has a query or fragment; routes go by the path alone`,
		"/a#b":       `path "/a#b" has a query or fragment; routes go by the path alone`,
		"/users/*":   `path "/users/*" has a placeholder; a path holds for all paths below it, so end it before that`,
		"/users/:id": `path "/users/:id" has a placeholder; a path holds for all paths below it, so end it before that`,
		"/users/{i}": `path "/users/{i}" has a placeholder; a path holds for all paths below it, so end it before that`,
	} {
		_, err := ParseRoutePath(text)
		assert.EqualError(t, err, message)
	}
}

// Whatever a path is, reading it doesn't panic, and its lenient reading read
// again is itself.
func FuzzReadPath(f *testing.F) {
	for _, target := range []string{"/a/../b", "//a%2F%2e.;x\\B", "http://h/%", "/%00/ /?#", "/\xff/É"} {
		f.Add(target)
	}
	f.Fuzz(func(t *testing.T, target string) {
		p := readPath(target)
		require.True(t, strings.HasPrefix(p.strict, "/") && strings.HasPrefix(p.lenient, "/"), "%+v", p)
		if !strings.ContainsAny(p.lenient, "%?#:") {
			again := readPath(p.lenient)
			require.Equal(t, strings.TrimSuffix(p.lenient, "/"), strings.TrimSuffix(again.lenient, "/"))
			require.Nil(t, again.shrinks)
		}
	})
}
