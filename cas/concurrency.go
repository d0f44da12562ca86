package cas

import (
	"cmp"
	"fmt"
	"time"

	"weir/counters"
)

// MaxPlaces and MaxLease bound the limit and the lease of a Concurrency.
const (
	MaxPlaces = 1000
	MinLease  = time.Second
	MaxLease  = time.Hour
)

// A Concurrency is a Limiter of how much is under way at once: what it admits takes as
// many places as its cost, until a Refund gives them back, or until its lease ends, as
// whoever holds it may have died. A request that Renews one begins its lease anew.
//
// At no time are there more leases than the limit that haven't ended by any clock, as each
// is kept for the clock skew longer. A lease that has ended, or was given back, frees its
// places for all instances at once, so no denial is remembered. A lower limit ends no
// lease: nothing new is admitted until there is room.
//
// Its state is a log of when each lease began; see SlidingLog. Giving back a lease that
// there isn't changes nothing. Make one with NewConcurrency; its methods are those of
// Limiter.
type Concurrency struct{ Limiter[logState] }

// NewConcurrency returns a limiter of places. limit, 1 to MaxPlaces, is the one that most
// requests will have; one of a request that is larger counts as MaxLogLimit at most. The
// error says what is wrong with the lease (MinLease to MaxLease), the limit or cfg.
func NewConcurrency(store counters.StateStore, lease time.Duration, limit int64, cfg Config) (*Concurrency, error) {
	options, err := cfg.Options.WithDefaults()
	switch {
	case err != nil:
		return nil, err
	case lease < MinLease || lease > MaxLease:
		return nil, fmt.Errorf("lease %v must be from %v to %v", lease, MinLease, MaxLease)
	case limit < 1 || limit > MaxPlaces:
		return nil, fmt.Errorf("limit %d of what is under way at once must be from 1 to %d", limit, MaxPlaces)
	}
	cfg.CountDenied = false // a denial holds nothing
	cfg.frees = true
	l := new(Concurrency)
	if err := l.init(store, places{log{window: lease + options.ClockSkew}}, "concurrency", logViewBytes/int(logEntryBytes*limit), cfg); err != nil {
		return nil, err
	}
	return l, nil
}

// places is the arithmetic of a Concurrency: that of a log whose entries are leases.
type places struct{ log }

// step admits r if there is room, or if it renews a lease that there is. A lease is known
// by its time, so it begins after all others.
func (p places) step(s logState, r counters.Request) (logState, counters.Decision) {
	live, held := p.renewed(s, r)
	if !held {
		live = p.live(s, r)
		if room := logLimit(r) - live.used; r.Cost == 0 || r.Cost > room {
			return s, p.decision(live, r, r.Cost <= room)
		}
	}
	if live.used > 0 && s.time >= r.Now.UnixNano() {
		live.time = s.time + 1
	}
	live.add(live.time, r.Cost)
	d := p.decision(live, r, true)
	d.Receipt = counters.Receipt{Generation: live.generation, Refunded: live.newest}
	return live, d
}

func (p places) peek(s logState, r counters.Request) counters.Decision {
	if live, held := p.renewed(s, r); held {
		return p.decision(live, r, true)
	}
	return p.log.peek(s, r)
}

// renewed returns s as r finds it, without the lease that r renews, and whether there
// is one.
func (p places) renewed(s logState, r counters.Request) (live logState, held bool) {
	if r.Renews == 0 || r.Cost == 0 {
		return s, false
	}
	live = p.live(s, r)
	generation, time := live.generation, live.time
	live, found := live.without(r.Renews, r.Cost)
	live.generation, live.time = generation, time // also of what was the only one
	return live, found == r.Cost
}

// charge ends the leases that the debts renew, too.
func (p places) charge(s logState, debts ...*debt) logState {
	for _, d := range debts {
		if live, held := p.renewed(s, d.request()); held {
			s = live
		}
		s = p.log.charge(s, d)
	}
	return s
}

// refund ends the lease of r, of whatever state, if there still is one, or those that end
// first. Of a renewal that was refused the lease before it goes on. It takes over the
// memory of s.
func (p places) refund(s logState, r counters.Request, taken counters.Decision) logState {
	if taken.Receipt.Refunded == counters.EarliestLeases {
		if s = p.live(s, r); s.used <= r.Cost {
			return logState{}
		}
		s.forget(r.Cost)
		return s
	}
	rest, found := s.without(cmp.Or(taken.Receipt.Refunded, r.Now.UnixNano()), r.Cost)
	if r.Renews != 0 && found > 0 {
		return p.log.charge(rest, &debt{now: r.Renews, limit: r.Limit, cost: found})
	}
	return rest
}
