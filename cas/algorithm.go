// Package cas limits requests by a small state per client: token bucket, leaky
// bucket, sliding log, counting log, and how much is under way at once. A pure step
// decides. Compare-and-swap writes the new state only if nobody else has written: decisions
// come one after the other, from whichever instance. A denial by itself writes nothing,
// unless denied requests count.
//
// The logs never admit more than the limit in a window. They trust the
// instance's clock: if clocks differ by d, that holds for a window less d.
//
// The counting log is cut by count, not by time: of up to m = ceil(L/k) in a
// row, of a limit L and k entries, it keeps when the first and the last were
// admitted, and how many there are. A cost above m has an entry of its own. An
// entry counts in full until its first has left the window, then less 1, and
// until its last has. So what counts is never less than what the window holds,
// whatever the traffic: never more than L is admitted. Only the oldest entry
// can be partly outside, and of it the first is not counted and the last is
// inside: at most m-2 too much. So a cost c is denied only if more than
// L - max(0, m-2) - c is in the window; after a refund, as the last may be what
// was taken back, L - (m-1) - c if m is above 1. (That of clocks that agree,
// while the store answers.) It is the idea of Datar, Gionis, Indyk and Motwani's
// exponential histograms (2002), turned to limits.
//
// Only the newest entry grows: by a cost that leaves it at m or less, and by any
// that comes at the very time of its first. When another begins, its first and
// its last are rounded up to a grid of times; one whose times are on it gets no
// more. The grid is the power of two of nanoseconds that is in the window 2^19 to
// 2^20 times, so that a time takes few bytes and is late by less than 1/500,000
// of the window. When there are more than 2k+1 entries, neighbours are joined from the oldest on: as
// many to one as have together at most ceil(M/k), where M is L or what counts, if
// that is more. Then any two neighbours have more than that, and there are at
// most 2k+1. A joined entry has the first of its oldest and the last of its
// newest.
//
// Each request has a limit of its own, and what counts is the same for all. What
// was admitted by a higher limit stays in the entries of that one, so that until
// these have left m is the higher limit's: after 64,000 with k = 64, a limit of
// 1000 finds hardly any room before the last entry of 1000 has gone.
//
// What the store has lost of a counting log is put back as that of an exact
// one: every entry that a process knows. An entry that is put back gets no
// more, so that what others have added to it before can be told from what comes
// after.
//
// A request that loses every race until the deadline is denied, with
// Decision.Contended; a refund fails with ErrContended. Start with
// NewTokenBucket and its example.
package cas

import (
	"time"

	"weir/counters"
)

// An algorithm is pure arithmetic over a state of type S, whose zero value is
// the initial state and the same as no state at all. A state that isn't initial
// has a generation, the time of the request that began it, so that a refund
// never takes from a state what was taken from one before it.
//
// Time never runs backwards: a request that is older than the state is decided
// as of the state's time. RetryAfter and ResetAfter count from the request's
// own Now even then. A cost above the capacity can never be admitted: it is
// denied, and its RetryAfter is forever.
type algorithm[S any] interface {
	// step decides a request and returns the state after it. A denial returns
	// the state it was given, unless denied requests count; so does a request
	// of cost 0, which consumes nothing.
	step(S, counters.Request) (S, counters.Decision)
	// peek returns the decision that step would, and consumes nothing.
	peek(S, counters.Request) counters.Decision
	// refund undoes a debt that step has admitted, as far as time hasn't passed over
	// it. Of another generation it undoes nothing.
	refund(S, *debt) S
	// charge is the reverse: it consumes debts that were admitted without the state,
	// each at its own time, as far as time hasn't passed over it, be there no room.
	charge(S, ...*debt) S
	// merge has a debt stand for one of the same kind from before it, too.
	merge(before, d *debt)
	// fuller returns the state in which as much is in use, as r finds it, as in
	// the one of the two that has more, and whether that is more than in the
	// first. The two are of one client.
	fuller(present, known S, r counters.Request) (S, bool)
	// since returns how much was consumed from one state to a later one of the client, as
	// far as r can tell.
	since(before, after S, r counters.Request) int64
	// began returns the generation of a state and its time; both are 0 if it is
	// initial.
	began(S) (generation, time int64)
	// asOf returns the state as if what a clock that was ahead has consumed after now, in
	// Unix nanoseconds, had been consumed then. It may change the one that it is given.
	asOf(s S, now int64) S
	// lasts returns for how long a state can differ from the initial one.
	lasts() time.Duration
	// ttl returns for how long the state still differs from the initial one.
	ttl(S, counters.Request) time.Duration
	// usage returns what is in use of a state, as r finds it.
	usage(S, counters.Request) counters.Usage
	// encode appends a state to a buffer, and decode reads it back.
	encode([]byte, S) []byte
	decode([]byte) (S, error)
	// clone returns a state that may be changed without changing the one it is
	// of.
	clone(S) S
}

const forever = counters.Forever

// between returns the nanoseconds from one Unix time to another that is not
// earlier; they may be more than a Duration holds.
func between(from, to int64) uint64 { return uint64(to) - uint64(from) }

// behind returns by how much now is behind the state's time; 0 if it isn't.
func behind(state int64, now time.Time) uint64 {
	return between(min(state, now.UnixNano()), state)
}

// after returns lag+d, at most forever.
func after(lag uint64, d time.Duration) time.Duration {
	return time.Duration(min(lag, uint64(forever-d))) + d
}

// outside reports whether a time isn't in the window that ends now any more.
func outside(t, now int64, window time.Duration) bool {
	return t <= now && between(t, now) >= uint64(window)
}

// leaves returns the time from now until t leaves the window; 0 if it has.
func leaves(t, now int64, window time.Duration) time.Duration {
	switch {
	case t > now:
		return after(between(now, t), window)
	case outside(t, now, window):
		return 0
	}
	return window - time.Duration(between(t, now))
}
