package telemetry

import "github.com/prometheus/client_golang/prometheus"

// Hits are envoy.Hits; this package doesn't import envoy.
type Hits struct{ Total, Within, Over, Near, Local, Shadow int64 }

// EnvoyHits returns a function that counts hits of one of Envoy's limits. The caller bounds how many
// names there are: each is a label.
func (m *Metrics) EnvoyHits(limit string) func(Hits) {
	of := func(kind string) prometheus.Counter { return m.envoyHits.WithLabelValues(limit, kind) }
	// As envoyproxy/ratelimit calls them.
	total, within, over := of("total_hits"), of("within_limit"), of("over_limit")
	near, local, shadow := of("near_limit"), of("over_limit_with_local_cache"), of("shadow_mode")
	add := func(c prometheus.Counter, hits int64) {
		if hits > 0 {
			c.Add(float64(hits))
		}
	}
	return func(h Hits) {
		add(total, h.Total)
		add(within, h.Within)
		add(over, h.Over)
		add(near, h.Near)
		add(local, h.Local)
		add(shadow, h.Shadow)
	}
}
