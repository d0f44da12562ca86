package api

import (
	"bytes"
	"cmp"
	"errors"
	"io"
	"mime"
	"net"
	"net/http"
	"strconv"
	"strings"
	"sync"

	"github.com/go-json-experiment/json/jsontext"

	"weir/api/decide"
	"weir/counters"
)

const (
	maxCheckBytes = 64 << 10
	// Room for decide.MaxBatch checks with clients of maximum length, every byte
	// escaped.
	maxBatchBytes = 8 << 20
)

// A body reads and decodes the body of one request. It is reused.
type body struct {
	bytes   bytes.Buffer
	decoder jsontext.Decoder
	scratch []byte            // an unquoted string
	list    string            // the field of the batch that is being read
	at      int               // the number of the element in it; -1 outside
	context counters.Deadline // of a single check; here, it costs no allocation
	batch   []decide.Check
	policy  string // of a check before, most likely that of the next one too
}

// A batch is checks that come in one request. With all, each is admitted or
// none.
type batch struct {
	checks []decide.Check
	all    bool
}

var bodies = sync.Pool{New: func() any { return &body{batch: []decide.Check{}} }}

// maxKeptBytes is the size of the largest buffer that is kept for reuse: of a
// batch of ordinary checks.
const maxKeptBytes = 256 << 10

func (b *body) release() {
	if b.bytes.Cap() <= maxKeptBytes {
		clear(b.batch)
		bodies.Put(b)
	}
}

// readBody reads the body of r, at most limit bytes of JSON. The error is a
// problem.
func readBody(r *http.Request, limit int64) (*body, error) {
	if err := checkContentType(r.Header.Get("Content-Type")); err != nil {
		return nil, err
	}
	if coding := r.Header["Content-Encoding"]; len(coding) > 0 {
		return nil, newProblem(http.StatusUnsupportedMediaType, "Content-Encoding %q is not possible; send the body as it is", coding[0])
	}
	if r.ContentLength > limit {
		return nil, tooLarge(limit)
	}
	b := bodies.Get().(*body)
	b.bytes.Reset()
	var from io.Reader = r.Body
	if r.ContentLength < 0 {
		from = io.LimitReader(r.Body, limit+1)
	}
	n, err := b.bytes.ReadFrom(from)
	switch {
	case err != nil:
		b.release()
		if op := (*net.OpError)(nil); errors.As(err, &op) { // it names addresses, which are nobody's business
			err = op.Err
		}
		return nil, badRequest("the body could not be read: %v", err)
	case n > limit:
		b.release()
		return nil, tooLarge(limit)
	}
	b.decoder.Reset(&b.bytes)
	b.at = -1
	return b, nil
}

func tooLarge(limit int64) error {
	return newProblem(http.StatusRequestEntityTooLarge, "the body is larger than %d bytes", limit)
}

// checkContentType accepts JSON, no type, and the type that curl -d sends by
// default.
func checkContentType(value string) error {
	if value == "" || value == "application/json" {
		return nil
	}
	mediaType, params, err := mime.ParseMediaType(value)
	known := mediaType == "application/json" || mediaType == "application/x-www-form-urlencoded"
	if err != nil || !known || !strings.EqualFold(cmp.Or(params["charset"], "utf-8"), "utf-8") {
		return newProblem(http.StatusUnsupportedMediaType, "Content-Type %q is not possible; send application/json", value)
	}
	return nil
}

// decodeCheck decodes a body that is one check. The error is a problem.
func (b *body) decodeCheck() (decide.Check, error) {
	p := compactJSON{text: b.bytes.Bytes()}
	q, err := p.check(b.policy), error(nil)
	if !p.ended() {
		q, err = b.check(b.policy)
		err = b.end(err)
	}
	if len(q.Policy) <= counters.MaxNameBytes {
		b.policy = q.Policy
	}
	return q, err
}

// decodeBatch decodes a body that is a batch of checks, which are valid until it
// is released. The error is a problem.
func (b *body) decodeBatch() (batch, error) {
	p := compactJSON{text: b.bytes.Bytes()}
	if b.batch = p.batch(b.batch[:0], b.policy); p.ended() {
		return batch{checks: b.batch}, nil
	}
	var q batch
	err := b.whole(func(name []byte) (err error) {
		switch string(name) {
		case "checks":
			q.checks, err = b.checks()
		case "all":
			q.all, err = b.boolean("all")
		default:
			err = unknownField(string(name), "checks, all")
		}
		return err
	})
	if err == nil && q.checks == nil {
		err = badRequest("checks is missing; it is the array of the checks to make")
	}
	return q, err
}

func (b *body) checks() ([]decide.Check, error) {
	checks, policy := b.batch[:0], b.policy
	err := b.array("checks", func() error {
		q, err := b.check(policy)
		policy, checks = q.Policy, append(checks, q)
		return err
	})
	b.batch = checks
	return checks, err
}

// array reads the array in a field of a batch, which has at most decide.MaxBatch
// elements, by calling element for each.
func (b *body) array(field string, element func() error) error {
	if err := b.expect('[', field, "an array"); err != nil {
		return err
	}
	for b.list = field; b.decoder.PeekKind() != ']'; {
		if b.at++; b.at == decide.MaxBatch {
			return badRequest("%s: at most %d are possible in a batch", field, decide.MaxBatch)
		}
		if err := element(); err != nil {
			return err
		}
	}
	b.at = -1
	_, err := b.decoder.ReadToken()
	return err
}

