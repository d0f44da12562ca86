package main

import (
	"cmp"
	"errors"
	"fmt"
	"maps"
	"net"
	"path"
	"slices"
	"strconv"
	"strings"
)

// An envoyVariable is an environment variable of envoyproxy/ratelimit whose meaning doesn't
// depend on other variables.
type envoyVariable struct {
	// name ends with * if it stands for all variables that begin so. The note then names those
	// that are set, without their values.
	name string
	// flag is weir's flag for it, if there is one, and value makes the flag's value of the
	// variable's. Without value they are the same.
	flag  string
	value func(string) (string, error)
	// Without a flag, weir ignores any value but the usual one: the note says what it does
	// instead. If ignoring the value would do harm, it is fatal: the note is an error then.
	usual, note string
	fatal       bool
}

// envoyVariables are all of those. Variables that make a flag together are in envoyFlags.
var envoyVariables = []envoyVariable{
	{name: "LOG_LEVEL", flag: "log-level", value: logLevelOf},
	{name: "LOG_FORMAT", flag: "log-format"},
	{name: "CACHE_KEY_PREFIX", flag: "key-prefix"},
	{name: "GRPC_MAX_CONNECTION_AGE", flag: "grpc-max-connection-age"},
	{name: "RESPONSE_DYNAMIC_METADATA", flag: "envoy-dynamic-metadata"},

	{name: "GRPC_CLIENT_TLS_SAN", note: "weir takes any certificate of the authority", fatal: true},
	{name: "CONFIG_GRPC_XDS_CLIENT_ADDITIONAL_HEADERS", note: "weir sends none", fatal: true},
	{name: "MEMCACHE_TLS_CLIENT_CERT", note: "weir shows Memcached no certificate; -memcached-user-file is for user and password", fatal: true},
	{name: "MEMCACHE_TLS_SKIP_HOSTNAME_VERIFICATION", usual: "false", note: "weir always looks at the name", fatal: true},

	{name: "GRPC_MAX_CONNECTION_AGE_GRACE", note: "what is under way has -shutdown-grace"},
	{name: "CONFIG_GRPC_XDS_NODE_METADATA", note: "the xDS server is told the node's id alone"},
	{name: "NEAR_LIMIT_RATIO", usual: "0.8", note: "near is above 0.8 of the limit"},
	{name: "STOP_CACHE_KEY_INCREMENT_WHEN_OVERLIMIT", usual: "false", note: "denied requests count, but for limits with count_denied: false"},
	{name: "RUNTIME_IGNOREDOTFILES", usual: "true", note: "files whose names begin with a dot are passed over"},
	{name: "STATS_FLUSH_INTERVAL", usual: "10s", note: "metrics are sent every 10 s"},
	{name: "XDS_CLIENT_MAX_MSG_SIZE_IN_BYTES", note: "a set of limits may have 64 MiB"},
	{name: "USE_PROMETHEUS", usual: "false", note: "the metrics are at /metrics of -listen, by weir's names"},
	{name: "USE_DOG_STATSD_MOGRIFIERS", note: "names are sent as they are"},
	{name: "TRACING_ENABLED", usual: "false", note: "weir sends no traces"},
	{name: "PROMETHEUS_*", note: "the metrics are at /metrics of -listen, by weir's names"},
	{name: "DEBUG_HOST", usual: "0.0.0.0", note: "what the debug port has is at -listen, /rlconfig too"},
	{name: "DEBUG_PORT", usual: "6070", note: "what the debug port has is at -listen, /rlconfig too"},
	{name: "CONFIG_GRPC_XDS_SERVER_CONNECT_RETRY_INTERVAL", note: "the xDS server is asked again after 1 s, at most 30 s"},
	{name: "XDS_CLIENT_BACKOFF_*", note: "the xDS server is asked again after 1 s, at most 30 s"},
	{name: "HEALTHY_WITH_AT_LEAST_ONE_CONFIG_LOADED", usual: "true", note: "weir isn't ready without limits"},
	{name: "MERGE_DOMAIN_CONFIG", usual: "true", note: "files of one domain are read as one"},
	{name: "LOCAL_CACHE_SIZE_IN_BYTES", usual: "0", note: "weir remembers -view-clients of each limit"},
	{name: "EXPIRATION_JITTER_MAX_SECONDS", usual: "0", note: "items expire without jitter"},
	{name: "MEMCACHE_MAX_IDLE_CONNS", usual: "2", note: "all callers share a connection"},
	{name: "MEMCACHE_SRV_REFRESH", note: "names are looked up every 10 s"},
	{name: "BACKEND_TYPE", usual: "memcache", note: "weir counts on Memcached"},
	{name: "REDIS_*", note: "weir counts on Memcached"},
}

