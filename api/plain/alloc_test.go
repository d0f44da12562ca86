//go:build !race

// The race detector makes sync.Pool forget at random.

package plain

import (
	"io"
	"net"
	"net/http"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
)

// An endless connection has one request behind the other, of two in turns.
type endless struct {
	net.Conn
	requests *[2][]byte
}

func (c endless) Read(p []byte) (int, error) {
	c.requests[0], c.requests[1] = c.requests[1], c.requests[0]
	return copy(p, c.requests[0]), nil
}
func (endless) Write(p []byte) (int, error)        { return len(p), nil }
func (endless) SetReadDeadline(t time.Time) error  { return nil }
func (endless) SetWriteDeadline(t time.Time) error { return nil }
func (endless) RemoteAddr() net.Addr               { return &net.TCPAddr{} }

// Not parallel: it counts the allocations of the whole process.
func TestARequestLikeTheOneBeforeTheLastAllocatesNothing(t *testing.T) {
	kind, answer := []string{"text/plain"}, []byte("hello")
	h := &http.Server{Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		_, _ = io.Copy(io.Discard, r.Body)
		w.Header()["Content-Type"] = kind
		_, _ = w.Write(answer)
	})}
	requests := [2][]byte{
		[]byte("POST /check HTTP/1.1\r\nHost: weir\r\nContent-Type: application/json\r\nContent-Length: 5\r\n\r\nhello"),
		[]byte("POST /settle?all HTTP/1.1\r\nHost: weir\r\nContent-Type: application/json\r\nContent-Length: 12\r\n\r\nhello, hello"),
	}
	c := newConn(endless{requests: &requests}, &shared{http: h}, func(_, _ string) bool { return true })
	assert.Zero(t, testing.AllocsPerRun(1000, func() {
		if plain, _ := c.next(); !plain || !c.answer() {
			t.Fatal("the connection ends")
		}
	}))
}
