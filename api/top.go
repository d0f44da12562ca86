package api

import (
	"math"
	"net/http"
	"time"

	"github.com/labstack/echo/v4"

	"weir/api/fleet"
	"weir/api/telemetry"
	"weir/counters/topk"
)

const (
	defaultTop = 20
	maxTop     = 100
)

// topJSON is the body of an answer that lists clients.
type topJSON struct {
	Policy  string            `json:"policy"`
	By      string            `json:"by"`
	Window  float64           `json:"window"` // seconds
	Clients []clientCountJSON `json:"clients"`
	Fleet   *fleetJSON        `json:"fleet,omitempty"`
}

type clientCountJSON struct {
	Client string `json:"client"`
	Count  int64  `json:"count"`
	Error  int64  `json:"error"`
}

// fleetJSON says of which instances an answer is, and how many checks a second they decide.
type fleetJSON struct {
	Instances int     `json:"instances"`
	Missing   int     `json:"missing"`
	Allowed   float64 `json:"allowed"`
	Denied    float64 `json:"denied"`
	Degraded  float64 `json:"degraded"`
}

// listTopClients answers GET /v1/policies/{policy}/top: the clients that this
// process, or all instances, allowed or denied most, or that cost this process most.
func (s *Server) listTopClients(c echo.Context) error {
	active := s.active.Load()
	d, err := active.Find(c.Param("policy"))
	if err != nil {
		return err
	}
	by, scope, n := "denied", "instance", defaultTop
	parameters, err := parametersOf(c, "by", "n", "scope")
	if err != nil {
		return err
	}
	for name, value := range parameters {
		switch name {
		case "by":
			by = value
		case "n":
			if n, err = wholeNumber(name, value, maxTop); err != nil {
				return err
			}
		case "scope":
			scope = value
		}
	}
	checks := active.checks[d.Name]
	sketch := checks.Top(by)
	if sketch == nil {
		return badRequest("by is %q and must be denied, allowed or cost", by)
	}
	answer := topJSON{Policy: d.Name, By: by, Window: topk.Window.Seconds(), Clients: []clientCountJSON{}}
	var counts []topk.Count
	switch scope {
	case "instance":
		counts = sketch.Top(n, s.cfg.Now())
	case "fleet":
		if by == "cost" {
			return badRequest("scope=fleet has by=denied and by=allowed; each instance knows costs as it has settled them")
		}
		if counts, answer.Fleet, err = s.fleetTop(d.Name, by, checks); err != nil {
			return err
		}
	default:
		return badRequest("scope is %q and must be instance or fleet", scope)
	}
	for _, count := range counts[:min(n, len(counts))] {
		answer.Clients = append(answer.Clients, clientCountJSON(count))
	}
	return c.JSON(http.StatusOK, answer)
}

// fleetTop returns whom all instances have decided most by a policy.
func (s *Server) fleetTop(name, by string, checks *telemetry.Checks) ([]topk.Count, *fleetJSON, error) {
	reports, missing, err := s.cfg.Fleet.Others()
	if err != nil {
		return nil, nil, storeFailed(err, "the store could not tell which other instances there are; without scope=fleet, this instance answers for itself")
	}
	sum, lists := rates(checks), []fleet.List{{Clients: checks.Top(by).Top(math.MaxInt, s.cfg.Now())}}
	for _, r := range reports {
		p, ok := r.Policies[name]
		if !ok && r.Cut {
			missing++
			continue
		}
		sum.Allowed, sum.Denied, sum.Degraded = sum.Allowed+p.Allowed, sum.Denied+p.Denied, sum.Degraded+p.Degraded
		list := p.MostDenied
		if by == "allowed" {
			list = p.MostAllowed
		}
		lists = append(lists, list)
	}
	const seconds = float64(fleet.Interval / time.Second)
	return fleet.Merge(lists), &fleetJSON{
		Instances: len(lists), Missing: missing,
		Allowed: float64(sum.Allowed) / seconds, Denied: float64(sum.Denied) / seconds, Degraded: float64(sum.Degraded) / seconds,
	}, nil
}

// rates says how many checks of a policy this instance has decided in the last Interval.
func rates(checks *telemetry.Checks) (p fleet.Policy) {
	for name, seconds := range checks.History(int(fleet.Interval / time.Second)) {
		sum := &p.Denied
		switch name {
		case "allowed":
			sum = &p.Allowed
		case "degraded":
			sum = &p.Degraded
		}
		for _, n := range seconds {
			*sum += int64(n)
		}
	}
	return p
}

// Report says what this instance has decided lately, for the others.
func (s *Server) Report() fleet.Report {
	r, now := fleet.Report{Policies: make(map[string]fleet.Policy)}, s.cfg.Now()
	for name, checks := range s.active.Load().checks {
		p := rates(checks)
		p.MostAllowed.Clients = checks.Top("allowed").Top(math.MaxInt, now)
		p.MostDenied.Clients = checks.Top("denied").Top(math.MaxInt, now)
		if p.Allowed+p.Denied > 0 || len(p.MostAllowed.Clients)+len(p.MostDenied.Clients) > 0 {
			r.Policies[name] = p
		}
	}
	return r
}
