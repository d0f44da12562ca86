package main

import (
	"bytes"
	"flag"
	"io"
	"log/slog"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"weir/api/policyfile"
	"weir/cmd/server/servertest"
)

// env is an environment for parseConfig.
func env(variables map[string]string) []string {
	var environment []string
	for name, value := range variables {
		environment = append(environment, name+"="+value)
	}
	return environment
}

func mustNetworks(cidrs ...string) []netip.Prefix {
	networks, err := parseNetworks(cidrs)
	if err != nil {
		panic(err)
	}
	return networks
}

func TestConfigDefaults(t *testing.T) {
	t.Parallel()
	cfg, err := parseConfig(nil, env(nil), io.Discard)
	require.NoError(t, err)
	assert.Equal(t, &config{
		listen:         "127.0.0.1:8080",
		http:           "plain",
		decisionSample: "all",
		storeTimeout:   50 * time.Millisecond,
		clockSkew:      50 * time.Millisecond,
		keyPrefix:      "weir",
		viewClients:    100_000,
		proxies:        mustNetworks("127.0.0.0/8", "::1/128"),
		shutdownGrace:  10 * time.Second, envoyHeaders: "draft11", grpcAge: 24 * time.Hour,
		envoyOptions: policyfile.EnvoyOptions{Algorithm: "fixed_window", OnStoreError: "local", Mode: "enforce"},
		logLevel:     slog.LevelInfo,
		logFormat:    "text",
		envoyXDS:     xdsConfig{node: "default"},
	}, cfg)
}

// everySetting has a value that isn't the default for every flag.
var everySetting = map[string]string{
	"view-clients":            "7",
	"listen":                  "0.0.0.0:9",
	"http":                    "net",
	"config":                  "policies.yaml",
	"memcached":               "a:1, /run/b.sock , dns+c:1",
	"grpc-listen":             "0.0.0.0:10",
	"envoy-algorithm":         "sliding_window",
	"envoy-count-denied":      "true",
	"envoy-headers":           "A,B,C",
	"envoy-mode":              "quota",
	"envoy-on-store-error":    "allow",
	"envoy-dynamic-metadata":  "true",
	"grpc-max-connection-age": "1h",
	"store-timeout":           "20ms",
	"clock-skew":              "0s",
	"key-prefix":              "edge",
	"token-file":              "tokens",
	"console":                 "true",
	"decision-log":            "decisions.json",
	"decision-log-sample":     "1/7",
	"trusted-proxies":         "10.0.0.0/8, fd00::/8",
	"tls-cert":                "cert.pem",
	"tls-key":                 "key.pem",
	"tls-client-ca":           "ca.pem",
	"memcached-tls":           "true",
	"memcached-ca":            "mca.pem",
	"memcached-user-file":     "user",
	"shutdown-grace":          "1m",
	"log-level":               "warn",
	"log-format":              "json",
	"log-clients":             "true",
	"validate":                "true",
	"healthcheck":             "true",
	"version":                 "true",
	"envoy-xds":               "gateway:18001",
	"envoy-xds-node":          "edge-1",
	"envoy-xds-wait":          "15s",
	"envoy-xds-tls":           "true",
	"envoy-xds-ca":            "xca.pem",
	"envoy-xds-cert":          "xcert.pem",
	"envoy-xds-key":           "xkey.pem",
	"envoy-xds-name":          "gateway",
	"grpc-tls-cert":           "gcert.pem",
	"grpc-tls-key":            "gkey.pem",
	"grpc-tls-client-ca":      "gca.pem",
	"envoy-env":               "true",
	"envoy-statsd":            "statsd:8125",
	"envoy-statsd-tags":       "env:prod, az:a",
}

