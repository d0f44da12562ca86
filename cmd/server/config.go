package main

import (
	"cmp"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"flag"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/netip"
	"os"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"

	"weir/api/envoy"
	"weir/api/policy"
	"weir/api/policyfile"
	"weir/api/telemetry"
	"weir/counters"
	"weir/counters/memcached"
)

// config is what the command line and the environment say.
type config struct {
	listen         string
	http           string // plainHTTP or netHTTP
	grpcListen     string
	policyFile     string
	envoyConfig    string // a file or a folder of files
	envoyOptions   policyfile.EnvoyOptions
	envoyXDS       xdsConfig
	envoyEnv       bool
	envoyFlags     []setting // what the environment is in flags, with envoyEnv
	envoyNotes     []string  // and what it isn't
	envoyHeaders   string
	envoyStatsd    string
	envoyTags      []string
	envoyMetadata  bool
	grpcAge        time.Duration // of a connection; 0 is any
	memcached      []string
	storeTimeout   time.Duration
	clockSkew      time.Duration
	keyPrefix      string
	viewClients    int
	tokenFile      string
	console        bool
	decisionLog    string
	decisionSample string
	proxies        []netip.Prefix
	tlsCert        string
	tlsKey         string
	tlsClientCA    string
	grpcTLSCert    string
	grpcTLSKey     string
	grpcClientCA   string
	memcachedTLS   bool
	memcachedCA    string
	memcachedUser  string // the file that names user and password
	shutdownGrace  time.Duration
	logLevel       slog.Level
	logFormat      string
	logClients     bool
	validate       bool
	healthcheck    bool
	version        bool
}

// What reads HTTP: weir itself, as far as requests are plain, or net/http alone.
const plainHTTP, netHTTP = "plain", "net"

// The formats of the log.
const textFormat, jsonFormat = "text", "json"

// parseConfig reads the WEIR_ variables of the environment, which is a list of
// name=value, and then the flags in args. On -help it prints help to out and
// returns flag.ErrHelp. The error names each mistake in a line; then the config
// has what is right, which says how to log the error.
func parseConfig(args, environment []string, out io.Writer) (*config, error) {
	cfg := &config{}
	fs := flagSet{flag.NewFlagSet("server", flag.ContinueOnError)}
	fs.SetOutput(io.Discard)
	cfg.defineProcess(fs)
	cfg.defineCallers(fs)
	cfg.defineEnvoy(fs)
	cfg.defineStore(fs)

	err := errors.Join(setFromEnvironment(fs.FlagSet, environment), cfg.parseArgs(fs.FlagSet, args))
	switch {
	case errors.Is(err, flag.ErrHelp):
		fmt.Fprintln(out, "weir is a rate limiting service on Memcached. Each flag can be given as an\nenvironment variable, as in WEIR_STORE_TIMEOUT.")
		fs.SetOutput(out)
		fs.PrintDefaults()
		return cfg, flag.ErrHelp
	case cfg.version:
		return cfg, err
	case err == nil && cfg.envoyEnv:
		err = cfg.setFromEnvoy(fs.FlagSet, environment)
	}
	values := cfg.checkValues()
	if err != nil { // a flag that is wrong may be the one that others need
		return cfg, errors.Join(err, values)
	}
	return cfg, errors.Join(values, cfg.checkTogether())
}

// A flagSet defines flags whose mistakes say what would be right.
type flagSet struct{ *flag.FlagSet }

func (fs flagSet) duration(into *time.Duration, name string, value time.Duration, usage string) {
	*into = value
	fs.Func(name, fmt.Sprintf("%s (default %v)", usage, value), func(s string) error {
		d, err := time.ParseDuration(s)
		if err != nil {
			return errors.New("must be a duration such as 50ms or 10s")
		}
		*into = d
		return nil
	})
}

func (fs flagSet) boolean(into *bool, name, usage string) {
	fs.BoolFunc(name, usage, func(s string) (err error) {
		if *into, err = strconv.ParseBool(s); err != nil {
			if err = errors.New("must be true or false"); name == "validate" {
				err = fmt.Errorf("%w; a file goes behind it, as in -validate policies.yaml", err)
			}
		}
		return err
	})
}

