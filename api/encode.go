package api

import (
	"net/http"
	"strconv"
	"sync"
	"time"

	"github.com/go-json-experiment/json/jsontext"
	"github.com/labstack/echo/v4"

	"weir/api/decide"
	"weir/api/receipt"
)

var outputs = sync.Pool{New: func() any { return new([]byte) }}

// writeDenial answers forward auth with the headers of a, which must not be
// used any more, and with problem details. Proxies show them to users: they
// don't name the client, which may be another's secret.
func writeDenial(c echo.Context, a *decide.Answer) error {
	writeHeaders(c, a)
	defer a.Release()
	if c.Request().Method == http.MethodHead {
		c.Response().Header()[echo.HeaderContentType] = problemType
		return c.NoContent(a.Policy.AuthDenyStatus)
	}
	return writeAppended(c, a.Policy.AuthDenyStatus, problemType, func(b []byte) []byte { return append(appendDenial(b, a), '\n') })
}

func appendDenial(b []byte, a *decide.Answer) []byte {
	status := a.Policy.AuthDenyStatus
	if len(a.Limits) == 0 {
		b = appendString(append(b, `{"type":"about:blank","title":`...), http.StatusText(status))
		b = strconv.AppendInt(append(b, `,"status":`...), int64(status), 10)
		return append(b, `,"detail":"this client is blocked"}`...)
	}
	b = append(b, `{"type":"`+typeQuotaExceeded+`","title":"Quota Exceeded"`...)
	b = strconv.AppendInt(append(b, `,"status":`...), int64(status), 10)
	b = strconv.AppendInt(append(b, `,"detail":"too many requests; try again in `...), decide.WholeSeconds(a.Retry), 10)
	b = appendString(append(b, ` s","policy":`...), a.Policy.Name)
	if a.Degraded != nil {
		b = append(b, `,"degraded":true`...)
	}
	b = append(b, `,"violated-policies":[`...)
	for i := range a.Limits {
		if l := &a.Limits[i]; !l.Allowed {
			b = appendString(appendComma(b), l.Name)
		}
	}
	return append(b, "]}"...)
}

func writeHeaders(c echo.Context, a *decide.Answer) {
	out := outputs.Get().(*[]byte)
	*out = a.SetHeaders(c.Response().Header(), *out)
	outputs.Put(out)
}

// writeBody answers with the body of a, which must not be used any more.
func (s *Server) writeBody(c echo.Context, a *decide.Answer, status int) error {
	defer a.Release()
	return writeAppended(c, status, jsonType, func(b []byte) []byte { return append(s.appendAnswer(b, a, 0), '\n') })
}

// maxKeptOutput is the size of the largest buffer that is kept for another answer: that of
// a batch.
const maxKeptOutput = 1 << 20

// writeAppended answers with a body of that type, which body appends.
func writeAppended(c echo.Context, status int, contentType []string, body func(b []byte) []byte) error {
	out := outputs.Get().(*[]byte)
	*out = body((*out)[:0])
	err := writeBlob(c, status, contentType, *out)
	if cap(*out) <= maxKeptOutput {
		outputs.Put(out)
	}
	return err
}

// Values of Content-Type. Nobody changes them.
var jsonType, problemType = []string{echo.MIMEApplicationJSON}, []string{"application/problem+json"}

func writeBlob(c echo.Context, status int, contentType []string, body []byte) error {
	c.Response().Header()[echo.HeaderContentType] = contentType // echo would allocate it
	return c.Blob(status, contentType[0], body)
}

// statusOf returns the status of an admission, or else denied.
func statusOf(allowed bool, denied int) int {
	if allowed {
		return http.StatusOK
	}
	return denied
}