func TestConfigFromFlagsAndEnvironment(t *testing.T) {
	t.Parallel()
	want := &config{
		listen: "0.0.0.0:9", http: "net", policyFile: "policies.yaml", grpcListen: "0.0.0.0:10",
		envoyEnv: true, envoyStatsd: "statsd:8125", envoyTags: []string{"env:prod", "az:a"},
		envoyOptions: policyfile.EnvoyOptions{Algorithm: "sliding_window", CountDenied: true, OnStoreError: "allow", Mode: "quota"},
		envoyHeaders: "A,B,C", envoyMetadata: true, grpcAge: time.Hour, memcached: []string{"a:1", "/run/b.sock", "dns+c:1"},
		envoyXDS: xdsConfig{
			server: "gateway:18001", node: "edge-1", wait: 15 * time.Second, tls: true, ca: "xca.pem", cert: "xcert.pem", key: "xkey.pem", name: "gateway",
		},
		grpcTLSCert: "gcert.pem", grpcTLSKey: "gkey.pem", grpcClientCA: "gca.pem",
		storeTimeout: 20 * time.Millisecond, clockSkew: 0, keyPrefix: "edge", viewClients: 7, tokenFile: "tokens",
		console: true, decisionLog: "decisions.json", decisionSample: "1/7",
		proxies: mustNetworks("10.0.0.0/8", "fd00::/8"), tlsCert: "cert.pem", tlsKey: "key.pem", tlsClientCA: "ca.pem",
		memcachedTLS: true, memcachedCA: "mca.pem", memcachedUser: "user", shutdownGrace: time.Minute,
		logLevel: slog.LevelWarn, logFormat: "json", logClients: true, validate: true,
		healthcheck: true, version: true,
	}
	var args []string
	variables := make(map[string]string)
	for name, value := range everySetting {
		args = append(args, "-"+name+"="+value)
		variables["WEIR_"+strings.ToUpper(strings.ReplaceAll(name, "-", "_"))] = value
	}

	fromFlags, err := parseConfig(args, env(nil), io.Discard)
	require.NoError(t, err)
	assert.Equal(t, want, fromFlags)

	fromEnvironment, err := parseConfig(nil, env(variables), io.Discard)
	require.NoError(t, err)
	assert.Equal(t, want, fromEnvironment)
}

func TestConfigFlagsWinOverEnvironment(t *testing.T) {
	t.Parallel()
	cfg, err := parseConfig(
		[]string{"-store-timeout", "1s", "-memcached", "flag:1", "-trusted-proxies", "192.0.2.0/24", "-memcached-tls=false"},
		env(map[string]string{
			"WEIR_STORE_TIMEOUT": "2s", "WEIR_MEMCACHED": "env:1", "WEIR_TRUSTED_PROXIES": "10.0.0.0/8",
			"WEIR_MEMCACHED_TLS": "true", "WEIR_KEY_PREFIX": "env", "WEIR_LISTEN": "",
		}), io.Discard)
	require.NoError(t, err)
	assert.Equal(t, time.Second, cfg.storeTimeout)
	assert.Equal(t, []string{"flag:1"}, cfg.memcached)
	assert.Equal(t, mustNetworks("192.0.2.0/24"), cfg.proxies)
	assert.False(t, cfg.memcachedTLS)
	assert.Equal(t, "env", cfg.keyPrefix, "no flag says otherwise")
	assert.Equal(t, "127.0.0.1:8080", cfg.listen, "an empty variable is like none")
}

func TestTheConsoleNeedsATokenOrLoopback(t *testing.T) {
	t.Parallel()
	for _, args := range []string{"-console", "-console -listen localhost:1", "-console -listen [::1]:1", "-console -token-file tokens -listen :1"} {
		_, err := parseConfig(strings.Fields(args), env(nil), io.Discard)
		assert.NoError(t, err, args)
	}
}

func TestTrustedProxiesOfIPv4InIPv6(t *testing.T) {
	t.Parallel()
	cfg, err := parseConfig([]string{"-trusted-proxies=::ffff:10.0.0.0/104"}, env(nil), io.Discard)
	require.NoError(t, err)
	assert.Equal(t, []netip.Prefix{netip.MustParsePrefix("10.0.0.0/8")}, cfg.proxies)
}

func TestConfigNoTrustedProxies(t *testing.T) {
	t.Parallel()
	cfg, err := parseConfig([]string{"-trusted-proxies="}, env(nil), io.Discard)
	require.NoError(t, err)
	assert.Empty(t, cfg.proxies)
}

