package main

import (
	"io"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"weir/cmd/server/servertest"
)

// A pipe that nobody reads would have the start wait for a reader.
func TestADecisionLogThatNobodyReads(t *testing.T) {
	t.Parallel()
	pipe := filepath.Join(t.TempDir(), "pipe")
	require.NoError(t, syscall.Mkfifo(pipe, 0o600))
	opened := make(chan error, 1)
	go func() {
		_, _, err := openDecisionLog(&config{decisionSample: "all", decisionLog: pipe}, prometheus.NewRegistry())
		opened <- err
	}()
	select {
	case err := <-opened:
		assert.EqualError(t, err, "-decision-log: nobody reads the pipe "+pipe+"; start its reader before weir")
	case <-time.After(servertest.Patience):
		t.Error("it waits")
	}
}

// A file, or the reader of a pipe, gets all lines, even if more of them wait than a pipe holds.
func TestADecisionLogGetsAllLines(t *testing.T) {
	t.Parallel()
	lines := strings.Repeat(strings.Repeat("x", 99)+"\n", logBacklog/200)
	for name, read := range map[string]func(t *testing.T, path string) func() string{
		"file": func(t *testing.T, path string) func() string {
			return func() string { return read(t, path) }
		},
		"pipe": func(t *testing.T, path string) func() string {
			require.NoError(t, syscall.Mkfifo(path, 0o600))
			reader, err := os.OpenFile(path, os.O_RDONLY|syscall.O_NONBLOCK, 0)
			require.NoError(t, err)
			t.Cleanup(func() { reader.Close() })
			return func() string {
				got := make([]byte, len(lines))
				_, err := io.ReadFull(reader, got)
				require.NoError(t, err)
				return string(got)
			}
		},
	} {
		t.Run(name, func(t *testing.T) {
			path := filepath.Join(t.TempDir(), name)
			written := read(t, path)
			_, w, err := openDecisionLog(&config{decisionSample: "all", decisionLog: path}, prometheus.NewRegistry())
			require.NoError(t, err)
			for line := range strings.Lines(lines) {
				_, _ = io.WriteString(w, line)
			}
			if name == "file" {
				w.flush()
			}
			assert.Equal(t, lines, written())
			w.close()
			assert.Zero(t, w.dropped.Load())
		})
	}
}
