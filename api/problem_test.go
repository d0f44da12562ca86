package api

import (
	"fmt"
	"net/http"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"

	"weir/counters"
)

// Callers read what has failed, not which package has found it, nor which server it was.
func TestProblemsSayHowTheStoreHasFailed(t *testing.T) {
	t.Parallel()
	s := newService(newPolicy("api", fixed("limit", 2, time.Hour)))
	for err, how := range map[error]string{
		counters.ErrTimeout: "it did not answer in time",
		fmt.Errorf("%w, %w: 10.0.0.1:11211: connection refused", counters.ErrUnavailable, counters.ErrNotSent): "it can't be reached",
		fmt.Errorf("%w, %w: out of memory", counters.ErrUnavailable, counters.ErrRefused):                      "it has refused the request",
	} {
		s.store.failWith(err)
		r := s.do(t, http.MethodGet, "/v1/policies/api/clients/alice/state", "")
		assert.Equal(t, http.StatusServiceUnavailable, r.Code)
		assert.Equal(t, "the store could not say what is in use; try again: "+how, r.Detail)
	}
}
