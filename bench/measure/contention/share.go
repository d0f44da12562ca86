package contention

import (
	"cmp"
	"context"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math"
	"os"
	"slices"
	"time"

	"github.com/HdrHistogram/hdrhistogram-go"
	"github.com/bradfitz/gomemcache/memcache"

	"weir/bench/internal/algorithms"
	"weir/bench/internal/loadgen"
	"weir/bench/internal/testbed"
	"weir/counters"
)

const (
	// ShareCommand is the command that Share is.
	ShareCommand = "contention-share"

	// callTimeout is the deadline of each decision, where the share has no
	// other.
	callTimeout = time.Second
	// refill is the time in which a token bucket fills.
	refill = time.Second
)

// The loops that decide for one key.
const (
	plainCAS    = "plain CAS loop"
	combinedCAS = "combined CAS loop" // a token bucket, like the plain one
	fixedSlots  = "fixed window"
	sixtySlots  = "sliding N=60"
)

// loops are those whose rates are measured; the first is what the others are
// compared with.
var loops = []string{plainCAS, combinedCAS, fixedSlots, sixtySlots}

// A share is what one process does: so many callers on one key, each deciding
// again as soon as it has an answer.
type share struct {
	Loop      string
	Memcached string
	Callers   int
	Limit     int64 // per second, but for fixed and sliding windows per minute
	// AsServed gives decisions the deadline that weir's handlers give them by
	// default, and the limiter what it has there.
	AsServed    bool
	CountDenied bool
}

// timeout is the time that each decision has.
func (s share) timeout() time.Duration {
	if s.AsServed {
		return counters.DefaultTimeout
	}
	return callTimeout
}

// An outcome is what callers did. Times are Unix times in nanoseconds.
type outcome struct {
	Admitted, Denied, Errors int64
	Contended                int64 // of the denied
	FirstError               string
	// Elapsed is how long new requests were made. Late decisions came after
	// that: at most one of each caller, as it made no more then.
	Elapsed time.Duration
	Late    int64
	Latency latency
	// Decisions has those of each caller.
	Decisions []int64
	// First and Last are when the first and the last request were made; 0 if
	// there was none.
	First, Last int64
}

func newOutcome() outcome { return outcome{Latency: latency{loadgen.NewHistogram()}} }

// join counts what another process did at the same time.
func (o *outcome) join(other outcome) {
	o.count(other)
	o.Elapsed = max(o.Elapsed, other.Elapsed)
	o.Decisions = append(o.Decisions, other.Decisions...)
}

// add counts what the same callers did at another time.
func (o *outcome) add(other outcome) {
	o.count(other)
	o.Elapsed += other.Elapsed
	if o.Decisions == nil {
		o.Decisions = make([]int64, len(other.Decisions))
	}
	for i, n := range other.Decisions {
		o.Decisions[i] += n
	}
}

func (o *outcome) count(other outcome) {
	o.Admitted += other.Admitted
	o.Denied += other.Denied
	o.Contended += other.Contended
	o.Errors += other.Errors
	o.Late += other.Late
	o.FirstError = cmp.Or(o.FirstError, other.FirstError)
	if other.Latency.Histogram != nil {
		o.Latency.Merge(other.Latency.Histogram)
	}
	if o.First == 0 || other.First != 0 && other.First < o.First {
		o.First = other.First
	}
	o.Last = max(o.Last, other.Last)
}

// decisions returns how many requests were decided.
func (o *outcome) decisions() int64 { return o.Admitted + o.Denied }

// rate returns decisions per second. Late ones don't count, and the wait for
// them doesn't either: it would be held against loops that let callers starve.
func (o *outcome) rate() float64 { return float64(o.decisions()-o.Late) / o.Elapsed.Seconds() }

// unluckiest returns the decisions of the caller that got the fewest, as a part
// of the mean; 0 when nothing was decided.
func (o *outcome) unluckiest() float64 {
	if o.decisions() == 0 {
		return 0
	}
	return float64(slices.Min(o.Decisions)) * float64(len(o.Decisions)) / float64(o.decisions())
}

// latency is a histogram that travels as JSON.
type latency struct{ *hdrhistogram.Histogram }

// MarshalJSON implements json.Marshaler.
func (l latency) MarshalJSON() ([]byte, error) { return json.Marshal(l.Export()) }

// UnmarshalJSON implements json.Unmarshaler.
func (l *latency) UnmarshalJSON(data []byte) error {
	var s hdrhistogram.Snapshot
	if err := json.Unmarshal(data, &s); err != nil {
		return err
	}
	l.Histogram = hdrhistogram.Import(&s)
	return nil
}

// processes have equal shares.
type processes []*testbed.Child

// startProcesses starts so many, which wait for run.
func startProcesses(ctx context.Context, s share, n int) (processes, error) {
	var p processes
	for range n {
		child, err := testbed.StartChild(ctx, ShareCommand)
		if err == nil {
			p = append(p, child)
			err = child.Send(s)
		}
		if err != nil {
			p.stop()
			return nil, err
		}
	}
	return p, nil
}

