package client

import (
	"bytes"
	"encoding/json"
	"slices"
	"time"
	"unicode/utf8"
)

// A scanner reads JSON as weir writes it, in a fraction of the time that
// encoding/json takes. Anything else makes it fail, such as space between the
// tokens, members in another order or an exponent: encoding/json reads it then.
// What a scanner accepts means the same to encoding/json.
type scanner struct {
	all    []byte
	at     int // so much of it has been read
	failed bool
	known  []string // that string has returned
	limits []Limit  // that several replies share
	room   int      // for so many
}

// maxKnown bounds how many strings are looked through.
const maxKnown = 8

// fail leaves nothing to read.
func (s *scanner) fail() { s.failed, s.all, s.at = true, nil, 0 }

func (s *scanner) failIf(failed bool) {
	if failed {
		s.fail()
	}
}

// ended reports whether all was read, but for a line end, without a failure.
func (s *scanner) ended() bool {
	s.accept('\n')
	return !s.failed && s.at == len(s.all)
}

// accept reads c if it is next, and reports whether it is.
func (s *scanner) accept(c byte) bool {
	if s.at == len(s.all) || s.all[s.at] != c {
		return false
	}
	s.at++
	return true
}

// expect is accept of what has to be next.
func (s *scanner) expect(c byte) { s.failIf(!s.accept(c)) }

// member reads a comma, the name of a member and a colon if these are next. The first member
// of an object has no comma.
func (s *scanner) member(name string) bool {
	if s.at > 0 && s.all[s.at-1] == '{' {
		name = name[1:]
	}
	return s.acceptText(name)
}

// acceptText is accept for several bytes.
func (s *scanner) acceptText(text string) bool {
	rest := s.all[s.at:]
	if len(rest) < len(text) || string(rest[:len(text)]) != text {
		return false
	}
	s.at += len(text)
	return true
}

// expectText is expect for several bytes.
func (s *scanner) expectText(text string) { s.failIf(!s.acceptText(text)) }

// array reads an array, by calling element for each one.
func (s *scanner) array(element func()) {
	s.expect('[')
	if s.failed || s.accept(']') {
		return
	}
	for element(); s.accept(','); {
		element()
	}
	s.expect(']')
}

// string reads a string that is likely to come again.
func (s *scanner) string() string {
	rest := s.all[s.at:]
	for _, known := range s.known {
		if end := len(known) + 1; len(rest) > end && rest[end] == '"' && string(rest[1:end]) == known && s.accept('"') {
			s.at += end
			return known
		}
	}
	text := s.text()
	if len(s.known) < maxKnown && slices.IndexFunc(text, func(c byte) bool { return !plain[c] }) < 0 {
		s.known = append(s.known, string(text))
	}
	return string(text)
}

// plain are the bytes that stand in a string as they are, and for a character each.
var plain = func() (plain [256]bool) {
	for c := ' '; c < utf8.RuneSelf; c++ {
		plain[c] = c != '"' && c != '\\'
	}
	return plain
}()

// text reads a string, whose bytes are perhaps those that are read.
func (s *scanner) text() []byte {
	begun := s.at
	s.expect('"')
	rest := s.all[s.at:]
	for i, c := range rest {
		if plain[c] {
			continue
		}
		if c == '"' {
			s.at += i + 1
			return rest[:i]
		}
		s.at = begun
		return s.unusual()
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
			var unescaped string
			s.failIf(json.Unmarshal(quoted, &unescaped) != nil)
			return []byte(unescaped)
		}
		s.failIf(c < ' ')
	}
	s.failIf(!utf8.Valid(text))
	return text
}

// quoted reads a string with its quotes, or nothing if there is none.
func (s *scanner) quoted() []byte {
	rest := s.all[s.at:]
	if len(rest) == 0 || rest[0] != '"' {
		return nil
	}
	for end := 1; ; end++ {
		next := bytes.IndexByte(rest[end:], '"')
		if next < 0 {
			return nil
		}
		end += next
		before := rest[1:end]
		if escapes := len(before) - len(bytes.TrimRight(before, `\`)); escapes%2 == 0 {
			s.at += end + 1
			return rest[:end+1]
		}
	}
}

func (s *scanner) boolean() bool {
	if s.acceptText("true") {
		return true
	}
	s.expectText("false")
	return false
}

func isDigit(c byte) bool { return c >= '0' && c <= '9' }

// integer reads a whole number that isn't negative.
func (s *scanner) integer() int64 {
	var n int64
	rest, digits := s.all[s.at:], 0
	for _, c := range rest {
		if !isDigit(c) {
			break
		}
		n = n*10 + int64(c-'0')
		digits++
	}
	s.at += digits
	s.failIf(digits == 0 || digits > 18 || digits > 1 && rest[0] == '0') // JSON has no leading zeros
	return n
}

// seconds reads a time of at most a century, given to the millisecond.
func (s *scanner) seconds() time.Duration {
	const most = 100 * 366 * 24 * 60 * 60
	n := s.integer()
	s.failIf(n > most)
	t := time.Duration(n) * time.Second
	if !s.accept('.') {
		return t
	}
	unit := time.Second
	for ; s.at < len(s.all) && isDigit(s.all[s.at]); s.at++ {
		unit /= 10
		t += time.Duration(s.all[s.at]-'0') * unit
	}
	s.failIf(unit == time.Second || unit < time.Millisecond)
	return t
}
