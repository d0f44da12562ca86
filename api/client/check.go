package client

import (
	"encoding/json"
	"fmt"
	"net/http"
	"slices"
	"strconv"
	"time"
	"unicode/utf8"
)

// A Check asks whether a client may do something now.
type Check struct {
	// Policy is the name of a policy.
	Policy string `json:"policy"`
	// Client is who is limited, in 1 to 1024 bytes of UTF-8.
	Client string `json:"client"`
	// Cost is what an admission consumes, at most 1,000,000,000; 0 means 1. To
	// look without consuming anything, use Peek.
	Cost int64 `json:"cost,omitempty"`
	// Limits take the place of the policy's limits and of the client's own, by
	// name, 1 to 10^12; nil means none.
	Limits map[string]int64 `json:"limits,omitempty"`
	// Settle says that Cost is an estimate: an admission has a Receipt, by which
	// Client.Settle says later what it was.
	Settle bool `json:"settle,omitempty"`
}

// An Answer is the outcome of a check. The zero Answer denies.
type Answer struct {
	// Allowed reports whether the client may go on.
	Allowed bool
	// RetryAfter is, on a denial, the time until the same check would be
	// admitted if nobody else asks; 0 if waiting makes no difference. Else 0.
	RetryAfter time.Duration
	// Wait is the time until an admitted request may proceed. Only a leaky
	// bucket makes requests wait, and none of its answers is held back.
	Wait time.Duration
	// Degraded: some limit could not be asked, or weir couldn't.
	Degraded bool
	// Shadow: the policy is on trial and allows whatever its limits decide.
	Shadow bool
	// Limits say how each limit stands. There are none for a client that is
	// exempt or blocked, or if weir couldn't be asked.
	Limits []Limit
	// Receipt is what Client.Settle needs. It is the zero Receipt if the check didn't ask
	// for one, or has consumed nothing.
	Receipt Receipt
}

// A Limit says how one limit of a policy stands after a check.
type Limit struct {
	Name, Algorithm string
	// Allowed reports whether this limit admitted the check.
	Allowed bool
	// Limit is the limit in force, Remaining the largest cost that would be
	// admitted now.
	Limit, Remaining int64
	// ResetAfter is the time until Remaining is as large as it can be if nobody
	// asks, RetryAfter that of the answer for this limit alone.
	ResetAfter, RetryAfter time.Duration
}

// A Receipt identifies an admitted check, to settle it later. Text may be kept and sent
// elsewhere: any Client of the same service can settle it.
type Receipt struct {
	Text  string
	Until time.Time // when it can be settled last
	// RenewWithin is how long what is under way may go on before Client.Renew, at most; 0 if
	// it takes no places, as no limit has the algorithm concurrency.
	RenewWithin time.Duration
	// within is how long Until is after the check.
	within time.Duration
}

// A Settlement is what settling a Receipt has changed.
type Settlement struct {
	// Already says that it was settled before, and the rest isn't known.
	Already bool
	Limits  []SettledLimit
}

// A SettledLimit is what a settlement has given back to one limit, or charged it, and
// the largest cost that it would admit now, if it is still the one that the check had.
type SettledLimit struct {
	Name                         string
	Refunded, Charged, Remaining int64
}

// A Problem is an error with which weir refused a request, or a check of a
// batch. It wraps nothing; match it with errors.As.
type Problem struct {
	Status int // of HTTP: 400 for a wrong check, 404 for an unknown policy
	// Type, Title and Detail are those of RFC 9457, or what a proxy answered.
	Type   string
	Title  string
	Detail string
}

func (p *Problem) Error() string {
	return fmt.Sprintf("client: weir answers %d %s: %s", p.Status, p.Title, p.Detail)
}

// reducedCapacity is the type of the problem by which on_store_error: deny
// refuses.
const reducedCapacity = "https://iana.org/assignments/http-problem-types#temporary-reduced-capacity"

// refuses reports whether p is a decision, and no failure: weir says that the
// request is wrong, or that its policy denies without the store.
func (p *Problem) refuses() bool { return !p.failed() || p.Type == reducedCapacity }

// failed reports whether weir, or a proxy before it, couldn't answer. With 408 and 429 a
// proxy says so.
func (p *Problem) failed() bool {
	return p.Status >= http.StatusInternalServerError || p.Status == http.StatusRequestTimeout || p.Status == http.StatusTooManyRequests
}

func wrong(format string, args ...any) *Problem {
	return &Problem{
		Status: http.StatusBadRequest, Type: "about:blank",
		Title: http.StatusText(http.StatusBadRequest), Detail: fmt.Sprintf(format, args...),
	}
}

const (
	maxClientBytes = 1024
	maxCheckBytes  = 64 << 10 // of JSON
)

func validateClient(client string) error {
	switch {
	case client == "" || len(client) > maxClientBytes:
		return wrong("client has %d bytes; it must have 1 to %d", len(client), maxClientBytes)
	case !utf8.ValidString(client):
		// JSON can't carry it, and what takes its place might be another
		// client's name.
		return wrong("client %q is not UTF-8", client)
	}
	return nil
}

// encode returns q as JSON, always the same for equal checks, perhaps in the memory of b.
// What it refuses could make weir refuse a whole batch, and so the checks of others.
func (q *Check) encode(b []byte) ([]byte, error) {
	if err := validateClient(q.Client); err != nil {
		return nil, err
	}
	for name := range q.Limits {
		if !utf8.ValidString(name) {
			return nil, wrong("limits: the name %q is not UTF-8", name)
		}
	}
	if len(q.Limits) == 0 && isPlain(q.Policy) && isPlain(q.Client) {
		b = q.encodePlain(b[:0])
	} else {
		var err error
		other := *q // so that q needs no memory of its own
		if b, err = json.Marshal(&other); err != nil {
			return nil, err
		}
	}
	if len(b) > maxCheckBytes {
		return nil, wrong("the check has %d bytes; it must have at most %d", len(b), maxCheckBytes)
	}
	return b, nil
}

// encodePlain appends what encoding/json would return of a check of plain text without
// limits, in a fraction of the time.
func (q *Check) encodePlain(b []byte) []byte {
	size := len(`{"policy":"","client":""}`) + len(q.Policy) + len(q.Client)
	if q.Cost != 0 || q.Settle {
		size += len(`,"cost":-1000000000000000000,"settle":true`)
	}
	b = append(append(slices.Grow(b, size), `{"policy":"`...), q.Policy...)
	b = append(append(b, `","client":"`...), q.Client...)
	b = append(b, '"')
	if q.Cost != 0 {
		b = strconv.AppendInt(append(b, `,"cost":`...), q.Cost, 10)
	}
	if q.Settle {
		b = append(b, `,"settle":true`...)
	}
	return append(b, '}')
}

// isPlain reports whether s stands in JSON as it is.
func isPlain(s string) bool {
	for i := range len(s) {
		if c := s[i]; c < ' ' || c > '~' || c == '"' || c == '\\' || c == '<' || c == '>' || c == '&' {
			return false
		}
	}
	return true
}
