package decide

import (
	"strconv"
	"time"

	"github.com/go-json-experiment/json/jsontext"

	"weir/api/policy"
)

// SetHeaders sets RateLimit-Policy and RateLimit for the limits that could be
// asked, as draft-ietf-httpapi-ratelimit-headers-11 has them, and Retry-After
// on a denial. h is an http.Header. It returns scratch, perhaps grown, for reuse.
func (a *Answer) SetHeaders(h map[string][]string, scratch []byte) []byte {
	// Two allocations for all headers: an array of values, and a text that
	// RateLimit and Retry-After share.
	values := make([]string, 3)
	set := func(i int, name, value string) {
		if value != "" {
			values[i] = value
			h[name] = values[i : i+1 : i+1]
		}
	}
	policy := a.plan.header
	if !a.ownLimits() {
		scratch = a.appendList(scratch[:0], (*LimitCheck).appendPolicy)
		policy = string(scratch)
	}
	scratch = a.appendList(scratch[:0], (*LimitCheck).appendState)
	state := len(scratch)
	if a.Retry > 0 {
		scratch = strconv.AppendInt(scratch, WholeSeconds(a.Retry), 10)
	}
	text := string(scratch)
	// The names are in the case of http.Header.
	set(0, "Ratelimit-Policy", policy)
	set(1, "Ratelimit", text[:state])
	set(2, "Retry-After", text[state:])
	return scratch
}

// ownLimits reports whether all limits of the plan decided, none of them
// replaced by the client's or the caller's.
func (a *Answer) ownLimits() bool {
	for i := range a.Limits {
		if l := &a.Limits[i]; !l.decided || l.Value != l.Limit.Limit {
			return false
		}
	}
	return len(a.Limits) == len(a.plan.limits)
}

// appendList appends a list with an item for each limit that could be asked.
func (a *Answer) appendList(b []byte, item func(*LimitCheck, []byte) []byte) []byte {
	for i := range a.Limits {
		if l := &a.Limits[i]; l.decided {
			if len(b) > 0 {
				b = append(b, ", "...)
			}
			b = item(l, b)
		}
	}
	return b
}

// rateLimitPolicy returns RateLimit-Policy with the limits as they are.
func rateLimitPolicy(limits []*policy.Limit) string {
	a := Answer{Limits: make([]LimitCheck, len(limits))}
	for i, l := range limits {
		a.Limits[i] = LimitCheck{Limit: l, Value: l.Limit, decided: true}
	}
	return string(a.appendList(nil, (*LimitCheck).appendPolicy))
}

// appendPolicy appends what the limit is: "per-minute";q=100;w=60. The draft
// knows only windows of whole seconds; others have no w, and leases a unit instead.
func (l *LimitCheck) appendPolicy(b []byte) []byte {
	b = strconv.AppendInt(append(appendName(b, l.Name), ";q="...), l.Value, 10)
	if l.Lease > 0 {
		return append(b, `;qu="concurrent-requests"`...)
	}
	if l.Window%time.Second == 0 {
		b = strconv.AppendInt(append(b, ";w="...), int64(l.Window/time.Second), 10)
	}
	return b
}

// appendState appends how the limit stands: "per-minute";r=57;t=42.
func (l *LimitCheck) appendState(b []byte) []byte {
	t := l.ResetAfter
	if !l.Allowed {
		t = l.RetryAfter
	}
	b = strconv.AppendInt(append(appendName(b, l.Name), ";r="...), l.Remaining, 10)
	return strconv.AppendInt(append(b, ";t="...), WholeSeconds(t), 10)
}

func appendName(b []byte, name string) []byte {
	b, _ = jsontext.AppendQuote(b, name) // the error says that the name isn't UTF-8
	return b
}

// WholeSeconds rounds d up, so that a client that waits isn't early.
func WholeSeconds(d time.Duration) int64 {
	return int64((d + time.Second - 1) / time.Second)
}
