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
	// lineInterval is the time between two lines about a server's breaker.
	lineInterval = 10 * time.Second
	// evictionsInterval is the time between two lines about its evictions.
	evictionsInterval = time.Minute
)

// Watch looks the names of servers up again and again, and logs what servers
// join and leave. It logs which are down at the start and when that changes,
// and when a server evicts items, with few lines however often it happens. It
// also asks for the servers' statistics, which Ping returns. It ends with ctx.
// Call it once, before Close.
func (s *Store) Watch(ctx context.Context, log *slog.Logger) {
	var following sync.WaitGroup
	following.Go(func() { s.follow(ctx, log) })
	defer following.Wait()
	voices := make(map[*clients]*voice)
	ticks := time.NewTicker(watchInterval)
	defer ticks.Stop()
	for asked := (time.Time{}); ctx.Err() == nil; {
		if now := time.Now(); now.Sub(asked) >= statsInterval {
			asked = now
			s.readStats()
		}
		present := s.members.Load().clients
		maps.DeleteFunc(voices, func(cs *clients, _ *voice) bool { return !slices.Contains(present, cs) })
		for _, cs := range present {
			if voices[cs] == nil {
				voices[cs] = new(voice)
			}
			voices[cs].speak(time.Now(), cs, log.With(slog.String("server", cs.server.name)))
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
	for _, cs := range s.members.Load().clients {
		wg.Go(cs.readStats)
	}
	wg.Wait()
}

// readStats asks a server that answers for its statistics.
func (cs *clients) readStats() {
	var stats counters.ServerStats
	read := func(reply []byte) (err error) {
		stats, err = parseStats(reply)
		return err
	}
	if cs.ping().Err != nil || cs.ask(cs.patience(), "stats\r\n", read) != nil {
		cs.stats.Store(nil)
		return
	}
	cs.stats.Store(&stats)
}

// A voice says what happens to a server, but not too often.
type voice struct {
	spoken    time.Time // the last line about the breaker
	told      record    // what was open then
	up        record    // when the breaker was last said to be closed
	undecided int64     // checks that were decided without the server by then

	warned    time.Time // the last line about evictions
	known     bool      // evictions is
	evictions int64     // the last count
	untold    int64     // evictions since warned
}

func (v *voice) speak(now time.Time, cs *clients, log *slog.Logger) {
	r := cs.breaker.record(now)
	if n, ok := v.news(now, r, cs.undecided.Load()); ok {
		without := slog.Int64("checks_without_it", n.undecided)
		if r.open {
			log.Warn("a Memcached server is down", slog.Any("error", cs.breaker.refuse()), without)
		} else {
			log.Info("a Memcached server answers again", slog.Duration("down", n.down.Round(time.Millisecond)), without)
		}
	}
	if n := v.evicted(now, cs.stats.Load()); n > 0 {
		log.Warn("a Memcached server evicts counters: give it more memory", slog.Int64("evictions", n))
	}
}

// news is what a line tells.
type news struct {
	down      time.Duration // since the server was last said to answer
	undecided int64         // checks, since the last line
}

// news returns whether there is something to tell of a breaker, and what, if so
// many checks were ever decided without its server. A change that lineInterval
// holds back is told later, be it over by then.
func (v *voice) news(now time.Time, r record, undecided int64) (n news, ok bool) {
	changed := r.open != v.told.open || !r.open && r.outages != v.told.outages
	if !changed || !v.spoken.IsZero() && now.Sub(v.spoken) < lineInterval {
		return news{}, false
	}
	n = news{r.down - v.up.down, undecided - v.undecided}
	v.spoken, v.told, v.undecided = now, r, undecided
	if !r.open {
		v.up = r
	}
	return n, true
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
	if v.untold > 0 && (v.warned.IsZero() || now.Sub(v.warned) >= evictionsInterval) {
		n, v.untold, v.warned = v.untold, 0, now
	}
	return n
}
