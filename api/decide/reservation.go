package decide

import (
	"hash/crc32"
	"math/rand/v2"
	"strconv"
	"time"

	"weir/api/policy"
	"weir/api/receipt"
)

// A Settlement is what became of the cost that a check has reserved.
type Settlement struct {
	Policy  *policy.Policy
	Client  string
	Issued  time.Time // when the cost was reserved
	Cost    int64     // that is consumed in the end
	Already bool      // it was settled before: the rest isn't known
	Limits  []SettledLimit
}

// A SettledLimit is what a settlement has changed in one limit, and how that stands.
type SettledLimit struct {
	LimitCheck
	Refunded, Charged int64

	untold bool // the store may not know yet what was reserved
}

// Receipt returns what the check of a has reserved, to be settled later, with its limits
// appended to limits, and whether that is anything.
func (a *Answer) Receipt(limits []receipt.Limit) (r receipt.Receipt, reserved bool) {
	if !a.Settles || a.Denied {
		return r, false
	}
	r.Limits = limits
	for i := range a.Limits {
		if l := &a.Limits[i]; l.Consumed() && settles(l.Limit) {
			r.Limits = append(r.Limits, l.reserved(a.plan.names[i]))
		}
	}
	if len(r.Limits) == 0 {
		return r, false
	}
	r.Policy, r.Client, r.Cost, r.Issued, r.Nonce = a.Policy.Name, a.Client, a.Cost, a.Now, rand.Uint64()
	r.Until = a.Now.Add(a.Policy.SettleWithin)
	return r, true
}

// settles reports whether what l has counted can be settled. A limit that counts requests can't
// be, as a request stays one, unless it has places.
func settles(l *policy.Limit) bool { return !l.CountsRequests || l.Lease > 0 }

// reserved returns what l, which has admitted its cost, has reserved, by its name in receipts.
func (l *LimitCheck) reserved(name uint32) receipt.Limit {
	return receipt.Limit{
		Name: name, Alone: l.Degraded != nil, Value: l.Value,
		Remaining: l.Remaining, Generation: l.Receipt.Generation, Position: l.Receipt.Position,
	}
}

// nameOf returns the number by which a receipt finds a limit again. It is a hash of what
// decides where the limit counts: not of a lease, which may change while places are held.
func nameOf(l *policy.Limit) uint32 {
	var short [128]byte
	b := append(append(append(short[:0], l.StoredName()...), ' '), l.Algorithm...)
	if l.Lease == 0 {
		b = strconv.AppendInt(append(b, ' '), int64(l.Window), 10)
	}
	return crc32.ChecksumIEEE(strconv.AppendInt(append(b, ' '), int64(l.SubWindows), 10))
}

// RenewWithin returns how soon after the answer its leases have to be renewed; 0 if it has none.
// They began with the check, before the answer was held.
func (a *Answer) RenewWithin() (within time.Duration) {
	for i := range a.Limits {
		if l := &a.Limits[i]; l.Lease > 0 && l.Cost > 0 && l.Consumed() {
			within = leastOf(within, max(relied(l.Lease)-a.Held, time.Millisecond))
		}
	}
	return within
}

// relied returns how long after a check a lease can be relied on, so that there is time to
// renew it.
func relied(lease time.Duration) time.Duration { return lease - lease/4 }

// leastOf returns the lesser of two durations, of which 0 is none.
func leastOf(a, b time.Duration) time.Duration {
	if a == 0 {
		return b
	}
	return min(a, b)
}
