package main

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"net/http"
	"os"
	"path/filepath"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"weir/cmd/server/servertest"
	"weir/counters/memcachedtest"
)

// requireRight checks what the metric says of all files.
func (r *running) requireRight(t *testing.T, want string) {
	t.Helper()
	_, metrics := r.Get(t, "/metrics")
	require.Regexp(t, `\nweir_config_last_reload_successful `+want+`\n`, metrics)
}

func copyFile(t *testing.T, to, from string) {
	t.Helper()
	data, err := os.ReadFile(from)
	require.NoError(t, err)
	require.NoError(t, os.WriteFile(to+".new", data, 0o644))
	require.NoError(t, os.Rename(to+".new", to))
}

func TestTokensAreReadAgain(t *testing.T) {
	t.Parallel()
	file := servertest.WriteFile(t, "tokens", "first\nsecond\n")
	r := startProgram(t, "-token-file", file)
	status := func(token string) int {
		t.Helper()
		request, err := http.NewRequest(http.MethodGet, r.URL+"/v1/policies", nil)
		require.NoError(t, err)
		request.Header.Set("Authorization", "Bearer "+token)
		resp, err := r.Client.Do(request)
		require.NoError(t, err)
		resp.Body.Close()
		return resp.StatusCode
	}
	require.Equal(t, http.StatusOK, status("first"))

	replace(t, file, "second\nthird\n")
	line := r.log.Wait(t, "a file is read again")
	assert.Contains(t, line, "level=INFO")
	assert.Contains(t, line, " flags=-token-file")
	assert.NotContains(t, r.log.String(), "third", "a token is a secret")
	assert.Equal(t, http.StatusUnauthorized, status("first"))
	assert.Equal(t, http.StatusOK, status("second"))
	assert.Equal(t, http.StatusOK, status("third"))
	r.requireReloads(t, "1", "0")
	r.requireRight(t, "1")

	replace(t, file, "# none\n")
	line = r.log.Wait(t, "what was read before stays in force")
	assert.Contains(t, line, "level=ERROR")
	assert.Contains(t, line, "-token-file "+file+" has no token")
	assert.Equal(t, http.StatusOK, status("third"))
	r.requireReloads(t, "1", "1")
	r.requireRight(t, "0")
	r.hangup <- syscall.SIGHUP
	r.log.Wait(t, "policies loaded")
	r.requireRight(t, "0")

	require.NoError(t, os.Remove(file))
	assert.Contains(t, r.log.Wait(t, "what was read before stays in force"), "no such file or directory")
	assert.Equal(t, http.StatusOK, status("third"))
	replace(t, file, "second\nthird\n")
	r.log.Wait(t, "a file is read again")
	r.requireRight(t, "1")
}

// A new certificate is that of the next connection, by HTTP and by gRPC.
func TestCertificatesAreReadAgain(t *testing.T) {
	t.Parallel()
	ca, strangers := servertest.NewAuthority(t), servertest.NewAuthority(t)
	cert, key := ca.Issue(t, "server")
	clients := filepath.Join(ca.Dir, "clients.pem")
	copyFile(t, clients, ca.File)
	r := startProgram(t, "-tls-cert", cert, "-tls-key", key, "-tls-client-ca", clients,
		"-grpc-listen", "127.0.0.1:0", "-envoy-config", servertest.WriteFile(t, "shop.yaml", "domain: shop\n"))
	addresses := []string{r.Address(), r.program.grpcListener.Addr().String()}
	own, err := tls.LoadX509KeyPair(ca.Issue(t, "client"))
	require.NoError(t, err)
	strange, err := tls.LoadX509KeyPair(strangers.Issue(t, "client"))
	require.NoError(t, err)
	// shows returns the certificate that a client sees, and whether its own is taken.
	shows := func(address string, client tls.Certificate) (*x509.Certificate, bool) {
		t.Helper()
		conn, err := tls.Dial("tcp", address, &tls.Config{RootCAs: ca.Pool(), NextProtos: []string{"h2"},
			GetClientCertificate: func(*tls.CertificateRequestInfo) (*tls.Certificate, error) { return &client, nil }})
		require.NoError(t, err)
		defer conn.Close()
		require.Equal(t, "h2", conn.ConnectionState().NegotiatedProtocol)
		require.NoError(t, conn.SetReadDeadline(time.Now().Add(servertest.Patience)))
		_, err = conn.Read(make([]byte, 1)) // the settings of HTTP/2, or a refusal
		return conn.ConnectionState().PeerCertificates[0], err == nil
	}
	r.Service = servertest.NewService(t, r.URL, &tls.Config{RootCAs: ca.Pool(), Certificates: []tls.Certificate{own}})
	for _, address := range addresses {
		seen, taken := shows(address, own)
		assert.Equal(t, "server", seen.Subject.CommonName)
		assert.True(t, taken)
		_, taken = shows(address, strange)
		assert.False(t, taken)
	}

	// The certificate and then, later, its key: they go together when both are there.
	newCert, newKey := ca.Issue(t, "next")
	copyFile(t, cert, newCert)
	assert.Contains(t, r.log.Wait(t, "what was read before stays in force"), "-tls-cert, -tls-key: tls: private key does not match public key")
	seen, _ := shows(addresses[0], own)
	assert.Equal(t, "server", seen.Subject.CommonName)
	r.requireRight(t, "0")
	copyFile(t, key, newKey)
	assert.Contains(t, r.log.Wait(t, "a file is read again"), " flags=-tls-cert,-tls-key,-tls-client-ca")
	r.requireRight(t, "1")
	copyFile(t, clients, strangers.File)
	r.log.Wait(t, "a file is read again")
	for _, address := range addresses {
		seen, taken := shows(address, own)
		assert.Equal(t, "next", seen.Subject.CommonName)
		assert.False(t, taken)
		_, taken = shows(address, strange)
		assert.True(t, taken)
	}
	status, _ := r.Get(t, "/healthz")
	assert.Equal(t, http.StatusOK, status, "on a connection from before")
}

