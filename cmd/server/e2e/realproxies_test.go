package e2e

import (
	"math/rand/v2"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"weir/cmd/server/servertest"
	"weir/counters/memcachedtest"
)

// An edit replaces a text that has to be there.
type edit struct{ from, to string }

// edited writes a file of deploy into dir, with the addresses that it names
// replaced by those of the test, and edited. It returns its path.
func edited(t *testing.T, dir, file string, edits ...edit) string {
	t.Helper()
	data, err := os.ReadFile("../../../deploy/" + file)
	require.NoError(t, err)
	text := string(data)
	for _, e := range edits {
		require.Contains(t, text, e.from, file)
		text = strings.ReplaceAll(text, e.from, e.to)
	}
	path := filepath.Join(dir, file)
	require.NoError(t, os.WriteFile(path, []byte(text), 0o600))
	return path
}

// addresses replaces those that the files name. A single weir stands for both.
func addresses(weirs []string, app string, edits []edit) []edit {
	return append([]edit{{"127.0.0.1:8080", weirs[0]}, {"127.0.0.1:8081", weirs[len(weirs)-1]}, {"127.0.0.1:9000", app}}, edits...)
}

// The ports below those that the system gives to whoever asks for any, so that nobody else takes
// one before it is listened on. They are tried in turn, from a random one on, as two of Caddy would
// share one that both were given.
const firstPort, ports = 20_000, 12_768

var (
	beginAt   = rand.IntN(ports)
	portsSeen atomic.Int64
)

// freePort returns a port that nobody listens on.
func freePort(t *testing.T) string {
	t.Helper()
	for range 100 {
		port := strconv.Itoa(firstPort + (beginAt+int(portsSeen.Add(1)))%ports)
		if listener, err := net.Listen("tcp", "127.0.0.1:"+port); err == nil {
			require.NoError(t, listener.Close())
			return port
		}
	}
	require.Fail(t, "no port is free")
	return ""
}

// debian returns a command of a program of Debian.
func debian(t *testing.T, name string, args ...string) *exec.Cmd {
	t.Helper()
	path, err := exec.LookPath(name)
	if err != nil { // where root's programs are
		path, err = exec.LookPath("/usr/sbin/" + name)
	}
	require.NoError(t, err, "make setup installs it")
	return exec.Command(path, args...)
}

// startListening starts a program of Debian, in dir, and waits until it listens
// on the port. The program ends with the test.
func startListening(t *testing.T, dir, port, name string, args ...string) (address string) {
	t.Helper()
	log, exited := servertest.NewLog(), make(chan struct{})
	cmd := debian(t, name, args...)
	cmd.Dir, cmd.Stdout, cmd.Stderr = dir, log, log
	cmd.Env = append(os.Environ(), "HOME="+dir, "XDG_CONFIG_HOME="+dir, "XDG_DATA_HOME="+dir)
	require.NoError(t, cmd.Start())
	go func() {
		_ = cmd.Wait() // whether it went well doesn't matter
		close(exited)
	}()
	t.Cleanup(func() {
		_ = cmd.Process.Signal(syscall.SIGTERM)
		<-exited
	})
	address = "127.0.0.1:" + port
	require.Eventually(t, func() bool {
		select {
		case <-exited:
			require.Fail(t, name+" ended", "%s", log)
		default:
		}
		conn, err := net.Dial("tcp", address)
		if err == nil {
			conn.Close()
		}
		return err == nil
	}, servertest.Patience, 10*time.Millisecond, "%s", log)
	return address
}

func startNginx(t *testing.T, weirs []string, app string, edits ...edit) string {
	dir, port := memcachedtest.PublicDir(t), freePort(t)
	edited(t, dir, "nginx.conf", append(addresses(weirs, app, edits), edit{"*:8000", "*:" + port})...)
	main := `daemon off;
pid nginx.pid;
events { worker_connections 4096; }
http {
	access_log off;
	client_body_temp_path body;
	proxy_temp_path proxy;
	fastcgi_temp_path fastcgi;
	uwsgi_temp_path uwsgi;
	scgi_temp_path scgi;
	include nginx.conf;
}
`
	require.NoError(t, os.WriteFile(filepath.Join(dir, "main.conf"), []byte(main), 0o600))
	return startListening(t, dir, port, "nginx", "-p", dir, "-c", "main.conf", "-e", "stderr")
}

func startCaddy(t *testing.T, weirs []string, app string, edits ...edit) string {
	dir, port := memcachedtest.PublicDir(t), freePort(t)
	file := edited(t, dir, "Caddyfile", append(addresses(weirs, app, edits), edit{":8000", ":" + port})...)
	// Its admin endpoint would be at the same port in each test.
	require.NoError(t, prepend(file, "{\n\tadmin off\n}\n"))
	return startListening(t, dir, port, "caddy", "run", "--config", file, "--adapter", "caddyfile")
}

func prepend(file, text string) error {
	data, err := os.ReadFile(file)
	if err != nil {
		return err
	}
	return os.WriteFile(file, append([]byte(text), data...), 0o600)
}

func startHAProxy(t *testing.T, weirs []string, app string, edits ...edit) string {
	dir, port := memcachedtest.PublicDir(t), freePort(t)
	socket := edit{"abns@weir", "abns@weir-" + port} // others run at the same time
	edited(t, dir, "haproxy.lua", socket)
	file := edited(t, dir, "haproxy.cfg", append(addresses(weirs, app, edits),
		edit{"*:8000", "*:" + port}, edit{"/etc/haproxy", dir}, socket)...)
	return startListening(t, dir, port, "haproxy", "-db", "-f", file)
}
