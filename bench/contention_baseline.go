package main

import (
	"context"
	"encoding/binary"
	"errors"
	"math"
	"time"

	"github.com/bradfitz/gomemcache/memcache"

	"weir/counters"
)

// A plainLimiter is the token bucket that one writes first: each caller gets the
// state, takes a token, swaps the state, and starts over at once if another was
// faster. It holds the limit of a request and fills with it in a second. It is
// safe for concurrent use.
type plainLimiter struct {
	pool  *memcache.Client
	races *races
}

func newPlainLimiter(addr string, races *races) *plainLimiter {
	pool := memcache.New(addr)
	pool.MaxIdleConns = 512
	pool.Timeout = callTimeout
	return &plainLimiter{pool, races}
}

// Take admits or denies r. The error is gomemcache's, or counters.ErrTimeout
// when others were faster until the deadline of ctx.
func (l *plainLimiter) Take(ctx context.Context, r counters.Request) (counters.Decision, error) {
	deadline, _ := ctx.Deadline()
	key := "plain:" + r.Client
	for {
		item, err := l.pool.Get(key)
		absent := errors.Is(err, memcache.ErrCacheMiss)
		var bucket plainBucket
		switch {
		case absent:
			item = &memcache.Item{Key: key}
			bucket = plainBucket{tokens: float64(r.Limit), at: r.Now.UnixNano()}
		case err != nil:
			return counters.Decision{}, err
		default:
			bucket = decodePlainBucket(item.Value)
		}
		bucket, allowed := bucket.step(r)
		if !allowed {
			return counters.Decision{}, nil
		}
		item.Value = bucket.encode()
		write := l.pool.CompareAndSwap
		if absent {
			write = l.pool.Add
		}
		err = write(item)
		l.races.attempts.Add(1)
		switch {
		case err == nil:
			return counters.Decision{Allowed: true}, nil
		case !errors.Is(err, memcache.ErrCASConflict) && !errors.Is(err, memcache.ErrNotStored) && !errors.Is(err, memcache.ErrCacheMiss):
			return counters.Decision{}, err
		}
		l.races.conflicts.Add(1)
		if !time.Now().Before(deadline) {
			return counters.Decision{}, counters.ErrTimeout
		}
	}
}

func (l *plainLimiter) Close() error { return l.pool.Close() }

// A plainBucket had so many tokens at a Unix time in nanoseconds.
type plainBucket struct {
	tokens float64
	at     int64
}

// step returns the bucket after r. A denied request changes nothing.
func (b plainBucket) step(r counters.Request) (plainBucket, bool) {
	now := max(b.at, r.Now.UnixNano())
	filled := b.tokens + float64(r.Limit)*time.Duration(now-b.at).Seconds()
	tokens := min(filled, float64(r.Limit)) - float64(r.Cost)
	if tokens < 0 {
		return b, false
	}
	return plainBucket{tokens, now}, true
}

func (b plainBucket) encode() []byte {
	value := binary.BigEndian.AppendUint64(nil, math.Float64bits(b.tokens))
	return binary.BigEndian.AppendUint64(value, uint64(b.at))
}

func decodePlainBucket(value []byte) plainBucket {
	return plainBucket{math.Float64frombits(binary.BigEndian.Uint64(value)), int64(binary.BigEndian.Uint64(value[8:]))}
}