// defineProcess defines the flags of the process itself: where it listens, what it limits and logs, and what else it can do.
func (c *config) defineProcess(fs flagSet) {
	fs.StringVar(&c.listen, "listen", "127.0.0.1:8080", "`address` to serve HTTP on")
	fs.StringVar(&c.http, "http", plainHTTP, "`what` reads HTTP: plain, weir itself where a request is plain and Go's net/http where it isn't, or net, net/http alone")
	fs.StringVar(&c.policyFile, "config", "", "policy `file`, YAML (default: the built-in policies)")
	fs.StringVar(&c.decisionLog, "decision-log", "", "`file` that gets a line of JSON for each check, or - for the standard output")
	fs.StringVar(&c.decisionSample, "decision-log-sample", "all", "which checks -decision-log gets: all, denied, or 1/n for each n-th")
	fs.duration(&c.shutdownGrace, "shutdown-grace", 10*time.Second, "how `long` requests under way may take after SIGTERM")
	fs.Func("log-level", "`level`: debug, info, warn or error (default info)", func(s string) error {
		if c.logLevel.UnmarshalText([]byte(s)) != nil {
			return errors.New("must be debug, info, warn or error")
		}
		return nil
	})
	fs.StringVar(&c.logFormat, "log-format", textFormat, "`format`: text or json")
	fs.boolean(&c.logClients, "log-clients", "show the names of clients in debug logs and of those that are reset as they are, not hashed")
	fs.boolean(&c.validate, "validate", "check the policy file, the one named behind it or else that of -config, print what it means and exit")
	fs.boolean(&c.healthcheck, "healthcheck", "ask the instance that runs with the same -listen, -tls-cert and -tls-key whether it is well, and exit with 0 or 1")
	fs.boolean(&c.version, "version", "print the version and exit")
}

// defineCallers defines the flags that say who may ask, and by which certificates.
func (c *config) defineCallers(fs flagSet) {
	fs.boolean(&c.console, "console", "serve the page for operators at /console/; without -token-file, -listen must be loopback")
	fs.StringVar(&c.tokenFile, "token-file", "", "`file` of bearer tokens, one a line, of which /v1/* then needs one; \"check TOKEN\" may change nothing for others, and # begins whose it is")
	c.proxies, _ = parseNetworks([]string{"127.0.0.0/8", "::1/128"})
	fs.Func("trusted-proxies", "`CIDRs` whose X-Forwarded- headers count, comma-separated (default: loopback)", func(s string) (err error) {
		c.proxies, err = parseNetworks(splitList(s))
		return err
	})
	fs.StringVar(&c.tlsCert, "tls-cert", "", "PEM `file` of the certificate to serve HTTPS with")
	fs.StringVar(&c.tlsKey, "tls-key", "", "PEM `file` of the key of -tls-cert")
	fs.StringVar(&c.tlsClientCA, "tls-client-ca", "", "PEM `file` of the authorities of which clients need a certificate")
	fs.StringVar(&c.grpcTLSCert, "grpc-tls-cert", "", "PEM `file` of the certificate for -grpc-listen alone, in the place of -tls-cert, -tls-key and -tls-client-ca")
	fs.StringVar(&c.grpcTLSKey, "grpc-tls-key", "", "PEM `file` of the key of -grpc-tls-cert")
	fs.StringVar(&c.grpcClientCA, "grpc-tls-client-ca", "", "PEM `file` of the authorities of which clients of -grpc-listen then need a certificate")
}

