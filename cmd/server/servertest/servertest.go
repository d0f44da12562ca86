// Package servertest has what tests of the server share, whether it runs in
// their process or in one of its own: they ask it, read its log, and make
// certificates and files for it.
package servertest

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/json"
	"encoding/pem"
	"fmt"
	"io"
	"math/big"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"weir/api/policyfile"
	"weir/counters/memcachedtest"
)

// Patience is how long a test waits for something that has to happen.
const Patience = time.Minute

// A Log is a log in which tests wait for a line. It is safe for concurrent use,
// but one goroutine at a time may wait. Make one with NewLog.
type Log struct {
	mu   sync.Mutex
	text string
	seen int           // of text, what Wait has passed
	grew chan struct{} // closed by the next Write
}

// NewLog returns an empty log.
func NewLog() *Log { return &Log{grew: make(chan struct{})} }

// Write implements io.Writer. It never fails.
func (l *Log) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.text += string(p)
	close(l.grew)
	l.grew = make(chan struct{})
	return len(p), nil
}

// Wait returns the next line that contains part. It begins after the line that
// it returned last. The test fails if there is none within Patience.
func (l *Log) Wait(t testing.TB, part string) string {
	t.Helper()
	timeout := time.After(Patience)
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

func (l *Log) next(part string) (line string, grew <-chan struct{}) {
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

// String returns all that was written.
func (l *Log) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.text
}

// A Service is a running weir as its callers see it.
type Service struct {
	URL    string // without a path
	Client *http.Client
}

// NewService returns the service at a URL, until the test ends. The configuration
// is that of an HTTPS client; nil is the default.
func NewService(t testing.TB, url string, tlsConfig *tls.Config) Service {
	transport := &http.Transport{MaxIdleConnsPerHost: 64, TLSClientConfig: tlsConfig, ForceAttemptHTTP2: true}
	t.Cleanup(transport.CloseIdleConnections)
	return Service{URL: url, Client: &http.Client{Transport: transport, Timeout: Patience}}
}

// An Answer is the answer to a check, or a problem.
type Answer struct {
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

// Used returns how much of limit i is in use.
func (a Answer) Used(i int) int64 { return a.Limits[i].Limit - a.Limits[i].Remaining }

// Address returns the host and port of the service.
func (s Service) Address() string {
	_, address, _ := strings.Cut(s.URL, "://")
	return address
}

// Check returns the answer to a check. Having none fails the test.
func (s Service) Check(t testing.TB, policy, client string, cost int64) Answer {
	t.Helper()
	body, err := json.Marshal(map[string]any{"policy": policy, "client": client, "cost": cost})
	require.NoError(t, err)
	return s.Ask(t, http.MethodPost, "/v1/check", "application/json", string(body))
}

// Ask returns the answer to a request whose body is JSON. Having none fails the
// test.
func (s Service) Ask(t testing.TB, method, path, contentType, body string) Answer {
	t.Helper()
	status, header, data, err := s.Send(method, path, contentType, body)
	require.NoError(t, err)
	a := Answer{Status: status, Header: header}
	require.NoErrorf(t, json.Unmarshal(data, &a), "%d %s", status, data)
	return a
}

// Get returns what is at a path. Having no answer fails the test.
func (s Service) Get(t testing.TB, path string) (status int, body string) {
	t.Helper()
	status, _, data, err := s.Send(http.MethodGet, path, "", "")
	require.NoError(t, err)
	return status, string(data)
}

// Send sends a request, without Content-Type if that is "", and returns the
// answer's status, headers and body. The error is that of having none.
func (s Service) Send(method, path, contentType, body string) (int, http.Header, []byte, error) {
	r, err := http.NewRequest(method, s.URL+path, strings.NewReader(body))
	if err != nil {
		return 0, nil, nil, err
	}
	if contentType != "" {
		r.Header.Set("Content-Type", contentType)
	}
	resp, err := s.Client.Do(r)
	if err != nil {
		return 0, nil, nil, err
	}
	defer resp.Body.Close()
	data, err := io.ReadAll(resp.Body)
	return resp.StatusCode, resp.Header, data, err
}

// GreetingURL finds, as its first group, the URL in the line of the log that says
// where weir listens.
var GreetingURL = regexp.MustCompile(`weir listens on (\S+) `)

// AwaitGreeting returns the URL that the log says weir listens on.
func AwaitGreeting(t testing.TB, log *Log) string {
	t.Helper()
	return GreetingURL.FindStringSubmatch(log.Wait(t, "weir listens on"))[1]
}

// OneOfEach writes a policy file with a policy for each algorithm, of 100 a
// day, and returns its name and those of the policies.
func OneOfEach(t *testing.T, onStoreError string) (file string, policies []string) {
	t.Helper()
	text := "policies:\n"
	for _, name := range policyfile.WindowAlgorithms() {
		policy := strings.ReplaceAll(name, "_", "-")
		policies = append(policies, policy)
		text += fmt.Sprintf("  %s: {on_store_error: %s, limits: [{name: l, algorithm: %s, limit: 100, window: 1d}]}\n", policy, onStoreError, name)
	}
	file = filepath.Join(t.TempDir(), "policies.yaml")
	require.NoError(t, os.WriteFile(file, []byte(text), 0o600))
	return file, policies
}

// RequireUsed waits until the store decides, and so much of the limit is in
// use.
func RequireUsed(t *testing.T, s Service, policy, client string, want int64) {
	t.Helper()
	var a Answer
	require.Eventually(t, func() bool {
		a = s.Check(t, policy, client, 0)
		return a.Status == http.StatusOK && !a.Degraded && a.Used(0) == want
	}, Patience, time.Millisecond, "%s %s isn't %d: %+v", policy, client, want, &a)
}

// WriteFile writes a file into the test's directory and returns its path.
func WriteFile(t testing.TB, name, content string) string {
	t.Helper()
	file := filepath.Join(t.TempDir(), name)
	require.NoError(t, os.WriteFile(file, []byte(content), 0o600))
	return file
}

// An Authority signs certificates. Other users can read the files, because
// memcached runs as one. Make one with NewAuthority.
type Authority struct {
	Dir  string // of all its files
	File string // its own certificate
	cert *x509.Certificate
	key  *ecdsa.PrivateKey
}

// NewAuthority returns an authority whose files are there until the test ends.
func NewAuthority(t testing.TB) *Authority {
	t.Helper()
	a := &Authority{Dir: memcachedtest.PublicDir(t)}
	a.cert, a.key, a.File, _ = a.make(t, &x509.Certificate{
		Subject:               pkix.Name{CommonName: "authority"},
		IsCA:                  true,
		BasicConstraintsValid: true,
		KeyUsage:              x509.KeyUsageCertSign,
	})
	return a
}

// Issue makes a certificate for servers on loopback and for clients.
func (a *Authority) Issue(t testing.TB, name string) (certFile, keyFile string) {
	t.Helper()
	_, _, certFile, keyFile = a.make(t, &x509.Certificate{
		Subject:     pkix.Name{CommonName: name},
		IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1)},
		KeyUsage:    x509.KeyUsageDigitalSignature,
		ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth, x509.ExtKeyUsageClientAuth},
	})
	return certFile, keyFile
}

// Pool returns the authority as one to trust.
func (a *Authority) Pool() *x509.CertPool {
	pool := x509.NewCertPool()
	pool.AddCert(a.cert)
	return pool
}

// make signs template with the authority's key. The authority's own certificate
// is signed with its own key.
func (a *Authority) make(t testing.TB, template *x509.Certificate) (cert *x509.Certificate, key *ecdsa.PrivateKey, certFile, keyFile string) {
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

func (a *Authority) write(t testing.TB, name, kind string, der []byte) string {
	t.Helper()
	file := filepath.Join(a.Dir, name)
	require.NoError(t, os.WriteFile(file, pem.EncodeToMemory(&pem.Block{Type: kind, Bytes: der}), 0o644))
	return file
}

// A Tap is a proxy in front of Memcached that records what is sent to it. Make one
// with TapMemcached.
type Tap struct {
	Addr string
	Sent *Log
}

// TapMemcached returns a tap, until the test ends, which then kills the server.
func TapMemcached(t testing.TB, m *memcachedtest.Server) *Tap {
	t.Helper()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	w := &Tap{Addr: listener.Addr().String(), Sent: NewLog()}
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
				_, _ = io.Copy(server, io.TeeReader(client, w.Sent)) // until either side closes
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
