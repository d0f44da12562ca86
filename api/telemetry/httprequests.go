package telemetry

import (
	"strconv"
	"strings"
	"sync/atomic"

	"github.com/prometheus/client_golang/prometheus"
)

// statuses are those that a response may have: more than three digits make
// net/http panic.
const statuses = 1000

// otherRoute is what a path that isn't there counts as.
const otherRoute = ""

// Requests count the HTTP requests of each route, by its path. They are safe for
// concurrent use.
type Requests map[string]*requests

// requests count those of one route. Counters are made when their status is
// answered first.
type requests struct {
	counters *prometheus.CounterVec // that still lack the code
	byStatus [statuses]atomic.Pointer[prometheus.Counter]
}

// Requests returns the Requests of routes with these paths, in which a
// segment that begins with : stands for any.
func (m *Metrics) Requests(paths []string) Requests {
	of := func(label string) *requests {
		return &requests{counters: m.requests.MustCurryWith(prometheus.Labels{"route": label})}
	}
	byPath := Requests{otherRoute: of("other")}
	for _, path := range paths {
		byPath[path] = of(routeLabel(path))
	}
	return byPath
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

// Count counts a request that was answered with a status.
func (rs Requests) Count(path string, status int) {
	r := rs[path]
	if r == nil {
		r = rs[otherRoute]
	}
	counter := r.byStatus[status].Load()
	if counter == nil {
		made := r.counters.WithLabelValues(strconv.Itoa(status))
		counter = &made
		r.byStatus[status].Store(counter)
	}
	(*counter).Inc()
}
