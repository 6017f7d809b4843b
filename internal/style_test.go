package internal_test

import (
	"go/ast"
	"go/parser"
	"go/token"
	"go/types"
	"io/fs"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

// emptyNames are names of packages that say nothing about what is inside.
var emptyNames = []string{"base", "common", "helper", "helpers", "manager", "misc", "shared", "util", "utils"}

// mutableAllowed lists the package variables that may change, as "folder name",
// each with its reason.
var mutableAllowed = map[string]string{
	"internal/host/linux once": "a pool of buffers: it saves allocations and carries no value from one use to the " +
		"next",
	"internal/host/metrics all": "filled while the package's variables are initialised, in their order; constant " +
		"afterwards",
}

// initAllowed lists the folders that may have init functions, each with its reason.
var initAllowed = map[string]string{}

func TestPackages_HaveNamesWithMeaning(t *testing.T) {
	for folder, pkg := range sources(t) {
		for _, file := range pkg.files {
			if name := strings.TrimSuffix(file.Name.Name, "_test"); slices.Contains(emptyNames, name) {
				t.Errorf("%s: package %s: name a package after what it knows or does", folder, name)
			}
		}
	}
}

// A variable that changes makes two tests, or two hosts in one process, depend
// on each other. State belongs into a value that its owner passes on.
func TestPackages_HaveNoMutableVariables(t *testing.T) {
	used := map[string]bool{}
	for folder, pkg := range sources(t) {
		for name, at := range mutable(pkg) {
			exception := folder + " " + name
			if used[exception] = true; mutableAllowed[exception] == "" {
				t.Errorf("%s: package variable %s changes; keep it in a value that its owner passes on",
					pkg.fset.Position(at), name)
			}
		}
	}
	for exception := range mutableAllowed {
		if !used[exception] {
			t.Errorf("mutableAllowed lists %q, which does not change; remove it", exception)
		}
	}
}

func TestPackages_HaveNoInit(t *testing.T) {
	used := map[string]bool{}
	for folder, pkg := range sources(t) {
		for _, file := range pkg.files {
			for _, d := range file.Decls {
				f, ok := d.(*ast.FuncDecl)
				if !ok || f.Recv != nil || f.Name.Name != "init" {
					continue
				}
				if used[folder] = true; initAllowed[folder] == "" {
					t.Errorf("%s: no init functions: importing a package does nothing", pkg.fset.Position(f.Pos()))
				}
			}
		}
	}
	for folder := range initAllowed {
		if !used[folder] {
			t.Errorf("initAllowed lists %s, which has no init; remove it", folder)
		}
	}
}

func TestMutable_FindsEveryWayToChangeAVariable(t *testing.T) {
	for source, want := range map[string]bool{
		`var v int; func f() { v = 1 }`:                        true,
		`var v int; func f() { v++ }`:                          true,
		`var v struct{ a int }; func f() { v.a = 1 }`:          true,
		`var v = map[string]int{}; func f() { v["a"] = 1 }`:    true,
		`var v = map[string]int{}; func f() { delete(v, "") }`: true,
		`var v []int; func f() { clear(v) }`:                   true,
		`var v int; func f() *int { return &v }`:               true,
		`var v *int; func f() { *v = 1 }`:                      true,
		`var v int; func f() { for v = range 3 {} }`:           true,
		`import "sync"; var v sync.Mutex`:                      true,
		`import "sync"; var v = sync.Pool{}`:                   true,
		`import "sync/atomic"; var v *atomic.Int64`:            true,
		`import "sync/atomic"; var v = new(atomic.Int64)`:      true,
		`var v = make(chan int)`:                               true,
		`var v = []int{1}; func f() int { return v[0] }`:       false,
		`var v int; func f() { v := 0; v++ }`:                  false, // another v
		`var v int; func f() (v int) { v = 1; return }`:        false, // another v
		`import "errors"; var v = errors.New("v")`:             false,
		`import "sync"; var v = sync.OnceValue(f)`:             false, // computed once, then constant
	} {
		pkg := &sourcePackage{fset: token.NewFileSet()}
		file, err := parser.ParseFile(pkg.fset, "p.go", "package p; "+source, 0)
		if err != nil {
			t.Fatalf("%s: %v", source, err)
		}
		pkg.files = append(pkg.files, file)
		if _, got := mutable(pkg)["v"]; got != want {
			t.Errorf("%s: mutable %v, want %v", source, got, want)
		}
	}
}

// sourcePackage holds the parsed files of one folder, without tests.
type sourcePackage struct {
	fset  *token.FileSet
	files []*ast.File
}

// sources returns the packages of the module by folder, without tests.
func sources(t *testing.T) map[string]*sourcePackage {
	t.Helper()
	packages := map[string]*sourcePackage{}
	err := filepath.WalkDir("..", func(path string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() || !strings.HasSuffix(path, ".go") || strings.HasSuffix(path, "_test.go") {
			return err
		}
		folder := filepath.ToSlash(filepath.Dir(strings.TrimPrefix(path, "../")))
		if packages[folder] == nil {
			packages[folder] = &sourcePackage{fset: token.NewFileSet()}
		}
		pkg := packages[folder]
		file, err := parser.ParseFile(pkg.fset, path, nil, 0)
		pkg.files = append(pkg.files, file)
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return packages
}

// mutable returns the package variables that some code changes or shares by
// address, and those of a type that is made to change, with their positions.
func mutable(pkg *sourcePackage) map[string]token.Pos {
	info := namesOf(pkg.fset, pkg.files...)
	found := map[string]token.Pos{}
	ownVariable := func(o types.Object) bool { return o != nil && o.Pkg() != nil && o.Parent() == o.Pkg().Scope() }
	changed := func(x ast.Expr) {
		if name := root(x); name != nil {
			if v, ok := info.Uses[name].(*types.Var); ok && ownVariable(v) {
				found[v.Name()] = v.Pos()
			}
		}
	}
	for _, file := range pkg.files {
		ast.Inspect(file, func(n ast.Node) bool {
			switch n := n.(type) {
			case *ast.AssignStmt:
				for _, x := range n.Lhs {
					changed(x)
				}
			case *ast.IncDecStmt:
				changed(n.X)
			case *ast.UnaryExpr:
				if n.Op == token.AND {
					changed(n.X)
				}
			case *ast.RangeStmt:
				changed(n.Key)
				changed(n.Value)
			case *ast.CallExpr:
				if f, ok := n.Fun.(*ast.Ident); ok && (f.Name == "delete" || f.Name == "clear") && len(n.Args) > 0 {
					changed(n.Args[0])
				}
			case *ast.ValueSpec:
				for _, name := range n.Names {
					if v, ok := info.Defs[name].(*types.Var); ok && ownVariable(v) && changes(info, n) {
						found[v.Name()] = v.Pos()
					}
				}
			}
			return true
		})
	}
	return found
}

// root returns the variable that an expression is a part of: v for v.a[i].b.
func root(x ast.Expr) *ast.Ident {
	switch x := x.(type) {
	case *ast.Ident:
		return x
	case *ast.SelectorExpr:
		return root(x.X)
	case *ast.IndexExpr:
		return root(x.X)
	case *ast.StarExpr:
		return root(x.X)
	case *ast.ParenExpr:
		return root(x.X)
	}
	return nil
}

// changes reports whether a variable is declared with a type that exists to be
// changed: of sync or sync/atomic, or a channel.
func changes(info *types.Info, v *ast.ValueSpec) bool {
	var typ func(x ast.Expr) bool
	typ = func(x ast.Expr) bool {
		switch x := x.(type) {
		case *ast.StarExpr:
			return typ(x.X)
		case *ast.IndexExpr: // atomic.Pointer[T]
			return typ(x.X)
		case *ast.SelectorExpr:
			return strings.HasPrefix(packageOf(info.Uses, x.X)+"/", "sync/")
		case *ast.ChanType:
			return true
		}
		return false
	}
	return typ(v.Type) || slices.ContainsFunc(v.Values, func(x ast.Expr) bool {
		if a, ok := x.(*ast.UnaryExpr); ok {
			x = a.X
		}
		switch x := x.(type) {
		case *ast.CompositeLit:
			return typ(x.Type)
		case *ast.CallExpr: // new(T) and make(T)
			f, ok := x.Fun.(*ast.Ident)
			return ok && (f.Name == "new" || f.Name == "make") && typ(x.Args[0])
		}
		return false
	})
}
