package policy

import (
	"slices"
	"strings"
)

// A Route is a policy's exception for some of the requests that a proxy asks
// about: those of a method and a path, and of all paths below it.
type Route struct {
	// Method is in upper case; "" means any. GET means HEAD too, unless another
	// route of the same path says HEAD.
	Method string
	// Path is what ParseRoutePath returned.
	Path string
	// Cost is what such a request costs, 0 to counters.MaxCost; 0 consumes
	// nothing.
	Cost int64
	// Limits take the place of the policy's limits with the same names. They
	// count these requests apart from all others, and a client's own limits
	// don't replace them.
	Limits []Limit
}

// String returns r as in POST /login.
func (r *Route) String() string { return strings.TrimSpace(r.Method + " " + r.Path) }

// routing finds the routes of requests, by a look-up or two for each segment
// that a route may have, however many routes there are.
type routing struct {
	strict, lenient map[routeKey]*Route
	longest         int // in bytes, of the paths of routes
	segments        []routeSegments
	known           map[string]bool // segments that any route has
}

type routeKey struct{ method, path string }

// routeSegments are the segments of a route's path, as the lenient read it.
type routeSegments struct {
	route    *Route
	segments []string
}

func newRouting(routes []Route) *routing {
	t := &routing{strict: make(map[routeKey]*Route), lenient: make(map[routeKey]*Route), known: make(map[string]bool)}
	for i := range routes {
		r := &routes[i]
		lenient := strings.ToLower(r.Path)
		t.strict[routeKey{r.Method, r.Path}] = r
		t.lenient[routeKey{r.Method, lenient}] = r
		t.longest = max(t.longest, len(r.Path), len(lenient))
		segments := splitPath(lenient)
		t.segments = append(t.segments, routeSegments{r, segments})
		for _, segment := range segments {
			t.known[segment] = true
		}
	}
	return t
}

// match appends the routes that a request has to pass, as MatchRoutes does.
func (t *routing) match(routes []*Route, method, target string) []*Route {
	method = strings.ToUpper(method)
	path := readPath(target)
	last := find(t.lenient, method, path.lenient, t.longest)
	add := func(r *Route) {
		if r != last && !slices.Contains(routes, r) {
			routes = append(routes, r)
		}
	}
	add(find(t.strict, method, path.strict, t.longest))
	// Backends differ in which segments a .. takes away. But it adds none: so whichever
	// route a backend reads has its segments among those of the path, in their order.
	if path.shrinks != nil {
		places := t.places(path.shrinks)
		for _, r := range t.segments {
			if matchesMethod(r.route.Method, method) && within(r.segments, places) {
				add(r.route)
			}
		}
	}
	return append(routes, last)
}

// find returns the route with the longest path that path is or is below of, and
// of those with the same path the one that names the method. It is nil if there
// is none.
func find(routes map[routeKey]*Route, method, path string, longest int) *Route {
	if len(path) > longest {
		// Longer beginnings are no route's, however many there are.
		path = path[:strings.LastIndexByte(path[:longest+1], '/')]
	}
	for {
		key := routeKey{method, path}
		if path == "" {
			key.path = "/"
		}
		r := routes[key]
		if r == nil && method == "HEAD" {
			key.method = "GET"
			r = routes[key]
		}
		if r == nil {
			key.method = ""
			r = routes[key]
		}
		if r != nil || path == "" {
			return r
		}
		path = path[:strings.LastIndexByte(path, '/')]
	}
}

// matchesMethod reports whether a route of one method is for requests of another.
func matchesMethod(route, method string) bool {
	return route == "" || route == method || route == "GET" && method == "HEAD"
}

// places returns where in a path the segments are that routes have, so that a
// route is compared with a few of them, however long a path somebody sends.
func (t *routing) places(path []string) map[string][]int {
	places := make(map[string][]int)
	for i, segment := range path {
		if t.known[segment] {
			places[segment] = append(places[segment], i)
		}
	}
	return places
}

// within reports whether all segments are among those of a path, in their
// order, given the places of each.
func within(segments []string, places map[string][]int) bool {
	next := 0
	for _, segment := range segments {
		at := places[segment]
		i, _ := slices.BinarySearch(at, next)
		if i == len(at) {
			return false
		}
		next = at[i] + 1
	}
	return true
}
