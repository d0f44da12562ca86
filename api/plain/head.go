package plain

import (
	"bytes"
	"net/http"
	"net/textproto"
	"net/url"
	"strings"
)

const (
	// maxHead and maxLines are the longest head, and the most header lines, that are
	// plain.
	maxHead, maxLines = 8 << 10, 64
	// maxBody is the longest body that is plain. net/http discards shorter ones
	// that nobody reads, and closes the connection of longer ones.
	maxBody = 256<<10 - 1
	// maxBefore is the longest line that is kept for the head after the next; all lines
	// together are no longer than a head.
	maxBefore = maxHead / maxLines
)

// A head reads the heads of the requests of a connection into an http.Request. They
// hardly differ, so each line is compared with the last two that there were in its place,
// as checks and settlements may take turns, and parsed only if it differs.
//
// A head is plain if
//
//   - each line ends with CR LF;
//   - the request line is METHOD SP target SP HTTP/1.1, the target begins with /, and the server
//     takes the method and the path;
//   - each other line is a name, a colon, at most one space, and a value that begins and ends
//     with something visible;
//   - no name comes twice;
//   - of the headers that change what follows the head, such as Transfer-Encoding, Upgrade and
//     Expect, there is at most Content-Length, in digits without a leading zero.
type head struct {
	takes   func(method, path string) bool
	request *http.Request // its URL is that of first

	first, before requestLine // before is the last other one
	lines         [][2]line   // the second of each is the last other one
	values        []string    // of the first of lines
	current       bool        // the request's header has the names in lines, and the values
}

// A requestLine is the first line of a request.
type requestLine struct {
	whole, method, target string // whole has its end
	url                   url.URL
}

// A line is a header line.
type line struct{ whole, name, value string } // whole has its end; name is as in http.Header

// read reads the head that b begins with, and returns its length, or 0 if it hasn't come
// whole, and whether it is plain as far as it has.
func (h *head) read(b []byte) (length int, ok bool) {
	rest := b
	switch {
	case hasPrefix(rest, h.first.whole):
		rest = rest[len(h.first.whole):]
	case hasPrefix(rest, h.before.whole):
		rest = rest[len(h.before.whole):]
		h.begin(h.before)
	default:
		first := firstLine(rest)
		if len(first) == 0 {
			return 0, true
		}
		if !h.readFirst(string(first)) {
			return 0, false
		}
		rest = rest[len(first):]
	}
	for i := 0; ; i++ {
		if i < len(h.lines) {
			known := &h.lines[i]
			if hasPrefix(rest, known[0].whole) {
				rest = rest[len(known[0].whole):]
				continue
			}
			if hasPrefix(rest, known[1].whole) {
				rest = rest[len(known[1].whole):]
				h.put(i, known[1])
				continue
			}
		}
		next := firstLine(rest)
		if len(next) == 0 {
			return 0, true
		}
		rest = rest[len(next):]
		if len(next) == len("\r\n") && next[0] == '\r' {
			return len(b) - len(rest), h.end(i)
		}
		if i == maxLines || !h.readLine(i, string(next)) {
			return 0, false
		}
	}
}

// hasPrefix reports whether b begins with a line, if there is one.
func hasPrefix(b []byte, line string) bool {
	return line != "" && len(b) >= len(line) && string(b[:len(line)]) == line
}

// firstLine returns the first line of b with its end, or nothing if it hasn't come whole.
func firstLine(b []byte) []byte { return b[:bytes.IndexByte(b, '\n')+1] }

// readFirst reads the request line, and reports whether it is plain.
func (h *head) readFirst(first string) bool {
	text, ends := strings.CutSuffix(first, " HTTP/1.1\r\n")
	method, target, _ := strings.Cut(text, " ")
	simple := strings.HasPrefix(target, "/")
	for i := range len(target) {
		b := target[i]
		if b <= ' ' || b >= 0x7f {
			return false
		}
		simple = simple && (isAlphanumeric(b) || strings.IndexByte("/-._~", b) >= 0)
	}
	switch method {
	case http.MethodGet, http.MethodPost, http.MethodPut, http.MethodPatch, http.MethodDelete, http.MethodOptions:
	default:
		return false
	}
	if !ends || target == "" || target[0] != '/' {
		return false
	}
	u := &url.URL{Path: target}
	if !simple {
		var err error
		if u, err = url.ParseRequestURI(target); err != nil {
			return false
		}
	}
	if !h.takes(method, u.Path) {
		return false
	}
	h.begin(requestLine{first, method, target, *u})
	return true
}

