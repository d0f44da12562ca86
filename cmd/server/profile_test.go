package main

import (
	"bytes"
	"compress/gzip"
	"io"
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// The profile by which the server is built is one of today's functions, and of
// no particular machine. make pgo makes another.
func TestTheProfileIsOfThisServer(t *testing.T) {
	t.Parallel()
	packed, err := os.ReadFile("default.pgo")
	require.NoError(t, err)
	assert.Less(t, len(packed), 300<<10)
	r, err := gzip.NewReader(bytes.NewReader(packed))
	require.NoError(t, err)
	profile, err := io.ReadAll(r)
	require.NoError(t, err)
	for _, hot := range []string{
		"weir/api.(*Server).ServeHTTP", "weir/subwindow.(*Limiter).Take",
		"weir/counters/memcached.(*Store).Add", "weir/counters/memcached/pipeline.(*Conn).ExchangeOn",
	} {
		assert.True(t, bytes.Contains(profile, []byte(hot)), "%s isn't in it: run make pgo", hot)
	}
	root, err := filepath.Abs(filepath.Join("..", ".."))
	require.NoError(t, err)
	assert.False(t, bytes.Contains(profile, []byte(root)))
}
