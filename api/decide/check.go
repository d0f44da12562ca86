package decide

import (
	"net/netip"

	"weir/api/policy"
	"weir/counters"
)

// A Check is one question to a policy.
type Check struct {
	Policy string
	Client string
	Cost   int64
	Limits []LimitValue // passed by the caller for this check
	Settle bool         // the cost is an estimate, to be settled by a receipt
	Trace  string       // the id of the trace that the check is part of; or ""

	// Of forward auth: the client's address, if it is known by that, or whether
	// it is known by a header. What that says is a name, even if it looks like an
	// address: nobody gets a network's exception by a header.
	Network netip.Prefix
	Header  bool
	Route   *policy.Route // or nil

	charges bool // it is a Charge, which counts also if the client is blocked
}

// A LimitValue is a limit that a caller passes for one check.
type LimitValue struct {
	Name  string
	Value int64
}

func (q *Check) validate() error {
	if err := validateCost(q.Cost); err != nil {
		return err
	}
	for _, l := range q.Limits {
		if l.Value < 1 || l.Value > counters.MaxLimit {
			return invalid("limits: %q is %d and must be a whole number from 1 to %d", l.Name, l.Value, int64(counters.MaxLimit))
		}
	}
	return ValidateClient(q.Client)
}

func validateCost(cost int64) error {
	if cost < 0 || cost > counters.MaxCost {
		return invalid("cost %d must be a whole number from 0 to %d", cost, counters.MaxCost)
	}
	return nil
}

// ValidateClient returns an Invalid if no client can have that name.
func ValidateClient(client string) error {
	if client == "" {
		return invalid("client is missing; it names who is limited, in 1 to %d bytes", counters.MaxClientBytes)
	}
	if len(client) > counters.MaxClientBytes {
		return invalid("client is %d bytes long; at most %d are possible", len(client), counters.MaxClientBytes)
	}
	return nil
}
