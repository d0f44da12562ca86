package main

import (
	"go/parser"
	"go/token"
	"io/fs"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

const gomemcache = "github.com/bradfitz/gomemcache/memcache"

var testLibraries = []string{
	"github.com/stretchr/testify", "pgregory.net/rapid", "go.uber.org/goleak", "github.com/getkin/kin-openapi",
}

// folders are all folders that hold Go code.
var folders = map[string]struct {
	weir      []string // the folders it may import
	libraries []string // and the libraries, with all their packages
}{
	"counters":               {nil, []string{gomemcache, "github.com/cespare/xxhash/v2"}},
	"counters/memcachedtest": {nil, testLibraries},
	"counters/storetest":     {[]string{"counters"}, testLibraries},
	"subwindow":              {[]string{"counters"}, nil},
	"cas":                    {[]string{"counters"}, nil},
	"api": {[]string{"counters"}, []string{
		"github.com/go-json-experiment/json", "github.com/labstack/echo/v4", "github.com/prometheus/client_golang",
	}},
	"cmd/server": {[]string{"counters", "subwindow", "cas", "api"}, []string{
		"github.com/prometheus/client_golang", "go.yaml.in/yaml/v3",
	}},
	"bench/traffic":      {nil, nil},
	"bench/accuracy":     {[]string{"counters", "subwindow", "cas", "bench/traffic"}, nil},
	"bench/architecture": {[]string{"counters", "subwindow", "bench/traffic"}, nil},
	"bench": {[]string{"counters", "subwindow", "cas", "api", "bench/accuracy", "bench/architecture", "bench/traffic"}, []string{
		gomemcache, "github.com/labstack/echo/v4", "github.com/HdrHistogram/hdrhistogram-go", "gonum.org/v1/plot",
	}},
}

// Code keeps to its folder's imports; tests may also import test libraries and
// any of weir's folders.
func TestImportsKeepToTheTable(t *testing.T) {
	const root = "../.."
	var found, gomemcacheFiles []string
	require.NoError(t, filepath.WalkDir(root, func(path string, entry fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		name := entry.Name()
		if entry.IsDir() && path != root && (strings.HasPrefix(name, ".") || name == "testdata") {
			return filepath.SkipDir
		}
		if entry.IsDir() || filepath.Ext(name) != ".go" {
			return nil
		}
		path, err = filepath.Rel(root, path)
		require.NoError(t, err)
		path = filepath.ToSlash(path)
		folder := filepath.ToSlash(filepath.Dir(path))
		allowed, ok := folders[folder]
		if !assert.True(t, ok, "%s: Go code has no place in %q", path, folder) {
			return nil
		}
		found = append(found, folder)

		isTest := strings.HasSuffix(name, "_test.go")
		file, err := parser.ParseFile(token.NewFileSet(), filepath.Join(root, path), nil, parser.ImportsOnly)
		require.NoError(t, err)
		for _, spec := range file.Imports {
			imported, err := strconv.Unquote(spec.Path.Value)
			require.NoError(t, err)
			// bench compares with gomemcache on its own.
			if imported == gomemcache && !isTest && !strings.HasPrefix(path, "bench") {
				gomemcacheFiles = append(gomemcacheFiles, path)
			}
			first, _, _ := strings.Cut(imported, "/")
			switch other, ours := strings.CutPrefix(imported, "weir/"); {
			case ours:
				assert.True(t, isTest || slices.Contains(allowed.weir, other), "%s imports %s", path, imported)
			case strings.Contains(first, "."): // not the standard library
				assert.True(t, within(imported, allowed.libraries) || isTest && within(imported, testLibraries), "%s imports %s", path, imported)
			}
		}
		return nil
	}))
	for _, folder := range []string{"counters", "counters/memcachedtest", "counters/storetest", "subwindow", "cas", "api", "cmd/server"} {
		assert.Contains(t, found, folder)
	}
	assert.Equal(t, []string{"counters/memcached.go"}, gomemcacheFiles)
}

// within reports whether a package belongs to one of the libraries.
func within(imported string, libraries []string) bool {
	return slices.ContainsFunc(libraries, func(library string) bool {
		return imported == library || strings.HasPrefix(imported, library+"/")
	})
}