func TestConfigErrorsSayWhatWouldBeRight(t *testing.T) {
	t.Parallel()
	for _, test := range []struct {
		args string
		want string
	}{
		{"-nonsense", "flag provided but not defined: -nonsense; -help lists the flags"},
		{"-store-timout 5s", "flag provided but not defined: -store-timout; did you mean -store-timeout?"},
		{"--logformat=json", "flag provided but not defined: -logformat; did you mean -log-format?"},
		{"-validate=policies.yaml", `invalid boolean value "policies.yaml" for -validate: must be true or false; a file goes behind it, as in -validate policies.yaml`},
		{"-console=on", `invalid boolean value "on" for -console: must be true or false`},
		{"-view-clients x", `invalid value "x" for flag -view-clients: must be a whole number such as 100000`},
		{"-view-clients 99999999999999999999", `invalid value "99999999999999999999" for flag -view-clients: must be a whole number such as 100000`},
		{"-view-clients -1", "-view-clients -1 must not be negative"},
		{"serve", `"serve" is not a flag; -help lists them`},
		{"-store-timeout 5", `invalid value "5" for flag -store-timeout: must be a duration such as 50ms or 10s`},
		{"-store-timeout 0s", "-store-timeout 0s must be more than 0 and at most 5s"},
		{"-clock-skew soon", `invalid value "soon" for flag -clock-skew: must be a duration such as 50ms or 10s`},
		{"-clock-skew 61s", "-clock-skew 1m1s must be from 0 to 1m"},
		{"-clock-skew -1ms", "-clock-skew -1ms must be from 0 to 1m"},
		{"-shutdown-grace -1s", "-shutdown-grace -1s must not be negative"},
		{"-key-prefix=", `-key-prefix: key prefix "" must be 1 to 30 printable ASCII characters without space`},
		{"-key-prefix=é", `-key-prefix: key prefix "é" must be 1 to 30 printable ASCII characters without space`},
		{"-key-prefix=1234567890123456789012345678901", `-key-prefix: key prefix "1234567890123456789012345678901" must be 1 to 30 printable ASCII characters without space`},
		{"-key-prefix=a:b/c", `-key-prefix: key prefix "a:b/c" must have no / after a colon`},
		{"-trusted-proxies 10.0.0.0/33", `invalid value "10.0.0.0/33" for flag -trusted-proxies: "10.0.0.0/33" is not a CIDR such as 10.0.0.0/8`},
		{"-trusted-proxies 10.0.0.1", `invalid value "10.0.0.1" for flag -trusted-proxies: "10.0.0.1" is an address, not a CIDR; write 10.0.0.1/32`},
		{"-trusted-proxies 2001:db8::1", `invalid value "2001:db8::1" for flag -trusted-proxies: "2001:db8::1" is an address, not a CIDR; write 2001:db8::1/128`},
		{"-trusted-proxies fe80::1%eth0", `invalid value "fe80::1%eth0" for flag -trusted-proxies: "fe80::1%eth0" is an address, not a CIDR; write fe80::1/128`},
		{"-trusted-proxies ::ffff:10.0.0.1", `invalid value "::ffff:10.0.0.1" for flag -trusted-proxies: "::ffff:10.0.0.1" is an address, not a CIDR; write 10.0.0.1/32`},
		{"-trusted-proxies 10.0.0.1/8", `invalid value "10.0.0.1/8" for flag -trusted-proxies: "10.0.0.1/8" names an address within a range; write 10.0.0.0/8 for the range, or 10.0.0.1/32 for the address alone`},
		{"-trusted-proxies ::ffff:10.0.0.1/104", `invalid value "::ffff:10.0.0.1/104" for flag -trusted-proxies: "::ffff:10.0.0.1/104" names an address within a range; write 10.0.0.0/8 for the range, or 10.0.0.1/32 for the address alone`},
		{"-trusted-proxies fd00::1/8", `invalid value "fd00::1/8" for flag -trusted-proxies: "fd00::1/8" names an address within a range; write fd00::/8 for the range, or fd00::1/128 for the address alone`},
		{"-log-level loud", `invalid value "loud" for flag -log-level: must be debug, info, warn or error`},
		{"-console -listen :8080", `-console without -token-file needs a loopback -listen, such as 127.0.0.1:8080, as anybody might change limits there; ":8080" isn't`},
		{"-console -listen 10.0.0.1:8080", `-console without -token-file needs a loopback -listen, such as 127.0.0.1:8080, as anybody might change limits there; "10.0.0.1:8080" isn't`},
		{"-decision-log-sample denied", "-decision-log-sample needs -decision-log"},
		{"-decision-log - -decision-log-sample some", `-decision-log-sample: "some" must be all, denied, or a part of them such as 1/100`},
		{"-decision-log - -decision-log-sample 1/0", `-decision-log-sample: "1/0" must be all, denied, or a part of them such as 1/100`},
		{"-log-format xml", `-log-format "xml" must be text or json`},
		{"-memcached-tls=perhaps", `invalid boolean value "perhaps" for -memcached-tls: must be true or false`},
		{"-memcached ,", `invalid value "," for flag -memcached: must name a server, such as 127.0.0.1:11211, or be empty for an embedded store`},
		{"-memcached a", `-memcached: "a" is not a Memcached server; give host:port or /path/to.sock`},
		{"-memcached a:1,b:1,a:1", "-memcached: the Memcached server a:1 is named twice"},
		{"-memcached a:1,dns+b", `-memcached: "dns+b" names no Memcached servers; give dns+host:port`},
		{"-memcached dnssrv+b:1", `-memcached: "dnssrv+b:1" names no Memcached servers; give dnssrv+_name._tcp.host, without a port`},
		{"-memcached srv+b:1", `-memcached: "srv+b:1" is not a Memcached server; ` +
			"give host:port, /path/to.sock, dns+host:port, dnssrv+_name._tcp.host or cluster+host:port"},
		{"-envoy-env", "-envoy-env needs MEMCACHE_HOST_PORT or -memcached: weir counts on Memcached, not on Redis"},
		{"-grpc-listen :1", "-grpc-listen needs -envoy-config or -envoy-xds, the limits that it answers by"},
		{"-envoy-config c -grpc-listen unix:", `-grpc-listen "unix:" names no socket; give its path, as in unix:/run/weir/grpc.sock`},
		{"-envoy-statsd s:1", "-envoy-statsd needs -envoy-config or -envoy-xds, of which it tells"},
		{"-envoy-config c -envoy-statsd-tags a:b", "-envoy-statsd-tags needs -envoy-statsd"},
		{"-envoy-config c -envoy-xds x:1", "-envoy-config and -envoy-xds are both where the limits come from; give one of them"},
		{"-envoy-xds x", `-envoy-xds "x" must be HOST:PORT, such as control-plane:18000`},
		{"-envoy-xds http://x:1", `-envoy-xds "http://x:1" must be HOST:PORT, such as control-plane:18000`},
		{"-envoy-config c -envoy-statsd s", `-envoy-statsd "s" must be HOST:PORT, such as localhost:8125`},
		{"-envoy-xds-wait 1s", "-envoy-xds-node, -envoy-xds-wait and -envoy-xds-tls need -envoy-xds"},
		{"-envoy-xds-node edge", "-envoy-xds-node, -envoy-xds-wait and -envoy-xds-tls need -envoy-xds"},
		{"-envoy-xds x:1 -envoy-xds-wait -1s", "-envoy-xds-wait must not be negative"},
		{"-envoy-xds x:1 -envoy-xds-name n", "-envoy-xds-ca, -envoy-xds-cert and -envoy-xds-name need -envoy-xds-tls"},
		{"-envoy-xds x:1 -envoy-xds-tls -envoy-xds-cert c", "-envoy-xds-cert and -envoy-xds-key go together"},
		{"-envoy-xds x:1 -grpc-listen :1 -grpc-tls-key k", "-grpc-tls-cert and -grpc-tls-key go together"},
		{"-envoy-xds x:1 -grpc-listen :1 -grpc-tls-client-ca a", "-grpc-tls-client-ca needs -grpc-tls-cert and -grpc-tls-key"},
		{"-grpc-tls-cert c -grpc-tls-key k", "-grpc-tls-cert needs -grpc-listen"},
		{"-tls-cert c", "-tls-cert and -tls-key go together"},
		{"-tls-key k", "-tls-cert and -tls-key go together"},
		{"-tls-client-ca ca", "-tls-client-ca needs -tls-cert and -tls-key"},
		{"-memcached a:1 -memcached-ca ca", "-memcached-ca needs -memcached-tls"},
		{"-memcached-tls", "-memcached-tls and -memcached-user-file need -memcached"},
		{"-memcached-user-file u", "-memcached-tls and -memcached-user-file need -memcached"},
		{"-envoy-headers A,B", `-envoy-headers "A,B" must be draft11, legacy or off, or three names as in RateLimit-Limit,RateLimit-Remaining,RateLimit-Reset`},
		{"-envoy-mode dry", `-envoy-mode "dry" must be enforce, shadow or quota`},
		{"-envoy-on-store-error 503", `-envoy-on-store-error "503" must be local, allow or deny`},
		{"-grpc-max-connection-age -1s", "-grpc-max-connection-age -1s must not be negative"},
		{"-listen 127.0.0.1:65536", `-listen "127.0.0.1:65536" has a port that is out of range; give one from 0 to 65535`},
		{"-listen=", `-listen "" must be HOST:PORT, such as 127.0.0.1:8080`},
		{"-listen unix:/run/weir.sock", `-listen "unix:/run/weir.sock" must be HOST:PORT, such as 127.0.0.1:8080`},
		{"-listen 8080", `-listen "8080" must be HOST:PORT, such as 127.0.0.1:8080`},
		{"-listen http://127.0.0.1:8080", `-listen "http://127.0.0.1:8080" must be HOST:PORT, such as 127.0.0.1:8080`},
		{"-envoy-config c -grpc-listen 8081", `-grpc-listen "8081" must be HOST:PORT, such as 127.0.0.1:8081, or unix: and the path of a socket`},
		{"-listen 127.0.0.1:80x", `-listen "127.0.0.1:80x" has a port that no service has; give a number from 0 to 65535`},
		{"-envoy-config c -grpc-listen :8081;", `-grpc-listen ":8081;" has a port that no service has; give a number from 0 to 65535`},
		{"-envoy-xds x:18OOO", `-envoy-xds "x:18OOO" must be HOST:PORT, such as control-plane:18000`},
		{"-trusted-proxies 10.0.0.0/8;fd00::/8", `invalid value "10.0.0.0/8;fd00::/8" for flag -trusted-proxies: "10.0.0.0/8;fd00::/8" is not a CIDR such as 10.0.0.0/8; several are separated by commas`},
		{"-listen :-1", `-listen ":-1" has a port that is out of range; give one from 0 to 65535`},
		{"-listen [::1]:99999999999999999999", `-listen "[::1]:99999999999999999999" has a port that is out of range; give one from 0 to 65535`},
		{"-store-timeout 5 -nonsense x -log-level loud -v", `invalid value "5" for flag -store-timeout: must be a duration such as 50ms or 10s` + "\n" +
			"flag provided but not defined: -nonsense; -help lists the flags\n" +
			`invalid value "loud" for flag -log-level: must be debug, info, warn or error` + "\n" +
			"flag provided but not defined: -v; -help lists the flags"},
		{"-listen 8080 -memcached a", `-listen "8080" must be HOST:PORT, such as 127.0.0.1:8080` + "\n" +
			`-memcached: "a" is not a Memcached server; give host:port or /path/to.sock`},
		{"-store-timeout 5 -listen 8080", `invalid value "5" for flag -store-timeout: must be a duration such as 50ms or 10s` + "\n" +
			`-listen "8080" must be HOST:PORT, such as 127.0.0.1:8080`},
		// What was to be -memcached is wrong, not the flag that needs one.
		{"-memcahced a:1 -memcached-tls", "flag provided but not defined: -memcahced; did you mean -memcached?"},
		{"-store-timeout 0s -log-format xml", "-store-timeout 0s must be more than 0 and at most 5s\n-log-format \"xml\" must be text or json"},
	} {
		t.Run(test.args, func(t *testing.T) {
			_, err := parseConfig(strings.Fields(test.args), env(nil), io.Discard)
			assert.EqualError(t, err, test.want)
		})
	}
}