// begin gives the request its first line.
func (h *head) begin(l requestLine) {
	h.first, h.before = l, h.first
	h.request.Method, h.request.RequestURI, h.request.URL = l.method, l.target, &h.first.url
}

func isAlphanumeric(b byte) bool {
	return 'a' <= b && b <= 'z' || 'A' <= b && b <= 'Z' || '0' <= b && b <= '9'
}

// readLine reads header line number i, and reports whether it is plain.
func (h *head) readLine(i int, whole string) bool {
	text, ends := strings.CutSuffix(whole, "\r\n")
	name, value, _ := strings.Cut(text, ":")
	value = strings.TrimPrefix(value, " ")
	if !ends || name == "" || value == "" || value[0] == ' ' || value[len(value)-1] == ' ' {
		return false
	}
	for i := range len(name) {
		if b := name[i]; !isAlphanumeric(b) && b != '-' && b != '_' {
			return false
		}
	}
	for i := range len(value) {
		if b := value[i]; b < ' ' || b == 0x7f {
			return false
		}
	}
	return h.put(i, line{whole, textproto.CanonicalMIMEHeaderKey(name), value})
}

// put gives the request header line number i, and reports whether it is plain. Only such
// lines are kept: the others may be read again.
func (h *head) put(i int, l line) bool {
	if !h.note(l.name, l.value) {
		return false
	}
	if i == len(h.lines) {
		h.lines, h.values, h.current = append(h.lines, [2]line{}), append(h.values, ""), false
	}
	h.current = h.current && h.lines[i][0].name == l.name && l.name != "Pragma"
	before := h.lines[i][0]
	if len(before.whole) > maxBefore {
		before = line{}
	}
	h.lines[i], h.values[i] = [2]line{l, before}, l.value
	return true
}

// note notes what a header means for the request, and reports whether it is plain.
func (h *head) note(name, value string) bool {
	switch name {
	case "Host":
		for i := range len(value) {
			if b := value[i]; !isAlphanumeric(b) && strings.IndexByte(".:-_[]", b) < 0 {
				return false
			}
		}
		h.request.Host = value
	case "Content-Length":
		n := 0
		for i := range len(value) {
			if b := value[i]; b < '0' || b > '9' || n == 0 && i > 0 {
				return false
			}
			if n = 10*n + int(value[i]-'0'); n > maxBody {
				return false
			}
		}
		h.request.ContentLength = int64(n)
	case "Connection":
		return strings.EqualFold(value, "keep-alive")
	case "Expect", "Trailer", "Transfer-Encoding", "Upgrade":
		return false
	}
	return true
}

// end ends a head with so many lines, and reports whether it is plain.
func (h *head) end(lines int) bool {
	if h.current && lines == len(h.lines) {
		return true
	}
	header := h.request.Header
	clear(header)
	clear(h.lines[lines:])
	clear(h.values[lines:])
	h.lines, h.values, h.current = h.lines[:lines], h.values[:lines], false
	for i := range h.lines {
		name := h.lines[i][0].name
		if header[name] != nil {
			return false
		}
		header[name] = h.values[i : i+1 : i+1]
	}
	if header["Host"] == nil {
		return false
	}
	delete(header, "Host") // as in net/http, and so is this:
	if pragma := header["Pragma"]; pragma != nil && pragma[0] == "no-cache" && header["Cache-Control"] == nil {
		header["Cache-Control"] = []string{"no-cache"}
	}
	if header["Content-Length"] == nil {
		h.request.ContentLength = 0
	}
	h.current = true
	return true
}