// check decodes one check. If its policy equals the given one, it shares that string.
func (b *body) check(policy string) (decide.Check, error) {
	q := decide.Check{Cost: 1}
	err := b.object("", func(name []byte) (err error) {
		switch string(name) {
		case "policy":
			q.Policy, err = b.string("policy", policy)
		case "client":
			q.Client, err = b.string("client", "")
		case "cost":
			q.Cost, err = b.integer("cost", "")
		case "limits":
			err = b.object("limits", func(name []byte) error {
				l := decide.LimitValue{Name: string(name)}
				l.Value, err = b.integer("limits.", l.Name)
				q.Limits = append(q.Limits, l)
				return err
			})
		case "settle":
			q.Settle, err = b.boolean("settle")
		default:
			return unknownField(b.path(string(name)), "policy, client, cost, limits, settle")
		}
		return err
	})
	return q, err
}

// path returns where in the body a field is; "" is the object itself. It is for
// errors.
func (b *body) path(field string) string {
	if b.at < 0 {
		return field
	}
	return strings.TrimSuffix(elementPath(b.list, b.at)+"."+field, ".")
}

// whole decodes a body that is one object, as object does. The error is a problem.
func (b *body) whole(field func(name []byte) error) error { return b.end(b.object("", field)) }

// object reads the object in a field. For each member it calls field, which reads
// the value. The name is valid only until that.
func (b *body) object(in string, field func(name []byte) error) error {
	if err := b.expect('{', in, "an object"); err != nil {
		return err
	}
	for b.decoder.PeekKind() != '}' {
		name, err := b.unquote()
		if err != nil {
			return err
		}
		if err := field(name); err != nil {
			return err
		}
	}
	_, err := b.decoder.ReadToken()
	return err
}

// string reads a string. If that equals likely, it returns likely, and allocates nothing.
func (b *body) string(field, likely string) (string, error) {
	value, err := b.text(field)
	if string(value) == likely {
		return likely, err
	}
	return string(value), err
}

// text is string, but its value is valid only until the next is read.
func (b *body) text(field string) ([]byte, error) {
	if kind := b.decoder.PeekKind(); kind != '"' {
		return nil, b.wrongType(field, "a string")
	}
	return b.unquote()
}

func (b *body) unquote() ([]byte, error) {
	raw, err := b.decoder.ReadValue()
	if err != nil {
		return nil, err
	}
	b.scratch, err = jsontext.AppendUnquote(b.scratch[:0], raw)
	return b.scratch, err
}

// integer reads a limit, the number in the named member of a field, or a cost, the number in
// the field.
func (b *body) integer(field, name string) (int64, error) {
	if kind := b.decoder.PeekKind(); kind != '0' {
		return 0, b.wrongType(field+name, "a whole number")
	}
	raw, err := b.decoder.ReadValue()
	if err != nil {
		return 0, err
	}
	n, err := strconv.ParseInt(string(raw), 10, 64)
	if err != nil {
		least, most := 0, int64(counters.MaxCost)
		if field == "limits." {
			least, most = 1, counters.MaxLimit
		}
		return 0, badRequest("%s is %s and must be a whole number from %d to %d", b.path(field+name), raw, least, most)
	}
	return n, nil
}

func (b *body) boolean(field string) (bool, error) {
	kind := b.decoder.PeekKind()
	if kind != 't' && kind != 'f' {
		return false, b.wrongType(field, "true or false")
	}
	_, err := b.decoder.ReadToken()
	return kind == 't', err
}

// expect reads the opening bracket of an object or array.
func (b *body) expect(kind jsontext.Kind, field, what string) error {
	if b.decoder.PeekKind() != kind {
		return b.wrongType(field, what)
	}
	_, err := b.decoder.ReadToken()
	return err
}

// wrongType returns the error for a value that isn't of the wanted type, or
// isn't JSON at all.
func (b *body) wrongType(field, what string) error {
	if _, err := b.decoder.ReadToken(); err != nil {
		return err
	}
	return badRequest("%s must be %s", cmp.Or(b.path(field), "the body"), what)
}

// end makes sure that nothing follows the object, unless reading it has failed
// with err. It turns any error of the decoder into a problem.
func (b *body) end(err error) error {
	if err == nil {
		if _, err = b.decoder.ReadToken(); errors.Is(err, io.EOF) {
			return nil
		}
	}
	var p *problem
	switch {
	case err == nil:
		return badRequest("something follows the JSON object in the body")
	case errors.As(err, &p):
		return p
	case errors.Is(err, io.EOF):
		return badRequest("the body is empty; it must be a JSON object")
	case errors.Is(err, io.ErrUnexpectedEOF):
		return badRequest("the body ends in the middle of its JSON")
	default:
		return badRequest("the body is not valid JSON: %s", strings.TrimPrefix(err.Error(), "jsontext: "))
	}
}

func unknownField(name, fields string) error {
	return badRequest("unknown field %q; known are %s", name, fields)
}
