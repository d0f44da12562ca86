package telemetry

import (
	"context"
	"errors"
	"log/slog"
	"strings"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"weir/api/decide"
	"weir/api/policy"
	"weir/counters/topk"
)

// Checks count and log the checks of one policy: they are a decide.Observer. Make
// them with Metrics.Checks. They are safe for concurrent use.
type Checks struct {
	Listeners
	*kept
	policy                             string
	verdicts                           [len(decide.Verdicts)]prometheus.Counter
	degraded, localDenied, missingPath prometheus.Counter
	duration                           prometheus.Observer
	limits                             []limitCounters // of the policy's limits; none in LimitChecks
	settlements                        [len(settlementOutcomes)]prometheus.Counter
	settledUnits                       [settledCharged + 1]prometheus.Counter // refunded and charged
	leases, overridden                 *prometheus.CounterVec
	chargedUnits                       prometheus.Counter
}

// limitCounters count the denials of a limit, and its leases, if it has any.
type limitCounters struct{ denied, granted prometheus.Counter }

// The outcomes of a settlement.
const (
	settledRefunded = iota
	settledCharged
	settledEqual
	settledAlready
	settledLate
	settledFailed
)

var settlementOutcomes = [...]string{"refunded", "charged", "equal", "already", "late", "failed"}

// Listeners are told of checks, beside the metrics.
type Listeners struct {
	// Undecided, if it isn't nil, is told of each client that the store could not
	// decide about, and why. It is called concurrently.
	Undecided func(client string, err error)
	// Log, if it isn't nil, gets a line for each check at level debug, in which
	// clients are hashed unless ShowClients.
	Log         *slog.Logger
	ShowClients bool
	// Decisions, if it isn't nil, gets a line for each check that it asks for.
	Decisions *DecisionLog
}

// Checks returns the Checks of p. Its busiest clients, its history and
// what was warned of once go on from before, the Checks of the policy's older
// version, unless that is nil.
func (m *Metrics) Checks(p *policy.Policy, before *Checks, l Listeners) *Checks {
	c := m.checksWithoutLimits(p, before, l)
	for _, l := range p.Limits {
		one := limitCounters{denied: m.limitDenials.WithLabelValues(p.Name, l.Name)}
		if l.Lease > 0 {
			one.granted = m.leases.WithLabelValues(p.Name, l.Name, "granted")
			for _, outcome := range []string{"renewed", "released", "lost"} { // 0 until one is, so that a rate sees the first
				m.leases.WithLabelValues(p.Name, l.Name, outcome)
			}
		}
		c.limits = append(c.limits, one)
	}
	return c
}

// checksWithoutLimits returns Checks that don't count what each limit of p does.
func (m *Metrics) checksWithoutLimits(p *policy.Policy, before *Checks, l Listeners) *Checks {
	isNew := before == nil
	if isNew {
		before = &Checks{kept: &kept{allowed: topk.New(), denied: topk.New(), cost: topk.New()}}
	}
	c := &Checks{
		Listeners: l, kept: before.kept, policy: p.Name,
		degraded:    m.degraded.WithLabelValues(p.Name, string(p.OnStoreError)),
		localDenied: m.localDenials.WithLabelValues(p.Name),
		missingPath: m.missingPath.WithLabelValues(p.Name),
		duration:    m.checkDuration.WithLabelValues(p.Name),
		leases:      m.leases, overridden: m.overridden, chargedUnits: m.chargedUnits.WithLabelValues(p.Name),
	}
	for v, name := range decide.Verdicts {
		c.verdicts[v] = m.checks.WithLabelValues(p.Name, name)
	}
	if isNew {
		c.kept.history.before = c.totals() // not 0 if there was a policy of that name before
	}
	for o, name := range settlementOutcomes {
		c.settlements[o] = m.settlements.WithLabelValues(p.Name, name)
	}
	for o := range c.settledUnits {
		c.settledUnits[o] = m.settledUnits.WithLabelValues(p.Name, settlementOutcomes[o])
	}
	return c
}

// Forget ends the series of a policy: those of policies that come and go would
// add up.
func (m *Metrics) Forget(policy string) {
	for _, vec := range []*prometheus.MetricVec{
		m.checks.MetricVec, m.checkDuration.MetricVec, m.degraded.MetricVec, m.localDenials.MetricVec, m.limitDenials.MetricVec, m.missingPath.MetricVec,
		m.settlements.MetricVec, m.settledUnits.MetricVec, m.chargedUnits.MetricVec, m.leases.MetricVec, m.overridden.MetricVec,
	} {
		vec.DeletePartialMatch(prometheus.Labels{"policy": policy})
	}
}

