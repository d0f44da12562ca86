package api

import (
	"net/http"
	"strconv"
	"time"

	"github.com/go-json-experiment/json/jsontext"
)

// appendJSON appends the body of a check: an object, without its status when
// status is 0.
func (a *answer) appendJSON(b []byte, status int) []byte {
	b = append(b, '{')
	if status != 0 {
		b = append(b, `"status":`...)
		b = strconv.AppendInt(b, int64(status), 10)
		b = append(b, ',')
	}
	b = append(b, `"allowed":`...)
	b = strconv.AppendBool(b, a.allowed)
	b = append(b, `,"policy":`...)
	b = appendString(b, a.policy.Name)
	b = append(b, `,"client":`...)
	b = appendString(b, a.client)
	b = append(b, `,"retry_after":`...)
	b = appendSeconds(b, a.retryAfter())
	b = append(b, `,"wait":`...)
	b = appendSeconds(b, a.wait())
	b = append(b, `,"degraded":`...)
	b = strconv.AppendBool(b, a.degraded)
	b = append(b, `,"shadow":`...)
	b = strconv.AppendBool(b, a.policy.Shadow)
	b = append(b, `,"limits":[`...)
	for i := range a.limits {
		if i > 0 {
			b = append(b, ',')
		}
		b = a.limits[i].appendJSON(b)
	}
	return append(b, "]}"...)
}

func (l *limitAnswer) appendJSON(b []byte) []byte {
	b = append(b, `{"name":`...)
	b = appendString(b, l.Name)
	b = append(b, `,"algorithm":`...)
	b = appendString(b, l.Algorithm)
	b = append(b, `,"allowed":`...)
	b = strconv.AppendBool(b, l.Allowed)
	b = append(b, `,"limit":`...)
	b = strconv.AppendInt(b, l.limit, 10)
	b = append(b, `,"remaining":`...)
	b = strconv.AppendInt(b, l.Remaining, 10)
	b = append(b, `,"reset_after":`...)
	b = appendSeconds(b, l.ResetAfter)
	b = append(b, `,"retry_after":`...)
	b = appendSeconds(b, l.RetryAfter)
	return append(b, '}')
}

// appendString appends s as a JSON string; bytes that aren't UTF-8 become
// U+FFFD.
func appendString(b []byte, s string) []byte {
	b, _ = jsontext.AppendQuote(b, s) // the error says that s isn't UTF-8
	return b
}

// appendSeconds appends d in seconds, rounded up to a millisecond so that who
// waits that long doesn't come too early.
func appendSeconds(b []byte, d time.Duration) []byte {
	ms := int64((d + time.Millisecond - 1) / time.Millisecond)
	b = strconv.AppendInt(b, ms/1000, 10)
	if ms %= 1000; ms != 0 {
		b = append(b, '.', byte('0'+ms/100), byte('0'+ms/10%10), byte('0'+ms%10))
		for b[len(b)-1] == '0' {
			b = b[:len(b)-1]
		}
	}
	return b
}

// wholeSeconds rounds d up.
func wholeSeconds(d time.Duration) int64 {
	return int64((d + time.Second - 1) / time.Second)
}

// Names of headers as http.Header has them.
const (
	headerRateLimitPolicy = "Ratelimit-Policy"
	headerRateLimit       = "Ratelimit"
	headerRetryAfter      = "Retry-After"
)

// setHeaders sets RateLimit-Policy and RateLimit, structured fields of
// draft-ietf-httpapi-ratelimit-headers-11, for the limits that could be asked,
// and Retry-After on a denial. It returns scratch, which it uses, for the next.
func (a *answer) setHeaders(h http.Header, scratch []byte) []byte {
	// One array for the values of all headers, and one text for all that is new,
	// are the fewest allocations there can be.
	values := make([]string, 3)
	set := func(i int, name, value string) {
		values[i] = value
		h[name] = values[i : i+1 : i+1]
	}
	if len(a.limits) > 0 {
		if a.usual() {
			set(0, headerRateLimitPolicy, a.policy.header)
		} else if scratch = a.appendKnown(scratch[:0], (*limitAnswer).appendPolicy); len(scratch) > 0 {
			set(0, headerRateLimitPolicy, string(scratch))
		}
	}
	scratch = a.appendKnown(scratch[:0], (*limitAnswer).appendState)
	state := len(scratch)
	if retry := a.retryAfter(); retry > 0 {
		scratch = strconv.AppendInt(scratch, wholeSeconds(retry), 10)
	}
	text := string(scratch)
	if state > 0 {
		set(1, headerRateLimit, text[:state])
	}
	if state < len(text) {
		set(2, headerRetryAfter, text[state:])
	}
	return scratch
}

// usual reports whether the policy's own limits decided, all of them.
func (a *answer) usual() bool {
	for i := range a.limits {
		if l := &a.limits[i]; !l.known || l.limit != l.Limit.Limit {
			return false
		}
	}
	return true
}

// appendKnown appends a list with an item for each limit that could be asked.
func (a *answer) appendKnown(b []byte, item func(*limitAnswer, []byte) []byte) []byte {
	for i := range a.limits {
		if l := &a.limits[i]; l.known {
			if len(b) > 0 {
				b = append(b, ", "...)
			}
			b = item(l, b)
		}
	}
	return b
}

// rateLimitPolicy returns the header of that name for the policy's own limits.
func (p *Policy) rateLimitPolicy() string {
	a := answer{limits: make([]limitAnswer, len(p.Limits))}
	for i := range p.Limits {
		a.limits[i] = limitAnswer{Limit: &p.Limits[i], limit: p.Limits[i].Limit, known: true}
	}
	return string(a.appendKnown(nil, (*limitAnswer).appendPolicy))
}

// appendPolicy appends what the limit is: "per-minute";q=100;w=60. A window that
// isn't whole seconds can't be said.
func (l *limitAnswer) appendPolicy(b []byte) []byte {
	b = appendName(b, l.Name)
	b = append(b, ";q="...)
	b = strconv.AppendInt(b, l.limit, 10)
	if l.Window%time.Second == 0 {
		b = append(b, ";w="...)
		b = strconv.AppendInt(b, int64(l.Window/time.Second), 10)
	}
	return b
}

// appendState appends how the limit stands: "per-minute";r=57;t=42.
func (l *limitAnswer) appendState(b []byte) []byte {
	t := l.ResetAfter
	if !l.Allowed {
		t = l.RetryAfter
	}
	b = appendName(b, l.Name)
	b = append(b, ";r="...)
	b = strconv.AppendInt(b, l.Remaining, 10)
	b = append(b, ";t="...)
	return strconv.AppendInt(b, wholeSeconds(t), 10)
}

// appendName appends the name of a limit, which needs no escapes.
func appendName(b []byte, name string) []byte {
	b = append(b, '"')
	b = append(b, name...)
	return append(b, '"')
}