// Memcached gets another user and another authority, and is started again with
// them. weir has the same files, and connects.
func TestMemcachedsFilesAreReadAgain(t *testing.T) {
	t.Parallel()
	first, second := servertest.NewAuthority(t), servertest.NewAuthority(t)
	cert, key := first.Issue(t, "memcached")
	authorities, user := filepath.Join(first.Dir, "authorities.pem"), filepath.Join(first.Dir, "user")
	copyFile(t, authorities, first.File)
	require.NoError(t, os.WriteFile(user, []byte("weir:secret\n"), 0o644))
	memcached := memcachedtest.Start(t, "-Y", user, "-Z", "-o", "ssl_chain_cert="+cert+",ssl_key="+key)
	r := startProgram(t, "-memcached", memcached.Addr, "-memcached-tls", "-memcached-ca", authorities, "-memcached-user-file", user,
		"-store-timeout", "5s")
	require.False(t, r.Check(t, "fixed", "c", 1).Degraded)

	newCert, newKey := second.Issue(t, "memcached")
	copyFile(t, cert, newCert)
	copyFile(t, key, newKey)
	copyFile(t, authorities, second.File)
	r.log.Wait(t, "a file is read again")
	copyFile(t, user, servertest.WriteFile(t, "user", "weir:another\n"))
	assert.Contains(t, r.log.Wait(t, "a file is read again"), " flags=-memcached-ca,-memcached-user-file")
	assert.False(t, r.Check(t, "fixed", "c", 1).Degraded, "the connection stays")
	copyFile(t, user, servertest.WriteFile(t, "user", "weir\n"))
	assert.Contains(t, r.log.Wait(t, "what was read before stays in force"), "must begin with a line user:password")
	r.requireRight(t, "0")
	copyFile(t, user, servertest.WriteFile(t, "user", "weir:another\n"))
	r.log.Wait(t, "a file is read again")
	assert.NotContains(t, r.log.String(), "another")

	memcached.Kill()
	memcached.Restart()
	require.Eventually(t, func() bool { return !r.Check(t, "fixed", "c", 1).Degraded }, servertest.Patience, 10*time.Millisecond)
}

// What changes between the start and the first look is found, too.
func TestFilesThatChangeAtTheStart(t *testing.T) {
	t.Parallel()
	file := servertest.WriteFile(t, "tokens", "first\n")
	cfg, err := parseConfig([]string{"-listen", "127.0.0.1:0", "-token-file", file}, env(nil), os.Stderr)
	require.NoError(t, err)
	log := servertest.NewLog()
	p, err := newProgram(cfg, log)
	require.NoError(t, err)
	replace(t, file, "second\n")
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- p.run(ctx, nil) }()
	log.Wait(t, "a file is read again")
	cancel()
	require.NoError(t, <-ended)
}
