package plain

import (
	"fmt"
	"net/http"
	"slices"
	"strconv"
	"sync"
)

const (
	// unchunked is the longest answer that net/http sends in one piece if the
	// handler doesn't say how long it is.
	unchunked = 2048
	// maxKept is the size of the largest buffers that are kept for another answer: that to a
	// batch of a thousand ordinary checks.
	maxKept = 256 << 10
)

// A response is an http.ResponseWriter that keeps the answer. It is reused.
type response struct {
	header http.Header
	status int // 0 until it is known
	body   []byte

	names   []string // of header
	answer  []byte
	attempt *attempt
}

var responses = sync.Pool{New: func() any { return &response{header: make(http.Header), attempt: newAttempt()} }}

func (w *response) release() {
	if max(cap(w.body), cap(w.answer)) <= maxKept {
		clear(w.header)
		w.status, w.body = 0, w.body[:0]
		responses.Put(w)
	}
}

func (w *response) Header() http.Header { return w.header }

func (w *response) WriteHeader(status int) {
	if w.status == 0 {
		w.status = status
	}
}

func (w *response) Write(p []byte) (int, error) {
	w.WriteHeader(http.StatusOK)
	w.body = append(w.body, p...)
	return len(p), nil
}

// endsConnection reports whether the handler says that the answer is the last of its connection.
func (w *response) endsConnection() bool { return slices.Contains(w.header["Connection"], "close") }

// render returns the answer, as net/http writes it and valid until w is released, and
// whether it is the last of its connection. It is so if the handler says it, if the
// request is broken, and if the server is closing.
func (w *response) render(date string, broken, closing bool) (answer []byte, last bool) {
	said := w.endsConnection()
	if closing {
		delete(w.header, "Connection")
	}
	w.WriteHeader(http.StatusOK)
	b := append(w.answer[:0], "HTTP/1.1 "...)
	if text := http.StatusText(w.status); text != "" {
		b = append(append(strconv.AppendInt(b, int64(w.status), 10), ' '), text...)
	} else {
		b = fmt.Appendf(b, "%03d status code %d", w.status, w.status)
	}
	b = append(b, "\r\n"...)

	w.names = w.names[:0]
	for name := range w.header {
		w.names = append(w.names, name)
	}
	slices.Sort(w.names)
	for _, name := range w.names {
		for _, value := range w.header[name] {
			b = appendField(b, name, value)
		}
	}
	b = appendField(b, "Date", date)
	_, counted := w.header["Content-Length"]
	chunked := !counted && len(w.body) > unchunked
	bodyless := w.status == http.StatusNoContent || w.status == http.StatusNotModified
	if !counted && !chunked && !bodyless {
		b = append(b, "Content-Length: "...)
		b = append(strconv.AppendInt(b, int64(len(w.body)), 10), "\r\n"...)
	}
	if closing || broken && !said {
		b = appendField(b, "Connection", "close")
	}
	if chunked {
		b = appendField(b, "Transfer-Encoding", "chunked")
		b = strconv.AppendInt(append(b, "\r\n"...), int64(len(w.body)), 16)
		b = append(append(append(b, "\r\n"...), w.body...), "\r\n0\r\n\r\n"...)
	} else {
		b = append(append(b, "\r\n"...), w.body...)
	}
	w.answer = b
	return b, said || broken || closing
}

func appendField(b []byte, name, value string) []byte {
	return append(append(append(append(b, name...), ": "...), value...), "\r\n"...)
}