// defineEnvoy defines the flags of the rate limit service for Envoy.
func (c *config) defineEnvoy(fs flagSet) {
	fs.StringVar(&c.grpcListen, "grpc-listen", "", "`address` to serve Envoy's rate limit service on, by gRPC: host:port, or unix:/path/to.sock (default: none)")
	fs.duration(&c.grpcAge, "grpc-max-connection-age", 24*time.Hour, "how `long` a connection of gRPC may last, 0 for any time")
	fs.StringVar(&c.envoyConfig, "envoy-config", "", "`file` or folder of files in the format of envoyproxy/ratelimit, YAML (default: none)")
	fs.boolean(&c.envoyEnv, "envoy-env", "take the environment variables of envoyproxy/ratelimit, where no flag and no variable of weir's says otherwise; -validate prints them as flags")
	fs.StringVar(&c.envoyXDS.server, "envoy-xds", "", "`address` of an xDS server that sends limits for Envoy, in the place of -envoy-config (default: none)")
	fs.StringVar(&c.envoyXDS.node, "envoy-xds-node", defaultXDSNode, "`id` of the node by which the xDS server knows weir")
	fs.duration(&c.envoyXDS.wait, "envoy-xds-wait", 0, "how `long` weir isn't ready without the first set of limits of -envoy-xds; 0s is until it has come")
	fs.boolean(&c.envoyXDS.tls, "envoy-xds-tls", "connect to the xDS server by TLS")
	fs.StringVar(&c.envoyXDS.ca, "envoy-xds-ca", "", "PEM `file` of the authorities that vouch for the xDS server (default: the system's)")
	fs.StringVar(&c.envoyXDS.cert, "envoy-xds-cert", "", "PEM `file` of the certificate to show the xDS server")
	fs.StringVar(&c.envoyXDS.key, "envoy-xds-key", "", "PEM `file` of the key of -envoy-xds-cert")
	fs.StringVar(&c.envoyXDS.name, "envoy-xds-name", "", "`name` in the xDS server's certificate (default: that of -envoy-xds)")
	fs.StringVar(&c.envoyOptions.Algorithm, "envoy-algorithm", "fixed_window", "`algorithm` of the limits for Envoy that name none")
	fs.boolean(&c.envoyOptions.CountDenied, "envoy-count-denied", "make denied requests count in all limits for Envoy that don't say otherwise; in a fixed_window they do anyway")
	fs.StringVar(&c.envoyHeaders, "envoy-headers", string(envoy.Draft11), "`headers` of Envoy's answers: draft11, legacy or off, or three names as in RateLimit-Limit,RateLimit-Remaining,RateLimit-Reset")
	fs.StringVar((*string)(&c.envoyOptions.Mode), "envoy-mode", string(policyfile.EnvoyEnforce), "`mode` of all limits for Envoy: enforce; shadow, which denies nothing; or quota, which denies what all limits of a request deny")
	fs.StringVar((*string)(&c.envoyOptions.OnStoreError), "envoy-on-store-error", string(policy.StoreErrorLocal), "`what` limits for Envoy that don't say otherwise do when the store can't decide: local, allow or deny")
	fs.boolean(&c.envoyMetadata, "envoy-dynamic-metadata", "answer Envoy with what was asked, and the metadata of limits that admit")
	fs.StringVar(&c.envoyStatsd, "envoy-statsd", "", "`address` of a StatsD server that gets metrics by the names of envoyproxy/ratelimit, over UDP (default: none)")
	fs.Func("envoy-statsd-tags", "`tags` that all metrics of -envoy-statsd have, such as env:prod,az:a (default: none)", func(s string) error {
		c.envoyTags = splitList(s)
		return nil
	})
}