// appendAnswer appends a as a JSON object. Its first field is the status, unless
// that is 0.
func (s *Server) appendAnswer(b []byte, a *decide.Answer, status int) []byte {
	b = strconv.AppendBool(append(appendBegin(b, status), `"allowed":`...), a.Allowed)
	b = appendString(append(b, `,"policy":`...), a.Policy.Name)
	b = appendString(append(b, `,"client":`...), a.Client)
	b = appendSeconds(append(b, `,"retry_after":`...), a.Retry)
	b = appendSeconds(append(b, `,"wait":`...), a.Wait)
	b = strconv.AppendBool(append(b, `,"degraded":`...), a.Degraded != nil)
	b = strconv.AppendBool(append(b, `,"shadow":`...), a.Policy.Shadow)
	if a.Settles {
		b = appendReceipt(b, a, s.receipts.Load())
	}
	b = append(b, `,"limits":[`...)
	for i := range a.Limits {
		b = appendLimit(appendComma(b), &a.Limits[i])
	}
	return append(b, "]}"...)
}

func appendLimit(b []byte, l *decide.LimitCheck) []byte {
	b = appendString(append(b, `{"name":`...), l.Name)
	b = appendString(append(b, `,"algorithm":`...), l.Algorithm)
	b = strconv.AppendBool(append(b, `,"allowed":`...), l.Allowed)
	b = strconv.AppendInt(append(b, `,"limit":`...), l.Value, 10)
	b = strconv.AppendInt(append(b, `,"remaining":`...), l.Remaining, 10)
	b = appendSeconds(append(b, `,"reset_after":`...), l.ResetAfter)
	b = appendSeconds(append(b, `,"retry_after":`...), l.RetryAfter)
	return append(b, '}')
}

// appendSettlement appends s as a JSON object. Its first field is the status, unless
// that is 0.
func appendSettlement(b []byte, s *decide.Settlement, status int) []byte {
	b = strconv.AppendBool(append(appendBegin(b, status), `"settled":true,"already":`...), s.Already)
	b = strconv.AppendInt(append(b, `,"cost":`...), s.Cost, 10)
	if s.Already {
		return append(b, '}')
	}
	b = append(b, `,"limits":[`...)
	for i := range s.Limits {
		l := &s.Limits[i]
		b = appendString(append(appendComma(b), `{"name":`...), l.Name)
		b = strconv.AppendInt(append(b, `,"refunded":`...), l.Refunded, 10)
		b = strconv.AppendInt(append(b, `,"charged":`...), l.Charged, 10)
		b = strconv.AppendInt(append(b, `,"remaining":`...), l.Remaining, 10)
		b = append(b, '}')
	}
	return append(b, "]}"...)
}

// appendReceipt appends the fields that a check has which asked for a receipt, if there
// is one.
func appendReceipt(b []byte, a *decide.Answer, key *receipt.Key) []byte {
	var few [4]receipt.Limit
	r, reserved := a.Receipt(few[:0])
	if !reserved {
		return b
	}
	text, fits := key.Append(append(b, `,"receipt":"`...), &r)
	if !fits {
		return b
	}
	b = appendSeconds(append(text, `","settle_within":`...), max(0, r.Until.Sub(r.Issued)-a.Held).Truncate(time.Second))
	if within := a.RenewWithin(); within > 0 {
		b = appendSeconds(append(b, `,"renew_within":`...), within)
	}
	return b
}

// appendBegin begins a JSON object, with a status unless that is 0.
func appendBegin(b []byte, status int) []byte {
	if b = append(b, '{'); status != 0 {
		b = append(strconv.AppendInt(append(b, `"status":`...), int64(status), 10), ',')
	}
	return b
}

// appendComma separates an element from the one before it in a JSON array, if there is one.
func appendComma(b []byte) []byte {
	if b[len(b)-1] == '[' {
		return b
	}
	return append(b, ',')
}

// appendString appends s as a JSON string. Bytes that aren't UTF-8 become
// U+FFFD.
func appendString(b []byte, s string) []byte {
	if isLiteral(s) {
		return append(append(append(b, '"'), s...), '"')
	}
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
