package main

import (
	"net"
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// What stands at the path of a socket stays, unless it is a socket that nobody listens on.
func TestListenGRPCRemovesNothingButASocket(t *testing.T) {
	t.Parallel()
	const noSocket = " is no socket, and stays; give a path where nothing stands"
	for what, test := range map[string]struct {
		put  func(t *testing.T, path string)
		want string // behind the path
	}{
		"nothing": {func(*testing.T, string) {}, ""},
		"a socket that is left": {func(t *testing.T, path string) {
			l, err := net.Listen("unix", path)
			require.NoError(t, err)
			l.(*net.UnixListener).SetUnlinkOnClose(false)
			require.NoError(t, l.Close())
		}, ""},
		"a file": {func(t *testing.T, path string) {
			require.NoError(t, os.WriteFile(path, []byte("precious"), 0o600))
		}, noSocket},
		"a folder": {func(t *testing.T, path string) {
			require.NoError(t, os.Mkdir(path, 0o700))
		}, noSocket},
		"a link to a file": {func(t *testing.T, path string) {
			require.NoError(t, os.WriteFile(path+".to", []byte("precious"), 0o600))
			require.NoError(t, os.Symlink(path+".to", path))
		}, noSocket},
	} {
		t.Run(what, func(t *testing.T) {
			path := filepath.Join(t.TempDir(), "s")
			test.put(t, path)
			before, _ := os.Lstat(path)
			l, err := listenGRPC("unix:" + path)
			if test.want == "" {
				require.NoError(t, err)
				require.NoError(t, l.Close())
				return
			}
			assert.EqualError(t, err, path+test.want)
			after, err := os.Lstat(path)
			require.NoError(t, err)
			assert.True(t, os.SameFile(before, after))
		})
	}
}
