package telemetry

import (
	"encoding/json"
	"io"
	"sync/atomic"
	"time"

	"weir/api/decide"
)

// A DecisionLog writes checks as lines of JSON: each, or as few as it says. It is safe for
// concurrent use if its Writer is.
type DecisionLog struct {
	// Writer gets a line in each Write, and must not block.
	Writer io.Writer
	// DeniedOnly leaves out what was admitted, unless it was so only because of shadow mode.
	DeniedOnly bool
	// Every is how many checks there are for each line; 0 and 1 are all.
	Every int64
	// ShowClients writes the names of clients as they are, not hashed.
	ShowClients bool

	checks atomic.Int64
}

// decisionLine is a line of the log.
type decisionLine struct {
	Time       time.Time       `json:"time"`
	Policy     string          `json:"policy"`
	Client     string          `json:"client"`
	Decision   string          `json:"decision"`
	Exception  string          `json:"exception,omitempty"`
	Degraded   bool            `json:"degraded"`
	RetryAfter float64         `json:"retry_after"` // times are seconds
	Took       float64         `json:"took"`
	Limits     []decisionLimit `json:"limits"`
}

type decisionLimit struct {
	Name      string `json:"name"`
	Allowed   bool   `json:"allowed"`
	Cost      int64  `json:"cost"`
	Limit     int64  `json:"limit"`
	Remaining int64  `json:"remaining"`
}

// write writes the answer to a check that began at now, if it is one of those that are
// written.
func (l *DecisionLog) write(a *decide.Answer, now time.Time, took time.Duration) {
	v := a.Verdict()
	if l.DeniedOnly && v == decide.Allowed || l.Every > 1 && l.checks.Add(1)%l.Every != 0 {
		return
	}
	line := decisionLine{
		Time: now.UTC(), Policy: a.Policy.Name, Client: a.Client, Decision: decide.Verdicts[v], Degraded: a.Degraded != nil,
		RetryAfter: a.Retry.Seconds(), Took: took.Seconds(), Limits: make([]decisionLimit, len(a.Limits)),
	}
	if !l.ShowClients {
		line.Client = HashClient(line.Client)
	}
	if a.Exception != nil {
		line.Exception = a.Exception.Kind()
	}
	for i := range a.Limits {
		limit := &a.Limits[i]
		line.Limits[i] = decisionLimit{limit.Name, limit.Allowed, limit.Cost, limit.Value, limit.Remaining}
	}
	text, _ := json.Marshal(line) // can't fail for these types
	_, _ = l.Writer.Write(append(text, '\n'))
}
