package telemetry

import (
	"testing"

	"github.com/stretchr/testify/assert"
)

// A server is silent that has answered nothing since it was listened to.
func TestSilence(t *testing.T) {
	t.Parallel()
	var m Metrics
	silent := m.Silence()
	answer := func(server string, ended outcome) { m.operations.of(server)[opRead][ended].Add(1) }
	assert.True(t, silent(), "nobody has been asked")
	answer("a", endedOK)
	assert.False(t, silent())
	assert.True(t, silent())
	answer("a", endedOK)
	answer("b", endedOK)
	assert.False(t, silent())
	answer("a", endedOK)
	answer("b", endedTimeout)
	assert.True(t, silent())
	answer("a", endedOK)
	m.operations.keep([]string{"a"})
	assert.False(t, silent())
}
