package envoy

import (
	"fmt"
	"testing"

	common "github.com/envoyproxy/go-control-plane/envoy/extensions/common/ratelimit/v3"
	rls "github.com/envoyproxy/go-control-plane/envoy/service/ratelimit/v3"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"weir/api/policy"
)

// hits counts for a fixture by name. One request at a time may be asked.
func (f *fixture) hits() map[string]*Hits {
	counted := make(map[string]*Hits)
	f.CountHits(func(limit string) func(Hits) {
		if counted[limit] != nil {
			panic("looked up twice: " + limit)
		}
		all := new(Hits)
		counted[limit] = all
		return func(h Hits) {
			all.Total, all.Within, all.Over = all.Total+h.Total, all.Within+h.Within, all.Over+h.Over
			all.Near, all.Local, all.Shadow = all.Near+h.Near, all.Local+h.Local, all.Shadow+h.Shadow
		}
	})
	return counted
}

func (f *fixture) take(t *testing.T, hits uint32, descriptors ...*common.RateLimitDescriptor) {
	t.Helper()
	_, err := f.Service.ShouldRateLimit(t.Context(), &rls.RateLimitRequest{Domain: "d", Descriptors: descriptors, HitsAddend: hits})
	require.NoError(t, err)
}

func TestHitsAreCountedAsEnvoysMetricsTellThem(t *testing.T) {
	shadow := limited("shadow", "", 10)
	shadow.Rule.Limit.Leniency = policy.Shadow
	path := &Descriptor{Key: "path", Value: "/a*"}
	require.NoError(t, path.Add(limited("user", "", 100)))
	f := serve(t, Off, false, limited("k", "", 10), shadow, path)
	counted := f.hits()

	f.take(t, 7, entries("k", "v"))
	assert.Equal(t, map[string]*Hits{"d.k": {Total: 7, Within: 7}}, counted)
	f.take(t, 2, entries("k", "v")) // 9 of 10, near above 8
	assert.Equal(t, Hits{Total: 9, Within: 9, Near: 1}, *counted["d.k"])
	f.take(t, 1, entries("k", "v"))
	assert.Equal(t, Hits{Total: 10, Within: 10, Near: 2}, *counted["d.k"])
	f.take(t, 3, entries("k", "v"))
	f.take(t, 3, entries("k", "v"))
	h := *counted["d.k"]
	assert.Positive(t, h.Local, "what is known to be spent asks nothing")
	h.Local = 0
	assert.Equal(t, Hits{Total: 16, Within: 10, Over: 6, Near: 2}, h)

	f.take(t, 8, entries("shadow", "v"))
	f.take(t, 8, entries("shadow", "v"))
	h = *counted["d.shadow"]
	h.Local = 0
	assert.Equal(t, Hits{Total: 16, Within: 8, Over: 8, Shadow: 8}, h)

	// Whoever asks, a limit without values of requests has one name, with those of the file.
	for i := range 3 {
		f.take(t, 1, entries("path", fmt.Sprint("/a", i), "user", fmt.Sprint(i)), entries("unknown", "x"))
	}
	assert.Equal(t, Hits{Total: 3, Within: 3}, *counted["d.path_/a*.user"])
	assert.Len(t, counted, 3)
}

// The names are bounded, and what a request brings or gives back has none.
func TestHitsHaveABoundedNumberOfNames(t *testing.T) {
	detailed := limited("k", "", 10)
	detailed.DetailedMetric = true
	f := serve(t, Off, false, detailed, limited("plain", "", 10))
	var names []string
	f.CountHits(func(limit string) func(Hits) {
		names = append(names, limit)
		return func(Hits) {}
	})
	own := entries("k", "own")
	own.Limit = &common.RateLimitDescriptor_RateLimitOverride{RequestsPerUnit: 1, Unit: 2}
	back := entries("plain", "v")
	back.IsNegativeHits = true
	f.take(t, 1, own, back)
	assert.Empty(t, names)
	for i := range maxNamed + 2 {
		f.take(t, 1, entries("k", fmt.Sprint(i)))
	}
	assert.Equal(t, "d.k_0", names[0])
	assert.Equal(t, []string{fmt.Sprint("d.k_", maxNamed-1), otherNames, otherNames}, names[maxNamed-1:])
}
