package envoy

import (
	"math"

	"weir/api/decide"
)

// nearRatio is the part of a limit above which hits are near it, as by default in
// envoyproxy/ratelimit.
const nearRatio float32 = 0.8

// Hits are what a descriptor of a request cost, as the metrics of envoyproxy/ratelimit tell it.
// They overlap: Near are also Within, and Local and Shadow also Over.
type Hits struct {
	Total, Within, Over, Near int64
	// Local are those over the limit that the process knew about without the store.
	Local int64
	// Shadow are those that were admitted because the limit is in shadow mode.
	Shadow int64
}

func hitsOf(c *decide.LimitCheck) Hits {
	h := Hits{Total: c.Cost}
	if !c.Allowed {
		h.Over = c.Cost
		if c.Local {
			h.Local = c.Cost
		}
		if c.Leniency.IsShadow() {
			h.Shadow = c.Cost
		}
		return h
	}
	h.Within = c.Cost
	near := int64(math.Floor(float64(float32(c.Value) * nearRatio)))
	h.Near = max(0, min(c.Cost, c.Value-c.Remaining-near))
	return h
}
