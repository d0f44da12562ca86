package api

import (
	"maps"
	"net/http"
	"slices"

	"github.com/labstack/echo/v4"

	"weir/api/policy"
)

// policyJSON is a policy in the answers of GET /v1/policies. Clients are only
// counted: their names may be secrets.
type policyJSON struct {
	Name         string              `json:"name"`
	Description  string              `json:"description,omitempty"`
	Limits       []limitJSON         `json:"limits"`
	CountDenied  bool                `json:"count_denied"`
	OnStoreError policy.OnStoreError `json:"on_store_error"`
	Hold         bool                `json:"hold,omitempty"`
	Mode         string              `json:"mode"`
	Clients      int                 `json:"clients"`
}

type limitJSON struct {
	Name       string  `json:"name"`
	Algorithm  string  `json:"algorithm"`
	Limit      int64   `json:"limit"`
	Window     float64 `json:"window"` // seconds
	SubWindows int     `json:"sub_windows,omitempty"`
	Estimate   string  `json:"estimate,omitempty"`
	Entries    int64   `json:"entries,omitempty"`
	Burst      int64   `json:"burst,omitempty"`
	Counts     string  `json:"counts,omitempty"` // or the cost
	Pattern    string  `json:"pattern,omitempty"`
	// CountDenied is set for a limit with a Pattern only.
	CountDenied bool `json:"count_denied,omitempty"`
}

func policyToJSON(p *policy.Policy) policyJSON {
	j := policyJSON{
		Name: p.Name, Description: p.Description, CountDenied: p.CountDenied,
		OnStoreError: p.OnStoreError, Hold: p.Hold, Mode: "enforce", Clients: len(p.Clients), Limits: []limitJSON{},
	}
	if p.Shadow {
		j.Mode = "shadow"
	}
	for _, l := range p.Listed() {
		limit := limitJSON{
			Name: l.Name, Pattern: l.Pattern, Algorithm: l.Algorithm, Limit: l.Limit, Window: l.Window.Seconds(),
			SubWindows: l.SubWindows, Estimate: l.Estimate, Entries: l.Entries, Burst: l.Burst, CountDenied: l.CountDenied,
		}
		if l.CountsRequests {
			limit.Counts = "requests"
		}
		j.Limits = append(j.Limits, limit)
	}
	return j
}

// listPolicies answers GET /v1/policies.
func (s *Server) listPolicies(c echo.Context) error {
	policies, byName := []policyJSON{}, s.active.Load().policies
	for _, name := range slices.Sorted(maps.Keys(byName)) {
		policies = append(policies, policyToJSON(byName[name]))
	}
	return c.JSON(http.StatusOK, map[string][]policyJSON{"policies": policies})
}

// showPolicy answers GET /v1/policies/{policy}.
func (s *Server) showPolicy(c echo.Context) error {
	d, err := s.active.Load().Find(c.Param("policy"))
	if err != nil {
		return err
	}
	return c.JSON(http.StatusOK, policyToJSON(d.Policy))
}
