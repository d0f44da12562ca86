package counters

import (
	"cmp"
	"context"
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

// Bounds of Options. They bound how far a check has to look around its window.
const (
	MaxClockSkew = time.Minute
	MaxTimeout   = 5 * time.Second
)

// MaxStaleness is how long a process relies on what it has read of a client
// without asking the store again. It bounds how long a transient over-count can
// deny, and how long a reset elsewhere goes unnoticed; resets promise a second.
const MaxStaleness = 900 * time.Millisecond

// Options are what all limiters have in common. Only the names are mandatory.
type Options struct {
	// KeyPrefix begins all keys in the store; "" means DefaultKeyPrefix. See
	// CheckKeyPrefix.
	KeyPrefix string
	// Policy and Limit name the limit in the store. Limiters with the same
	// names share their counts; see CheckName.
	Policy, Limit string
	// ClockSkew is the largest difference between the clocks of instances. 0
	// means DefaultClockSkew, and a negative value none.
	ClockSkew time.Duration
	// StoreTimeout is the longest time that a check may take, and so how late its count may
	// reach the store: callers set the deadline of the context by it, and windows enforce it.
	// What is told later, when nobody waits, may take longer: see Unhurried. 0 means
	// DefaultTimeout, and a negative value that the store answers at once.
	StoreTimeout time.Duration
	// CountDenied makes denied requests count too.
	CountDenied bool
	// Clients is how many clients are remembered. 0 means DefaultClients, and a
	// negative value none.
	Clients int
	// Reseeded is called with the number of counters, or states, that the store
	// had lost and that were put back, if it isn't nil. It must not call the limiter.
	Reseeded func(n int)
	// Batch is called with the number of calls of one client that were answered together, by
	// one operation on the store, if it isn't nil.
	Batch func(size int)
	// Background runs what goes on after its call, if it isn't nil: refunds, and telling the
	// store what else is due. Wait for it before the store is closed; a limiter's Flush does.
	Background *Goroutines
	// RefundFailed is called for each refund of which nobody knows whether it was
	// done, or was due, if it isn't nil. What should have been refunded may stay in
	// use until its time has passed. It must not call the limiter.
	RefundFailed func()
}

// Unhurried is for limiters, for what nobody waits for any more. It calls f with a
// context that lasts one StoreTimeout for each of the checks, but of several at most a second
// in all, and returns what f returns.
func (o *Options) Unhurried(checks int, f func(ctx context.Context) error) error {
	one := cmp.Or(o.StoreTimeout, DefaultTimeout)
	ctx, cancel := context.WithTimeout(context.Background(), max(one, min(time.Duration(checks)*one, time.Second)))
	defer cancel()
	return f(ctx)
}

// Horizon returns how much later than on its own clock a count may be in the
// store on another instance's clock: ClockSkew + StoreTimeout.
func (o *Options) Horizon() time.Duration { return o.ClockSkew + o.StoreTimeout }

// Telling returns for how long, from when the store answers again, other processes are thought to
// have something still to tell it that they have admitted without it.
func (o *Options) Telling() time.Duration { return 2 * o.StoreTimeout }

// WithDefaults is for limiters, which call it once: it returns o with every
// default in the place of a zero value, and 0 for none. The error says what is
// wrong.
func (o Options) WithDefaults() (Options, error) {
	o.KeyPrefix = cmp.Or(o.KeyPrefix, DefaultKeyPrefix)
	o.ClockSkew = max(0, cmp.Or(o.ClockSkew, DefaultClockSkew))
	o.StoreTimeout = max(0, cmp.Or(o.StoreTimeout, DefaultTimeout))
	o.Clients = max(0, cmp.Or(o.Clients, DefaultClients))
	if o.ClockSkew > MaxClockSkew || o.StoreTimeout > MaxTimeout {
		return o, fmt.Errorf("clock skew %v may be at most %v, and store timeout %v at most %v", o.ClockSkew, MaxClockSkew, o.StoreTimeout, MaxTimeout)
	}
	if o.Batch == nil {
		o.Batch = func(int) {}
	}
	if o.Reseeded == nil {
		o.Reseeded = func(int) {}
	}
	o.Background = cmp.Or(o.Background, new(Goroutines))
	if o.RefundFailed == nil {
		o.RefundFailed = func() {}
	}
	return o, errors.Join(CheckKeyPrefix(o.KeyPrefix), checkName("policy", o.Policy), checkName("limit", o.Limit))
}

func checkName(what, name string) error {
	if err := CheckName(name); err != nil {
		return fmt.Errorf("%s %w", what, err)
	}
	return nil
}
