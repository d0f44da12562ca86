package faults

import (
	"context"
	"math"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"weir/api/policyfile"
	"weir/bench/internal/benchtest"
	"weir/counters"
)

// One instance alone has all of each limit, exactly, however fast the machine
// is. Of several, the machine decides too.
func TestSharesOnRealMemcached(t *testing.T) {
	t.Parallel()
	var r Report
	_, printed, err := benchtest.Run(t, Run, "faults", &r, "-quick", "-duration", "500ms", "-rows", "^share, (SIG.*, 1 |SIGKILL, 2 .*moved|stall of 100ms, [14].*(instance|spread clients)$)")
	require.Len(t, r.Shares, 5, "%v", err)
	assert.Empty(t, r.Rows)
	for _, row := range r.Shares {
		assert.Contains(t, printed, row.Fault)
		assert.Equal(t, len(shareAlgorithms), row.Number)
		require.Len(t, row.Algorithms, len(shareAlgorithms))
		assert.GreaterOrEqual(t, row.All, row.UntilBack)
		assert.GreaterOrEqual(t, row.UntilBack, row.Alone)
		if row.Instances == 1 {
			assert.Empty(t, row.Missed)
			for i, percent := range row.Algorithms {
				assert.Equal(t, 100., percent, "%s: %s", row.Name, shareAlgorithms[i])
			}
		}
	}
}

func TestShareTrials(t *testing.T) {
	t.Parallel()
	wanted := make(map[string]bounds)
	for _, trial := range shareTrials {
		wanted[trial.String()] = trial.wanted
	}
	require.Len(t, wanted, len(shareTrials), "names are unique")
	assert.Len(t, wanted, 5*(1+3*2)+3)
	for name, want := range map[string]bounds{
		"share, SIGSTOP, 1 instance":                         exactly,
		"share, SIGKILL, 8 instances, spread clients":        together,
		"share, SIGKILL, 8 instances, moved clients":         unbounded,
		"share, stall of 60ms, 4 instances, spread clients":  together,
		"share, stall of 100ms, 4 instances, spread clients": afterOneStall,
		"share, stall of 100ms, 4 instances, sticky clients": together,
		"share, stall of 500ms, 2 instances, sticky clients": together,
		"share, stall of 500ms, 1 instance":                  exactly,
	} {
		assert.Equal(t, want, wanted[name], name)
	}
}

// A fakeStore counts for all instances while it isn't broken.
type fakeStore struct {
	mu     sync.Mutex
	broken bool
	counts map[string]int64
}

// A fakeSharer decides by what decide says while the store is broken: given the
// client's count when the store broke, what this instance admitted of it, and
// what it has admitted since.
type fakeSharer struct {
	policyfile.Limiter
	store     *fakeStore
	alone     func(count, own, since int64) bool
	own, lone map[string]int64
}

func (f *fakeSharer) Take(_ context.Context, r counters.Request) (counters.Decision, error) {
	f.store.mu.Lock()
	defer f.store.mu.Unlock()
	if f.store.broken {
		return counters.Decision{}, counters.ErrUnavailable
	}
	f.store.counts[r.Client] += f.lone[r.Client]
	f.lone[r.Client] = 0
	if f.store.counts[r.Client]+r.Cost > r.Limit {
		return counters.Decision{}, nil
	}
	f.store.counts[r.Client] += r.Cost
	f.own[r.Client] += r.Cost
	return counters.Decision{Allowed: true}, nil
}

func (f *fakeSharer) TakeLocal(r counters.Request, _ error) (counters.Decision, error) {
	f.store.mu.Lock()
	defer f.store.mu.Unlock()
	if !f.alone(f.store.counts[r.Client], f.own[r.Client], f.lone[r.Client]) {
		return counters.Decision{}, nil
	}
	f.lone[r.Client] += r.Cost
	return counters.Decision{Allowed: true}, nil
}

func (f *fakeSharer) Peek(context.Context, counters.Request) (counters.Decision, error) {
	f.store.mu.Lock()
	defer f.store.mu.Unlock()
	if f.store.broken {
		return counters.Decision{}, counters.ErrUnavailable
	}
	return counters.Decision{}, nil
}