// defineStore defines the flags of the store, and of what is remembered of it.
func (c *config) defineStore(fs flagSet) {
	fs.Func("memcached", "Memcached `servers`, comma-separated, in any order: host:port, /path/to.sock, and what is looked up again every 10s: "+
		"dns+host:port, dnssrv+_name._tcp.host, cluster+host:port (default: an embedded store)", func(s string) error {
		if c.memcached = splitList(s); s != "" && len(c.memcached) == 0 {
			return errors.New("must name a server, such as 127.0.0.1:11211, or be empty for an embedded store")
		}
		return nil
	})
	fs.duration(&c.storeTimeout, "store-timeout", counters.DefaultTimeout, "the longest `time` a check waits for the store")
	fs.duration(&c.clockSkew, "clock-skew", counters.DefaultClockSkew, "the largest `difference` between the clocks of instances")
	fs.StringVar(&c.keyPrefix, "key-prefix", counters.DefaultKeyPrefix, "`prefix` of all keys in the store")
	c.viewClients = counters.DefaultClients
	fs.Func("view-clients", fmt.Sprintf("how `many` clients are remembered per limit, at least 32 (default %d)", c.viewClients), func(s string) error {
		n, err := strconv.ParseInt(s, 0, strconv.IntSize)
		if err != nil {
			return errors.New("must be a whole number such as 100000")
		}
		c.viewClients = int(n)
		return nil
	})
	fs.boolean(&c.memcachedTLS, "memcached-tls", "connect to Memcached by TLS")
	fs.StringVar(&c.memcachedCA, "memcached-ca", "", "PEM `file` of the authorities that vouch for Memcached (default: the system's)")
	fs.StringVar(&c.memcachedUser, "memcached-user-file", "", "`file` with the line user:password for Memcached, as Memcached's own -Y takes it")
}

// setFromEnvoy sets the flags that nothing of weir's has set to what the environment says to
// envoyproxy/ratelimit.
func (c *config) setFromEnvoy(fs *flag.FlagSet, environment []string) error {
	own := make(map[string]bool)
	fs.Visit(func(f *flag.Flag) { own[f.Name] = true })
	settings, notes, err := envoyFlags(environment)
	errs := []error{err}
	c.envoyNotes = notes
	for _, s := range settings {
		holder := s.flag // the flag of weir's that goes first
		switch {         // limits come from one place
		case own["envoy-config"] && strings.HasPrefix(s.flag, "envoy-xds"):
			holder = "envoy-config"
		case own["envoy-xds"] && s.flag == "envoy-config":
			holder = "envoy-xds"
		}
		if s.value == "" { // without a certificate, gRPC would be without TLS
			if !own[holder] && !own["tls-cert"] {
				errs = append(errs, fmt.Errorf("-envoy-env: %s needs GRPC_SERVER_TLS_CERT and GRPC_SERVER_TLS_KEY", s.from))
			}
		} else if !own[holder] {
			if err := fs.Set(s.flag, s.value); err != nil {
				errs = append(errs, fmt.Errorf("-envoy-env: %s: %v: %w", s.from, s, err))
			}
			c.envoyFlags = append(c.envoyFlags, s)
		} else if s.from != "" {
			c.envoyNotes = append(c.envoyNotes, fmt.Sprintf("%s: weir's own -%s is in force, not %s", s.from, holder, s.value))
		}
	}
	return errors.Join(errs...)
}

// setFromEnvironment sets the flags that have a variable. The error names each
// mistake in a line.
func setFromEnvironment(fs *flag.FlagSet, environment []string) error {
	variable := func(flag string) string { return variablePrefix + strings.ToUpper(strings.ReplaceAll(flag, "-", "_")) }
	flags := make(map[string]string) // by variable
	fs.VisitAll(func(f *flag.Flag) { flags[variable(f.Name)] = f.Name })
	var errs []error
	for _, entry := range slices.Sorted(slices.Values(environment)) {
		name, value, _ := strings.Cut(entry, "=")
		rest, ours := strings.CutPrefix(name, variablePrefix)
		if !ours || value == "" || serviceVariable.MatchString(entry) {
			continue
		}
		if flags[name] == "" {
			errs = append(errs, fmt.Errorf("the environment variable %s is none of weir's; %s", name, hint(fs, rest, variable)))
		} else if err := fs.Set(flags[name], value); err != nil {
			errs = append(errs, fmt.Errorf("%s=%q: %w", name, value, err))
		}
	}
	return errors.Join(errs...)
}

