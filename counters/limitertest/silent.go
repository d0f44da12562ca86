package limitertest

import (
	"context"
	"fmt"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"weir/counters"
	"weir/counters/memcachedtest"
)

// A ManyLimiter decides many requests together.
type ManyLimiter interface {
	counters.Limiter
	TakeMany(ctx context.Context, requests []counters.Request, done func(i int, t counters.Taken))
	Flush()
	Owing() int
}

// SilentTimeout is the store timeout of FallsSilent: far more than it takes to be answered, and
// less than a silent connection is kept for.
const SilentTimeout = 900 * time.Millisecond

// FallsSilent has a server fall silent in the middle of a batch, and go on later. Those whose
// answers are missing are limited by the process, or refused. What they were admitted has to be
// consumed once, and what was refused not at all. The server gets such a part of what the batch
// would send. open returns a limiter with SilentTimeout on the server at an address, which calls
// lost for each refund that it can't make.
func FallsSilent(t *testing.T, now time.Time, part float64, open func(t *testing.T, address string, lost func()) ManyLimiter) {
	for _, refuse := range []bool{false, true} {
		t.Run(fmt.Sprint("refuse=", refuse), func(t *testing.T) {
			t.Parallel()
			// A busy machine may answer nobody in time.
			for end := time.Now().Add(time.Minute); !silentInABatch(t, now, part, refuse, open); {
				require.True(t, time.Now().Before(end), "some are answered, and some aren't")
			}
		})
	}
}

// silentInABatch reports whether some of the batch were answered in time, and some weren't:
// else it shows nothing.
func silentInABatch(t *testing.T, now time.Time, part float64, refuse bool, open func(t *testing.T, address string, lost func()) ManyLimiter) (some bool) {
	const clients, limit = 800, 5
	cut := memcachedtest.Start(t).Cut()
	var lost atomic.Int64 // refunds, on a busy machine
	l := open(t, cut.Addr, func() { lost.Add(1) })
	asked, others := make([]counters.Request, clients), make([]counters.Request, clients)
	for i := range clients { // of long names, so that few are under way at once
		asked[i] = counters.Request{Client: fmt.Sprint("client-", i, strings.Repeat("-", 50)), Cost: 1, Limit: limit, Now: now}
		others[i] = asked[i]
		others[i].Client = strings.ReplaceAll(asked[i].Client, "-", "_")
	}
	TakeAll(Unhurried, l, others[:2]) // connects
	before := cut.Passed()
	TakeAll(Unhurried, l, others)
	cut.After(int(part * float64(cut.Passed()-before)))

	taken := TakeMany(&counters.Deadline{At: time.Now().Add(SilentTimeout)}, l, asked)
	admitted, failed := make([]bool, clients), 0
	for i, one := range taken {
		require.True(t, one.Done)
		admitted[i] = one.Allowed
		if one.Err != nil {
			failed++
			if !refuse {
				d, err := l.TakeLocal(asked[i], one.Err)
				require.NoError(t, err)
				require.True(t, d.Allowed)
				admitted[i] = true
			}
		}
	}
	cut.Mend()
	require.Eventually(t, func() bool { l.Flush(); return l.Owing() == 0 }, time.Minute, 10*time.Millisecond)
	if failed <= 100 || failed > clients-50 {
		return false
	}
	fresh, off := open(t, cut.Addr, func() {}), int64(0)
	for i, r := range asked {
		want := int64(limit)
		if admitted[i] {
			want--
		}
		left := int64(-1)
		for end := time.Now().Add(time.Minute); left != want && time.Now().Before(end); { // late answers are still coming
			ctx, cancel := context.WithTimeout(t.Context(), time.Second)
			d, err := fresh.Peek(ctx, r)
			cancel()
			if err == nil {
				left = d.Remaining
			}
			if left == want-1 && lost.Load() > off {
				off, want = off+1, left
			}
		}
		require.Equal(t, want, left, "client %d of %v", i, taken[i].Err)
	}
	return true
}

// TakeMany returns what the limiter's does of each request.
func TakeMany(ctx context.Context, l ManyLimiter, requests []counters.Request) []counters.Taken {
	taken := make([]counters.Taken, len(requests))
	l.TakeMany(ctx, requests, func(i int, t counters.Taken) { taken[i] = t })
	return taken
}

// TakeAll is TakeMany, and has those decided alone that can't be decided with others.
func TakeAll(ctx context.Context, l ManyLimiter, requests []counters.Request) []counters.Taken {
	taken := TakeMany(ctx, l, requests)
	for i := range taken {
		if t := &taken[i]; !t.Done {
			t.Decision, t.Err = l.Take(ctx, requests[i])
		}
	}
	return taken
}
