package decide

import (
	"cmp"
	"errors"
	"net/netip"
	"time"

	"weir/api/receipt"
	"weir/counters"
)

// errNoLease says that a receipt has no lease to be renewed, ErrLost that its lease has
// ended and there is no room for another one, ErrSettled that it was given back, and
// ErrBlocked that its client is blocked by now.
var (
	errNoLease = Invalid("receipt: its check has no lease, so there is nothing to renew")
	ErrLost    = errors.New("decide: the lease has ended, and there is no room for another")
	ErrSettled = errors.New("decide: the lease was given back")
	ErrBlocked = errors.New("decide: the client is blocked, and its lease ends by itself")
)

// Renew begins the leases of r anew, and puts the new ones into r. Any receipt of a lease can
// renew it. A lease that has ended is admitted again, if there is room and r isn't settled. Renew
// returns how long the new leases can be relied on. The error is an UnknownPolicy, an Invalid,
// ErrLost, ErrSettled, ErrBlocked, ErrLate or a *Refused: then leases that haven't ended go on. In
// shadow mode it isn't ErrLost, ErrBlocked or a *Refused: what is under way goes on without a
// lease. Renew takes no longer than the store timeout.
func (e *Engine) Renew(r *receipt.Receipt) (within time.Duration, err error) {
	d, err := e.ForChecks(r.Policy)
	if err != nil {
		return 0, err
	}
	now := d.Now()
	if now.After(r.Until) {
		return 0, ErrLate
	}
	if by := d.Exception(r.Client, netip.Prefix{}, false); by.Blocked && !by.Exempt && !d.Shadow {
		return 0, ErrBlocked
	}
	ctx := &counters.Deadline{At: now.Add(d.StoreTimeout)}
	err = errNoLease
	var renewed []LimitCheck
	for limit, l := range d.reservedIn(r) {
		c := reservedBy(limit, r.Client, r, l)
		if limit.Lease == 0 || c.Cost == 0 {
			continue
		}
		q := c.request(now)
		if q.Renews = l.Position; q.Renews == 0 { // admitted without the store
			q.Renews = r.Issued.UnixNano()
		}
		c.asked = true
		taken, failed := c.Limiter.Take(ctx, q)
		c.noteTake(d.Policy, taken, failed, q)
		switch err = nil; {
		case c.Contended, c.undecided(d.Policy), !c.Allowed && c.Degraded != nil: // another may have given the lease since
			err = &Refused{Policy: r.Policy, Client: r.Client, Limits: []string{c.Name}}
		case !c.Allowed:
			err = ErrLost
		default:
			if renewed = append(renewed, c); c.Consumed() { // else on_store_error allows, and the lease that there is goes on
				alone := l.Alone // and the store may not have been told of that yet
				*l = c.reserved(l.Name)
				l.Alone = l.Alone || alone
				l.Position = cmp.Or(l.Position, now.UnixNano())
			}
		}
		if err != nil {
			d.observer.Renewed(&c, err)
			if !d.Shadow {
				break
			}
			err = nil
		}
		within = leastOf(within, relied(c.Lease))
	}
	// Asked afterwards: whoever settles r from now on finds the leases.
	if within > 0 && d.Claims.made(ctx, d.keyOf(r)) {
		for i := range renewed {
			renewed[i].refund(ctx, now)
		}
		return 0, ErrSettled
	}
	for i := range renewed {
		if c := &renewed[i]; c.Consumed() {
			d.observer.Renewed(c, nil)
		}
	}
	return within, err
}