// hint says which flag that is spelt so was probably meant by name, or where all are listed.
func hint(fs *flag.FlagSet, name string, spelt func(flag string) string) string {
	var names []string // sorted
	fs.VisitAll(func(f *flag.Flag) { names = append(names, f.Name) })
	if near := policyfile.Nearest(name, names); near != "" {
		return "did you mean " + spelt(near) + "?"
	}
	return "-help lists the flags"
}

// variablePrefix begins the name of each environment variable.
const variablePrefix = "WEIR_"

// serviceVariable matches what Kubernetes sets for a service whose name begins
// with weir, in the pods beside it.
var serviceVariable = regexp.MustCompile(`^WEIR_(\w+_)?(SERVICE_HOST=|SERVICE_PORT(_\w+)?=\d+$|PORT=\w+://|PORT_\d+_(TCP|UDP|SCTP)(_PROTO|_PORT|_ADDR)?=)`)

// parseArgs parses args to their end, whatever is wrong in between. The error is
// flag.ErrHelp, or names each mistake in a line. Behind -validate may stand a
// policy file.
func (c *config) parseArgs(fs *flag.FlagSet, args []string) error {
	var errs []error
	for named := false; ; {
		err := fs.Parse(args)
		switch args = fs.Args(); {
		case errors.Is(err, flag.ErrHelp):
			return err
		case err != nil:
			if name, unknown := strings.CutPrefix(err.Error(), "flag provided but not defined: -"); unknown {
				err = fmt.Errorf("%w; %s", err, hint(fs, name, func(flag string) string { return "-" + flag }))
			}
			errs = append(errs, err)
		case len(args) == 0:
			return errors.Join(errs...)
		case c.validate && !named:
			if c.policyFile, named = args[0], true; c.policyFile == "" {
				errs = append(errs, errors.New("-validate: the name of the file is empty"))
			}
			args = args[1:]
		default:
			// It may be the value of a flag that is wrong.
			if len(errs) == 0 {
				errs = append(errs, fmt.Errorf("%q is not a flag; -help lists them", args[0]))
			}
			args = args[1:]
		}
	}
}

// A checker collects mistakes, which say what is wrong and what would be right.
type checker []error

func (c *checker) require(ok bool, format string, args ...any) {
	if !ok {
		*c = append(*c, fmt.Errorf(format, args...))
	}
}

