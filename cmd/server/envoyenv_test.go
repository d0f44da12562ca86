package main

import (
	"fmt"
	"io"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"weir/cmd/server/servertest"
)

// translate returns the flags for variables, in a line, without those for addresses.
func translate(t *testing.T, variables ...string) (flags string, notes []string) {
	t.Helper()
	settings, notes, err := envoyFlags(variables)
	require.NoError(t, err)
	var words []string
	for _, s := range settings[2:] {
		words = append(words, s.String())
	}
	return strings.Join(words, " "), notes
}

func TestVariablesOfEnvoyAsFlags(t *testing.T) {
	t.Parallel()
	const files = "-envoy-config=/srv/runtime_data/current/config "
	for _, test := range []struct {
		variables, want string
	}{
		{"USE_STATSD=true", files + "-envoy-headers=off -envoy-statsd=localhost:8125"},
		{"USE_STATSD=false USE_DOG_STATSD=true STATSD_HOST=s STATSD_PORT=1 EXTRA_TAGS=a:b,c:d", files + "-envoy-headers=off -envoy-statsd=s:1 -envoy-statsd-tags=a:b,c:d"},
		{"DISABLE_STATS=true", files + "-envoy-headers=off"},
		{"USE_STATSD=false USE_DOG_STATSD=true", files + "-envoy-headers=off -envoy-statsd=localhost:8125"},
		{"", files + "-envoy-headers=off"},
		{"PATH=/bin LOG_FORMAT= SHADOW_MODE=false QUOTA_MODE=0 NEAR_LIMIT_RATIO=0.8", files + "-envoy-headers=off"},
		{"RUNTIME_ROOT=/data RUNTIME_SUBDIRECTORY=ratelimit", "-envoy-config=/data/ratelimit/config -envoy-headers=off"},
		{"RUNTIME_ROOT=/data RUNTIME_APPDIRECTORY=limits", "-envoy-config=/data/limits -envoy-headers=off"},
		{"CONFIG_TYPE=GRPC_XDS_SOTW", "-envoy-xds=localhost:18000 -envoy-headers=off"},
		{"CONFIG_TYPE=GRPC_XDS_SOTW CONFIG_GRPC_XDS_SERVER_URL=cp:1 CONFIG_GRPC_XDS_NODE_ID=n CONFIG_GRPC_XDS_SERVER_TLS_CACERT=unused",
			"-envoy-xds=cp:1 -envoy-xds-node=n -envoy-headers=off"},
		{"CONFIG_TYPE=GRPC_XDS_SOTW CONFIG_GRPC_XDS_SERVER_USE_TLS=1 CONFIG_GRPC_XDS_SERVER_TLS_CACERT=a CONFIG_GRPC_XDS_SERVER_TLS_SAN=s",
			"-envoy-xds=localhost:18000 -envoy-xds-tls=true -envoy-xds-ca=a -envoy-xds-name=s -envoy-headers=off"},
		{"GRPC_SERVER_USE_TLS=true GRPC_SERVER_TLS_CERT=c GRPC_SERVER_TLS_KEY=k GRPC_CLIENT_TLS_CACERT=a",
			"-grpc-tls-cert=c -grpc-tls-key=k -grpc-tls-client-ca=a " + files + "-envoy-headers=off"},
		{"GRPC_SERVER_TLS_CERT=unused", files + "-envoy-headers=off"},
		{"BACKEND_TYPE=memcache MEMCACHE_HOST_PORT=a:1,b:2 MEMCACHE_TLS=true MEMCACHE_TLS_CACERT=ca",
			files + "-memcached=a:1,b:2 -memcached-tls=true -memcached-ca=ca -envoy-headers=off"},
		{"MEMCACHE_SRV=_memcache._tcp.example.com", files + "-memcached=dnssrv+_memcache._tcp.example.com -envoy-headers=off"},
		{"LOG_LEVEL=WARN LOG_FORMAT=json CACHE_KEY_PREFIX=a", files + "-envoy-headers=off -log-level=warn -log-format=json -key-prefix=a"},
		{"LIMIT_RESPONSE_HEADERS_ENABLED=true LIMIT_LIMIT_HEADER=X-RateLimit-Limit LIMIT_REMAINING_HEADER=x-ratelimit-remaining LIMIT_RESET_HEADER=x-ratelimit-reset",
			files + "-envoy-headers=X-RateLimit-Limit,x-ratelimit-remaining,x-ratelimit-reset"},
		{"LIMIT_RESPONSE_HEADERS_ENABLED=true LIMIT_LIMIT_HEADER=A", files + "-envoy-headers=A,RateLimit-Remaining,RateLimit-Reset"},
		{"SHADOW_MODE=true QUOTA_MODE=true", files + "-envoy-mode=shadow -envoy-headers=off"},
		{"QUOTA_MODE=1", files + "-envoy-mode=quota -envoy-headers=off"},
		{"MERGE_DOMAIN_CONFIG=true", files + "-envoy-headers=off"},
		{"GRPC_MAX_CONNECTION_AGE=5m RESPONSE_DYNAMIC_METADATA=true",
			files + "-envoy-headers=off -grpc-max-connection-age=5m -envoy-dynamic-metadata=true"},
	} {
		variables := strings.Fields(test.variables)
		if !strings.Contains(test.variables, "STATS") {
			variables = append(variables, "USE_STATSD=false") // which is true by default
		}
		flags, notes := translate(t, variables...)
		assert.Equal(t, test.want, flags, test.variables)
		assert.Empty(t, notes, test.variables)
	}
	settings, _, err := envoyFlags([]string{"PORT=1", "GRPC_HOST=::1", "GRPC_PORT=2"})
	require.NoError(t, err)
	assert.Equal(t, []setting{{"listen", "0.0.0.0:1", "PORT"}, {"grpc-listen", "[::1]:2", "GRPC_HOST, GRPC_PORT"}}, settings[:2])
	settings, _, err = envoyFlags([]string{"GRPC_UDS=/run/rl.sock", "GRPC_PORT=2"})
	require.NoError(t, err)
	assert.Equal(t, setting{"grpc-listen", "unix:/run/rl.sock", "GRPC_UDS"}, settings[1])
}

