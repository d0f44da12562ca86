package api

import (
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// A scraper that takes OpenMetrics gets the traces of checks that were part of one which is
// kept; another gets what it always has.
func TestTracesAreExemplars(t *testing.T) {
	t.Parallel()
	const trace = "4bf92f3577b34da6a3ce929d0e0e4736"
	for _, test := range []struct {
		parent string
		want   bool
	}{
		{"", false},
		{"00-" + trace + "-00f067aa0ba902b7-01", true},
		{"00-" + trace + "-00f067aa0ba902b7-00", false}, // nobody keeps it
		{"01-" + trace + "-00f067aa0ba902b7-03-more", true},
		{"00-" + trace + "-00f067aa0ba902b7-01-more", false},
		{"01-" + trace + "-00f067aa0ba902b7-01more", false},
		{"ff-" + trace + "-00f067aa0ba902b7-01", false},
		{"00-" + strings.Repeat("0", 32) + "-00f067aa0ba902b7-01", false},
		{"00-" + strings.ToUpper(trace) + "-00f067aa0ba902b7-01", false},
		{"00-" + trace + "-00f067aa0ba902b7", false},
		{"00_" + trace + "-00f067aa0ba902b7-01", false},
		{`00-"} 1` + trace[5:] + "-00f067aa0ba902b7-01", false},
	} {
		for _, request := range []func(*service) result{
			func(s *service) result {
				return s.do(t, http.MethodPost, "/v1/check", `{"policy":"api","client":"c"}`, "Traceparent", test.parent)
			},
			func(s *service) result {
				return s.do(t, http.MethodGet, "/v1/auth/api", "", "Traceparent", test.parent)
			},
		} {
			s := newService(newPolicy("api", fixed("per-minute", 3, time.Minute)))
			require.Equal(t, http.StatusOK, request(s).Code)
			r := s.do(t, http.MethodGet, "/metrics", "", "Accept", "application/openmetrics-text;version=1.0.0,text/plain;q=0.5")
			assert.Contains(t, r.Header.Get("Content-Type"), "application/openmetrics-text")
			assert.Equal(t, test.want, strings.Contains(r.Body, `# {trace_id="`+trace+`"} `), test.parent)
			assert.Equal(t, test.want, strings.Contains(r.Body, "trace_id"), test.parent)
			r = s.do(t, http.MethodGet, "/metrics", "")
			assert.Contains(t, r.Header.Get("Content-Type"), "text/plain")
			assert.NotContains(t, r.Body, "trace_id")
		}
	}
}