// checkValues returns what is wrong with flags by themselves.
func (c *config) checkValues() error {
	var all checker
	host, port, err := net.SplitHostPort(c.listen)
	all.require(err == nil && !strings.Contains(port, "/") && !strings.Contains(host, " "), "-listen %q must be HOST:PORT, such as 127.0.0.1:8080", c.listen)
	all.require(portInRange(c.listen), "-listen %q has a port that is out of range; give one from 0 to 65535", c.listen)
	all.require(err != nil || strings.Contains(port, "/") || isPort(c.listen), "-listen %q has a port that no service has; give a number from 0 to 65535", c.listen)
	if len(c.memcached) > 0 {
		err := memcached.CheckServers(c.memcached)
		all.require(err == nil, "-memcached: %w", err)
	}
	_, err = sampleOf(c.decisionSample)
	all.require(err == nil, "-decision-log-sample: %w", err)
	all.require(slices.Contains([]string{plainHTTP, netHTTP}, c.http), "-http %q must be plain or net", c.http)
	_, _, err = net.SplitHostPort(c.grpcListen)
	all.require(err == nil || c.grpcListen == "" || strings.HasPrefix(c.grpcListen, "unix:"), "-grpc-listen %q must be HOST:PORT, such as 127.0.0.1:8081, or unix: and the path of a socket", c.grpcListen)
	all.require(portInRange(c.grpcListen), "-grpc-listen %q has a port that is out of range; give one from 0 to 65535", c.grpcListen)
	all.require(err != nil || strings.HasPrefix(c.grpcListen, "unix:") || isPort(c.grpcListen), "-grpc-listen %q has a port that no service has; give a number from 0 to 65535", c.grpcListen)
	all.require(c.grpcListen != "unix:", "-grpc-listen %q names no socket; give its path, as in unix:/run/weir/grpc.sock", c.grpcListen)
	x := &c.envoyXDS
	all.require(x.server == "" || hasPort(x.server), "-envoy-xds %q must be HOST:PORT, such as control-plane:18000", x.server)
	all.require(x.wait >= 0, "-envoy-xds-wait must not be negative")
	all.require(c.envoyStatsd == "" || hasPort(c.envoyStatsd), "-envoy-statsd %q must be HOST:PORT, such as localhost:8125", c.envoyStatsd)
	all.require(slices.Contains(policyfile.WindowAlgorithms(), c.envoyOptions.Algorithm), "-envoy-algorithm %q must be %s", c.envoyOptions.Algorithm, strings.Join(policyfile.WindowAlgorithms(), " or "))
	all.require(envoy.Headers(c.envoyHeaders).Valid(), "-envoy-headers %q must be draft11, legacy or off, or three names as in RateLimit-Limit,RateLimit-Remaining,RateLimit-Reset", c.envoyHeaders)
	all.require(slices.Contains([]policyfile.EnvoyMode{policyfile.EnvoyEnforce, policyfile.EnvoyShadow, policyfile.EnvoyQuota}, c.envoyOptions.Mode),
		"-envoy-mode %q must be enforce, shadow or quota", c.envoyOptions.Mode)
	all.require(slices.Contains([]policy.OnStoreError{policy.StoreErrorLocal, policy.StoreErrorAllow, policy.StoreErrorDeny}, c.envoyOptions.OnStoreError),
		"-envoy-on-store-error %q must be local, allow or deny", c.envoyOptions.OnStoreError)
	all.require(c.grpcAge >= 0, "-grpc-max-connection-age %v must not be negative", c.grpcAge)
	all.require(c.storeTimeout > 0 && c.storeTimeout <= counters.MaxTimeout,
		"-store-timeout %v must be more than 0 and at most %v", c.storeTimeout, counters.MaxTimeout)
	all.require(c.clockSkew >= 0 && c.clockSkew <= counters.MaxClockSkew, "-clock-skew %v must be from 0 to 1m", c.clockSkew)
	all.require(c.viewClients >= 0, "-view-clients %d must not be negative", c.viewClients)
	all.require(c.shutdownGrace >= 0, "-shutdown-grace %v must not be negative", c.shutdownGrace)
	prefixErr := counters.CheckKeyPrefix(c.keyPrefix)
	all.require(prefixErr == nil, "-key-prefix: %w", prefixErr)
	all.require(c.logFormat == textFormat || c.logFormat == jsonFormat, "-log-format %q must be text or json", c.logFormat)
	return errors.Join(all...)
}

