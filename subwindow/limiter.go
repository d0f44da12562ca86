package subwindow

import (
	"cmp"
	"context"
	"errors"
	"strconv"
	"time"

	"weir/counters"
	"weir/counters/ledger"
)

// A Limiter admits requests while its window's estimate stays within the limit.
// Each client has a counter per slot in the store, and each check counts before
// it judges: of two requests that race for the last place, from whichever
// instances, at least one sees the other.
//
// It asks the store as little as that allows. Concurrent checks of a client are
// counted together. A slot that has been closed for longer than the horizon is final: it
// changes only with the generation, so it is read once. Near the end of a slot a check
// reads the next one too: an instance with a faster clock may count there
// already. Counts mostly grow, so where nothing was left a moment ago a check is denied
// without the store. After counters.MaxStaleness the store is asked again, so
// that a reset, or a count that was taken back, is seen within a second.
//
// It is safe for concurrent use. Make one with New: the zero Limiter can decide
// nothing, and panics.
type Limiter struct {
	ledger.ManyBook[account]
	windows family
}

// rememberedBytes bounds the memory in which a limiter remembers clients, by how
// many it remembers: it has slotBytes for each slot of a client.
const (
	rememberedBytes = 256 << 20
	slotBytes       = 16
)

// New returns a limiter that keeps its counters in store. It remembers fewer than
// options.Clients where their slots would take more than 256 MiB. The error says
// what is wrong with the window or the options.
func New(store counters.Store, window Window, options counters.Options) (*Limiter, error) {
	options, err := options.WithDefaults()
	window.Horizon = options.Horizon()
	if err = cmp.Or(err, window.check()); err == nil && store == nil {
		err = errors.New("a limiter needs a store; memory.New makes one")
	}
	if err != nil {
		return nil, err
	}
	l := new(Limiter)
	l.windows = family{
		store: store, window: window, kept: window.kept(), options: options,
		keys: counters.CounterNamespace(options.KeyPrefix, options.Policy, options.Limit, window.Width),
		book: &l.Book,
	}
	l.Key = func(a *account, client string) string {
		l.windows.prepare(a, client)
		return a.key
	}
	if _, many := store.(counters.ManyStore); many {
		l.Ask = l.windows.together
	}
	l.Open(ledger.Config[account]{
		Family:   &l.windows,
		NewWork:  func() ledger.Work[account] { return &work{family: &l.windows} },
		Options:  &l.windows.options,
		Clients:  min(options.Clients, rememberedBytes/slotBytes/l.windows.kept),
		Bounded:  true, // a later count is missed by whom the slot is final to
		Timeouts: 4,    // look, tell what is due, tell others, and once more
	})
	return l, nil
}

// together has the store do the exchanges of many clients.
func (f *family) together(ctx context.Context, m *ledger.Many[account]) {
	begin := func(i int, to []counters.Addition) ([]counters.Addition, counters.Turn) {
		w, turn := m.Begin(i)
		if turn == counters.Now {
			to = append(to, w.(*work).additions...)
		}
		return to, turn
	}
	f.store.(counters.ManyStore).AddMany(ctx, m.Keys, begin, func(i int, added []counters.Added, err error) (more bool) {
		return m.Finish(i, err, func(w ledger.Work[account]) { w.(*work).hear(added, err) })
	})
}

// Reset forgets what the client has used: in every slot of the window, in the
// next, which instances with faster clocks may count in already, and in those
// before that instances with slower clocks still look at. Other instances notice
// within a second. The error is counters.ErrRequest or one of a Store's; then the
// client may have been reset or not.
func (l *Limiter) Reset(ctx context.Context, client string, now time.Time) error {
	if err := cmp.Or(counters.CheckClient(client), counters.CheckNow(now)); err != nil {
		return err
	}
	f := &l.windows
	prefix := f.keys.Client(client)
	newest := counters.Calendar(now.Add(max(f.window.Width, f.window.Horizon)), f.window.Width).Number
	oldest := counters.Calendar(now.Add(-f.options.ClockSkew), f.window.Width).Number - int64(f.window.Slots+f.window.back())
	keys := make([]string, 0, newest-oldest+1)
	for bucket := newest; bucket >= oldest; bucket-- {
		keys = append(keys, counters.CounterKey(prefix, bucket))
	}
	// The generation is raised twice: nobody puts back what was counted before the
	// first time, and nobody relies on what was read before the second.
	key, ttl := counters.GenerationKey(prefix), f.window.ttl(0)
	raise := func() (generation int64, err error) {
		if err = f.store.Raise(ctx, []counters.Floor{{Key: key, Count: generationAt(now), TTL: ttl}}); err != nil {
			return 0, err
		}
		return f.store.Add(ctx, counters.Addition{Key: key, Delta: resetUnit, TTL: ttl})
	}
	began := time.Now()
	generation, err := raise()
	if err == nil {
		err = f.store.Delete(ctx, keys)
	}
	if err == nil {
		now = now.Add(time.Since(began))
		generation, err = raise()
	}
	if err == nil {
		l.Forget(client) // who is asked by the account that it had is as another process
		l.Change(client, func(a *account) { a.become(generation, f.options.ClockSkew) })
	}
	return err
}

// Items returns what the store keeps of a client that asks all the time: so many items, each
// with so many bytes of key and of value.
func (l *Limiter) Items(client string, limit int64) (n, key, value int) {
	f := &l.windows
	newest := counters.Calendar(time.Now(), f.window.Width).Number
	return f.window.stored(), len(counters.CounterKey(f.keys.Client(client), newest)), len(strconv.FormatInt(limit, 10))
}
