// Package fleet has every instance know what the others have decided lately. Each leaves a
// report of a few kilobytes in the store, every few seconds, which expires soon after its
// instance is gone; a directory says which instances there are. The store is the only
// place where they meet.
//
// Start reading at Fleet; report.go has what reports say, and what several say together,
// without I/O.
package fleet

import (
	"context"
	"crypto/rand"
	"encoding/json"
	"fmt"
	"regexp"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"weir/counters"
)

const (
	// Interval is how often an instance leaves a report.
	Interval = 5 * time.Second

	life     = 3 * Interval // of a report
	maxBytes = 4000         // of a report, so that its item is no larger than 4 KiB
	// listed is how long an instance stands in the directory, and renewed how much of that
	// is left when it renews that: both are far above differences of clocks.
	listed  = 10 * time.Minute
	renewed = 5 * time.Minute
	// lookEvery is how many reports come between two looks at the directory: it may have
	// been lost.
	lookEvery = 3
	// fresh is how long what was read of the others is used again.
	fresh = Interval / 2
	// patience is how long reading or leaving reports may take.
	patience = 500 * time.Millisecond
)

// Config says where the reports are. All fields are needed.
type Config struct {
	Store     counters.StateStore
	KeyPrefix string
	Now       func() time.Time
}

// A Fleet is all instances that share a store, this one among them. Make it with New. It
// is safe for concurrent use.
type Fleet struct {
	cfg          Config
	id           string
	directoryKey string
	life         time.Duration
	rounds       int // how many reports it has left, or would have

	mu    sync.Mutex // of the rest, held while the others are read
	known reading
}

// A reading is what was read of the others.
type reading struct {
	at      time.Time
	reports []Report
	missing int
}

// New returns the fleet of an instance that has left no report yet.
func New(c Config) *Fleet {
	return &Fleet{cfg: c, id: rand.Text(), directoryKey: c.KeyPrefix + ":instances", life: life}
}

// reportKey returns the key of the report of an instance.
func (f *Fleet) reportKey(id string) string { return f.cfg.KeyPrefix + ":instance:" + id }

// Watch leaves what report returns each Interval, until ctx ends.
func (f *Fleet) Watch(ctx context.Context, report func() Report) {
	for {
		_ = f.Leave(ctx, report()) // if it fails, the next one comes soon
		select {
		case <-ctx.Done():
			return
		case <-time.After(Interval):
		}
	}
}

// Leave leaves a report for the others. The error is one of the store's. One goroutine at
// a time may call it.
func (f *Fleet) Leave(ctx context.Context, r Report) error {
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	err := f.cfg.Store.Put(ctx, f.reportKey(f.id), r.fit(maxBytes).encode(), f.life)
	if f.rounds%lookEvery == 0 { // also without a report: then the others know that it is missing
		if err := f.enlist(ctx); err != nil {
			return err
		}
	}
	f.rounds++
	return err
}

// A directoryJSON says until when each instance is listed, in milliseconds since 1970.
type directoryJSON struct {
	Instances map[string]int64 `json:"instances"`
}

// readDirectory returns what is in a directory; nothing of one that isn't one.
func readDirectory(data []byte) map[string]int64 {
	var d directoryJSON
	if json.Unmarshal(data, &d) != nil || d.Instances == nil {
		return make(map[string]int64)
	}
	for id := range d.Instances {
		if !isID.MatchString(id) {
			delete(d.Instances, id)
		}
	}
	return d.Instances
}

// isID matches what rand.Text makes: anything else isn't of an instance, and no part of a key.
var isID = regexp.MustCompile(`^[A-Z2-7]{26}$`)

// enlist has the directory list this instance, and no more those that haven't renewed
// that.
func (f *Fleet) enlist(ctx context.Context) error {
	state, err := f.cfg.Store.Load(ctx, f.directoryKey)
	for swapped := false; err == nil && !swapped; {
		now, all := f.cfg.Now(), readDirectory(state.Value)
		if all[f.id] > now.Add(renewed).UnixMilli() {
			return nil
		}
		for id, until := range all {
			if until < now.UnixMilli() {
				delete(all, id)
			}
		}
		all[f.id] = now.Add(listed).UnixMilli()
		data, _ := json.Marshal(directoryJSON{all}) // can't fail for this type
		state, swapped, err = f.cfg.Store.Swap(ctx, f.directoryKey, state, data, listed)
	}
	return err
}

// Others returns the reports of the other instances that are alive, and of how many there
// is one that can't be read. What it returns is a few seconds old at most, and must not be
// changed. The error is one of the store's: it can't tell which instances there are.
func (f *Fleet) Others() (reports []Report, missing int, err error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if now := f.cfg.Now(); f.known.at.IsZero() || now.Sub(f.known.at).Abs() > fresh {
		known, err := f.read(now)
		if err != nil {
			return nil, 0, err
		}
		f.known = known
	}
	return f.known.reports, f.known.missing, nil
}

func (f *Fleet) read(now time.Time) (reading, error) {
	ctx := &counters.Deadline{At: time.Now().Add(patience)}
	directory, err := f.cfg.Store.Load(ctx, f.directoryKey)
	if err != nil {
		return reading{}, fmt.Errorf("fleet: %w", err)
	}
	var ids []string
	for id := range readDirectory(directory.Value) {
		if id != f.id {
			ids = append(ids, id)
		}
	}
	slices.Sort(ids)
	read := make([]*Report, len(ids))
	var missing atomic.Int64
	var loads sync.WaitGroup
	for i, id := range ids {
		loads.Go(func() {
			state, err := f.cfg.Store.Load(ctx, f.reportKey(id))
			switch r, foreign := decode(state.Value); {
			case err == nil && !state.Exists(): // it is gone
			case err != nil || foreign != nil:
				missing.Add(1)
			default:
				read[i] = &r
			}
		})
	}
	loads.Wait()
	known := reading{at: now, missing: int(missing.Load())}
	for _, r := range read {
		if r != nil {
			known.reports = append(known.reports, *r)
		}
	}
	return known, nil
}
