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

// An endless connection has one request behind the other.
type endless struct {
	net.Conn
	request []byte
}

func (c endless) Read(p []byte) (int, error)       { return copy(p, c.request), nil }
func (endless) Write(p []byte) (int, error)        { return len(p), nil }
func (endless) SetReadDeadline(t time.Time) error  { return nil }
func (endless) SetWriteDeadline(t time.Time) error { return nil }
func (endless) RemoteAddr() net.Addr               { return &net.TCPAddr{} }

// Not parallel: it counts the allocations of the whole process.
func TestARequestLikeTheOneBeforeAllocatesNothing(t *testing.T) {
	kind, answer := []string{"text/plain"}, []byte("hello")
	h := &http.Server{Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		_, _ = io.Copy(io.Discard, r.Body)
		w.Header()["Content-Type"] = kind
		_, _ = w.Write(answer)
	})}
	request := endless{request: []byte("POST /check HTTP/1.1\r\nHost: weir\r\nContent-Type: application/json\r\nContent-Length: 5\r\n\r\nhello")}
	c := newConn(request, &shared{http: h}, func(_, _ string) bool { return true })
	assert.Zero(t, testing.AllocsPerRun(1000, func() {
		if plain, _ := c.next(); !plain || !c.answer() {
			t.Fatal("the connection ends")
		}
	}))
}
