package memcachedtest_test

import (
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"os/signal"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"weir/counters/memcachedtest"
)

// A paused server stays so when the shell ends that runs the tests in the
// background, which has what is paused in their process group go on.
func TestPauseOutlivesTheShell(t *testing.T) {
	memcachedtest.NeedsProcess(t)
	const role = "WEIR_TEST_ROLE"
	again := func(as string) *exec.Cmd {
		cmd := exec.Command(os.Args[0], "-test.run", "^"+t.Name()+"$")
		cmd.Env = append(os.Environ(), role+"="+as)
		return cmd
	}
	switch os.Getenv(role) {
	case "": // it sees all
		shell := again("shell")
		out, err := shell.StdoutPipe()
		require.NoError(t, err)
		require.NoError(t, shell.Start())
		said, err := io.ReadAll(out) // until the tests have ended, too
		require.NoError(t, err)
		_ = shell.Wait()
		assert.Contains(t, string(said), "still paused")
	case "shell":
		tests := again("tests")
		tests.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
		tests.Stdout = os.Stdout
		paused, err := tests.StderrPipe()
		require.NoError(t, err)
		require.NoError(t, tests.Start())
		_, err = paused.Read(make([]byte, 1))
		require.NoError(t, err)
		os.Exit(0)
	case "tests":
		signal.Ignore(syscall.SIGHUP)
		server := memcachedtest.Start(t)
		shell := os.Getppid()
		server.Pause()
		_, err := os.Stderr.Write([]byte{'.'})
		require.NoError(t, err)
		for os.Getppid() == shell {
			time.Sleep(time.Millisecond)
		}
		conn, err := net.Dial(server.Network(), server.Addr)
		require.NoError(t, err)
		defer conn.Close()
		_, err = conn.Write([]byte("version\r\n"))
		require.NoError(t, err)
		require.NoError(t, conn.SetReadDeadline(time.Now().Add(200*time.Millisecond)))
		_, err = conn.Read(make([]byte, 1))
		require.ErrorIs(t, err, os.ErrDeadlineExceeded)
		fmt.Println("still paused")
	}
}
