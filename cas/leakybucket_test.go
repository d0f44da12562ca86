package cas

import (
	"math/big"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"weir/counters"
	"weir/counters/racetest"
)

func leakyClient(t require.TestingT, window time.Duration, burst int64) *client[bucketState] {
	b, err := newBucket(formatLeakyBucket, window, burst, false)
	require.NoError(t, err)
	return newClient(b)
}

func TestLeakyBucketTimelines(t *testing.T) {
	t.Parallel()
	t.Run("one a second, four at most in the bucket", func(t *testing.T) {
		runTimeline(t, leakyClient(t, time.Second, 4), []row{
			{at: "12:00:00", cost: 1, limit: 1, allowed: true, remaining: 3, reset: "1s"},
			{at: "12:00:00", cost: 1, limit: 1, allowed: true, remaining: 2, reset: "2s", wait: "1s"},
			{at: "12:00:00", cost: 1, limit: 1, allowed: true, remaining: 1, reset: "3s", wait: "2s"},
			{at: "12:00:00", cost: 1, limit: 1, allowed: true, remaining: 0, reset: "4s", wait: "3s"},
			{at: "12:00:00", cost: 1, limit: 1, remaining: 0, reset: "4s", retry: "1s"},
			{at: "12:00:00.5", cost: 1, limit: 1, remaining: 0, reset: "3.5s", retry: "500ms"},
			{at: "12:00:01", cost: 1, limit: 1, allowed: true, remaining: 0, reset: "4s", wait: "3s"},
			{at: "12:00:05", cost: 1, limit: 1, allowed: true, remaining: 3, reset: "1s"},
			// Half of it has drained: its turn ends at 6.
			{at: "12:00:05.5", cost: 1, limit: 1, allowed: true, remaining: 2, reset: "1.5s", wait: "500ms"},
		})
	})
	t.Run("a turn begins when all before it have drained, whatever the cost", func(t *testing.T) {
		runTimeline(t, leakyClient(t, time.Minute, 0), []row{
			{at: "12:00:00", cost: 30, limit: 60, allowed: true, remaining: 30, reset: "30s"},
			{at: "12:00:00", cost: 10, limit: 60, allowed: true, remaining: 20, reset: "40s", wait: "30s"},
			{at: "12:00:00", cost: 21, limit: 60, remaining: 20, reset: "40s", retry: "1s"},
			{at: "12:00:10", cost: 1, limit: 60, allowed: true, remaining: 29, reset: "31s", wait: "30s"},
			{at: "12:00:10", cost: 0, limit: 60, allowed: true, remaining: 29, reset: "31s", wait: "31s"},
			{at: "12:00:10", cost: 61, limit: 60, remaining: 29, reset: "31s", retry: "forever"},
		})
	})
	t.Run("waits are rounded up: three a second", func(t *testing.T) {
		runTimeline(t, leakyClient(t, time.Second, 0), []row{
			{at: "12:00:00", cost: 1, limit: 3, allowed: true, remaining: 2, reset: "333.333334ms"},
			{at: "12:00:00", cost: 1, limit: 3, allowed: true, remaining: 1, reset: "666.666667ms", wait: "333.333334ms"},
			{at: "12:00:00", cost: 1, limit: 3, allowed: true, remaining: 0, reset: "1s", wait: "666.666667ms"},
		})
	})
	t.Run("100 a minute, the limit of a request", func(t *testing.T) {
		runTimeline(t, leakyClient(t, time.Minute, 0), []row{
			{at: "12:00:00", cost: 100, limit: 100, allowed: true, remaining: 0, reset: "1m"},
			{at: "12:00:00", cost: 1, limit: 100, remaining: 0, reset: "1m", retry: "600ms"},
			{at: "12:00:00", cost: 1, limit: 200, allowed: true, remaining: 99, reset: "30.3s", wait: "30s"},
		})
	})
	t.Run("the clock jumps back, and far forward", func(t *testing.T) {
		runTimeline(t, leakyClient(t, time.Second, 4), []row{
			{at: "12:00:00", cost: 3, limit: 1, allowed: true, remaining: 1, reset: "3s"},
			// The turn comes after three others, however late this clock is.
			{at: "11:59:50", cost: 1, limit: 1, allowed: true, remaining: 0, reset: "14s", wait: "3s"},
			{at: "11:59:50", cost: 1, limit: 1, remaining: 0, reset: "14s", retry: "11s"},
			{at: "23:00:00", cost: 1, limit: 1, allowed: true, remaining: 3, reset: "1s"},
		})
	})
}

func TestLeakyBucketCountsDenied(t *testing.T) {
	t.Parallel()
	b, err := newBucket(formatLeakyBucket, time.Second, 3, true)
	require.NoError(t, err)
	c := newClient(b)
	c.countDenied = true
	runTimeline(t, c, []row{
		{at: "12:00:00", cost: 2, limit: 1, allowed: true, remaining: 1, reset: "2s"},
		{at: "12:00:00", cost: 2, limit: 1, reset: "4s", retry: "3s"},
		{at: "12:00:01", cost: 2, limit: 1, reset: "5s", retry: "4s"},
		{at: "12:00:05", cost: 2, limit: 1, allowed: true, reset: "3s", wait: "1s"},
	})
}

// A server that takes each request at its turn, and a while of window/limit per
// cost for it, is never asked for two at once, and never idle while one waits.
func TestLeakyBucketTurnsAreAQueue(t *testing.T) {
	racetest.Sequential(t)
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		window := rapid.SampledFrom([]time.Duration{counters.MinWindow, time.Second, time.Minute}).Draw(t, "window")
		limit := rapid.Int64Range(1, 1000).Draw(t, "limit")
		burst := rapid.Int64Range(1, 50).Draw(t, "burst")
		c := leakyClient(t, window, burst)
		start := clock(t, "12:00:00")
		now := start
		free := new(big.Rat) // when the server is, in nanoseconds since start
		for range rapid.IntRange(1, 40).Draw(t, "requests") {
			elapsed := new(big.Rat).SetInt64(int64(now.Sub(start)))
			r := counters.Request{Cost: rapid.Int64Range(1, 8).Draw(t, "cost"), Limit: limit, Now: now}
			inUse := new(big.Rat).Sub(free, elapsed) // in time
			if inUse.Sign() < 0 {
				inUse.SetInt64(0)
				free.Set(elapsed)
			}
			taken := big.NewRat(r.Cost*int64(window), limit)
			full := big.NewRat(burst*int64(window), limit)

			d := c.ask(t, r)
			require.Equal(t, new(big.Rat).Add(inUse, taken).Cmp(full) <= 0, d.Allowed)
			if d.Allowed {
				up := new(big.Int).Add(inUse.Num(), new(big.Int).Sub(inUse.Denom(), big.NewInt(1)))
				require.Equal(t, up.Quo(up, inUse.Denom()).Int64(), int64(d.Wait))
				free.Add(free, taken)
			}
			now = now.Add(time.Duration(rapid.Int64Range(0, 4*int64(window)/limit).Draw(t, "pause")))
		}
	})
}