// Decided counts and logs an answer to a check that began at now, and the time that
// it took.
func (c *Checks) Decided(a *decide.Answer, now time.Time, took time.Duration) {
	c.countVerdict(a, took)
	for i := range a.Limits { // all of the policy's, or none
		switch l := &a.Limits[i]; {
		case a.Denied && !l.Allowed:
			c.limits[i].denied.Inc()
		case l.Lease > 0 && l.Cost > 0 && !a.Denied && l.Consumed():
			c.limits[i].granted.Inc()
		}
	}
	c.kept.count(a, now)
	if a.Exception.AtRunTime() {
		c.overridden.WithLabelValues(c.policy, a.Exception.Kind()).Inc()
	}
	if a.Degraded != nil && c.Undecided != nil {
		c.Undecided(a.Client, a.Degraded)
	}
	if c.Log != nil {
		c.log(a)
	}
	if c.Decisions != nil {
		c.Decisions.write(a, now, took)
	}
}

// Settled counts a settlement that was asked for at now, or why there is none.
func (c *Checks) Settled(s *decide.Settlement, now time.Time, err error) {
	var less, more int64
	for i := range s.Limits { // all that count costs have the same change
		if l := &s.Limits[i]; l.Lease > 0 {
			if l.Refunded > 0 {
				c.leases.WithLabelValues(c.policy, l.Name, "released").Inc()
			}
		} else {
			less, more = max(less, l.Refunded), max(more, l.Charged)
		}
	}
	outcome := settledEqual
	switch {
	case errors.Is(err, decide.ErrLate):
		outcome = settledLate
	case err != nil:
		outcome = settledFailed
	case s.Already:
		outcome = settledAlready
	case less > 0:
		outcome = settledRefunded
		c.settledUnits[settledRefunded].Add(float64(less))
		c.cost.Add(s.Client, -less, s.Issued)
	case more > 0:
		outcome = settledCharged
		c.settledUnits[settledCharged].Add(float64(more))
		c.cost.Add(s.Client, more, now)
	}
	c.settlements[outcome].Inc()
}

// Charged counts a cost of a client that nobody had asked about before.
func (c *Checks) Charged(client string, cost int64, now time.Time) {
	c.chargedUnits.Add(float64(cost))
	c.cost.Add(client, cost, now)
}

// Renewed counts a lease that was to be renewed.
func (c *Checks) Renewed(l *decide.LimitCheck, err error) {
	outcome := "renewed"
	switch {
	case errors.Is(err, decide.ErrLost):
		outcome = "lost"
	case err != nil: // the lease may go on
		return
	}
	c.leases.WithLabelValues(c.policy, l.Name, outcome).Inc()
}

// countVerdict counts what was decided, whatever limits were asked.
func (c *Checks) countVerdict(a *decide.Answer, took time.Duration) {
	c.verdicts[a.Verdict()].Inc()
	if a.Degraded != nil {
		c.degraded.Inc()
		c.allDegraded.Add(1)
	}
	if a.Local {
		c.localDenied.Inc()
	}
	if a.Trace == "" {
		c.duration.Observe(took.Seconds())
		return
	}
	c.duration.(prometheus.ExemplarObserver).ObserveWithExemplar(took.Seconds(), prometheus.Labels{"trace_id": a.Trace})
}

// MissingPath counts a request to which no route of the policy can apply, and
// reports whether it is the first.
func (c *Checks) MissingPath() (first bool) {
	c.missingPath.Inc()
	return c.kept.missingPath.CompareAndSwap(false, true)
}

// LimitChecks count checks of single limits of one policy: they are a
// decide.Observer. Make them with Metrics.LimitChecks. They are safe for concurrent
// use.
type LimitChecks struct{ *Checks }

// LimitChecks returns the LimitChecks of p; before is as for Checks.
func (m *Metrics) LimitChecks(p *policy.Policy, before *Checks, l Listeners) LimitChecks {
	// The limits of p aren't those that deny: series of them would say that they never did.
	return LimitChecks{m.checksWithoutLimits(p, before, l)}
}

