package counters

import (
	"errors"
	"fmt"
	"time"
)

// What the zero values of Options, and of a context without a deadline, mean.
const (
	DefaultKeyPrefix = "weir"
	// DefaultClockSkew is generous for hosts that keep their time by NTP.
	DefaultClockSkew = 50 * time.Millisecond
	DefaultClients   = 100_000
	DefaultTimeout   = 50 * time.Millisecond
)

// MaxStaleness is how long a process relies on what it has read of a client
// without asking the store again. It bounds how long a transient over-count can
// deny, and how long a reset elsewhere goes unnoticed; resets promise a second.
const MaxStaleness = 900 * time.Millisecond

// Options are what all limiters have in common. Only the names are mandatory.
type Options struct {
	// KeyPrefix begins all keys in the store, that of the store itself too; ""
	// means DefaultKeyPrefix.
	KeyPrefix string
	// Policy and Limit name the limit in the store. Limiters with the same names
	// share their counts; see CheckName.
	Policy, Limit string
	// ClockSkew is the largest difference between the clocks of instances, the
	// time in which a count reaches the store included. 0 means
	// DefaultClockSkew, and a negative value none.
	ClockSkew time.Duration
	// CountDenied makes denied requests count too.
	CountDenied bool
	// Clients is how many clients are remembered. 0 means DefaultClients, and a
	// negative value none.
	Clients int
	// Batch is called with the size of each batch, if it isn't nil.
	Batch func(size int)
}

// WithDefaults returns o with every default in the place of a zero value, and 0
// for none. The error says what is wrong.
func (o Options) WithDefaults() (Options, error) {
	if o.KeyPrefix == "" {
		o.KeyPrefix = DefaultKeyPrefix
	}
	if o.ClockSkew == 0 {
		o.ClockSkew = DefaultClockSkew
	}
	if o.Clients == 0 {
		o.Clients = DefaultClients
	}
	o.ClockSkew, o.Clients = max(0, o.ClockSkew), max(0, o.Clients)
	return o, errors.Join(CheckKeyPrefix(o.KeyPrefix), checkName("policy", o.Policy), checkName("limit", o.Limit))
}

func checkName(what, name string) error {
	if err := CheckName(name); err != nil {
		return fmt.Errorf("%s %w", what, err)
	}
	return nil
}