func TestVariablesOfEnvoyWithoutAFlag(t *testing.T) {
	t.Parallel()
	_, notes := translate(t, "GRPC_MAX_CONNECTION_AGE_GRACE=5m", "REDIS_URL=redis:6379", "RUNTIME_IGNOREDOTFILES=true",
		"REDIS_AUTH=secret", "STATSD_HOST=s", "STATS_FLUSH_INTERVAL=1s", "XDS_CLIENT_MAX_MSG_SIZE_IN_BYTES=1000")
	assert.Equal(t, []string{
		"STATSD_HOST=s: metrics are sent by UDP, not by TCP",
		"GRPC_MAX_CONNECTION_AGE_GRACE=5m: what is under way has -shutdown-grace",
		"STATS_FLUSH_INTERVAL=1s: metrics are sent every 10 s",
		"XDS_CLIENT_MAX_MSG_SIZE_IN_BYTES=1000: a set of limits may have 64 MiB",
		"REDIS_AUTH, REDIS_URL: weir counts on Memcached",
	}, notes)
	for variable, want := range map[string]string{
		"CONFIG_TYPE=XDS":             `-envoy-env: CONFIG_TYPE="XDS": must be FILE or GRPC_XDS_SOTW`,
		"QUOTA_MODE=perhaps":          `-envoy-env: QUOTA_MODE="perhaps": must be true or false`,
		"GRPC_MAX_CONNECTION_AGE=-1s": `-grpc-max-connection-age -1s must not be negative`,
		"GRPC_SERVER_USE_TLS=maybe":   `-envoy-env: GRPC_SERVER_USE_TLS="maybe": must be true or false`,
		"GRPC_SERVER_USE_TLS=true":    `-envoy-env: GRPC_SERVER_USE_TLS needs GRPC_SERVER_TLS_CERT and GRPC_SERVER_TLS_KEY`,
		"LOG_LEVEL=loud":              `-envoy-env: LOG_LEVEL="loud": must be panic, fatal, error, warn, info, debug or trace`,
		"GRPC_CLIENT_TLS_SAN=envoy":   `-envoy-env: GRPC_CLIENT_TLS_SAN="envoy": weir takes any certificate of the authority`,
		"CACHE_KEY_PREFIX=a:b/c":      `-key-prefix: key prefix "a:b/c" must have no / after a colon`,
		"LOG_FORMAT=xml":              `-log-format "xml" must be text or json`,
		"MEMCACHE_SRV=s":              `-envoy-env: MEMCACHE_SRV="s": MEMCACHE_HOST_PORT is set too; unset one of them`,
		"MEMCACHE_TLS_CLIENT_CERT=c":  `-envoy-env: MEMCACHE_TLS_CLIENT_CERT="c": weir shows Memcached no certificate; -memcached-user-file is for user and password`,
	} {
		_, err := parseConfig([]string{"-envoy-env"}, []string{"MEMCACHE_HOST_PORT=a:1", variable}, io.Discard)
		assert.EqualError(t, err, want)
	}
}

