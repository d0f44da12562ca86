package main

import (
	"errors"
	"go/ast"
	"go/build"
	"go/parser"
	"go/token"
	"go/types"
	"io/fs"
	"maps"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"weir/counters/racetest"
)

// The files of a package never use each other in a cycle, so that each package
// can be read from its lowest file up.
func TestFilesOfAPackageHaveNoCycle(t *testing.T) {
	racetest.Sequential(t)
	t.Parallel()
	w := weirPackages{set: token.NewFileSet(), packages: make(map[string]*types.Package)}
	require.Contains(t, fileReferences(t, w, ".")["main.go"], "program.go")
	packages := slices.DeleteFunc(slices.Collect(maps.Keys(folders)), func(folder string) bool {
		return folder == "cmd/server/e2e" // tests alone
	})
	require.NoError(t, filepath.WalkDir("../../bench", func(path string, _ fs.DirEntry, err error) error {
		sources, _ := filepath.Glob(filepath.Join(path, "*.go"))
		if folder, ok := strings.CutPrefix(filepath.ToSlash(path), "../../"); ok && len(sources) > 0 {
			packages = append(packages, folder)
		}
		return err
	}))
	require.Contains(t, packages, "bench/internal/report")
	for _, folder := range packages {
		t.Run(folder, func(t *testing.T) {
			uses := fileReferences(t, w, filepath.Join("../..", folder))
			for from, files := range uses {
				for to, names := range files {
					assert.False(t, reaches(uses, to, from, map[string]bool{}), "%s -> %s: %s",
						from, to, strings.Join(slices.Compact(slices.Sorted(slices.Values(names))), ", "))
				}
			}
		})
	}
}

// references are, by file and by a file that it uses, the names it uses.
type references map[string]map[string][]string

// fileReferences returns which files of a package use what other files of it
// declare: functions, methods, types, fields, constants and variables.
func fileReferences(t *testing.T, w weirPackages, dir string) references {
	t.Helper()
	info := types.Info{Uses: make(map[*ast.Ident]types.Object)}
	checked, err := w.check(dir, &info)
	require.NoError(t, err)
	uses := make(references)
	for identifier, object := range info.Uses {
		function, isFunction := object.(*types.Func)
		isMethod := isFunction && function.Signature().Recv() != nil
		variable, isVariable := object.(*types.Var)
		isField := isVariable && variable.IsField()
		if object.Pkg() != checked || !isMethod && !isField && object.Parent() != checked.Scope() {
			continue
		}
		from := filepath.Base(w.set.Position(identifier.Pos()).Filename)
		to := filepath.Base(w.set.Position(object.Pos()).Filename)
		if from == to {
			continue
		}
		if uses[from] == nil {
			uses[from] = make(map[string][]string)
		}
		uses[from][to] = append(uses[from][to], object.Name())
	}
	return uses
}

// weirPackages imports weir's own packages, from their source. Without them,
// types wouldn't know what a generic type of another package is made of. It
// knows no other packages: types has errors then, and still finds what weir
// declares.
type weirPackages struct {
	set      *token.FileSet
	packages map[string]*types.Package
}

func (w weirPackages) Import(path string) (*types.Package, error) {
	folder, ours := strings.CutPrefix(path, "weir/")
	if !ours {
		return nil, errors.New("not needed")
	}
	if w.packages[path] == nil {
		pkg, err := w.check(filepath.Join("../..", folder), nil)
		if err != nil {
			return nil, err
		}
		w.packages[path] = pkg
	}
	return w.packages[path], nil
}

// check returns the package in a folder.
func (w weirPackages) check(dir string, info *types.Info) (*types.Package, error) {
	found, err := build.ImportDir(dir, 0)
	if err != nil {
		return nil, err
	}
	var files []*ast.File
	for _, name := range found.GoFiles {
		file, err := parser.ParseFile(w.set, filepath.Join(dir, name), nil, parser.SkipObjectResolution)
		if err != nil {
			return nil, err
		}
		files = append(files, file)
	}
	config := types.Config{Importer: w, Error: func(error) {}}
	pkg, _ := config.Check(dir, w.set, files, info)
	pkg.MarkComplete()
	return pkg, nil
}

// reaches reports whether from uses to, directly or by way of other files.
func reaches(uses references, from, to string, seen map[string]bool) bool {
	if from == to {
		return true
	}
	seen[from] = true
	for next := range uses[from] {
		if !seen[next] && reaches(uses, next, to, seen) {
			return true
		}
	}
	return false
}
