package main

import (
	"go/parser"
	"go/token"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

const (
	gomemcache = "github.com/bradfitz/gomemcache/memcache"
	echo       = "github.com/labstack/echo/v4"
)

// users are all folders whose code, but for tests, imports a package of a library. The bench has two
// yardsticks on them that a product has no use for: a loop around gomemcache, and a handler
// on echo that decides nothing.
var users = map[string][]string{
	gomemcache: {"bench/measure/contention", "counters/memcached"},
	echo:       {"api", "api/client/weirecho", "bench/internal/loadgen"},
}

var testLibraries = []string{
	"github.com/stretchr/testify", "pgregory.net/rapid", "go.uber.org/goleak", "github.com/getkin/kin-openapi",
	"github.com/santhosh-tekuri/jsonschema/v6", "go.yaml.in/yaml/v3",
	"github.com/envoyproxy/go-control-plane/envoy", "google.golang.org/grpc", "google.golang.org/protobuf", // a client of the rate limit service
	"github.com/envoyproxy/go-control-plane/ratelimit", // what an xDS server sends
	"golang.org/x/net/http2",                           // which writes frames that no client would
	"github.com/prometheus/client_golang",
	"github.com/chromedp/chromedp", "github.com/chromedp/cdproto", // drive the page for operators
}

// folders are all folders that hold Go code, but for those of bench, whose
// experiments may import anything but each other.
var folders = map[string]struct {
	weir      []string // the folders it may import
	libraries []string // and the libraries, with all their packages
}{
	"counters": {},
	"counters/memcached": {[]string{"counters", "counters/memcached/pipeline"}, []string{
		gomemcache, "github.com/cespare/xxhash/v2", // places clients the same way in each instance
	}},
	"counters/memcached/pipeline": {},
	"counters/memory":             {[]string{"counters"}, nil},
	"counters/combiner":           {},
	"counters/cache":              {},
	"counters/topk":               {},
	"counters/reconcile":          {[]string{"counters"}, nil},
	"counters/storetest":          {[]string{"counters"}, testLibraries},
	"counters/limitertest":        {[]string{"counters", "counters/memcachedtest"}, testLibraries},
	"counters/memcachedtest":      {nil, testLibraries},
	"counters/racetest":           {},
	"counters/ledger":             {[]string{"counters", "counters/combiner", "counters/cache", "counters/reconcile"}, nil},
	"subwindow":                   {[]string{"counters", "counters/ledger"}, nil},
	"cas":                         {[]string{"counters", "counters/ledger"}, nil},
	"api/policy":                  {[]string{"counters"}, nil},
	"api/overrides":               {[]string{"counters", "api/policy"}, nil},
	"api/fleet":                   {[]string{"counters", "counters/topk"}, nil},
	"api/receipt":                 {nil, nil},
	"api/decide": {[]string{"counters", "api/policy", "api/receipt"}, []string{
		"github.com/go-json-experiment/json", // quotes names in headers
	}},
	"api/telemetry": {[]string{"counters", "counters/topk", "api/policy", "api/decide"}, []string{
		"github.com/prometheus/client_golang", "github.com/prometheus/client_model/go", // which tells what a counter has counted
	}},
	"api/plain":   {[]string{"counters"}, nil},
	"api/console": {},
	"api": {[]string{"counters", "counters/topk", "api/plain", "api/policy", "api/overrides", "api/fleet", "api/receipt", "api/decide", "api/telemetry"}, []string{
		"github.com/go-json-experiment/json", echo, "github.com/prometheus/client_golang",
	}},
	"api/envoy": {[]string{"counters", "api/policy", "api/decide", "api/receipt"}, []string{
		"github.com/envoyproxy/go-control-plane/envoy", "google.golang.org/grpc", "google.golang.org/protobuf",
	}},
	"api/envoy/xds": {nil, []string{
		"github.com/envoyproxy/go-control-plane/envoy", "github.com/envoyproxy/go-control-plane/ratelimit", "google.golang.org/genproto/googleapis/rpc",
		"google.golang.org/grpc", "google.golang.org/protobuf",
	}},
	"api/policyfile": {[]string{"counters", "counters/memory", "counters/memcached", "subwindow", "cas", "api/policy", "api/telemetry", "api/envoy"}, []string{
		"go.yaml.in/yaml/v3",
		"golang.org/x/time/rate",     // a warning now and then
		"google.golang.org/protobuf", // the metadata of Envoy's limits
	}},
	"api/client":          {}, // so that it brings its users nothing
	"api/client/weirecho": {[]string{"api/client"}, []string{echo}},
	"cmd/server": {[]string{"counters", "counters/memory", "counters/memcached", "api", "api/console", "api/policy", "api/overrides", "api/fleet", "api/decide", "api/receipt", "api/telemetry", "api/envoy", "api/envoy/xds", "api/policyfile"}, []string{
		"github.com/prometheus/client_golang", "github.com/prometheus/client_model/go",
		"github.com/DataDog/datadog-go/v5/statsd",
		"golang.org/x/sys/unix", // an option of a listener's socket
	}},
	"cmd/server/servertest": {[]string{"api/policyfile", "counters/memcachedtest"}, testLibraries},
	"cmd/server/e2e":        {},
}

// harmless are the packages below net that talk to no network.
var harmless = []string{"net/netip", "net/textproto"}

// networkers are the folders that may talk to a network.
var networkers = []string{"counters/memcached", "counters/memcached/pipeline", "counters/memcachedtest", "api", "api/plain", "api/console", "api/envoy", "api/envoy/xds", "api/client", "cmd/server", "cmd/server/servertest"}

// Code keeps to its folder's imports. Tests may also import test libraries,
// gomemcache and any of weir's folders.
func TestImportsKeepToTheTable(t *testing.T) {
	t.Parallel()
	const root = "../.."
	found := make(map[string]bool)
	imports := make(map[string][]string)
	require.NoError(t, filepath.WalkDir(root, func(path string, entry fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		name := entry.Name()
		if entry.IsDir() && path != root && (strings.HasPrefix(name, ".") || name == "testdata" || isModule(path)) {
			return filepath.SkipDir
		}
		if entry.IsDir() || filepath.Ext(name) != ".go" {
			return nil
		}
		path, err = filepath.Rel(root, path)
		require.NoError(t, err)
		path = filepath.ToSlash(path)
		folder := filepath.ToSlash(filepath.Dir(path))
		found[folder] = true
		allowed, ok := folders[folder]
		experiment := within(folder, "bench/measure", "bench/model", "bench/verify", "bench/internal")
		if !assert.True(t, ok || experiment || folder == "bench", "%s: Go code has no place in %q", path, folder) {
			return nil
		}

		isTest := strings.HasSuffix(name, "_test.go")
		networks := slices.Contains(networkers, folder)
		file, err := parser.ParseFile(token.NewFileSet(), filepath.Join(root, path), nil, parser.ImportsOnly)
		require.NoError(t, err)
		for _, spec := range file.Imports {
			imported, err := strconv.Unquote(spec.Path.Value)
			require.NoError(t, err)
			other, ours := strings.CutPrefix(imported, "weir/")
			for library := range users {
				if within(imported, library) && !isTest && !slices.Contains(imports[library], folder) {
					imports[library] = append(imports[library], folder)
				}
			}
			if !ok {
				assert.False(t, experiment && within(other, "bench") && !within(other, "bench/internal"), "%s imports %s", path, imported)
				continue
			}
			first, _, _ := strings.Cut(imported, "/")
			switch {
			case ours:
				assert.True(t, isTest || slices.Contains(allowed.weir, other), "%s imports %s", path, imported)
			case strings.Contains(first, "."): // not the standard library
				libraries := allowed.libraries
				if isTest {
					libraries = slices.Concat(libraries, testLibraries, []string{gomemcache})
				}
				assert.True(t, within(imported, libraries...), "%s imports %s", path, imported)
			case within(imported, "net", "syscall") && !slices.Contains(harmless, imported):
				assert.True(t, isTest || networks, "%s talks to a network: it imports %s", path, imported)
			}
		}
		return nil
	}))
	for folder := range folders {
		assert.True(t, found[folder], "%s holds no Go code", folder)
	}
	assert.Equal(t, users, imports)
}

// isModule reports whether a folder is a module of its own, which may import
// what it likes: nothing of it gets into weir.
func isModule(folder string) bool {
	_, err := os.Stat(filepath.Join(folder, "go.mod"))
	return err == nil
}

// within reports whether a package is one of those named or below one.
func within(path string, names ...string) bool {
	return slices.ContainsFunc(names, func(name string) bool {
		return path == name || strings.HasPrefix(path, name+"/")
	})
}