// A space, which no table of flags shows, is as wrong as a letter.
func TestConfigErrorsOfSpaces(t *testing.T) {
	t.Parallel()
	for _, test := range []struct{ flag, value, want string }{
		{"-listen", "localhost:8080 ", `-listen "localhost:8080 " has a port that no service has; give a number from 0 to 65535`},
		{"-listen", "localhost :8080", `-listen "localhost :8080" must be HOST:PORT, such as 127.0.0.1:8080`},
		{"-trusted-proxies", "10.0.0.0/8 fd00::/8", `invalid value "10.0.0.0/8 fd00::/8" for flag -trusted-proxies: "10.0.0.0/8 fd00::/8" is not a CIDR such as 10.0.0.0/8; several are separated by commas`},
	} {
		_, err := parseConfig([]string{test.flag, test.value}, env(nil), io.Discard)
		assert.EqualError(t, err, test.want)
	}
}

func TestConfigErrorsNameTheVariable(t *testing.T) {
	t.Parallel()
	_, err := parseConfig(nil, env(map[string]string{
		"WEIR_STORE_TIMEOUT": "5", "WEIR_TRUSTED_PROXIES": "x", "WEIR_LOG_LEVEL": "loud", "WEIR_VALIDATE": "pol.yaml", "WEIR_CONSOLE": "yes", "WEIR_VIEW_CLIENTS": "x",
	}), io.Discard)
	assert.EqualError(t, err, strings.Join([]string{
		`WEIR_CONSOLE="yes": must be true or false`,
		`WEIR_LOG_LEVEL="loud": must be debug, info, warn or error`,
		`WEIR_STORE_TIMEOUT="5": must be a duration such as 50ms or 10s`,
		`WEIR_TRUSTED_PROXIES="x": "x" is not a CIDR such as 10.0.0.0/8`,
		`WEIR_VALIDATE="pol.yaml": must be true or false; a file goes behind it, as in -validate policies.yaml`,
		`WEIR_VIEW_CLIENTS="x": must be a whole number such as 100000`,
	}, "\n"))
}

