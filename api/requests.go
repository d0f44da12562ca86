package api

import (
	"strconv"
	"strings"
	"sync/atomic"

	"github.com/labstack/echo/v4"
	"github.com/prometheus/client_golang/prometheus"
)

// statuses are those that a response may have: more than three digits make
// net/http panic.
const statuses = 1000

// otherRoute is what a path that isn't there counts as.
const otherRoute = ""

// routeCounters count the requests of each route, by echo's path of it.
type routeCounters map[string]*routeCounter

// A routeCounter counts the requests of one route. Counters are made when their
// status is answered first.
type routeCounter struct {
	requests *prometheus.CounterVec // that still lacks the code
	byStatus [statuses]atomic.Pointer[prometheus.Counter]
}

func (m *Metrics) routes(routes []*echo.Route) routeCounters {
	labels := map[string]*routeCounter{}
	counter := func(label string) *routeCounter {
		if labels[label] == nil {
			labels[label] = &routeCounter{requests: m.requests.MustCurryWith(prometheus.Labels{"route": label})}
		}
		return labels[label]
	}
	counters := routeCounters{otherRoute: counter("other")}
	for _, route := range routes {
		counters[route.Path] = counter(routeLabel(route.Path))
	}
	return counters
}

// routeLabel returns a route as the documentation writes it:
// /v1/policies/{policy} for /v1/policies/:policy. What a route takes with all
// that is below it counts as one.
func routeLabel(path string) string {
	segments := strings.Split(strings.TrimSuffix(path, "/*"), "/")
	for i, segment := range segments {
		if name, ok := strings.CutPrefix(segment, ":"); ok {
			segments[i] = "{" + name + "}"
		}
	}
	return strings.Join(segments, "/")
}

// count counts a request that was answered with a status.
func (rs routeCounters) count(path string, status int) {
	r := rs[path]
	if r == nil {
		r = rs[otherRoute]
	}
	counter := r.byStatus[status].Load()
	if counter == nil {
		made := r.requests.WithLabelValues(strconv.Itoa(status))
		counter = &made
		r.byStatus[status].Store(counter)
	}
	(*counter).Inc()
}
