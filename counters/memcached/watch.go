package memcached

import (
	"context"
	"log/slog"
	"maps"
	"slices"
	"sync"
	"time"

	"weir/counters"
)

const (
	watchInterval = time.Second
	statsInterval = 10 * time.Second
	// lineInterval is the time between two lines about a server's breaker, and from
	// any line to one about checks that a server which is up didn't decide.
	lineInterval = 10 * time.Second
	// evictionsInterval is the time between two lines about its evictions.
	evictionsInterval = time.Minute
	// clockInterval is the time between two lines about the difference of its clock.
	clockInterval = 10 * time.Minute
)

// Watch looks the names of servers up again and again, and asks the servers for the
// statistics that Ping returns. It logs which servers join and leave, which are down, at the
// start and when that changes, and which leave checks undecided though they are up, evict
// items, or have another clock: few lines, however often that happens. It ends with ctx.
// Call it once, before Close.
func (s *Store) Watch(ctx context.Context, log *slog.Logger) {
	var following sync.WaitGroup
	following.Go(func() { s.follow(ctx, log) })
	defer following.Wait()
	voices := make(map[*backend]*voice)
	ticks := time.NewTicker(watchInterval)
	defer ticks.Stop()
	for asked := (time.Time{}); ctx.Err() == nil; {
		if now := time.Now(); now.Sub(asked) >= statsInterval {
			asked = now
			s.readStats()
		}
		present := s.members.Load().backends
		maps.DeleteFunc(voices, func(b *backend, _ *voice) bool { return !slices.Contains(present, b) })
		for _, b := range present {
			if voices[b] == nil {
				voices[b] = new(voice)
			}
			voices[b].speak(time.Now(), b, log.With(slog.String("server", b.server.name)))
		}
		select {
		case <-ticks.C:
		case <-ctx.Done():
		}
	}
}

// follow looks names up when they are due, and has the store use the servers
// found.
func (s *Store) follow(ctx context.Context, log *slog.Logger) {
	if !s.membership.changes() {
		return
	}
	joined, left := s.members.Load().ring.names(), []string(nil)
	ticks := time.NewTicker(retryInterval)
	defer ticks.Stop()
	for {
		s.membership.speak(log)
		if len(joined)+len(left) > 0 {
			log.Info("Memcached servers joined or left", slog.Any("joined", joined), slog.Any("left", left))
		}
		select {
		case now := <-ticks.C:
			looking, cancel := context.WithTimeout(ctx, lookUpTimeout)
			s.membership.lookUp(looking, now)
			cancel()
		case <-ctx.Done():
		}
		if ctx.Err() != nil {
			return
		}
		joined, left = s.adopt()
	}
}

func (s *Store) readStats() {
	var wg sync.WaitGroup
	for _, b := range s.members.Load().backends {
		wg.Go(b.readStats)
	}
	wg.Wait()
}

// readStats asks a server that answers for its statistics.
func (b *backend) readStats() {
	var stats counters.ServerStats
	read := func(reply []byte) (err error) {
		stats, err = parseStats(reply, time.Now())
		return err
	}
	if b.ping().Err != nil || b.ask(b.askTimeout(), "stats\r\n", read) != nil {
		b.stats.Store(nil)
		return
	}
	b.stats.Store(&stats)
}

// A voice logs what happens to a server, at most one line of a kind in each lineInterval.
type voice struct {
	spoken    time.Time // when the last line about the breaker, or about checks, was logged
	changed   time.Time // when the last one about the breaker was
	told      record    // the breaker's when spoken
	up        record    // the breaker's when it was last said to be closed
	undecided int64     // checks that had been decided without the server when spoken

	clock     time.Time // when the last line about the difference of clocks was logged
	warned    time.Time // when the last one about evictions was
	known     bool      // evictions is
	evictions int64     // the last count
	untold    int64     // evictions since warned
}

func (v *voice) speak(now time.Time, b *backend, log *slog.Logger) {
	n := v.news(now, b.breaker.record(now), b.undecided.Load())
	down, without := slog.Duration("down", n.down.Round(time.Millisecond)), slog.Int64("checks_without_it", n.undecided)
	switch n.what {
	case wentDown:
		log.Warn("a Memcached server is down", slog.Any("error", b.breaker.refuse()), without)
	case cameBack:
		log.Info("a Memcached server answers again", down, without)
	case leftUndecided:
		log.Warn("a Memcached server left checks undecided", slog.Any("error", *b.cause.Load()), down, without)
	}
	stats := b.stats.Load()
	if stats != nil && stats.Ahead != 0 && now.Sub(v.clock) >= clockInterval {
		v.clock = now
		log.Warn("the clocks of this machine and a Memcached server's differ: synchronize them", slog.Duration("ahead_at_least", stats.Ahead))
	}
	if n := v.evicted(now, stats); n > 0 {
		log.Warn("a Memcached server evicts counters: give it more memory", slog.Int64("evictions", n))
	}
}

// An event is what a line is about.
type event int

const (
	none event = iota
	wentDown
	cameBack
	leftUndecided // checks, while it was up or in an outage that is over
)

// news is what a line tells.
type news struct {
	what      event
	down      time.Duration // since the server was last said to answer
	undecided int64         // checks, since the last line
}

// news returns the events to log of a server, from its breaker's record and the number of
// checks decided without it so far. An event that lineInterval holds back is logged later,
// even if it has ended by then.
func (v *voice) news(now time.Time, r record, undecided int64) news {
	n := news{none, r.down - v.up.down, undecided - v.undecided}
	last := v.changed
	switch {
	case r.open && !v.told.open:
		n.what = wentDown
	case r.open:
	case v.told.open || n.undecided == 0 && r.outages != v.told.outages:
		n.what = cameBack
	case n.undecided > 0:
		n.what, last = leftUndecided, v.spoken
	}
	if n.what == none || now.Sub(last) < lineInterval {
		return news{}
	}
	v.spoken, v.told, v.undecided = now, r, undecided
	if n.what != leftUndecided {
		v.changed = now
	}
	if !r.open {
		v.up = r
	}
	return n
}

// evicted returns how many evictions to warn of: those seen since the last
// warning, once in evictionsInterval. The first count is what was before.
func (v *voice) evicted(now time.Time, stats *counters.ServerStats) (n int64) {
	if stats == nil {
		return 0
	}
	if stats.Evictions < v.evictions { // restarted
		v.evictions = 0
	}
	if v.known {
		v.untold += stats.Evictions - v.evictions
	}
	v.known, v.evictions = true, stats.Evictions
	if v.untold > 0 && now.Sub(v.warned) >= evictionsInterval {
		n, v.untold, v.warned = v.untold, 0, now
	}
	return n
}