// A setting is a flag of weir and the value that variables give it. from names those that are set:
// it is "" if the value is a default of envoyproxy/ratelimit. The value is "" if the variables need
// the flag and don't say its value.
type setting struct{ flag, value, from string }

func (s setting) String() string { return "-" + s.flag + "=" + s.value }

// A translation makes settings of variables.
type translation struct {
	variables map[string]string
	settings  []setting
	notes     []string
	errs      []error
}

// envoyFlags translates an environment made for envoyproxy/ratelimit, a list of name=value, into
// flags of weir. The notes say what weir does otherwise. The error names each variable that is
// wrong, or asks for what weir can't do.
func envoyFlags(environment []string) ([]setting, []string, error) {
	t := &translation{variables: make(map[string]string)}
	for _, entry := range environment {
		if name, value, _ := strings.Cut(entry, "="); value != "" {
			t.variables[name] = value
		}
	}
	t.address("listen", "HOST", "PORT", "8080")
	if socket := t.variables["GRPC_UDS"]; socket != "" {
		t.set("grpc-listen", "unix:"+socket, "GRPC_UDS")
	} else {
		t.address("grpc-listen", "GRPC_HOST", "GRPC_PORT", "8081")
	}
	if t.is("GRPC_SERVER_USE_TLS", false) {
		t.set("grpc-tls-cert", t.variables["GRPC_SERVER_TLS_CERT"], "GRPC_SERVER_USE_TLS", "GRPC_SERVER_TLS_CERT")
		t.same("grpc-tls-key", "GRPC_SERVER_TLS_KEY")
		t.same("grpc-tls-client-ca", "GRPC_CLIENT_TLS_CACERT")
	}
	t.limits()
	t.mode()
	t.memcached()
	t.headers()
	t.statsd()
	for _, v := range envoyVariables {
		t.one(v)
	}
	return t.settings, t.notes, errors.Join(t.errs...)
}

// set sets a flag to what variables say, of which those that are set are named.
func (t *translation) set(flag, value string, variables ...string) {
	given := slices.DeleteFunc(variables, func(name string) bool { return t.variables[name] == "" })
	t.settings = append(t.settings, setting{flag, value, strings.Join(given, ", ")})
}

// same sets a flag to the value of a variable, if it has one.
func (t *translation) same(flag, name string) {
	if value := t.variables[name]; value != "" {
		t.set(flag, value, name)
	}
}

func (t *translation) fail(name, format string, args ...any) {
	t.errs = append(t.errs, fmt.Errorf("-envoy-env: %s=%q: %s", name, t.variables[name], fmt.Sprintf(format, args...)))
}

// is returns whether a variable is true, or what it is by default.
func (t *translation) is(name string, usual bool) bool {
	value, ok := t.variables[name]
	if !ok {
		return usual
	}
	is, err := strconv.ParseBool(value)
	if err != nil {
		t.fail(name, "must be true or false")
	}
	return is
}

func (t *translation) one(v envoyVariable) {
	if prefix, all := strings.CutSuffix(v.name, "*"); all {
		names := slices.DeleteFunc(slices.Sorted(maps.Keys(t.variables)), func(name string) bool { return !strings.HasPrefix(name, prefix) })
		if len(names) > 0 {
			t.notes = append(t.notes, strings.Join(names, ", ")+": "+v.note)
		}
		return
	}
	value, ok := t.variables[v.name]
	is, err := strconv.ParseBool(value)
	usual := value == v.usual || err == nil && strconv.FormatBool(is) == v.usual
	switch {
	case !ok:
	case v.flag != "" && v.value == nil:
		t.same(v.flag, v.name)
	case v.flag != "":
		if of, err := v.value(value); err != nil {
			t.fail(v.name, "%v", err)
		} else {
			t.set(v.flag, of, v.name)
		}
	case usual:
	case v.fatal:
		t.fail(v.name, "%s", v.note)
	default:
		t.notes = append(t.notes, fmt.Sprintf("%s=%s: %s", v.name, value, v.note))
	}
}

func (t *translation) address(flag, host, port, usual string) {
	t.set(flag, net.JoinHostPort(cmp.Or(t.variables[host], "0.0.0.0"), cmp.Or(t.variables[port], usual)), host, port)
}