// A misspelt variable would otherwise do nothing, without a word.
func TestConfigNamesTheNearestVariable(t *testing.T) {
	t.Parallel()
	for name, hint := range map[string]string{
		"WEIR_STORE_TIMOUT":   "did you mean WEIR_STORE_TIMEOUT?",
		"WEIR_TIMEOUT":        "did you mean WEIR_STORE_TIMEOUT?",
		"WEIR_MEMCACHE":       "did you mean WEIR_MEMCACHED?",
		"WEIR_LOGFORMAT":      "did you mean WEIR_LOG_FORMAT?",
		"WEIR_store_timeout":  "did you mean WEIR_STORE_TIMEOUT?",
		"WEIR_TLS_CLIENT_CRT": "did you mean WEIR_TLS_CLIENT_CA?",
		"WEIR_PORT":           "-help lists the flags",
	} {
		_, err := parseConfig(nil, env(map[string]string{name: "x"}), io.Discard)
		assert.EqualError(t, err, "the environment variable "+name+" is none of weir's; "+hint)
	}
	_, err := parseConfig([]string{"-log-level", "loud"}, env(map[string]string{"WEIR_B": "1", "WEIR_A": "1"}), io.Discard)
	require.Error(t, err)
	assert.Equal(t, 3, len(strings.Split(err.Error(), "\n")), err)
}

