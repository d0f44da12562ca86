package loadgen

import (
	"bufio"
	"bytes"
	"errors"
	"fmt"
	"io"
	"net/http"
	"slices"
	"strconv"
)

var errResponse = errors.New("the response is not one that the bench can read")

// A response is what a server answers.
type response struct {
	status int
	body   []byte // valid until the next read
	last   bool   // the server closes the connection after it
}

// readResponse reads a response of HTTP/1.1 or 1.0 to a POST: with a length, in
// chunks, or up to the end of the connection. A body that doesn't fit into r's
// buffer is put into spare, which grows.
func readResponse(r *bufio.Reader, spare *[]byte) (response, error) {
	for {
		a, length, err := readHead(r)
		if err != nil || a.status >= http.StatusOK {
			if err == nil {
				err = a.readBody(r, length, spare)
			}
			return a, err
		}
		// Informational: the answer follows.
	}
}

// Lengths of a body that aren't known beforehand.
const (
	chunked = -1
	unknown = -2 // it ends with the connection
)

// readHead reads a response up to its body, and returns the body's length.
func readHead(r *bufio.Reader) (a response, length int, err error) {
	line, err := r.ReadSlice('\n')
	if err != nil {
		return a, 0, err
	}
	const version = "HTTP/1.x "
	const digits = 3
	if len(line) <= len(version)+digits || !bytes.HasPrefix(line, []byte("HTTP/1.")) || line[len(version)-1] != ' ' {
		return a, 0, fmt.Errorf("%w: it begins with %q", errResponse, line)
	}
	if a.status, err = strconv.Atoi(string(line[len(version) : len(version)+digits])); err != nil {
		return a, 0, fmt.Errorf("%w: it begins with %q", errResponse, line)
	}
	a.last, length = line[len("HTTP/1.")] == '0', unknown
	for {
		if line, err = r.ReadSlice('\n'); err != nil {
			return a, 0, err
		}
		if line = bytes.TrimRight(line, "\r\n"); len(line) == 0 {
			break
		}
		name, value, _ := bytes.Cut(line, []byte(":"))
		value = bytes.TrimSpace(value)
		switch {
		case bytes.EqualFold(name, []byte("Content-Length")):
			if length == chunked {
				break // which wins
			}
			if length, err = strconv.Atoi(string(value)); err != nil || length < 0 {
				return a, 0, fmt.Errorf("%w: %q", errResponse, line)
			}
		case bytes.EqualFold(name, []byte("Transfer-Encoding")):
			if !bytes.EqualFold(value, []byte("chunked")) {
				return a, 0, fmt.Errorf("%w: %q", errResponse, line)
			}
			length = chunked
		case bytes.EqualFold(name, []byte("Connection")):
			for option := range bytes.SplitSeq(value, []byte(",")) {
				switch option = bytes.TrimSpace(option); {
				case bytes.EqualFold(option, []byte("close")):
					a.last = true
				case bytes.EqualFold(option, []byte("keep-alive")):
					a.last = false
				}
			}
		}
	}
	if a.status < http.StatusOK || a.status == http.StatusNoContent || a.status == http.StatusNotModified {
		length = 0
	}
	return a, length, nil
}

// readBody reads the body of a length, or of the one that it turns out to have.
func (a *response) readBody(r *bufio.Reader, length int, spare *[]byte) (err error) {
	if length >= 0 && length <= r.Size() {
		if a.body, err = r.Peek(length); err == nil {
			_, err = r.Discard(length)
		}
		return err
	}
	*spare = (*spare)[:0]
	switch length {
	case unknown:
		a.last = true
		*spare, err = io.ReadAll(io.LimitReader(r, mostBody))
	case chunked:
		err = readChunks(r, spare)
	default:
		err = readMore(r, spare, length)
	}
	a.body = *spare
	return err
}

// mostBody is the longest body that is read: an answer to a check is short.
const mostBody = 1 << 20

// readMore appends the next n bytes to body.
func readMore(r *bufio.Reader, body *[]byte, n int) error {
	have := len(*body)
	if n > mostBody-have {
		return fmt.Errorf("%w: its body is longer than %d bytes", errResponse, mostBody)
	}
	*body = slices.Grow(*body, n)[:have+n]
	_, err := io.ReadFull(r, (*body)[have:])
	return err
}

// readChunks appends a chunked body, without what follows the last chunk.
func readChunks(r *bufio.Reader, body *[]byte) error {
	for {
		line, err := r.ReadSlice('\n')
		if err != nil {
			return err
		}
		digits, _, _ := bytes.Cut(bytes.TrimSpace(line), []byte(";"))
		n, err := strconv.ParseUint(string(bytes.TrimSpace(digits)), 16, 31)
		if err != nil {
			return fmt.Errorf("%w: a chunk begins with %q", errResponse, line)
		}
		if n > 0 {
			err = readMore(r, body, int(n))
		}
		// A line end after each chunk; after the last one trailers first.
		for err == nil {
			if line, err = r.ReadSlice('\n'); err != nil || len(bytes.TrimSpace(line)) == 0 {
				break
			}
			if n > 0 {
				return fmt.Errorf("%w: a chunk is followed by %q", errResponse, line)
			}
		}
		if err != nil || n == 0 {
			return err
		}
	}
}
