package main

import (
	"errors"
	"go/ast"
	"go/build"
	"go/parser"
	"go/token"
	"go/types"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// upward says why a reference from one file to another may close a cycle. Its
// keys are like "api: auth.go -> server.go".
var upward = map[string]string{}

// The files of a product package never use each other in a cycle, so that each
// package can be read from its lowest file up.
func TestFilesOfAPackageHaveNoCycle(t *testing.T) {
	t.Parallel()
	require.Contains(t, fileReferences(t, ".")["main.go"], "program.go")
	used := make(map[string]bool)
	for folder := range folders {
		t.Run(folder, func(t *testing.T) {
			uses := fileReferences(t, filepath.Join("../..", folder))
			for from, files := range uses {
				for to := range files {
					if edge := folder + ": " + from + " -> " + to; upward[edge] != "" {
						used[edge] = true
						delete(files, to)
					}
				}
			}
			for from, files := range uses {
				for to, names := range files {
					assert.False(t, reaches(uses, to, from, map[string]bool{}), "%s -> %s: %s",
						from, to, strings.Join(slices.Compact(slices.Sorted(slices.Values(names))), ", "))
				}
			}
		})
	}
	for edge := range upward {
		assert.True(t, used[edge], "%s is no reference any more", edge)
	}
}

// references are, by file and by a file that it uses, the names it uses.
type references map[string]map[string][]string

// fileReferences returns which files of a package use what other files of it
// declare: functions, methods, types, constants and variables.
func fileReferences(t *testing.T, dir string) references {
	t.Helper()
	pkg, err := build.ImportDir(dir, 0)
	require.NoError(t, err)
	set := token.NewFileSet()
	var files []*ast.File
	for _, name := range pkg.GoFiles {
		file, err := parser.ParseFile(set, filepath.Join(dir, name), nil, parser.SkipObjectResolution)
		require.NoError(t, err)
		files = append(files, file)
	}
	info := types.Info{Uses: make(map[*ast.Ident]types.Object)}
	// Other packages don't matter here. Without them types has errors, and still
	// finds what the package itself declares.
	config := types.Config{Importer: noPackages{}, Error: func(error) {}}
	checked, _ := config.Check(dir, set, files, &info)
	uses := make(references)
	for identifier, object := range info.Uses {
		function, isFunction := object.(*types.Func)
		isMethod := isFunction && function.Signature().Recv() != nil
		if object.Pkg() != checked || !isMethod && object.Parent() != checked.Scope() {
			continue
		}
		from := filepath.Base(set.Position(identifier.Pos()).Filename)
		to := filepath.Base(set.Position(object.Pos()).Filename)
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

type noPackages struct{}

func (noPackages) Import(string) (*types.Package, error) { return nil, errors.New("not needed") }

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