// Kubernetes sets these in every pod beside a service named weir or weir-grpc.
func TestConfigIgnoresVariablesOfServices(t *testing.T) {
	t.Parallel()
	_, err := parseConfig(nil, env(map[string]string{
		"WEIR_SERVICE_HOST": "10.96.0.7", "WEIR_SERVICE_PORT": "8080", "WEIR_SERVICE_PORT_HTTP": "8080", "WEIR_PORT": "tcp://10.96.0.7:8080",
		"WEIR_PORT_8080_TCP": "tcp://10.96.0.7:8080", "WEIR_PORT_8080_TCP_PROTO": "tcp", "WEIR_PORT_8080_TCP_PORT": "8080", "WEIR_PORT_8080_TCP_ADDR": "10.96.0.7",
		"WEIR_GRPC_SERVICE_HOST": "10.96.0.8", "WEIR_GRPC_PORT": "tcp://10.96.0.8:8081",
		"WEIRD": "1", "OTHER": "x", "WEIR_EMPTY": "",
	}), io.Discard)
	assert.NoError(t, err)
}

func TestConfigHelpListsEveryFlag(t *testing.T) {
	t.Parallel()
	var out bytes.Buffer
	_, err := parseConfig([]string{"-help"}, env(nil), &out)
	require.ErrorIs(t, err, flag.ErrHelp)
	assert.Regexp(t, "^weir is a rate limiting service", out.String())
	for name := range everySetting {
		assert.Contains(t, out.String(), "\n  -"+name)
	}
	assert.Contains(t, out.String(), "WEIR_STORE_TIMEOUT")
	assert.Contains(t, out.String(), "(default 50ms)")
}

