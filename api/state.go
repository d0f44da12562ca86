package api

import (
	"net/http"
	"time"

	"github.com/go-json-experiment/json"
	"github.com/go-json-experiment/json/jsontext"
	"github.com/labstack/echo/v4"

	"weir/api/telemetry"
	"weir/counters"
)

// stateJSON is the body of an answer that says how a client stands, and why.
type stateJSON struct {
	Policy     string           `json:"policy"`
	Client     string           `json:"client"`
	CountedAs  string           `json:"counted_as"` // in the keys of the store
	Key        string           `json:"key"`        // of an override for this client alone
	Now        time.Time        `json:"now"`
	Allowed    bool             `json:"allowed"`
	Shadow     bool             `json:"shadow"`
	RetryAfter float64          `json:"retry_after"`
	Degraded   bool             `json:"degraded"`
	Exception  *exceptionJSON   `json:"exception,omitempty"`
	Limits     []limitStateJSON `json:"limits"`
}

// exceptionJSON is the exception or override that holds for a client.
type exceptionJSON struct {
	Client   string    `json:"client"`
	Kind     string    `json:"kind"`
	Override bool      `json:"override"`
	Until    time.Time `json:"until,omitzero"`
}

type limitStateJSON struct {
	Name       string      `json:"name"`
	Route      string      `json:"route,omitempty"`
	Algorithm  string      `json:"algorithm"`
	Window     float64     `json:"window"`
	Allowed    bool        `json:"allowed"`
	Limit      int64       `json:"limit"`
	Remaining  int64       `json:"remaining"`
	ResetAfter float64     `json:"reset_after"`
	RetryAfter float64     `json:"retry_after"`
	Slots      []slotJSON  `json:"slots,omitempty"`
	Bucket     *bucketJSON `json:"bucket,omitempty"`
	Entries    []entryJSON `json:"entries,omitempty"`
	Leases     []entryJSON `json:"leases,omitempty"`
}

type slotJSON struct {
	Start  time.Time `json:"start"`
	Count  int64     `json:"count"`
	Weight float64   `json:"weight"`
}

type bucketJSON struct {
	Level           float64 `json:"level"`
	Capacity        float64 `json:"capacity"`
	DrainsPerSecond float64 `json:"drains_per_second"`
}

type entryJSON struct {
	First time.Time `json:"first"`
	Last  time.Time `json:"last"`
	Until time.Time `json:"until"`
	Cost  int64     `json:"cost"`
}

// showState answers GET /v1/policies/{policy}/clients/{client}/state.
func (s *Server) showState(c echo.Context) error {
	d, client, err := s.clientOfPath(c)
	if err != nil {
		return err
	}
	now := s.cfg.Now()
	ctx := counters.Deadline{At: now.Add(s.cfg.StoreTimeout)}
	a, usages, err := d.Look(&ctx, client, now)
	if err != nil {
		if knownProblem(err) == nil {
			err = storeFailed(err, "the store could not say what is in use; try again")
		}
		return err
	}
	defer a.Release()
	j := stateJSON{
		Policy: d.Name, Client: client, CountedAs: counters.Namespace("").StateKey(a.Client), Key: d.KeyOf(client).String(), Now: now.UTC(),
		Allowed: a.Allowed, Shadow: d.Shadow || a.Blocked && a.Allowed, RetryAfter: a.Retry.Seconds(), Degraded: a.Degraded != nil, Limits: []limitStateJSON{},
	}
	if kind := a.Exception.Kind(); kind != "" {
		j.Exception = &exceptionJSON{a.Exception.Key.String(), kind, a.Exception.AtRunTime(), a.Exception.Until.UTC()}
	}
	for i := range a.Limits {
		l := &a.Limits[i]
		j.Shadow = j.Shadow || l.Leniency.IsShadow()
		limit := limitStateJSON{
			Name: l.Name, Route: l.Route, Algorithm: l.Algorithm, Window: l.Window.Seconds(), Allowed: l.Allowed, Limit: l.Value, Remaining: l.Remaining,
			ResetAfter: l.ResetAfter.Seconds(), RetryAfter: l.RetryAfter.Seconds(), Bucket: (*bucketJSON)(usages[i].Bucket),
		}
		for _, slot := range usages[i].Slots {
			limit.Slots = append(limit.Slots, slotJSON{slot.Start.UTC(), slot.Count, slot.Weight})
		}
		entries := &limit.Entries
		if l.Lease > 0 {
			entries = &limit.Leases
		}
		for _, e := range usages[i].Entries {
			*entries = append(*entries, entryJSON{e.First.UTC(), e.Last.UTC(), e.Until.UTC(), e.Cost})
		}
		j.Limits = append(j.Limits, limit)
	}
	body, err := json.Marshal(j, jsontext.AllowInvalidUTF8(true)) // in half the time of encoding/json
	if err != nil {
		return err
	}
	return writeBlob(c, http.StatusOK, jsonType, append(body, '\n'))
}

// historyJSON is the body of an answer that says what was decided lately.
type historyJSON struct {
	Policy    string              `json:"policy"`
	Seconds   int                 `json:"seconds"`
	Decisions map[string][]uint32 `json:"decisions"` // of each second, the oldest first
}

// showHistory answers GET /v1/policies/{policy}/history.
func (s *Server) showHistory(c echo.Context) error {
	active := s.active.Load()
	d, err := active.Find(c.Param("policy"))
	if err != nil {
		return err
	}
	seconds, err := onlyNumber(c, "seconds", telemetry.HistorySeconds, telemetry.HistorySeconds)
	if err != nil {
		return err
	}
	return c.JSON(http.StatusOK, historyJSON{d.Name, seconds, active.checks[d.Name].History(seconds)})
}

// Sample ends a second of the history of each policy, and of the store's. It is to be called once a second.
func (s *Server) Sample() {
	s.cfg.Metrics.Sample()
	for _, checks := range s.active.Load().checks {
		checks.Sample()
	}
}
