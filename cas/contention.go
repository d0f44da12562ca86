package cas

import (
	"cmp"
	"time"
)

// A pace is when a process may write a client's state that others want to write
// too.
type pace struct {
	// turn is when the process may write again, after it has won against others;
	// pause is how many round trips that is after the last win.
	turn      moment
	pause     float64
	roundTrip time.Duration
	// lastWin is when it has won last, and streak since when it has done so at
	// each first attempt, without a pause.
	lastWin, streak moment
	// heldUp is when another instance has come first, or the process has waited
	// long for its turn.
	heldUp moment
}

// A moment is in nanoseconds since longAgo, by the monotonic clock; 0 is none. Each
// client has some, and a time.Time takes three times as much.
type moment int64

var longAgo = time.Now().Add(-100 * 365 * 24 * time.Hour)

func momentOf(t time.Time) moment { return moment(t.Sub(longAgo)) }

// longestStreak is how long a process may win at each first attempt before it
// leaves a gap for others. Where its wins are closer together than shortestGap,
// it leaves none: what a batch takes varies by more than the round trip then,
// so that others come first now and then.
const (
	longestStreak = 20 * time.Millisecond
	shortestGap   = 500 * time.Microsecond
)

// won notes that the process has won, at the given attempt, the last of which
// took roundTrip. It decides when its next turn is.
func (p *pace) won(attempts int, roundTrip time.Duration, at time.Time) {
	now := momentOf(at)
	if attempts > 1 {
		// One that took long was mostly held up; the next will be faster.
		p.roundTrip = min(roundTrip, cmp.Or(p.roundTrip, roundTrip)*9/8)
	}
	// On average it pauses twice as long as it contends, so that a third of the
	// processes contend at a time: enough to leave no gaps, and few enough that
	// none loses for long. One win changes little, as who was unlucky shouldn't
	// pause longer than the others too; but who doesn't pause yet begins at
	// once, lest it beat the same ones again and again.
	period := time.Duration(now - p.lastWin)
	p.lastWin = now
	lost := float64(attempts - 1)
	p.pause = max(p.pause+0.2*(2*lost-p.pause), min(lost, p.pause+2))
	p.turn = 0
	if p.pause >= 1 {
		p.turn = now + moment(p.pause*float64(p.roundTrip))
	}
	switch {
	case lost > 0 || p.pause >= 1 || period > longestStreak:
		p.streak = now
	case period >= shortestGap && time.Duration(now-p.streak) > max(longestStreak, 4*period):
		// Who wrote last knows the state, and wins again: another process that
		// comes right behind would never win, and this one never learn of it.
		p.turn, p.streak = now+moment(period*3/2), now
	}
}

// untilTurn returns how long to wait for the process's turn: half the time until
// the deadline at the most.
func (p *pace) untilTurn(deadline time.Time) time.Duration {
	if p.turn == 0 {
		return 0
	}
	now := time.Now()
	return max(0, min(time.Duration(p.turn-momentOf(now)), deadline.Sub(now)/2))
}

// contended reports whether others have held the process up during a wait that has just
// ended. If they haven't, the store has taken the time.
func (p *pace) contended(timeout time.Duration) bool {
	return momentOf(time.Now())-p.heldUp < moment(timeout)
}

// contendedRetry is the RetryAfter of a request that there is room for, but
// that others were faster than at each attempt.
const contendedRetry = time.Millisecond

// heldUpPart is the part of the store timeout that a process has to wait for its turn to
// be held up by others.
const heldUpPart = 4
