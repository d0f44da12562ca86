// Package memcachedtest runs real memcached processes for tests: on TCP or a
// unix socket, with any arguments. A test can kill, restart, pause and resume
// its server, read its statistics, and see its keys and when they expire. The
// process ends with the test.
//
// A machine without memcached fails the test; only -short, which is for tests
// without processes, skips it. Start with Start.
package memcachedtest

import (
	"bufio"
	"bytes"
	"flag"
	"fmt"
	"net"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// A Server is a memcached process that a test started.
type Server struct {
	// Addr is host:port, or the path of a unix socket.
	Addr string

	t    testing.TB
	args []string
	cmd  *exec.Cmd
}

// Overlap, which a TestMain calls first, runs so many tests at a time for each processor, as
// most of them only wait. The command line has the last word.
func Overlap(tests int) {
	if err := flag.Set("test.parallel", strconv.Itoa(tests*runtime.GOMAXPROCS(0))); err != nil {
		panic(err)
	}
	flag.Parse()
}

// NeedsProcess skips a test that starts a process if -short is given.
func NeedsProcess(t testing.TB) {
	t.Helper()
	if testing.Short() {
		t.Skip("starts a process: run it without -short")
	}
}

// Start starts memcached on a free TCP port with the given further
// arguments and stops it when the test ends. A machine without memcached fails
// the test.
func Start(t testing.TB, args ...string) *Server {
	t.Helper()
	NeedsProcess(t)
	m, err := Run(args...)
	require.NoError(t, err)
	m.t = t
	t.Cleanup(m.Kill)
	return m
}

// StartSocket is Start on a unix socket.
func StartSocket(t testing.TB, args ...string) *Server {
	t.Helper()
	NeedsProcess(t)
	path := filepath.Join(PublicDir(t), "memcached.sock")
	m := &Server{Addr: path, t: t, args: append([]string{"-s", path, "-a", "0777"}, args...)}
	m.start()
	t.Cleanup(m.Kill)
	return m
}

// PublicDir returns a new directory that everybody may use, as memcached and
// proxies need it when they have given up root, with a path short enough for a
// socket. It is there until the test ends.
func PublicDir(t testing.TB) string {
	t.Helper()
	dir, err := os.MkdirTemp("", "weir")
	require.NoError(t, err)
	t.Cleanup(func() { os.RemoveAll(dir) })
	require.NoError(t, os.Chmod(dir, 0o777))
	return dir
}

func (m *Server) start() {
	m.t.Helper()
	require.NoError(m.t, m.run("", m.answers))
}

// Run starts memcached as Start does, where there is no test that could fail or
// end: in an Example. Only Addr, Kill and Network may be used, and Kill must
// be.
func Run(args ...string) (*Server, error) {
	// Memcached itself finds a free port, and tells by a file which it is:
	// nobody else can take it in between.
	dir, err := os.MkdirTemp("", "weir")
	if err != nil {
		return nil, err
	}
	defer os.RemoveAll(dir)
	if err := os.Chmod(dir, 0o777); err != nil {
		return nil, err
	}
	file := filepath.Join(dir, "port")
	m := &Server{args: append([]string{"-l", "127.0.0.1", "-p", "-1"}, args...)}
	err = m.run("MEMCACHED_PORT_FILENAME="+file, func() error {
		content, err := os.ReadFile(file)
		if err != nil {
			return err
		}
		_, port, _ := strings.Cut(string(content), "TCP INET: ")
		port, _, _ = strings.Cut(port, "\n")
		m.Addr = "127.0.0.1:" + port
		m.args[3] = port // also after a restart
		return m.answers()
	})
	return m, err
}

// nobody is whom memcached runs as, which refuses to be root.
const nobody = 65534

// run starts the process, with a variable in its environment, and returns when
// it is ready.
func (m *Server) run(variable string, ready func() error) error {
	path, err := exec.LookPath("memcached")
	if err != nil {
		return fmt.Errorf("the tests need memcached, which make setup installs: %w", err)
	}
	args := m.args
	m.cmd = exec.Command(path, args...)
	// In its own process group: whoever runs the tests in the background may leave,
	// and the system then has all go on that is paused in the group of the tests.
	m.cmd.SysProcAttr = endsWithTests()
	m.cmd.SysProcAttr.Setpgid = true
	if os.Geteuid() == 0 {
		m.cmd.SysProcAttr.Credential = &syscall.Credential{Uid: nobody, Gid: nobody}
	}
	m.cmd.Env = append(os.Environ(), variable)
	var stderr bytes.Buffer
	m.cmd.Stderr = &stderr
	if err := m.cmd.Start(); err != nil {
		return err
	}
	for deadline := time.Now().Add(30 * time.Second); ; time.Sleep(2 * time.Millisecond) {
		err := ready()
		if err == nil {
			return nil
		}
		if time.Now().After(deadline) {
			m.Kill()
			return fmt.Errorf("memcached %v doesn't answer: %w: %s", args, err, &stderr)
		}
	}
}

// answers returns nil if the process takes connections.
func (m *Server) answers() error {
	c, err := m.dial()
	if err != nil {
		return err
	}
	return c.Close()
}

// Network is "tcp" or "unix".
func (m *Server) Network() string {
	if strings.HasPrefix(m.Addr, "/") {
		return "unix"
	}
	return "tcp"
}

func (m *Server) dial() (net.Conn, error) { return net.Dial(m.Network(), m.Addr) }

// Kill ends the process at once, as SIGKILL does. It does nothing when the
// process has ended.
func (m *Server) Kill() {
	if m.cmd == nil {
		return
	}
	_ = m.cmd.Process.Kill()
	_ = m.cmd.Wait() // says that it was killed
	m.cmd = nil
}

// Restart starts the process again, after Kill, at the same address and empty.
func (m *Server) Restart() {
	m.t.Helper()
	require.Nil(m.t, m.cmd, "Restart needs Kill first")
	m.start()
}

// Pause stops the process without ending it: it accepts connections and never
// answers.
func (m *Server) Pause() {
	m.t.Helper()
	require.NoError(m.t, m.cmd.Process.Signal(syscall.SIGSTOP))
	// Its threads may go on answering until all have stopped.
	var status syscall.WaitStatus
	err := syscall.EINTR
	for err == syscall.EINTR {
		_, waitErr := syscall.Wait4(m.cmd.Process.Pid, &status, syscall.WUNTRACED, nil)
		err, _ = waitErr.(syscall.Errno)
	}
	require.True(m.t, status.Stopped())
}

// Resume lets a paused process go on.
func (m *Server) Resume() {
	m.t.Helper()
	require.NoError(m.t, m.cmd.Process.Signal(syscall.SIGCONT))
}

// Do sends a line of the text protocol and returns the lines of the answer, up
// to the first that begins with one of last, which is returned too.
func (m *Server) Do(line string, last ...string) []string {
	m.t.Helper()
	c, err := m.dial()
	require.NoError(m.t, err)
	defer c.Close()
	require.NoError(m.t, c.SetDeadline(time.Now().Add(time.Minute)))
	_, err = fmt.Fprintf(c, "%s\r\n", line)
	require.NoError(m.t, err)
	var lines []string
	for scan := bufio.NewScanner(c); scan.Scan(); {
		lines = append(lines, scan.Text())
		if slices.ContainsFunc(last, func(prefix string) bool { return strings.HasPrefix(scan.Text(), prefix) }) {
			return lines
		}
	}
	require.Failf(m.t, "no answer", "to %q: %q without %q", line, lines, last)
	return nil
}

// Stat returns a counter of the command stats, such as cmd_get.
func (m *Server) Stat(name string) int64 {
	m.t.Helper()
	for _, line := range m.Do("stats", "END") {
		if value, ok := strings.CutPrefix(line, "STAT "+name+" "); ok {
			n, err := strconv.ParseInt(value, 10, 64)
			require.NoError(m.t, err)
			return n
		}
	}
	require.Failf(m.t, "no such stat", "%q", name)
	return 0
}

// Keys returns the keys of all items that the server holds. It looks several
// times, as the server leaves out items that it is answering from.
func (m *Server) Keys() (keys []string) {
	m.t.Helper()
	for range 3 {
		for _, line := range m.dump() {
			if key, ok := strings.CutPrefix(line, "key="); ok {
				key, _, _ = strings.Cut(key, " ")
				key, err := url.PathUnescape(key)
				require.NoError(m.t, err)
				if !slices.Contains(keys, key) {
					keys = append(keys, key)
				}
			}
		}
	}
	return keys
}

// dump returns a line for each item.
func (m *Server) dump() []string {
	m.t.Helper()
	for {
		lines := m.Do("lru_crawler metadump all", "END", "BUSY")
		if !strings.HasPrefix(lines[0], "BUSY") {
			return lines
		}
		time.Sleep(10 * time.Millisecond)
	}
}

// TTL returns the seconds that the item at key has left, or -1 if it doesn't
// expire.
func (m *Server) TTL(key string) int64 {
	m.t.Helper()
	answer := m.Do("mg "+key+" t", "")
	ttl, ok := strings.CutPrefix(answer[0], "HD t")
	require.Truef(m.t, ok, "no item at %q: %s", key, answer[0])
	n, err := strconv.ParseInt(ttl, 10, 64)
	require.NoError(m.t, err)
	return n
}
