package main

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/json"
	"encoding/pem"
	"io"
	"math/big"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"weir/counters/memcachedtest"
)

// patience is how long a test waits for something that has to happen.
const patience = 20 * time.Second

// logLines is a log in which tests wait for a line. Make it with newLogLines.
type logLines struct {
	mu   sync.Mutex
	text string
	seen int           // of text, what wait has passed
	grew chan struct{} // closed by the next Write
}

func newLogLines() *logLines { return &logLines{grew: make(chan struct{})} }

func (l *logLines) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.text += string(p)
	close(l.grew)
	l.grew = make(chan struct{})
	return len(p), nil
}

// wait returns the next line that contains part. It begins after the line that
// it returned last.
func (l *logLines) wait(t testing.TB, part string) string {
	t.Helper()
	timeout := time.After(patience)
	for {
		line, grew := l.next(part)
		if line != "" {
			return line
		}
		select {
		case <-grew:
		case <-timeout:
			require.Failf(t, "no such line in the log", "%q in:\n%s", part, l)
		}
	}
}

func (l *logLines) next(part string) (line string, grew <-chan struct{}) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for {
		line, _, whole := strings.Cut(l.text[l.seen:], "\n")
		if !whole {
			return "", l.grew
		}
		l.seen += len(line) + 1
		if strings.Contains(line, part) {
			return line, nil
		}
	}
}

func (l *logLines) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.text
}

// service is a running weir as its callers see it.
type service struct {
	url    string
	client *http.Client
}

func newService(t testing.TB, url string, tlsConfig *tls.Config) service {
	transport := &http.Transport{MaxIdleConnsPerHost: 64, TLSClientConfig: tlsConfig, ForceAttemptHTTP2: true}
	t.Cleanup(transport.CloseIdleConnections)
	return service{url: url, client: &http.Client{Transport: transport, Timeout: patience}}
}

// answer is the answer to a check, or a problem.
type answer struct {
	Status     int
	Header     http.Header `json:"-"`
	Allowed    bool
	Client     string
	Degraded   bool
	Wait       float64
	RetryAfter float64 `json:"retry_after"`
	Limits     []struct {
		Name      string
		Allowed   bool
		Limit     int64
		Remaining int64
	}
	Detail string
}

// used returns how much of limit i is in use.
func (a answer) used(i int) int64 { return a.Limits[i].Limit - a.Limits[i].Remaining }

// address returns the host and port of the service.
func (s service) address() string {
	_, address, _ := strings.Cut(s.url, "://")
	return address
}

func (s service) check(t testing.TB, policy, client string, cost int64) answer {
	t.Helper()
	body, err := json.Marshal(map[string]any{"policy": policy, "client": client, "cost": cost})
	require.NoError(t, err)
	return s.ask(t, http.MethodPost, "/v1/check", "application/json", string(body))
}

// ask returns the answer to a request whose body is JSON.
func (s service) ask(t testing.TB, method, path, contentType, body string) answer {
	t.Helper()
	status, header, data, err := s.send(method, path, contentType, body)
	require.NoError(t, err)
	a := answer{Status: status, Header: header}
	require.NoErrorf(t, json.Unmarshal(data, &a), "%d %s", status, data)
	return a
}

func (s service) get(t testing.TB, path string) (status int, body string) {
	t.Helper()
	status, _, data, err := s.send(http.MethodGet, path, "", "")
	require.NoError(t, err)
	return status, string(data)
}

func (s service) send(method, path, contentType, body string) (int, http.Header, []byte, error) {
	r, err := http.NewRequest(method, s.url+path, strings.NewReader(body))
	if err != nil {
		return 0, nil, nil, err
	}
	if contentType != "" {
		r.Header.Set("Content-Type", contentType)
	}
	resp, err := s.client.Do(r)
	if err != nil {
		return 0, nil, nil, err
	}
	defer resp.Body.Close()
	data, err := io.ReadAll(resp.Body)
	return resp.StatusCode, resp.Header, data, err
}

var greetingURL = regexp.MustCompile(`weir listens on (\S+) `)

// awaitGreeting returns the URL that the log says weir listens on.
func awaitGreeting(t testing.TB, log *logLines) string {
	t.Helper()
	return greetingURL.FindStringSubmatch(log.wait(t, "weir listens on"))[1]
}

// process is the real binary, running.
type process struct {
	service
	log    *logLines
	cmd    *exec.Cmd
	exited chan struct{} // closed when it has
	killed bool          // by the test
}

// startProcess starts the binary on a free port. When the test ends it gets
// SIGTERM and has to exit with 0, which it doesn't after a data race.
func startProcess(t testing.TB, args ...string) *process {
	t.Helper()
	return runProcess(t, exec.Command(binary, append([]string{"-listen", "127.0.0.1:0"}, args...)...))
}

// startShifted is startProcess with a clock that is off: the process is this
// test binary, which TestMain lets be the server.
func startShifted(t testing.TB, offset time.Duration, args ...string) *process {
	t.Helper()
	self, err := os.Executable()
	require.NoError(t, err)
	cmd := exec.Command(self, append([]string{"-listen", "127.0.0.1:0"}, args...)...)
	cmd.Env = append(os.Environ(), clockOffset+"="+offset.String())
	return runProcess(t, cmd)
}

