package client

import (
	"bytes"
	"encoding/json"
	"math"
	"time"
	"unicode/utf8"
)

// A scanner reads JSON as weir writes it, in a fraction of the time that
// encoding/json takes. What it isn't made for makes it fail, such as space
// between the tokens or an exponent; that is left to encoding/json. What it
// accepts means to encoding/json the same.
type scanner struct {
	rest   []byte
	failed bool
	known  []string // that string has returned
	limits []Limit  // that several replies share
	room   int      // for so many
}

// maxKnown bounds how many strings are looked through.
const maxKnown = 8

// fail leaves nothing to read.
func (s *scanner) fail() { s.failed, s.rest = true, nil }

func (s *scanner) failIf(failed bool) {
	if failed {
		s.fail()
	}
}

// ended reports whether all was read, but for a line end, without a failure.
func (s *scanner) ended() bool {
	s.take('\n')
	return !s.failed && len(s.rest) == 0
}

// take reads c if it is next.
func (s *scanner) take(c byte) bool {
	if len(s.rest) == 0 || s.rest[0] != c {
		return false
	}
	s.rest = s.rest[1:]
	return true
}

func (s *scanner) expect(c byte) { s.failIf(!s.take(c)) }

// object reads an object. member reads the value of the member with the name,
// which is valid until then.
func (s *scanner) object(member func(name []byte)) {
	s.expect('{')
	for more := !s.take('}'); more && !s.failed; more = s.more('}') {
		name := s.text()
		s.expect(':')
		member(name)
	}
}

// array reads an array, by calling element for each one.
func (s *scanner) array(element func()) {
	s.expect('[')
	for more := !s.take(']'); more && !s.failed; more = s.more(']') {
		element()
	}
}

// more reads what follows an element: a comma if another one comes, or end.
func (s *scanner) more(end byte) bool {
	if s.take(',') {
		return true
	}
	s.expect(end)
	return false
}

// string reads a string that is likely to come again.
func (s *scanner) string() string {
	text := s.text()
	for _, known := range s.known {
		if known == string(text) {
			return known
		}
	}
	if len(s.known) < maxKnown {
		s.known = append(s.known, string(text))
	}
	return string(text)
}

// text reads a string, whose bytes are perhaps those that are read.
func (s *scanner) text() []byte {
	if len(s.rest) == 0 || s.rest[0] != '"' {
		s.fail()
		return nil
	}
	for i, c := range s.rest[1:] {
		switch {
		case c == '"':
			text := s.rest[1 : 1+i]
			s.rest = s.rest[i+2:]
			return text
		case c < ' ' || c >= utf8.RuneSelf || c == '\\':
			return s.unusual()
		}
	}
	s.fail() // it doesn't end
	return nil
}

// unusual reads a string that isn't plain ASCII.
func (s *scanner) unusual() []byte {
	quoted := s.quoted()
	if len(quoted) == 0 {
		s.fail()
		return nil
	}
	text := quoted[1 : len(quoted)-1]
	for _, c := range text {
		if c == '\\' {
			return s.unescape(quoted)
		}
		s.failIf(c < ' ')
	}
	s.failIf(!utf8.Valid(text))
	return text
}

// quoted reads a string with its quotes, or nothing if there is none.
func (s *scanner) quoted() []byte {
	if len(s.rest) == 0 || s.rest[0] != '"' {
		return nil
	}
	for end := 1; ; end++ {
		next := bytes.IndexByte(s.rest[end:], '"')
		if next < 0 {
			return nil
		}
		end += next
		before := s.rest[1:end]
		if escapes := len(before) - len(bytes.TrimRight(before, `\`)); escapes%2 == 0 {
			quoted := s.rest[:end+1]
			s.rest = s.rest[end+1:]
			return quoted
		}
	}
}

// unescape returns the text of a string with escapes.
func (s *scanner) unescape(quoted []byte) []byte {
	var text string
	s.failIf(json.Unmarshal(quoted, &text) != nil)
	return []byte(text)
}

func (s *scanner) boolean() bool {
	if rest, ok := bytes.CutPrefix(s.rest, []byte("true")); ok {
		s.rest = rest
		return true
	}
	rest, ok := bytes.CutPrefix(s.rest, []byte("false"))
	s.rest = rest
	s.failIf(!ok)
	return false
}

// digit reads a digit, if one is next.
func (s *scanner) digit() (d byte, ok bool) {
	if len(s.rest) == 0 || s.rest[0] < '0' || s.rest[0] > '9' {
		return 0, false
	}
	d = s.rest[0] - '0'
	s.rest = s.rest[1:]
	return d, true
}

// integer reads a whole number that isn't negative.
func (s *scanner) integer() int64 {
	first, ok := s.digit()
	s.failIf(!ok)
	n := int64(first)
	for d, ok := s.digit(); ok; d, ok = s.digit() {
		s.failIf(n == 0 || n > math.MaxInt64/10-1) // JSON has no leading zeros
		n = n*10 + int64(d)
	}
	return n
}

// seconds reads a time of at most a century, given to the millisecond.
func (s *scanner) seconds() time.Duration {
	const most = 100 * 366 * 24 * 60 * 60
	n := s.integer()
	s.failIf(n > most)
	t := time.Duration(n) * time.Second
	if !s.take('.') {
		return t
	}
	unit := time.Second
	for d, ok := s.digit(); ok; d, ok = s.digit() {
		unit /= 10
		t += time.Duration(d) * unit
	}
	s.failIf(unit == time.Second || unit < time.Millisecond)
	return t
}