// run lets all processes work at the same time.
func (p processes) run(d time.Duration) (outcome, error) {
	total := newOutcome()
	for _, child := range p {
		if err := child.Send(d); err != nil {
			return total, err
		}
	}
	for _, child := range p {
		var o outcome
		if err := child.Receive(&o); err != nil {
			return total, err
		}
		total.join(o)
	}
	return total, nil
}

func (p processes) stop() {
	for _, child := range p {
		child.Stop()
	}
}

// Share reads a share from stdin, in JSON, and then for how long to work, again
// and again. It writes the outcome of each time to out, until stdin ends.
func Share(ctx context.Context, _ []string, out io.Writer) error {
	in, answers := json.NewDecoder(os.Stdin), json.NewEncoder(out)
	var s share
	if err := in.Decode(&s); err != nil {
		return err
	}
	limiter, store, err := s.open()
	if err != nil {
		return err
	}
	defer store.Close()
	for {
		var d time.Duration
		if err := in.Decode(&d); errors.Is(err, io.EOF) {
			return nil
		} else if err != nil {
			return err
		}
		o, err := s.work(ctx, limiter, d)
		if err != nil {
			return err
		}
		if err := answers.Encode(o); err != nil {
			return err
		}
	}
}

// A takeFunc decides a request.
type takeFunc func(ctx context.Context, r counters.Request) (counters.Decision, error)

// open returns the share's limiter, and what closes its store.
func (s share) open() (takeFunc, io.Closer, error) {
	if s.Loop == plainCAS {
		l := newPlainLimiter(s.Memcached)
		return l.Take, l.pool, nil
	}
	name, ok := map[string]string{combinedCAS: algorithms.Token, fixedSlots: algorithms.Fixed, sixtySlots: algorithms.Sliding60}[s.Loop]
	if !ok {
		return nil, nil, fmt.Errorf("there is no loop %q", s.Loop)
	}
	store, err := algorithms.OpenStore(s.Memcached)
	if err != nil {
		return nil, nil, err
	}
	a := algorithms.Named(name)
	cfg := algorithms.Config{Options: algorithms.OneClock(a.Short(), 1), Window: refill, Limit: s.Limit}
	if s.AsServed {
		cfg.ClockSkew, cfg.StoreTimeout = 0, 0 // the defaults
	}
	cfg.CountDenied = s.CountDenied
	if a.Kind == algorithms.Counters {
		cfg.Window = algorithms.Window
	}
	l, err := a.New(store, cfg)
	if err != nil {
		return nil, nil, errors.Join(err, store.Close())
	}
	return l.Take, store, nil
}

// work lets the callers decide for the given time.
func (s share) work(ctx context.Context, l takeFunc, d time.Duration) (outcome, error) {
	callers := make([]outcome, s.Callers)
	operations := make([]loadgen.Operation, s.Callers)
	for i := range callers {
		operations[i] = func(int64) (bool, error) { return callers[i].decide(l, s), nil }
	}
	t, err := loadgen.Repeat(ctx, operations, &loadgen.Turn{Clients: 1}, d)
	if err != nil {
		return outcome{}, err
	}
	o := newOutcome()
	for i := range callers {
		callers[i].Decisions = []int64{callers[i].decisions()}
		o.join(callers[i])
	}
	o.Elapsed, o.Latency = d, latency{t.Latency}
	return o, nil
}

// decide reports whether a request that is made now is admitted, and notes what
// its caller has seen.
func (o *outcome) decide(l takeFunc, s share) bool {
	now := time.Now()
	o.Last = now.UnixNano()
	if o.First == 0 {
		o.First = o.Last
	}
	d, err := l(&counters.Deadline{At: now.Add(s.timeout())}, counters.Request{
		Client: loadgen.ClientName(0), Cost: 1, Limit: s.Limit, Now: now,
	})
	o.Late = 1 // unless another follows
	switch {
	case err != nil:
		o.Late = 0
		o.Errors++
		if o.FirstError == "" {
			o.FirstError = err.Error()
		}
		return false
	case d.Allowed:
		o.Admitted++
	default:
		o.Denied++
		if d.Contended {
			o.Contended++
		}
	}
	return d.Allowed
}

// A plainLimiter is the token bucket that one writes first: each caller gets
// the state, takes a token, swaps the state, and starts over at once if another
// was faster. It holds the limit of a request and fills with it in a second. It
// is safe for concurrent use.
type plainLimiter struct{ pool *memcache.Client }

func newPlainLimiter(addr string) *plainLimiter {
	pool := memcache.New(addr)
	pool.MaxIdleConns = 512
	pool.Timeout = callTimeout
	return &plainLimiter{pool}
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
		switch err = write(item); {
		case err == nil:
			return counters.Decision{Allowed: true}, nil
		case !errors.Is(err, memcache.ErrCASConflict) && !errors.Is(err, memcache.ErrNotStored) && !errors.Is(err, memcache.ErrCacheMiss):
			return counters.Decision{}, err
		}
		if !time.Now().Before(deadline) {
			return counters.Decision{}, counters.ErrTimeout
		}
	}
}

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
