package policy

import (
	"fmt"
	"strings"
)

// A requestPath is the path of a request, as different backends may read it.
// weir doesn't know which backend serves the request, so a path that is written
// in an odd way has several readings.
type requestPath struct {
	// strict takes the path as it is written. Only its percent-encoding is
	// undone, and an encoded slash is no slash.
	strict string
	// lenient is the path with all rewritings that some backend does: an
	// encoded slash and a backslash are slashes, empty segments and what follows
	// a ; in a segment don't count, case doesn't matter, and .. goes up.
	lenient string
	// shrinks are the segments of lenient before .. took some away, if backends
	// may differ in how many it takes; else nil. A path that begins with // has
	// them, too: some backends take its first segment for a host.
	shrinks []string
}

// readPath reads the target of a request: a path that may have a query, or a
// URL.
func readPath(target string) requestPath {
	path, _, _ := strings.Cut(target, "?")
	if scheme, rest, ok := strings.Cut(path, "://"); ok && !strings.Contains(scheme, "/") {
		_, path, _ = strings.Cut(rest, "/")
		path = "/" + path
	}
	if !strings.HasPrefix(path, "/") {
		path = "/" + path
	}
	if plain(path) {
		return requestPath{strict: path, lenient: path}
	}
	p, lenient := requestPath{strict: unescape(path, encodedSlash)}, strings.ToLower(unescape(path, '/'))
	segments := splitPath(lenient)
	if len(lenient) > 1 && strings.IndexByte(slashes, lenient[1]) >= 0 {
		p.shrinks = segments
	}
	var up []string
	for _, segment := range segments {
		if segment == ".." {
			up, p.shrinks = up[:max(0, len(up)-1)], segments
		} else {
			up = append(up, segment)
		}
	}
	p.lenient = "/" + strings.Join(up, "/")
	return p
}

const slashes = `/\`

// encodedSlash stands for an encoded slash that isn't read as one. No route has
// it.
const encodedSlash = 0

// plain reports whether all readings of a path are the path itself.
func plain(path string) bool {
	for i := range len(path) {
		switch c := path[i]; {
		case 'a' <= c && c <= 'z', '0' <= c && c <= '9', strings.IndexByte("-_~!$&'()+,=:@", c) >= 0:
		case c == '/', c == '.':
			if i > 0 && path[i-1] == '/' {
				return false
			}
		default:
			return false
		}
	}
	return true
}

// unescape undoes percent-encoding, once, as every reader does. What isn't well
// encoded stays. An encoded slash becomes slash.
func unescape(path string, slash byte) string {
	b := make([]byte, 0, len(path))
	for i := 0; i < len(path); i++ {
		c := path[i]
		if c == '%' && i+2 < len(path) {
			high, low := strings.IndexByte(hexDigits, path[i+1]|0x20), strings.IndexByte(hexDigits, path[i+2]|0x20)
			if high >= 0 && low >= 0 {
				c = byte(high<<4 | low)
				i += 2
				if c == '/' {
					c = slash
				}
			}
		}
		b = append(b, c)
	}
	return string(b)
}

const hexDigits = "0123456789abcdef"

// splitPath returns the segments of a path without those that only some see.
func splitPath(path string) []string {
	var segments []string
	for segment := range strings.FieldsFuncSeq(path, func(c rune) bool { return strings.ContainsRune(slashes, c) }) {
		// Parameters, a query or fragment that was encoded, and the end of a
		// string in C.
		if end := strings.IndexAny(segment, ";?#\x00"); end >= 0 {
			segment = segment[:end]
		}
		if segment = strings.TrimSpace(segment); segment != "" && segment != "." {
			segments = append(segments, segment)
		}
	}
	return segments
}

// ParseRoutePath returns the path of a Route as it is compared with those of
// requests, given how the policy file has it. The error says what would be
// right.
func ParseRoutePath(s string) (string, error) {
	if !strings.HasPrefix(s, "/") {
		return "", fmt.Errorf("path %q must begin with /", s)
	}
	if strings.ContainsAny(s, "*{}") || strings.Contains(s, "/:") {
		return "", fmt.Errorf("path %q has a placeholder; a path holds for all paths below it, so end it before that", s)
	}
	if strings.ContainsAny(s, "?#") {
		return "", fmt.Errorf("path %q has a query or fragment; routes go by the path alone", s)
	}
	path, segments := unescape(s, encodedSlash), splitPath(unescape(s, '/'))
	for _, segment := range segments {
		if segment == ".." {
			return "", fmt.Errorf("path %q must have no .. in it", s)
		}
	}
	if plain := "/" + strings.Join(segments, "/"); path != plain {
		return "", fmt.Errorf("path %q must be written as %q; it holds for all paths below it too", s, plain)
	}
	return path, nil
}