// checkTogether returns what is wrong with flags beside each other.
func (c *config) checkTogether() error {
	var all checker
	all.require(c.decisionLog != "" || c.decisionSample == "all", "-decision-log-sample needs -decision-log")
	all.require(!c.console || c.tokenFile != "" || isLoopback(c.listen), "-console without -token-file needs a loopback -listen, such as 127.0.0.1:8080, as anybody might change limits there; %q isn't", c.listen)
	all.require(!c.envoyEnv || len(c.memcached) > 0, "-envoy-env needs MEMCACHE_HOST_PORT or -memcached: weir counts on Memcached, not on Redis")
	all.require(c.grpcListen == "" || c.envoys(), "-grpc-listen needs -envoy-config or -envoy-xds, the limits that it answers by")
	all.require(c.envoyConfig == "" || c.envoyXDS.server == "", "-envoy-config and -envoy-xds are both where the limits come from; give one of them")
	x := &c.envoyXDS
	all.require(x.server != "" || x.wait == 0 && !x.tls && x.node == defaultXDSNode, "-envoy-xds-node, -envoy-xds-wait and -envoy-xds-tls need -envoy-xds")
	all.require(x.tls || x.ca == "" && x.cert == "" && x.name == "", "-envoy-xds-ca, -envoy-xds-cert and -envoy-xds-name need -envoy-xds-tls")
	all.require((x.cert == "") == (x.key == ""), "-envoy-xds-cert and -envoy-xds-key go together")
	all.require(c.envoyStatsd == "" || c.envoys(), "-envoy-statsd needs -envoy-config or -envoy-xds, of which it tells")
	all.require(len(c.envoyTags) == 0 || c.envoyStatsd != "", "-envoy-statsd-tags needs -envoy-statsd")
	all.require((c.tlsCert == "") == (c.tlsKey == ""), "-tls-cert and -tls-key go together")
	all.require(c.tlsClientCA == "" || c.tlsCert != "", "-tls-client-ca needs -tls-cert and -tls-key")
	all.require((c.grpcTLSCert == "") == (c.grpcTLSKey == ""), "-grpc-tls-cert and -grpc-tls-key go together")
	all.require(c.grpcTLSCert == "" || c.grpcListen != "", "-grpc-tls-cert needs -grpc-listen")
	all.require(c.grpcClientCA == "" || c.grpcTLSCert != "", "-grpc-tls-client-ca needs -grpc-tls-cert and -grpc-tls-key")
	all.require(c.memcachedCA == "" || c.memcachedTLS, "-memcached-ca needs -memcached-tls")
	all.require(len(c.memcached) > 0 || !c.memcachedTLS && c.memcachedUser == "",
		"-memcached-tls and -memcached-user-file need -memcached")
	return errors.Join(all...)
}

// sampleOf returns the decision log without a writer that has such a sample.
func sampleOf(text string) (*telemetry.DecisionLog, error) {
	part, isPart := strings.CutPrefix(text, "1/")
	every, err := strconv.ParseInt(part, 10, 64)
	switch {
	case text == "all":
		return new(telemetry.DecisionLog), nil
	case text == "denied":
		return &telemetry.DecisionLog{DeniedOnly: true}, nil
	case isPart && err == nil && every >= 1:
		return &telemetry.DecisionLog{Every: every}, nil
	default:
		return nil, fmt.Errorf("%q must be all, denied, or a part of them such as 1/100", text)
	}
}

// splitList returns the items of a comma-separated list without the space around them. Empty
// items are left out.
func splitList(s string) []string {
	var items []string
	for item := range strings.SplitSeq(s, ",") {
		if item = strings.TrimSpace(item); item != "" {
			items = append(items, item)
		}
	}
	return items
}

func parseNetworks(cidrs []string) ([]netip.Prefix, error) {
	var networks []netip.Prefix
	for _, cidr := range cidrs {
		network, err := netip.ParsePrefix(cidr)
		if address, notOne := netip.ParseAddr(cidr); notOne == nil {
			address = address.Unmap().WithZone("") // as those of requests are taken
			return nil, fmt.Errorf("%q is an address, not a CIDR; write %v/%d", cidr, address, address.BitLen())
		}
		if err != nil {
			several := ""
			if strings.Count(cidr, "/") > 1 {
				several = "; several are separated by commas"
			}
			return nil, fmt.Errorf("%q is not a CIDR such as 10.0.0.0/8%s", cidr, several)
		}
		n, address := policy.Network(network), network.Addr().Unmap()
		if n.Addr().Unmap() != address {
			return nil, fmt.Errorf("%q names an address within a range; write %v for the range, or %v/%d for the address alone", cidr, n, address, address.BitLen())
		}
		networks = append(networks, n)
	}
	return networks, nil
}

// nextProtos are the protocols of HTTPS, the better one first.
var nextProtos = []string{"h2", "http/1.1"}

// defaultXDSNode is that of envoyproxy/ratelimit.
const defaultXDSNode = "default"

// xdsConfig is what the flags that begin with -envoy-xds say.
type xdsConfig struct {
	server, node  string
	wait          time.Duration
	tls           bool
	ca, cert, key string // files
	name          string // in the server's certificate
}

// envoys reports whether there are limits for Envoy, wherever they come from.
func (c *config) envoys() bool { return c.envoyConfig != "" || c.envoyXDS.server != "" }