func TestDurationsInTheLog(t *testing.T) {
	t.Parallel()
	for format, want := range map[string]string{
		"text": ` took=1.5s at.least=20ms`, "json": `"took":1.5,"at":{"least":0.02}}`,
	} {
		var log strings.Builder
		cfg, err := parseConfig([]string{"-log-format", format}, env(nil), io.Discard)
		require.NoError(t, err)
		cfg.logger(&log).Info("it took long", slog.Duration("took", 1500*time.Millisecond), slog.Group("at", slog.Any("least", 20*time.Millisecond)))
		assert.Contains(t, log.String(), want)
	}
}

func TestValidateNamesItsFile(t *testing.T) {
	t.Parallel()
	fromEnvironment := env(map[string]string{"WEIR_CONFIG": "env.yaml"})
	for line, want := range map[string]string{
		"-validate":                             "env.yaml",
		"-validate a.yaml":                      "a.yaml",
		"-validate -clock-skew 1s a.yaml":       "a.yaml",
		"-validate a.yaml -clock-skew 1s":       "a.yaml",
		"-config b.yaml -validate":              "b.yaml",
		"-config b.yaml -validate a.yaml":       "a.yaml",
		"-memcached m:1 -validate a.yaml":       "a.yaml",
		"-validate=true a.yaml -key-prefix x":   "a.yaml",
		"-clock-skew 1s -validate -listen :1 a": "a",
	} {
		cfg, err := parseConfig(strings.Fields(line), fromEnvironment, io.Discard)
		require.NoError(t, err, line)
		assert.True(t, cfg.validate)
		assert.Equal(t, want, cfg.policyFile, line)
	}
	for line, want := range map[string]string{
		"-validate a.yaml b.yaml":   `"b.yaml" is not a flag; -help lists them`,
		"a.yaml -validate":          `"a.yaml" is not a flag; -help lists them`,
		"-validate=false a.yaml":    `"a.yaml" is not a flag; -help lists them`,
		"-validate a.yaml -no-such": "flag provided but not defined: -no-such; -help lists the flags",
	} {
		_, err := parseConfig(strings.Fields(line), fromEnvironment, io.Discard)
		assert.EqualError(t, err, want, line)
	}
	_, err := parseConfig([]string{"-validate", ""}, fromEnvironment, io.Discard)
	assert.EqualError(t, err, "-validate: the name of the file is empty")
}

