package api

import (
	"net/http"
	"strconv"
	"sync"
	"time"

	"github.com/go-json-experiment/json/jsontext"
	"github.com/labstack/echo/v4"

	"weir/api/policy"
)

var outputs = sync.Pool{New: func() any { return new([]byte) }}

// write answers with the headers and the body of a, which must not be used any
// more. A denial gets the status denied.
func (a *answer) write(c echo.Context, denied int) error {
	a.writeHeaders(c)
	return a.writeBody(c, a.status(denied))
}

// writeNothing answers with status 200 and the headers of a, which must not be
// used any more. nginx and Caddy read no body of an answer that admits: they
// would close a connection that has one.
func (a *answer) writeNothing(c echo.Context) error {
	a.writeHeaders(c)
	a.release()
	return c.NoContent(http.StatusOK)
}

// writeDenial answers forward auth with the headers of a, which must not be
// used any more, and with problem details. Proxies show them to users: they
// don't name the client, which may be another's secret.
func (a *answer) writeDenial(c echo.Context) error {
	a.writeHeaders(c)
	defer a.release()
	c.Response().Header().Set(echo.HeaderContentType, "application/problem+json")
	if c.Request().Method == http.MethodHead {
		return c.NoContent(a.policy.AuthDenyStatus)
	}
	out := outputs.Get().(*[]byte)
	defer outputs.Put(out)
	*out = append(a.appendDenial((*out)[:0]), '\n')
	return c.Blob(a.policy.AuthDenyStatus, "application/problem+json", *out)
}

// appendDenial appends the problem details of a denial.
func (a *answer) appendDenial(b []byte) []byte {
	status := a.policy.AuthDenyStatus
	if len(a.limits) == 0 {
		b = appendString(append(b, `{"type":"about:blank","title":`...), http.StatusText(status))
		b = strconv.AppendInt(append(b, `,"status":`...), int64(status), 10)
		return append(b, `,"detail":"this client is blocked"}`...)
	}
	b = append(b, `{"type":"`+typeQuotaExceeded+`","title":"Quota Exceeded"`...)
	b = strconv.AppendInt(append(b, `,"status":`...), int64(status), 10)
	b = strconv.AppendInt(append(b, `,"detail":"too many requests; try again in `...), wholeSeconds(a.retry), 10)
	b = appendString(append(b, ` s","policy":`...), a.policy.Name)
	if a.degraded != nil {
		b = append(b, `,"degraded":true`...)
	}
	b = append(b, `,"violated-policies":[`...)
	first := true
	for i := range a.limits {
		if l := &a.limits[i]; !l.Allowed {
			if !first {
				b = append(b, ',')
			}
			b, first = appendString(b, l.Name), false
		}
	}
	return append(b, "]}"...)
}

func (a *answer) writeHeaders(c echo.Context) {
	out := outputs.Get().(*[]byte)
	*out = a.setHeaders(c.Response().Header(), *out)
	outputs.Put(out)
}

// writeBody answers with the body of a, which must not be used any more.
func (a *answer) writeBody(c echo.Context, status int) error {
	out := outputs.Get().(*[]byte)
	defer outputs.Put(out)
	defer a.release()
	*out = append(a.appendJSON((*out)[:0], 0), '\n')
	return c.Blob(status, echo.MIMEApplicationJSON, *out)
}

func (a *answer) status(denied int) int {
	if a.allowed {
		return http.StatusOK
	}
	return denied
}

// appendJSON appends a as a JSON object. Its first field is the status, unless
// that is 0.
func (a *answer) appendJSON(b []byte, status int) []byte {
	b = append(b, '{')
	if status != 0 {
		b = strconv.AppendInt(append(b, `"status":`...), int64(status), 10)
		b = append(b, ',')
	}
	b = strconv.AppendBool(append(b, `"allowed":`...), a.allowed)
	b = appendString(append(b, `,"policy":`...), a.policy.Name)
	b = appendString(append(b, `,"client":`...), a.client)
	b = appendSeconds(append(b, `,"retry_after":`...), a.retry)
	b = appendSeconds(append(b, `,"wait":`...), a.wait)
	b = strconv.AppendBool(append(b, `,"degraded":`...), a.degraded != nil)
	b = strconv.AppendBool(append(b, `,"shadow":`...), a.policy.Shadow)
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
	b = appendString(append(b, `{"name":`...), l.Name)
	b = appendString(append(b, `,"algorithm":`...), l.Algorithm)
	b = strconv.AppendBool(append(b, `,"allowed":`...), l.Allowed)
	b = strconv.AppendInt(append(b, `,"limit":`...), l.limit, 10)
	b = strconv.AppendInt(append(b, `,"remaining":`...), l.Remaining, 10)
	b = appendSeconds(append(b, `,"reset_after":`...), l.ResetAfter)
	b = appendSeconds(append(b, `,"retry_after":`...), l.RetryAfter)
	return append(b, '}')
}

// appendString appends s as a JSON string. Bytes that aren't UTF-8 become
// U+FFFD.
func appendString(b []byte, s string) []byte {
	b, _ = jsontext.AppendQuote(b, s) // the error says that s isn't UTF-8
	return b
}

// appendSeconds appends d in seconds, rounded up to a millisecond, so that a
// client that waits isn't early.
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

// setHeaders sets RateLimit-Policy and RateLimit for the limits that could be
// asked, as draft-ietf-httpapi-ratelimit-headers-11 has them, and Retry-After
// on a denial. It returns scratch, perhaps grown, for reuse.
func (a *answer) setHeaders(h http.Header, scratch []byte) []byte {
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
		scratch = a.appendList(scratch[:0], (*limitAnswer).appendPolicy)
		policy = string(scratch)
	}
	scratch = a.appendList(scratch[:0], (*limitAnswer).appendState)
	state := len(scratch)
	if a.retry > 0 {
		scratch = strconv.AppendInt(scratch, wholeSeconds(a.retry), 10)
	}
	text := string(scratch)
	// The names are in the case of http.Header.
	set(0, "Ratelimit-Policy", policy)
	set(1, "Ratelimit", text[:state])
	set(2, echo.HeaderRetryAfter, text[state:])
	return scratch
}

// appendList appends a list with an item for each limit that could be asked.
func (a *answer) appendList(b []byte, item func(*limitAnswer, []byte) []byte) []byte {
	for i := range a.limits {
		if l := &a.limits[i]; l.decided {
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
	a := answer{limits: make([]limitAnswer, len(limits))}
	for i, l := range limits {
		a.limits[i] = limitAnswer{Limit: l, limit: l.Limit, decided: true}
	}
	return string(a.appendList(nil, (*limitAnswer).appendPolicy))
}

// appendPolicy appends what the limit is: "per-minute";q=100;w=60. The draft
// knows only windows of whole seconds; others have no w.
func (l *limitAnswer) appendPolicy(b []byte) []byte {
	b = appendString(b, l.Name)
	b = strconv.AppendInt(append(b, ";q="...), l.limit, 10)
	if l.Window%time.Second == 0 {
		b = strconv.AppendInt(append(b, ";w="...), int64(l.Window/time.Second), 10)
	}
	return b
}

// appendState appends how the limit stands: "per-minute";r=57;t=42.
func (l *limitAnswer) appendState(b []byte) []byte {
	t := l.ResetAfter
	if !l.Allowed {
		t = l.RetryAfter
	}
	b = appendString(b, l.Name)
	b = strconv.AppendInt(append(b, ";r="...), l.Remaining, 10)
	return strconv.AppendInt(append(b, ";t="...), wholeSeconds(t), 10)
}
