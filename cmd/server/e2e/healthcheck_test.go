package e2e

import (
	"net"
	"os"
	"os/exec"
	"strings"
	"syscall"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"weir/cmd/server/servertest"
)

// runHealthcheck runs the binary with -healthcheck, by the environment alone,
// as a container does.
func runHealthcheck(t *testing.T, environment ...string) (stderr string, code int) {
	t.Helper()
	cmd := exec.Command(binary(t), "-healthcheck")
	cmd.Env = append(append(os.Environ(), noRaceSleep), environment...)
	var errs strings.Builder
	cmd.Stderr = &errs
	_ = cmd.Run() // the code says it
	return errs.String(), cmd.ProcessState.ExitCode()
}

// port returns the port that the process listens on.
func (p *process) port(t *testing.T) string {
	t.Helper()
	_, port, err := net.SplitHostPort(p.Address())
	require.NoError(t, err)
	return port
}

func TestHealthcheckFindsTheListener(t *testing.T) {
	t.Parallel()
	for _, host := range []string{"127.0.0.1", "0.0.0.0", "[::]", "", "localhost", "[::1]"} {
		p := startProcess(t, "-listen", host+":0")
		stderr, code := runHealthcheck(t, "WEIR_LISTEN="+host+":"+p.port(t))
		assert.Zero(t, code, "%q: %s", host, stderr)
		assert.Empty(t, stderr)
	}
}

func TestHealthcheckFails(t *testing.T) {
	t.Parallel()
	p := startProcess(t)
	listen := "WEIR_LISTEN=" + p.Address()

	stderr, code := runHealthcheck(t, listen, "WEIR_TLS_CERT=c", "WEIR_TLS_KEY=k")
	assert.Equal(t, 1, code, "it serves HTTP, not HTTPS")
	assert.Equal(t, "weir at "+p.Address()+" doesn't answer: http: server gave HTTP response to HTTPS client\n", stderr)

	require.NoError(t, p.cmd.Process.Signal(syscall.SIGSTOP))
	stderr, code = runHealthcheck(t, listen)
	assert.Equal(t, 1, code)
	assert.Contains(t, stderr, "weir at "+p.Address()+" doesn't answer: ")
	require.NoError(t, p.cmd.Process.Signal(syscall.SIGCONT))

	p.kill()
	stderr, code = runHealthcheck(t, listen)
	assert.Equal(t, 1, code)
	assert.Equal(t, "weir at "+p.Address()+" doesn't answer: dial tcp "+p.Address()+": connect: connection refused\n", stderr)

	for _, none := range []string{"127.0.0.1:0", "127.0.0.1:"} {
		stderr, code = runHealthcheck(t, "WEIR_LISTEN="+none)
		assert.Equal(t, 1, code)
		assert.Equal(t, "-healthcheck needs the port that the instance listens on; -listen "+none+" has none\n", stderr)
	}
}

func TestHealthcheckOverTLS(t *testing.T) {
	t.Parallel()
	a := servertest.NewAuthority(t)
	cert, key := a.Issue(t, "weir.example")
	variables := func(address string) []string {
		return []string{"WEIR_LISTEN=" + address, "WEIR_TLS_CERT=" + cert, "WEIR_TLS_KEY=" + key}
	}

	p := startProcess(t, "-tls-cert", cert, "-tls-key", key)
	stderr, code := runHealthcheck(t, variables(p.Address())...)
	assert.Zero(t, code, stderr)

	p = startProcess(t, "-tls-cert", cert, "-tls-key", key, "-tls-client-ca", a.File)
	withCA := append(variables(p.Address()), "WEIR_TLS_CLIENT_CA="+a.File)
	stderr, code = runHealthcheck(t, withCA...)
	assert.Zero(t, code, stderr)

	// That the kernel still completes handshakes of TCP is not enough.
	require.NoError(t, p.cmd.Process.Signal(syscall.SIGSTOP))
	_, code = runHealthcheck(t, withCA...)
	assert.Equal(t, 1, code)
	require.NoError(t, p.cmd.Process.Signal(syscall.SIGCONT))
}

// An instance without Memcached is well: it limits alone.
func TestHealthcheckIsAboutTheProcess(t *testing.T) {
	t.Parallel()
	p := startProcess(t, "-memcached", "127.0.0.1:1")
	status, _ := p.Get(t, "/readyz")
	require.Equal(t, 503, status)
	stderr, code := runHealthcheck(t, "WEIR_LISTEN="+p.Address())
	assert.Zero(t, code, stderr)
}