func TestNewProgramSaysWhatIsWrongWithFiles(t *testing.T) {
	t.Parallel()
	empty := servertest.WriteFile(t, "empty", "")
	ca := servertest.NewAuthority(t)
	cert, key := ca.Issue(t, "server")
	busy, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	defer busy.Close()
	for _, test := range []struct{ args, want string }{
		{"-config /nowhere/p.yaml", "policy file: open /nowhere/p.yaml: no such file or directory"},
		{"-config " + empty, empty + ": the file is empty; it needs the key policies"},
		{"-envoy-config /nowhere/e.yaml", "-envoy-config: stat /nowhere/e.yaml: no such file or directory"},
		{"-token-file " + empty, "-token-file " + empty + " has no token; it needs one a line"},
		{"-tls-cert /nowhere/c -tls-key " + key, "-tls-cert, -tls-key: open /nowhere/c: no such file or directory"},
		{"-tls-cert " + cert + " -tls-key " + empty, "-tls-cert, -tls-key: tls: failed to find any PEM data in key input"},
		{"-tls-cert " + cert + " -tls-key " + key + " -tls-client-ca " + empty, "-tls-client-ca: " + empty + " has no PEM certificate"},
		{"-memcached a:1 -memcached-tls -memcached-ca " + empty, "-memcached-ca: " + empty + " has no PEM certificate"},
		{"-memcached a:1 -memcached-tls -memcached-ca /nowhere/ca", "-memcached-ca: open /nowhere/ca: no such file or directory"},
		{"-memcached a:1 -memcached-user-file " + empty, "-memcached-user-file " + empty + " must begin with a line user:password"},
		{"-listen " + busy.Addr().String(), "-listen: listen tcp " + busy.Addr().String() + ": bind: address already in use"},
	} {
		t.Run(test.args, func(t *testing.T) {
			args := append([]string{"-listen", "127.0.0.1:0"}, strings.Fields(test.args)...)
			cfg, err := parseConfig(args, env(nil), io.Discard)
			require.NoError(t, err)
			_, err = newProgram(cfg, io.Discard)
			assert.EqualError(t, err, test.want)
		})
	}
}

// A pipe would hold up the start, or be empty when it is read a second time.
func TestFilesMustBeFiles(t *testing.T) {
	t.Parallel()
	folder := t.TempDir()
	pipe := filepath.Join(folder, "pipe")
	require.NoError(t, syscall.Mkfifo(pipe, 0o600))
	ca := servertest.NewAuthority(t)
	cert, _ := ca.Issue(t, "server")
	const isPipe, isFolder = " is a pipe, not a file; weir reads it again when it changes, so give a file", " is a folder; give a file"
	for _, test := range []struct{ args, want string }{
		{"-config " + pipe, "policy file: " + pipe + isPipe},
		{"-config " + folder, "policy file: " + folder + isFolder},
		{"-config /dev/null", "policy file: /dev/null is a device, not a file; weir reads it again when it changes, so give a file"},
		{"-envoy-config " + pipe, "-envoy-config: " + pipe + isPipe},
		{"-envoy-config " + folder, "-envoy-config: " + pipe + isPipe},
		{"-token-file " + pipe, "-token-file: " + pipe + isPipe},
		{"-token-file " + folder, "-token-file: " + folder + isFolder},
		{"-tls-cert " + cert + " -tls-key " + pipe + " -tls-client-ca " + folder, "-tls-key: " + pipe + isPipe + "\n-tls-client-ca: " + folder + isFolder},
		{"-memcached a:1 -memcached-user-file " + pipe, "-memcached-user-file: " + pipe + isPipe},
	} {
		t.Run(test.args, func(t *testing.T) {
			cfg, err := parseConfig(append([]string{"-listen", "127.0.0.1:0"}, strings.Fields(test.args)...), env(nil), io.Discard)
			require.NoError(t, err)
			ended := make(chan error, 1)
			go func() {
				_, err := newProgram(cfg, io.Discard)
				ended <- err
			}()
			select {
			case err := <-ended:
				assert.EqualError(t, err, test.want)
			case <-time.After(servertest.Patience):
				t.Error("it waits")
			}
		})
	}
}

func TestEnvoyNeedsItsOwnName(t *testing.T) {
	t.Parallel()
	policies := servertest.WriteFile(t, "p.yaml", "policies:\n  envoy: {limits: [{algorithm: fixed_window, limit: 1, window: 1m}]}")
	cfg, err := parseConfig([]string{"-listen", "127.0.0.1:0", "-config", policies, "-envoy-config", servertest.WriteFile(t, "shop.yaml", "domain: shop\n")}, nil, os.Stderr)
	require.NoError(t, err)
	_, err = newProgram(cfg, servertest.NewLog())
	assert.ErrorContains(t, err, `p.yaml:2: the policy "envoy" must have another name`)
	_, err = parseConfig([]string{"-grpc-listen", ":1"}, nil, os.Stderr)
	assert.ErrorContains(t, err, "-grpc-listen needs -envoy-config")
}
