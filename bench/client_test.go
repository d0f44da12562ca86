package main

import (
	"bufio"
	"io"
	"strings"
	"testing"
	"testing/iotest"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

func TestReadResponse(t *testing.T) {
	for _, tt := range []struct {
		name     string
		response string
		status   int
		body     string
		fails    bool
	}{
		{name: "admitted", response: "HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nhello", status: 200, body: "hello"},
		{name: "denied", response: "HTTP/1.1 429 Too Many Requests\r\nRetry-After: 3\r\nContent-Length: 2\r\n\r\n{}", status: 429, body: "{}"},
		{name: "no reason", response: "HTTP/1.1 200 \r\nContent-Length: 0\r\n\r\n", status: 200},
		{name: "header in other case, no space", response: "HTTP/1.1 200 OK\r\ncontent-length:3\r\n\r\nabc", status: 200, body: "abc"},
		{name: "chunked", response: "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n", fails: true},
		{name: "closes", response: "HTTP/1.1 200 OK\r\nConnection: close\r\nContent-Length: 0\r\n\r\n", fails: true},
		{name: "no length", response: "HTTP/1.1 200 OK\r\n\r\n", fails: true},
		{name: "negative length", response: "HTTP/1.1 200 OK\r\nContent-Length: -1\r\n\r\n", fails: true},
		{name: "length isn't a number", response: "HTTP/1.1 200 OK\r\nContent-Length: x\r\n\r\n", fails: true},
		{name: "longer than the buffer", response: "HTTP/1.1 200 OK\r\nContent-Length: 5000\r\n\r\n" + strings.Repeat("a", 5000), fails: true},
		{name: "other protocol", response: "HTTP/1.0 200 OK\r\nContent-Length: 0\r\n\r\n", fails: true},
		{name: "status isn't a number", response: "HTTP/1.1 2x0 OK\r\nContent-Length: 0\r\n\r\n", fails: true},
		{name: "status line too short", response: "HTTP/1.1 20\n", fails: true},
		{name: "ends in the header", response: "HTTP/1.1 200 OK\r\nContent-Le", fails: true},
		{name: "ends in the body", response: "HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nhel", fails: true},
		{name: "ends at once", response: "", fails: true},
	} {
		t.Run(tt.name, func(t *testing.T) {
			for _, r := range []io.Reader{strings.NewReader(tt.response), iotest.OneByteReader(strings.NewReader(tt.response))} {
				status, body, err := readResponse(bufio.NewReader(r))
				if tt.fails {
					require.Error(t, err)
					continue
				}
				require.NoError(t, err)
				assert.Equal(t, tt.status, status)
				assert.Equal(t, tt.body, string(body))
			}
		})
	}
}

func TestReadResponseLeavesTheNext(t *testing.T) {
	r := bufio.NewReader(strings.NewReader("HTTP/1.1 200 OK\r\nContent-Length: 3\r\n\r\noneHTTP/1.1 429 No\r\nContent-Length: 3\r\n\r\ntwo"))
	status, body, err := readResponse(r)
	require.NoError(t, err)
	assert.Equal(t, 200, status)
	assert.Equal(t, "one", string(body))
	status, body, err = readResponse(r)
	require.NoError(t, err)
	assert.Equal(t, 429, status)
	assert.Equal(t, "two", string(body))
}

func TestRequestNamesTheClient(t *testing.T) {
	for _, w := range workloads() {
		c := newClient(nil, "127.0.0.1:1", w.request())
		for _, n := range []int64{0, 7, 9_999, 99_999_999} {
			putDigits(c.digits, n)
			_, body, ok := strings.Cut(string(c.request), "\r\n\r\n")
			require.True(t, ok)
			assert.Equal(t, w.body(n), body)
		}
	}
}
