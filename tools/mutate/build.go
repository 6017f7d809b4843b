package main

import (
	"context"
	_ "embed"
	"encoding/json"
	"errors"
	"fmt"
	"go/ast"
	"go/importer"
	"go/parser"
	"go/token"
	"go/types"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
)

// goPackage is what `go list -json` says about a package.
type goPackage struct {
	Dir        string
	ImportPath string
	Name       string
	GoFiles    []string
	CgoFiles   []string
	Export     string
	DepOnly    bool
	Module     struct{ Path, Dir string }

	exports map[string]string // import path to file with export data, of all dependencies
}

// load asks the go command about a package and its dependencies.
func load(ctx context.Context, pkg string) (*goPackage, error) {
	cmd := exec.CommandContext(ctx, "go", "list", "-deps", "-export",
		"-json=Dir,ImportPath,Name,GoFiles,CgoFiles,Export,DepOnly,Module", pkg)
	cmd.Stderr = os.Stderr
	out, err := cmd.Output()
	if err != nil {
		return nil, fmt.Errorf("go list: %w", err)
	}
	var target *goPackage
	exports := map[string]string{}
	for dec := json.NewDecoder(strings.NewReader(string(out))); ; {
		var p goPackage
		if err := dec.Decode(&p); err == io.EOF {
			break
		} else if err != nil {
			return nil, fmt.Errorf("output of go list: %w", err)
		}
		exports[p.ImportPath] = p.Export
		if !p.DepOnly {
			target = &p
		}
	}
	switch {
	case target == nil:
		return nil, errors.New("go list: no such package")
	case len(target.CgoFiles) > 0:
		return nil, errors.New("packages that use cgo are not supported")
	}
	target.exports = exports
	return target, nil
}

// chooser is the package that mutated code asks whether a mutant is on. It
// exists only in the overlay.
//
//go:embed chooser.go.txt
var chooser string

const chooserPath = "internal/mutantchooser"

// build compiles the tests of a package with all its mutants.
func build(ctx context.Context, p *goPackage, tmp string) (binary string, mutants []mutant, err error) {
	fset := token.NewFileSet()
	var files []*ast.File
	for _, name := range p.GoFiles {
		f, err := parser.ParseFile(fset, filepath.Join(p.Dir, name), nil, parser.SkipObjectResolution)
		if err != nil {
			return "", nil, err
		}
		files = append(files, f)
	}
	info := &types.Info{Types: map[ast.Expr]types.TypeAndValue{}}
	lookup := func(path string) (io.ReadCloser, error) { return os.Open(p.exports[path]) }
	conf := types.Config{Importer: importer.ForCompiler(fset, "gc", lookup)}
	pkg, err := conf.Check(p.ImportPath, fset, files, info)
	if err != nil {
		return "", nil, err
	}

	overlay := map[string]string{}
	write := func(replaced, text string) error {
		file := filepath.Join(tmp, fmt.Sprintf("%d.go", len(overlay)))
		overlay[replaced] = file
		return os.WriteFile(file, []byte(text), 0o600)
	}
	if err := write(filepath.Join(p.Module.Dir, chooserPath, "chooser.go"), chooser); err != nil {
		return "", nil, err
	}
	for i, f := range files {
		path := filepath.Join(p.Dir, p.GoFiles[i])
		src, err := os.ReadFile(path)
		if err != nil {
			return "", nil, err
		}
		in := &instrumenter{fset: fset, info: info, pkg: pkg, src: src, name: p.GoFiles[i], first: len(mutants)}
		text, found := in.file(f, p.Module.Path+"/"+chooserPath)
		if len(found) == 0 {
			continue
		}
		mutants = append(mutants, found...)
		if err := write(path, text); err != nil {
			return "", nil, err
		}
	}
	binary, err = compile(ctx, p, tmp, overlay)
	return binary, mutants, err
}

func compile(ctx context.Context, p *goPackage, tmp string, overlay map[string]string) (binary string, err error) {
	text, err := json.Marshal(map[string]any{"Replace": overlay})
	if err != nil {
		return "", err
	}
	list, binary := filepath.Join(tmp, "overlay.json"), filepath.Join(tmp, "mutants.test")
	if err := os.WriteFile(list, text, 0o600); err != nil {
		return "", err
	}
	cmd := exec.CommandContext(ctx, "go", "test", "-c", "-vet=off", "-overlay="+list, "-o", binary, p.ImportPath)
	cmd.Dir = p.Module.Dir
	if out, err := cmd.CombinedOutput(); err != nil {
		return "", fmt.Errorf("go test -c with the mutants: %w\n%s", err, out)
	}
	return binary, nil
}