// Every variable that envoyproxy/ratelimit reads changes a flag, is refused, or is told of, where
// it isn't what weir does anyway.
func TestNoVariableOfEnvoyIsPassedOver(t *testing.T) {
	t.Parallel()
	told := func(variables ...string) string {
		settings, notes, err := envoyFlags(variables)
		return fmt.Sprint(settings, notes, err)
	}
	for _, c := range []struct{ with, variables string }{
		{"", `HOST=h PORT=1 GRPC_UDS=/s GRPC_HOST=h GRPC_PORT=1 GRPC_MAX_CONNECTION_AGE=1h GRPC_MAX_CONNECTION_AGE_GRACE=1m GRPC_SERVER_USE_TLS=x GRPC_CLIENT_TLS_SAN=s
			LOG_LEVEL=info LOG_FORMAT=json CONFIG_TYPE=GRPC_XDS_SOTW DEBUG_HOST=127.0.0.1 DEBUG_PORT=1 CONFIG_GRPC_XDS_NODE_METADATA=a CONFIG_GRPC_XDS_CLIENT_ADDITIONAL_HEADERS=a:b
			CONFIG_GRPC_XDS_SERVER_CONNECT_RETRY_INTERVAL=1s XDS_CLIENT_BACKOFF_INITIAL_INTERVAL=1s XDS_CLIENT_BACKOFF_MAX_INTERVAL=2s XDS_CLIENT_BACKOFF_RANDOM_FACTOR=0.1
			XDS_CLIENT_BACKOFF_JITTER=false XDS_CLIENT_MAX_MSG_SIZE_IN_BYTES=9 USE_DOG_STATSD_MOGRIFIERS=a USE_STATSD=false STATSD_HOST=s STATSD_PORT=1 EXTRA_TAGS=a:b STATS_FLUSH_INTERVAL=1s
			DISABLE_STATS=true USE_PROMETHEUS=true PROMETHEUS_ADDR=:1 PROMETHEUS_PATH=/p PROMETHEUS_MAPPER_YAML=m RUNTIME_ROOT=r RUNTIME_SUBDIRECTORY=s RUNTIME_APPDIRECTORY=a
			RUNTIME_IGNOREDOTFILES=false EXPIRATION_JITTER_MAX_SECONDS=9 LOCAL_CACHE_SIZE_IN_BYTES=9 NEAR_LIMIT_RATIO=0.5 CACHE_KEY_PREFIX=p BACKEND_TYPE=redis
			STOP_CACHE_KEY_INCREMENT_WHEN_OVERLIMIT=true LIMIT_RESPONSE_HEADERS_ENABLED=true HEALTHY_WITH_AT_LEAST_ONE_CONFIG_LOADED=false REDIS_SOCKET_TYPE=tcp REDIS_TYPE=CLUSTER
			REDIS_URL=u REDIS_POOL_SIZE=1 REDIS_AUTH=a REDIS_TLS=true REDIS_PIPELINE_WINDOW=1s REDIS_PERSECOND=true REDIS_PERSECOND_URL=u REDIS_HEALTH_CHECK_ACTIVE_CONNECTION=true
			MEMCACHE_HOST_PORT=a:1 MEMCACHE_MAX_IDLE_CONNS=9 MEMCACHE_SRV=s MEMCACHE_SRV_REFRESH=1s MEMCACHE_TLS=true MEMCACHE_TLS_CLIENT_CERT=c
			MEMCACHE_TLS_SKIP_HOSTNAME_VERIFICATION=true SHADOW_MODE=true QUOTA_MODE=true MERGE_DOMAIN_CONFIG=false RESPONSE_DYNAMIC_METADATA=true TRACING_ENABLED=true`},
		{"GRPC_SERVER_USE_TLS=true", "GRPC_SERVER_TLS_CERT=c GRPC_SERVER_TLS_KEY=k GRPC_CLIENT_TLS_CACERT=a"},
		{"CONFIG_TYPE=GRPC_XDS_SOTW", "FORCE_START_WITHOUT_INITIAL_CONFIG=true CONFIG_GRPC_XDS_NODE_ID=n CONFIG_GRPC_XDS_SERVER_URL=u CONFIG_GRPC_XDS_SERVER_USE_TLS=true"},
		{"CONFIG_TYPE=GRPC_XDS_SOTW CONFIG_GRPC_XDS_SERVER_USE_TLS=true",
			"CONFIG_GRPC_XDS_CLIENT_TLS_CERT=c CONFIG_GRPC_XDS_CLIENT_TLS_KEY=k CONFIG_GRPC_XDS_SERVER_TLS_CACERT=a CONFIG_GRPC_XDS_SERVER_TLS_SAN=s"},
		{"LIMIT_RESPONSE_HEADERS_ENABLED=true", "LIMIT_LIMIT_HEADER=a LIMIT_REMAINING_HEADER=b LIMIT_RESET_HEADER=c"},
		{"STATSD_HOST=s", "USE_DOG_STATSD=true"},
		{"MEMCACHE_TLS=true", "MEMCACHE_TLS_CACERT=c"},
	} {
		with := strings.Fields(c.with)
		for _, variable := range strings.Fields(c.variables) {
			assert.NotEqual(t, told(with...), told(append(with, variable)...), variable)
		}
	}
	_, notes, err := envoyFlags([]string{
		"BACKEND_TYPE=memcache", "DEBUG_PORT=6070", "EXPIRATION_JITTER_MAX_SECONDS=0", "HEALTHY_WITH_AT_LEAST_ONE_CONFIG_LOADED=1", "LOCAL_CACHE_SIZE_IN_BYTES=0",
		"MEMCACHE_MAX_IDLE_CONNS=2", "MERGE_DOMAIN_CONFIG=true", "RUNTIME_WATCH_ROOT=false", "PROTO=tcp", "PATH=/bin", "REDIS_URL=",
	})
	require.NoError(t, err)
	assert.Empty(t, notes)
}

