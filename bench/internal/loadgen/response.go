package loadgen

import (
	"bufio"
	"bytes"
	"errors"
	"io"
	"net/http"
	"strconv"
)

// A response is what a server answers.
type response struct {
	status int
	body   []byte // valid until the next read
	last   bool   // the server closes the connection after it
}

// mostBody is the longest body that is read: an answer to a check is short.
const mostBody = 1 << 20

// readResponse reads a response. A body that isn't in r's buffer is put into
// spare, which grows.
func readResponse(r *bufio.Reader, spare *[]byte) (response, error) {
	if a, ok := readPlain(r); ok {
		return a, nil
	}
	answer, err := http.ReadResponse(r, nil)
	for err == nil && answer.StatusCode < http.StatusOK { // informational: the answer follows
		answer, err = http.ReadResponse(r, nil)
	}
	if err != nil {
		return response{}, err
	}
	defer answer.Body.Close()
	body := bytes.NewBuffer((*spare)[:0])
	n, err := io.Copy(body, io.LimitReader(answer.Body, mostBody))
	if *spare = body.Bytes(); n == mostBody {
		err = errors.New("the response is too long for the bench")
	}
	return response{answer.StatusCode, *spare, answer.Close}, err
}

// readPlain reads a response that is as they nearly all are, without allocating
// anything: of HTTP/1.1, with a length, on a connection that stays open, small,
// its head in one piece. Else it reads nothing.
func readPlain(r *bufio.Reader) (a response, ok bool) {
	_, _ = r.Peek(1) // waits; whoever reads next sees the error
	head, _ := r.Peek(r.Buffered())
	const version, status = "HTTP/1.1 ", "200"
	end := bytes.Index(head, []byte("\r\n\r\n"))
	if end < len(version+status) || !bytes.HasPrefix(head, []byte(version)) {
		return a, false
	}
	a.status, _ = strconv.Atoi(string(head[len(version) : len(version)+len(status)]))
	if a.status < http.StatusOK || a.status == http.StatusNoContent || a.status == http.StatusNotModified {
		return a, false
	}
	length := -1
	for line := range bytes.SplitSeq(head[:end], []byte("\r\n")) {
		name, value, _ := bytes.Cut(line, []byte(":"))
		value = bytes.TrimSpace(value)
		switch {
		case bytes.EqualFold(name, []byte("Content-Length")):
			n, err := strconv.Atoi(string(value))
			if err != nil || length >= 0 {
				return a, false
			}
			length = n
		case bytes.EqualFold(name, []byte("Transfer-Encoding")):
			return a, false
		case bytes.EqualFold(name, []byte("Connection")) && !bytes.EqualFold(value, []byte("keep-alive")):
			return a, false
		}
	}
	body := end + len("\r\n\r\n")
	whole, err := r.Peek(body + max(0, length))
	if length < 0 || err != nil {
		return a, false
	}
	a.body = whole[body:]
	_, err = r.Discard(len(whole))
	return a, err == nil
}