// The measurement finds what instances admit together without their store, for
// limiters of which it is known.
func TestTheMeasureIsRight(t *testing.T) {
	t.Parallel()
	everything := func(int64, int64, int64) bool { return true }
	nothing := func(int64, int64, int64) bool { return false }
	all := func(count, _, since int64) bool { return count+since < limit }
	own := func(count, own, since int64) bool { return own+since < limit*own/max(1, count) }
	asNew := func(_, own, since int64) bool { return own+since < limit }
	for _, tt := range []struct {
		name               string
		alone              func(count, own, since int64) bool
		trial              shareTrial
		inAlone, untilBack float64 // percent
		all                float64
		missed             int
	}{
		{"everything", everything, shareTrial{instances: 4, clients: spread, wanted: together}, 600, 640, 640, 2},
		{"everything", everything, shareTrial{instances: 1, clients: spread, wanted: exactly}, 600, 640, 640, 2},
		{"everything", everything, shareTrial{instances: 4, clients: sticky, wanted: together}, 600, 640, 640, 2},
		{"everything in a stall", everything, shareTrial{instances: 4, clients: spread, wanted: afterOneStall, stall: time.Second}, 200, 240, 240, 1},
		{"nothing", nothing, shareTrial{instances: 4, clients: spread, wanted: together}, 0, 40, 100, 1},
		{"nothing", nothing, shareTrial{instances: 1, clients: spread, wanted: exactly}, 0, 40, 100, 1},
		{"nothing in a stall", nothing, shareTrial{instances: 4, clients: spread, wanted: together, stall: time.Second}, 0, 40, 100, 0},
		{"all that is left", all, shareTrial{instances: 1, clients: spread, wanted: exactly}, 60, 100, 100, 0},
		{"all that is left", all, shareTrial{instances: 8, clients: sticky, wanted: together}, 60, 100, 100, 0},
		{"all that is left", all, shareTrial{instances: 2, clients: spread, wanted: together}, 120, 160, 160, 2},
		{"all that is left", all, shareTrial{instances: 8, clients: spread, wanted: together}, 480, 520, 520, 2},
		{"own part", own, shareTrial{instances: 2, clients: spread, wanted: together}, 60, 100, 100, 0},
		{"own part", own, shareTrial{instances: 8, clients: sticky, wanted: together}, 60, 100, 100, 0},
		{"of a new client", asNew, shareTrial{instances: 2, clients: moved, wanted: unbounded, kill: true}, 100, 140, 140, 0},
	} {
		t.Run(tt.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				tt.trial.fault = tt.name
				b, f := fakeBed(tt.trial.instances, 3, tt.alone)
				if f.during = askedInOutage; tt.trial.stall > 0 {
					f.during = askedInStall
				}
				require.NoError(t, b.play(t.Context(), tt.trial.clients, f))
				r := tt.trial.row([]*shareBed{b})
				const rounding = 5 // of the parts of instances, down
				assert.InDelta(t, tt.inAlone, r.Alone, rounding, r)
				assert.InDelta(t, tt.untilBack, r.UntilBack, rounding, r)
				assert.InDelta(t, tt.all, r.All, rounding, r)
				assert.Len(t, r.Missed, tt.missed, r.Missed)
			})
		})
	}
}

// fakeBed has so many clients of each algorithm, and a fault of ten seconds.
func fakeBed(instances, clients int, alone func(count, own, since int64) bool) (*shareBed, shareFault) {
	store := &fakeStore{counts: make(map[string]int64)}
	var all [][]policyfile.Limiter
	for range instances {
		var limiters []policyfile.Limiter
		for range shareAlgorithms {
			limiters = append(limiters, &fakeSharer{store: store, alone: alone, own: make(map[string]int64), lone: make(map[string]int64)})
		}
		all = append(all, limiters)
	}
	breaks := func(broken bool) func(context.Context) error {
		return func(context.Context) error {
			store.mu.Lock()
			defer store.mu.Unlock()
			store.broken = broken
			return nil
		}
	}
	b := newShareBed(config{timeout: time.Second, clients: clients, patience: time.Second}, all)
	return b, shareFault{on: breaks(true), off: breaks(false), length: 10 * time.Second, warming: time.Second, after: askedAfterOutage}
}

// One client in fifty that has one too many is found out where the limit must
// be kept exactly, though the mean is nearly right.
func TestAClientBesideTheLimitIsFoundOut(t *testing.T) {
	t.Parallel()
	for _, wrong := range []int64{limit - 1, limit + 1} {
		b, _ := fakeBed(1, 50, nil)
		for _, c := range b.clients {
			c.admitted[before].Store(usedBefore)
			c.admitted[alone].Store(limit - usedBefore)
		}
		b.clients[70].admitted[alone].Store(wrong - usedBefore)
		for _, tt := range []struct {
			wanted bounds
			missed int
		}{{exactly, 1}, {together, 0}} {
			r := shareTrial{instances: 1, wanted: tt.wanted}.row([]*shareBed{b})
			assert.Len(t, r.Missed, tt.missed)
			assert.EqualValues(t, wrong, r.Worst)
			if tt.missed > 0 {
				assert.ErrorContains(t, (&Report{Shares: []shareRow{r}}).Broken(), "in all, where 100 % of the limit are wanted: ")
				assert.Contains(t, printed(&Report{Shares: []shareRow{r}}), "MISSED")
			}
		}
	}
}

func TestBounds(t *testing.T) {
	t.Parallel()
	for b, want := range map[bounds]string{together: "90 to 115", afterOneStall: "<= 110", exactly: "100", unbounded: "-"} {
		assert.Equal(t, want, b.String())
	}
	assert.False(t, together.hold(89.9))
	assert.True(t, together.hold(90) && together.hold(115))
	assert.False(t, together.hold(115.1))
	assert.False(t, together.hold(math.NaN()))
}

// Also a moment before a day's window ends there is one that doesn't end soon.
func TestLastingWindow(t *testing.T) {
	t.Parallel()
	day := time.Date(2026, 3, 1, 0, 0, 0, 0, time.UTC)
	for _, now := range []time.Time{day, day.Add(12 * time.Hour), day.Add(-time.Second), day.Add(-9 * time.Minute)} {
		window := lastingWindow(now)
		assert.GreaterOrEqual(t, window, 24*time.Hour)
		c := counters.Calendar(now, window)
		assert.Less(t, c.Elapsed+5*time.Minute, window)
	}
	assert.Equal(t, 24*time.Hour, lastingWindow(day))
}