// limits says where they come from.
func (t *translation) limits() {
	switch cmp.Or(t.variables["CONFIG_TYPE"], "FILE") {
	case "FILE":
		const root, below, folder = "RUNTIME_ROOT", "RUNTIME_SUBDIRECTORY", "RUNTIME_APPDIRECTORY"
		t.set("envoy-config", path.Join(
			cmp.Or(t.variables[root], "/srv/runtime_data/current"), t.variables[below], cmp.Or(t.variables[folder], "config")), root, below, folder)
	case "GRPC_XDS_SOTW":
		const server = "CONFIG_GRPC_XDS_SERVER_URL"
		t.set("envoy-xds", cmp.Or(t.variables[server], "localhost:18000"), server)
		t.same("envoy-xds-node", "CONFIG_GRPC_XDS_NODE_ID")
		if t.is("FORCE_START_WITHOUT_INITIAL_CONFIG", false) {
			t.set("envoy-xds-wait", "15s", "FORCE_START_WITHOUT_INITIAL_CONFIG")
		}
		if t.is("CONFIG_GRPC_XDS_SERVER_USE_TLS", false) {
			t.set("envoy-xds-tls", "true", "CONFIG_GRPC_XDS_SERVER_USE_TLS")
			t.same("envoy-xds-ca", "CONFIG_GRPC_XDS_SERVER_TLS_CACERT")
			t.same("envoy-xds-cert", "CONFIG_GRPC_XDS_CLIENT_TLS_CERT")
			t.same("envoy-xds-key", "CONFIG_GRPC_XDS_CLIENT_TLS_KEY")
			t.same("envoy-xds-name", "CONFIG_GRPC_XDS_SERVER_TLS_SAN")
		}
	default:
		t.fail("CONFIG_TYPE", "must be FILE or GRPC_XDS_SOTW")
	}
}

// mode says what denials do. In shadow mode nothing is denied, quotas or not.
func (t *translation) mode() {
	shadow, quota := t.is("SHADOW_MODE", false), t.is("QUOTA_MODE", false)
	switch {
	case shadow:
		t.set("envoy-mode", "shadow", "SHADOW_MODE")
	case quota:
		t.set("envoy-mode", "quota", "QUOTA_MODE")
	}
}

func (t *translation) memcached() {
	switch name := t.variables["MEMCACHE_SRV"]; {
	case name == "":
		t.same("memcached", "MEMCACHE_HOST_PORT")
	case t.variables["MEMCACHE_HOST_PORT"] != "":
		t.fail("MEMCACHE_SRV", "MEMCACHE_HOST_PORT is set too; unset one of them")
	default:
		t.set("memcached", "dnssrv+"+name, "MEMCACHE_SRV")
	}
	if t.is("MEMCACHE_TLS", false) {
		t.set("memcached-tls", "true", "MEMCACHE_TLS")
		t.same("memcached-ca", "MEMCACHE_TLS_CACERT")
	}
}

// statsd says where the metrics go.
func (t *translation) statsd() {
	if t.is("DISABLE_STATS", false) || t.is("USE_PROMETHEUS", false) || !t.is("USE_STATSD", true) && !t.is("USE_DOG_STATSD", false) {
		return
	}
	if host := t.variables["STATSD_HOST"]; host != "" && !t.is("USE_DOG_STATSD", false) {
		t.notes = append(t.notes, fmt.Sprintf("STATSD_HOST=%s: metrics are sent by UDP, not by TCP", host))
	}
	t.set("envoy-statsd", net.JoinHostPort(cmp.Or(t.variables["STATSD_HOST"], "localhost"), cmp.Or(t.variables["STATSD_PORT"], "8125")), "STATSD_HOST", "STATSD_PORT")
	t.same("envoy-statsd-tags", "EXTRA_TAGS")
}

// headers says which are sent.
func (t *translation) headers() {
	const enabled = "LIMIT_RESPONSE_HEADERS_ENABLED"
	if !t.is(enabled, false) {
		t.set("envoy-headers", "off", enabled)
		return
	}
	const limit, remaining, reset = "LIMIT_LIMIT_HEADER", "LIMIT_REMAINING_HEADER", "LIMIT_RESET_HEADER"
	t.set("envoy-headers", strings.Join([]string{
		cmp.Or(t.variables[limit], "RateLimit-Limit"), cmp.Or(t.variables[remaining], "RateLimit-Remaining"), cmp.Or(t.variables[reset], "RateLimit-Reset"),
	}, ","), enabled, limit, remaining, reset)
}

// logLevelOf returns weir's level.
func logLevelOf(level string) (string, error) {
	switch level := strings.ToLower(level); level {
	case "trace", "debug":
		return "debug", nil
	case "info", "error":
		return level, nil
	case "warn", "warning":
		return "warn", nil
	case "fatal", "panic":
		return "error", nil
	}
	return "", errors.New("must be panic, fatal, error, warn, info, debug or trace")
}