// clientTLS reads how to connect by TLS.
func (c *xdsConfig) clientTLS() (*tls.Config, error) {
	config := &tls.Config{ServerName: c.name}
	var err error
	if c.ca != "" {
		if config.RootCAs, err = readCertificates("-envoy-xds-ca", c.ca); err != nil {
			return nil, err
		}
	}
	if c.cert != "" {
		cert, err := tls.LoadX509KeyPair(c.cert, c.key)
		if err != nil {
			return nil, errors.Join(errors.New("-envoy-xds-cert, -envoy-xds-key can't be read"), err)
		}
		config.Certificates = []tls.Certificate{cert}
	}
	return config, nil
}

// serverFiles name the files of a TLS server. flags is how their flags begin: "-tls" for -tls-cert,
// -tls-key and -tls-client-ca. clientCA may be "".
type serverFiles struct{ flags, cert, key, clientCA string }

func (f serverFiles) read() (*tls.Config, error) {
	cert, err := tls.LoadX509KeyPair(f.cert, f.key)
	if err != nil {
		return nil, fmt.Errorf("%[1]s-cert, %[1]s-key: %[2]w", f.flags, err)
	}
	config := &tls.Config{Certificates: []tls.Certificate{cert}, NextProtos: nextProtos}
	if f.clientCA != "" {
		if config.ClientCAs, err = readCertificates(f.flags+"-client-ca", f.clientCA); err != nil {
			return nil, err
		}
		config.ClientAuth = tls.RequireAndVerifyClientCert
	}
	return config, nil
}

// memcachedOptions returns the options that all limiters on Memcached share.
func (c *config) memcachedOptions() counters.Options {
	// 0 means a default in the options, but none on the command line.
	return counters.Options{
		KeyPrefix: c.keyPrefix, ClockSkew: cmp.Or(c.clockSkew, -1), StoreTimeout: c.storeTimeout, Clients: cmp.Or(c.viewClients, -1),
	}
}

// limiterOptions returns the options that all limiters share.
func (c *config) limiterOptions() counters.Options {
	o := c.memcachedOptions()
	if len(c.memcached) == 0 {
		// The embedded store has one instance, and answers at once.
		o.ClockSkew, o.StoreTimeout = -1, -1
	}
	return o
}

// memcachedConfig returns how to connect to Memcached.
func (c *config) memcachedConfig() (memcached.Config, error) {
	m := memcached.Config{Servers: c.memcached, Timeout: c.storeTimeout}
	var err error
	if c.memcachedTLS {
		m.TLS = &tls.Config{}
		if c.memcachedCA != "" {
			if m.TLS.RootCAs, err = readCertificates("-memcached-ca", c.memcachedCA); err != nil {
				return m, err
			}
		}
	}
	if c.memcachedUser != "" {
		m.User, m.Password, err = readUser(c.memcachedUser)
	}
	return m, err
}

// readCertificates reads the PEM certificates in the file that the flag names.
func readCertificates(flag, file string) (*x509.CertPool, error) {
	data, err := os.ReadFile(file)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", flag, err)
	}
	pool := x509.NewCertPool()
	if !pool.AppendCertsFromPEM(data) {
		return nil, fmt.Errorf("%s: %s has no PEM certificate", flag, file)
	}
	return pool, nil
}

// logger returns the log, in which durations are text such as 1.5s or, in JSON,
// seconds.
func (c *config) logger(w io.Writer) *slog.Logger {
	options := &slog.HandlerOptions{Level: c.logLevel}
	if c.logFormat == jsonFormat {
		options.ReplaceAttr = func(_ []string, a slog.Attr) slog.Attr {
			if a.Value.Kind() == slog.KindDuration { // would be nanoseconds
				a.Value = slog.Float64Value(a.Value.Duration().Seconds())
			}
			return a
		}
		return slog.New(slog.NewJSONHandler(w, options))
	}
	return slog.New(slog.NewTextHandler(w, options))
}