func runProcess(t testing.TB, cmd *exec.Cmd) *process {
	t.Helper()
	p := &process{log: newLogLines(), cmd: cmd, exited: make(chan struct{})}
	p.cmd.Stderr = p.log
	p.cmd.Env = append(cmd.Environ(), noRaceSleep)
	require.NoError(t, p.cmd.Start())
	go func() {
		_ = p.cmd.Wait() // ProcessState has it
		close(p.exited)
	}()
	t.Cleanup(func() {
		if p.client != nil { // else it hasn't come so far
			p.client.CloseIdleConnections()
		}
		p.terminate(t)
		p.requireExit(t)
	})
	p.service = newService(t, awaitGreeting(t, p.log), nil)
	return p
}

// terminate sends SIGTERM unless the process has exited.
func (p *process) terminate(t testing.TB) {
	select {
	case <-p.exited:
	default:
		require.NoError(t, p.cmd.Process.Signal(syscall.SIGTERM))
	}
}

// kill ends the process at once.
func (p *process) kill() {
	p.killed = true
	_ = p.cmd.Process.Kill()
	<-p.exited
}

// requireExit waits until the process has exited, with 0 unless it was killed.
func (p *process) requireExit(t testing.TB) {
	select {
	case <-p.exited:
		require.Truef(t, p.killed || p.cmd.ProcessState.Success(), "%v\n%s", p.cmd.ProcessState, p.log)
	case <-time.After(patience):
		_ = p.cmd.Process.Kill()
		<-p.exited
		require.Failf(t, "the process doesn't exit", "%s", p.log)
	}
}

// authority signs certificates. Other users can read the files, because
// memcached runs as one.
type authority struct {
	dir  string
	cert *x509.Certificate
	key  *ecdsa.PrivateKey
	file string
}

func newAuthority(t testing.TB) *authority {
	t.Helper()
	a := &authority{dir: publicDir(t)}
	a.cert, a.key, a.file, _ = a.make(t, &x509.Certificate{
		Subject:               pkix.Name{CommonName: "authority"},
		IsCA:                  true,
		BasicConstraintsValid: true,
		KeyUsage:              x509.KeyUsageCertSign,
	})
	return a
}

// issue makes a certificate for servers on loopback and for clients.
func (a *authority) issue(t testing.TB, name string) (certFile, keyFile string) {
	t.Helper()
	_, _, certFile, keyFile = a.make(t, &x509.Certificate{
		Subject:     pkix.Name{CommonName: name},
		IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1)},
		KeyUsage:    x509.KeyUsageDigitalSignature,
		ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth, x509.ExtKeyUsageClientAuth},
	})
	return certFile, keyFile
}

// pool returns the authority as one to trust.
func (a *authority) pool() *x509.CertPool {
	pool := x509.NewCertPool()
	pool.AddCert(a.cert)
	return pool
}

// make signs template with the authority's key. The authority's own certificate
// is signed with its own key.
func (a *authority) make(t testing.TB, template *x509.Certificate) (cert *x509.Certificate, key *ecdsa.PrivateKey, certFile, keyFile string) {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	require.NoError(t, err)
	template.SerialNumber = big.NewInt(time.Now().UnixNano())
	template.NotBefore, template.NotAfter = time.Now().Add(-time.Hour), time.Now().Add(time.Hour)
	parent, signer := a.cert, a.key
	if parent == nil {
		parent, signer = template, key
	}
	der, err := x509.CreateCertificate(rand.Reader, template, parent, &key.PublicKey, signer)
	require.NoError(t, err)
	cert, err = x509.ParseCertificate(der)
	require.NoError(t, err)
	keyDER, err := x509.MarshalPKCS8PrivateKey(key)
	require.NoError(t, err)
	return cert, key,
		a.write(t, template.Subject.CommonName+".pem", "CERTIFICATE", der),
		a.write(t, template.Subject.CommonName+".key", "PRIVATE KEY", keyDER)
}

func (a *authority) write(t testing.TB, name, kind string, der []byte) string {
	t.Helper()
	file := filepath.Join(a.dir, name)
	require.NoError(t, os.WriteFile(file, pem.EncodeToMemory(&pem.Block{Type: kind, Bytes: der}), 0o644))
	return file
}

// publicDir is t.TempDir, readable by other users.
func publicDir(t testing.TB) string {
	t.Helper()
	dir, err := os.MkdirTemp("", "weir")
	require.NoError(t, err)
	t.Cleanup(func() { os.RemoveAll(dir) })
	require.NoError(t, os.Chmod(dir, 0o755))
	return dir
}

// tap is a proxy in front of memcached that records what is sent to it.
type tap struct {
	addr string
	sent *logLines
}

func tapMemcached(t testing.TB, m *memcachedtest.Server) *tap {
	t.Helper()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	w := &tap{addr: listener.Addr().String(), sent: newLogLines()}
	var relays sync.WaitGroup
	relays.Go(func() {
		for {
			client, err := listener.Accept()
			if err != nil {
				return
			}
			server, err := net.Dial("tcp", m.Addr)
			if err != nil {
				client.Close()
				continue
			}
			relays.Go(func() {
				defer server.Close()
				_, _ = io.Copy(server, io.TeeReader(client, w.sent)) // until either side closes
			})
			relays.Go(func() {
				defer client.Close()
				_, _ = io.Copy(client, server)
			})
		}
	})
	t.Cleanup(func() {
		listener.Close()
		m.Kill() // which ends the relays
		relays.Wait()
	})
	return w
}