// gatewayEnvironment is what Envoy Gateway gives the container of the rate limit service, what
// deploy/envoy/gateway.yaml adds, and what the image has.
var gatewayEnvironment = strings.Fields(`RUNTIME_ROOT=/data RUNTIME_SUBDIRECTORY=ratelimit RUNTIME_IGNOREDOTFILES=true RUNTIME_WATCH_ROOT=false
	LOG_LEVEL=info USE_STATSD=false CONFIG_TYPE=GRPC_XDS_SOTW CONFIG_GRPC_XDS_SERVER_URL=envoy-gateway:18001 CONFIG_GRPC_XDS_NODE_ID=envoy-ratelimit
	GRPC_SERVER_USE_TLS=true GRPC_SERVER_TLS_CERT=/certs/tls.crt GRPC_SERVER_TLS_KEY=/certs/tls.key GRPC_SERVER_TLS_CA_CERT=/certs/ca.crt
	CONFIG_GRPC_XDS_SERVER_USE_TLS=true CONFIG_GRPC_XDS_CLIENT_TLS_CERT=/certs/tls.crt CONFIG_GRPC_XDS_CLIENT_TLS_KEY=/certs/tls.key
	CONFIG_GRPC_XDS_SERVER_TLS_CACERT=/certs/ca.crt FORCE_START_WITHOUT_INITIAL_CONFIG=true REDIS_SOCKET_TYPE=tcp REDIS_URL=unused:6379
	USE_PROMETHEUS=true PROMETHEUS_ADDR=:19001 PROMETHEUS_MAPPER_YAML=/etc/statsd-exporter/conf.yaml
	BACKEND_TYPE=memcache MEMCACHE_HOST_PORT=memcached:11211 WEIR_LISTEN=:8080`)

