package policy

import (
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"weir/counters"
)

func TestTheRouteWithTheLongestPathHolds(t *testing.T) {
	t.Parallel()
	routes := []Route{
		{Path: "/a"}, {Method: "POST", Path: "/a"}, {Method: "POST", Path: "/a/b"}, {Path: "/a/b/c"}, {Method: "HEAD", Path: "/a/b/c"},
		{Method: "GET", Path: "/get"}, {Method: "PURGE", Path: "/"}, {Path: "/Mixed"}, {Path: "/café au lait"},
	}
	index := NewIndex(&Policy{Routes: routes})
	for _, test := range []struct{ method, path, want string }{
		{"GET", "/", ""}, {"GET", "", ""}, {"PURGE", "", "PURGE /"}, {"PURGE", "/x/y", "PURGE /"}, {"purge", "/", "PURGE /"},
		{"GET", "/a", "/a"}, {"GET", "/a/", "/a"}, {"GET", "/a/x", "/a"}, {"GET", "/a?b", "/a"}, {"GET", "/ab", ""}, {"GET", "/a.b", ""}, {"GET", "/x/a", ""},
		{"POST", "/a", "POST /a"}, {"post", "/a/x", "POST /a"}, {"POST", "/a/b", "POST /a/b"}, {"POST", "/a/bc", "POST /a"}, {"GET", "/a/b", "/a"},
		{"POST", "/a/b/c", "/a/b/c"}, {"GET", "/a/b/c/d/e", "/a/b/c"}, {"HEAD", "/a/b/c/d/e", "HEAD /a/b/c"}, {"HEAD", "/a/b", "/a"}, {"PURGE", "/a", "/a"},
		{"GET", "/get", "GET /get"}, {"HEAD", "/get/it", "GET /get"}, {"POST", "/get", ""},
		{"GET", "/Mixed", "/Mixed"}, {"GET", "/Mixed/Case", "/Mixed"}, {"GET", "/caf%C3%A9%20au%20lait", "/café au lait"}, {"GET", "/café%20au lait/x", "/café au lait"},
		{"GET", "/a" + strings.Repeat("/x", 300_000), "/a"}, {"GET", strings.Repeat("/x", 300_000), ""},
	} {
		got := index.MatchRoutes(nil, test.method, test.path)
		require.Len(t, got, 1, "%s %s", test.method, test.path)
		name := ""
		if got[0] != nil {
			name = got[0].String()
		}
		assert.Equal(t, test.want, name, "%s %s", test.method, test.path)
	}
}

// A long path costs no more look-ups than the longest of a route: longer beginnings of it aren't
// looked up.
func TestNoBeginningLongerThanARouteIsLookedUp(t *testing.T) {
	t.Parallel()
	assert.Equal(t, len("/a/b"), newRouting([]Route{{Path: "/a/b"}, {Path: "/c"}}).longest)
	short, long := &Route{Path: "/a"}, &Route{Path: "/a/bc"}
	routes := map[routeKey]*Route{{path: short.Path}: short, {path: long.Path}: long}
	for longest, want := range map[int]*Route{1: nil, 2: short, 4: short, 5: long, 100: long} {
		assert.Same(t, want, find(routes, "GET", "/a/bc/d", longest), "%d", longest)
	}
}

// Not parallel: it counts the allocations of the whole process.
func TestFindingARouteAllocatesNothing(t *testing.T) {
	index := NewIndex(&Policy{Routes: []Route{{Method: "POST", Path: "/login"}, {Path: "/api"}}})
	var found *Route
	for _, target := range []string{"/api/orders/7?x=Y", "/login", "/"} {
		assert.Zero(t, testing.AllocsPerRun(100, func() {
			var room [4]*Route
			routes := index.MatchRoutes(room[:0], "POST", target)
			found = routes[len(routes)-1]
		}), target)
	}
	assert.Nil(t, found)
}

// A path of 64 KiB is read once, not once for each route.
func TestSegmentsOfARouteAreFoundByTheirPlaces(t *testing.T) {
	t.Parallel()
	routing := newRouting([]Route{{Path: "/a/b"}, {Path: "/c"}})
	assert.Equal(t, map[string][]int{"a": {1, 3}, "c": {4}}, routing.places([]string{"x", "a", "..", "a", "c", "x"}))
	rapid.Check(t, func(t *rapid.T) {
		few := rapid.SliceOfN(rapid.SampledFrom([]string{"a", "b", "c", "x"}), 0, 6)
		segments, path := few.Draw(t, "segments"), few.Draw(t, "path")
		rest := segments
		for _, segment := range path {
			if len(rest) > 0 && rest[0] == segment {
				rest = rest[1:]
			}
		}
		want := len(rest) == 0 && !slices.Contains(segments, "x")
		assert.Equal(t, want, within(segments, routing.places(path)))
	})
}

// Where readers of a path may differ, the limits of each reading have to admit.
func TestPathsWithSeveralReadings(t *testing.T) {
	t.Parallel()
	routes := []Route{{Method: "POST", Path: "/login"}, {Path: "/static"}, {Path: "/api/export"}, {Path: "/api"}, {Path: "/Mixed"}}
	index := NewIndex(&Policy{Routes: routes})
	for target, want := range map[string]string{
		"/LOGIN": ", POST /login", "/login;x": ", POST /login", "/login%2F": ", POST /login", "/%2flogin": ", POST /login", "/login%00": ", POST /login",
		"//login": ", POST /login", `/\login`: ", POST /login", "/./login": ", POST /login", "/mixed": ", /Mixed",
		"/x/../login": ", POST /login", "/x/..%2flogin": ", POST /login", "/x/..;/login": ", POST /login", "/x/%2e%2e/login": ", POST /login",
		"//x/login":              "POST /login, ", // login, if x is a host
		"/login/../x":            "POST /login, ",
		"/static/../login":       "/static, POST /login",
		"/static/../":            "/static, ",
		"/static%2f..%2flogin":   ", /static, POST /login",
		"/login/../static":       "POST /login, /static",
		"/api/export/../x":       "/api/export, /api",
		"/api//../export/x":      "/api, /api/export, ", // only the last merges slashes
		"/api/x/../export":       "/api, /api/export",
		"/static/..%2fapi/x":     "/static, /api",
		"/%61pi/export":          "/api/export",
		"/static/x":              "/static",
		"/static/x%2Fy":          "/static",
		"/static/%E2%82%AC.png":  "/static",
		"/api/Users/A;b//c%2Fd/": "/api",
	} {
		var names []string
		for _, r := range index.MatchRoutes(nil, "POST", target) {
			if r == nil {
				r = &Route{}
			}
			names = append(names, r.String())
		}
		assert.Equal(t, want, strings.Join(names, ", "), target)
	}
}

// The name in the store is one that a store takes, and no other limit's.
func TestStoredNames(t *testing.T) {
	t.Parallel()
	seen := make(map[string]bool)
	for _, name := range []string{"l", "per-minute", strings.Repeat("x", 63), strings.Repeat("x", 62) + "y"} {
		for _, route := range []string{"", "/", "POST /", "POST /login", "/login", "l /login"} {
			l := Limit{Name: name, Route: route}
			stored := l.StoredName()
			require.NoError(t, counters.CheckName(stored))
			require.False(t, seen[stored], stored)
			seen[stored] = true
			if route == "" {
				require.Equal(t, name, stored)
			}
		}
	}
}