// Decided counts an answer to checks of single limits, which began at now, and the time
// that it took.
func (c LimitChecks) Decided(a *decide.Answer, now time.Time, took time.Duration) {
	for i := range a.Limits {
		l := &a.Limits[i]
		if l.Degraded != nil && c.Undecided != nil {
			c.Undecided(l.Client, l.Degraded)
		}
		if l.Exception.AtRunTime() {
			c.overridden.WithLabelValues(c.policy, l.Exception.Kind()).Inc()
		}
		switch {
		case a.Refused:
		case !l.Allowed:
			c.denied.Add(l.Client, 1, now)
		case a.Allowed:
			c.allowed.Add(l.Client, 1, now)
			c.cost.Add(l.Client, l.Cost, now)
			if l.Lease > 0 && l.Cost > 0 && l.Consumed() {
				c.leases.WithLabelValues(c.policy, l.Name, "granted").Inc()
			}
		}
	}
	c.countVerdict(a, took)
}

// Settled is Checks.Settled; each limit has a client of its own.
func (c LimitChecks) Settled(s *decide.Settlement, now time.Time, err error) {
	c.Checks.Settled(s, now, err)
	for i := range s.Limits {
		switch l := &s.Limits[i]; {
		case err != nil || s.Already || l.Client == s.Client || l.Lease > 0: // Checks.Settled counts that
		case l.Refunded > 0:
			c.cost.Add(l.Client, -l.Refunded, s.Issued)
		case l.Charged > 0:
			c.cost.Add(l.Client, l.Charged, now)
		}
	}
}

// LimitDenied counts in weir_limit_denials_total that a limit of that name denied. The caller bounds
// how many names there are: each is a label.
func (m *Metrics) LimitDenied(policy, limit string) {
	m.limitDenials.WithLabelValues(policy, limit).Inc()
}

// log logs the answer to a check with the names of the limits that deny, or else of
// all that it asked.
func (c *Checks) log(a *decide.Answer) {
	client := a.Client
	if !c.ShowClients {
		client = HashClient(client)
	}
	v := a.Verdict()
	var limits []string
	for i := range a.Limits {
		if limit := &a.Limits[i]; v == decide.Allowed || v == decide.Failed || !limit.Allowed {
			limits = append(limits, limit.Name)
		}
	}
	c.Log.LogAttrs(context.Background(), slog.LevelDebug, "check",
		slog.String("policy", c.policy), slog.String("client", client), slog.String("decision", decide.Verdicts[v]),
		slog.String("limits", strings.Join(limits, ",")), slog.Bool("degraded", a.Degraded != nil))
}

// Sample ends a second of the history. It is to be called once a second.
func (c *Checks) Sample() { c.kept.history.sample(c.totals()) }

func (c *Checks) totals() (all totals) {
	for i, counter := range c.verdicts {
		all[i] = valueOf(counter)
	}
	all[len(c.verdicts)] = float64(c.allDegraded.Load())
	return all
}

// History returns for each verdict by its name, and for "degraded", how many checks were
// decided so in each of the last seconds, at most HistorySeconds, the oldest first.
func (c *Checks) History(seconds int) map[string][]uint32 { return c.kept.history.last(seconds) }

// kept is what goes on from one version of a policy to the next.
type kept struct {
	allowed, denied *topk.Sketch // the clients that asked most in this process
	cost            *topk.Sketch // what those that were allowed have cost
	allDegraded     atomic.Int64 // checks, by whatever on_store_error
	missingPath     atomic.Bool  // has been told
	history         history
}

// Top returns the clients whom the policy allowed or denied most, or whose cost was the
// most, or nil if by is none of allowed, denied and cost.
func (k *kept) Top(by string) *topk.Sketch {
	switch by {
	case "allowed":
		return k.allowed
	case "denied":
		return k.denied
	case "cost":
		return k.cost
	default:
		return nil
	}
}

// count counts the client of an answer to a check that began at now. What the
// limits denied is denied, in shadow mode too. What the store couldn't decide and
// was refused is neither.
func (k *kept) count(a *decide.Answer, now time.Time) {
	switch {
	case a.Refused:
	case a.Denied:
		k.denied.Add(a.Client, 1, now)
	default:
		k.allowed.Add(a.Client, 1, now)
		k.cost.Add(a.Client, a.Cost, now)
	}
}