// Limits come from one place: what the variables say of the other one isn't in force, and
// is no mistake.
func TestOwnPlaceOfLimitsHoldsOffThatOfTheVariables(t *testing.T) {
	t.Parallel()
	cfg, err := parseConfig([]string{"-envoy-env", "-envoy-config", "limits.yaml"}, gatewayEnvironment, io.Discard)
	require.NoError(t, err)
	assert.Equal(t, xdsConfig{node: defaultXDSNode}, cfg.envoyXDS)
	assert.Contains(t, cfg.envoyNotes, "CONFIG_GRPC_XDS_NODE_ID: weir's own -envoy-config is in force, not envoy-ratelimit")

	cfg, err = parseConfig([]string{"-envoy-env", "-envoy-xds", "cp:1"}, gatewayEnvironment, io.Discard)
	require.NoError(t, err)
	assert.Equal(t, "cp:1", cfg.envoyXDS.server)
	assert.Equal(t, "envoy-ratelimit", cfg.envoyXDS.node)
}

func TestValidatePrintsTheVariablesOfEnvoyAsFlags(t *testing.T) {
	t.Parallel()
	cfg, err := parseConfig([]string{"-envoy-env", "-validate"}, gatewayEnvironment, io.Discard)
	require.NoError(t, err)
	var out strings.Builder
	require.NoError(t, validate(cfg, &out))
	assert.Contains(t, out.String(), `The variables of envoyproxy/ratelimit are:
  -grpc-listen=0.0.0.0:8081
  -grpc-tls-cert=/certs/tls.crt
  -grpc-tls-key=/certs/tls.key
  -envoy-xds=envoy-gateway:18001
  -envoy-xds-node=envoy-ratelimit
  -envoy-xds-wait=15s
  -envoy-xds-tls=true
  -envoy-xds-ca=/certs/ca.crt
  -envoy-xds-cert=/certs/tls.crt
  -envoy-xds-key=/certs/tls.key
  -memcached=memcached:11211
  -envoy-headers=off
  -log-level=info
  not so: USE_PROMETHEUS=true: the metrics are at /metrics of -listen, by weir's names
  not so: PROMETHEUS_ADDR, PROMETHEUS_MAPPER_YAML: the metrics are at /metrics of -listen, by weir's names
  not so: REDIS_SOCKET_TYPE, REDIS_URL: weir counts on Memcached
`)
	assert.Contains(t, out.String(), "envoy: what envoy-gateway:18001 sends\n")
}

// What weir's own flags and variables say holds, and the log says of which variables it doesn't.
func TestWeirsOwnFlagsWinOverVariablesOfEnvoy(t *testing.T) {
	t.Parallel()
	limits := servertest.WriteFile(t, "limits.yaml", "domain: d\n")
	cfg, err := parseConfig([]string{"-envoy-env", "-memcached", "b:2", "-envoy-config", limits}, []string{
		"MEMCACHE_HOST_PORT=a:1", "CONFIG_TYPE=GRPC_XDS_SOTW", "LOG_LEVEL=error", "WEIR_LOG_LEVEL=debug", "LOG_FORMAT=json",
	}, io.Discard)
	require.NoError(t, err)
	assert.Equal(t, []string{"b:2"}, cfg.memcached)
	assert.Equal(t, limits, cfg.envoyConfig)
	assert.Empty(t, cfg.envoyXDS.server)
	assert.Equal(t, "DEBUG", cfg.logLevel.String())
	assert.Equal(t, "json", cfg.logFormat)
	assert.Equal(t, []string{"MEMCACHE_HOST_PORT: weir's own -memcached is in force, not a:1", "LOG_LEVEL: weir's own -log-level is in force, not error"}, cfg.envoyNotes)
	for _, own := range []string{"WEIR_TLS", "WEIR_GRPC_TLS"} {
		_, err = parseConfig([]string{"-envoy-env"}, []string{"MEMCACHE_HOST_PORT=a:1", "GRPC_SERVER_USE_TLS=true", own + "_CERT=c", own + "_KEY=k"}, io.Discard)
		assert.NoError(t, err, own)
	}
}

func TestTheVersionNeedsNoVariablesOfEnvoy(t *testing.T) {
	t.Parallel()
	cfg, err := parseConfig([]string{"-envoy-env", "-version"}, nil, io.Discard)
	require.NoError(t, err)
	assert.True(t, cfg.version)
}
