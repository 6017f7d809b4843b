package internal_test

import (
	"errors"
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"go/types"
	"io/fs"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// The second half of the floor plan: the words and all of internal/decide are
// pure. They take values and return values: no files, network, processes, log
// or randomness, no clock, no goroutine, no context. So a decision can be
// tested, repeated and simulated from its inputs alone.

// impure holds the packages that pure rooms may not import, each with the
// packages below it.
var impure = []string{
	"C", "context", "crypto/rand", "golang.org/x/sys", "log", "math/rand", "net", "os", "plugin", "sync", "syscall",
	"testing", "unsafe",
}

// impureCalls holds the functions of other packages that pure rooms may not use.
var impureCalls = map[string][]string{
	"time": {"Now", "Since", "Until", "After", "AfterFunc", "Sleep", "Tick", "NewTimer", "NewTicker"},
	"fmt":  {"Print", "Printf", "Println", "Scan", "Scanf", "Scanln"},
}

// impureAllowed lists the exceptions, as "folder name", each with its reason.
var impureAllowed = map[string]string{}

func TestPureRooms_UseNoFilesClockOrGoroutines(t *testing.T) {
	used, seen := map[string]bool{}, map[string]bool{}
	for _, room := range append([]string{"internal/decide"}, words...) {
		err := filepath.WalkDir(filepath.Join("..", room), func(path string, d fs.DirEntry, err error) error {
			if err != nil || d.IsDir() || !strings.HasSuffix(path, ".go") || strings.HasSuffix(path, "_test.go") {
				return err
			}
			folder := filepath.ToSlash(filepath.Dir(strings.TrimPrefix(path, "../")))
			if strings.HasSuffix(folder, "test") { // fixtures that only tests import
				return nil
			}
			seen[room] = true
			fset := token.NewFileSet()
			file, err := parser.ParseFile(fset, path, nil, 0)
			if err != nil {
				return err
			}
			for _, u := range impurities(fset, file) {
				exception := folder + " " + u.name
				if used[exception] = true; impureAllowed[exception] == "" {
					t.Errorf(
						"%s: a pure room may not use %s; take the value as an argument, or move the code to the caller",
						fset.Position(u.at), u.name)
				}
			}
			return nil
		})
		if err != nil {
			t.Fatal(err)
		}
		if !seen[room] {
			t.Errorf("%s holds no code", room)
		}
	}
	for exception := range impureAllowed {
		if !used[exception] {
			t.Errorf("impureAllowed lists %q, which no code needs; remove it", exception)
		}
	}
}

func TestPureRooms_EveryBanIsNoticed(t *testing.T) {
	for source, want := range map[string][]string{
		`import "os"`:                           {"os"},
		`import "os/signal"`:                    {"os/signal"},
		`import "net/http"`:                     {"net/http"},
		`import slog "log/slog"`:                {"log/slog"},
		`import "math/rand/v2"`:                 {"math/rand/v2"},
		`import "golang.org/x/sys/unix"`:        {"golang.org/x/sys/unix"},
		`import . "time"`:                       {"a dot import of time"},
		`import "context"; import "errors"`:     {"context"},
		`import "time"; var start = time.Now()`: {"time.Now"},
		`import clock "time"; func f() { clock.Sleep(clock.Second) }`: {"time.Sleep"},
		`import "time"; var now = time.Now`:                           {"time.Now"}, // a value counts as a call
		`import "fmt"; func f() { fmt.Println() }`:                    {"fmt.Println"},
		`func f() { go f() }`:                                         {"a goroutine"},
		`func f(c chan int) {}`:                                       {"a channel"},
		`func f() { println() }`:                                      {"println"},
		`import "time"; import "fmt"; func f(d time.Duration) string { return fmt.Sprint(d) }`: nil,
		`func f(time clock) int { return time.Now() }`:                                         nil, // no package
	} {
		fset := token.NewFileSet()
		file, err := parser.ParseFile(fset, "bad.go", "package bad; "+source, 0)
		if err != nil {
			t.Fatalf("%s: %v", source, err)
		}
		var got []string
		for _, u := range impurities(fset, file) {
			got = append(got, u.name)
		}
		if diff := cmp.Diff(want, got); diff != "" {
			t.Errorf("%s: found (-want +got):\n%s", source, diff)
		}
	}
}

// impurity is a use of what pure rooms may not use.
type impurity struct {
	name string
	at   token.Pos
}

// impurities returns the file's uses of impure packages and functions.
func impurities(fset *token.FileSet, file *ast.File) []impurity {
	var found []impurity
	add := func(at token.Pos, format string, a ...any) {
		found = append(found, impurity{fmt.Sprintf(format, a...), at})
	}
	for _, imp := range file.Imports {
		target, _ := strconv.Unquote(imp.Path.Value)
		if slices.ContainsFunc(impure, func(p string) bool { return target == p || strings.HasPrefix(target, p+"/") }) {
			add(imp.Pos(), "%s", target)
		}
		if imp.Name != nil && imp.Name.Name == "." {
			add(imp.Pos(), "a dot import of %s", target)
		}
	}
	uses := namesOf(fset, file).Uses
	ast.Inspect(file, func(n ast.Node) bool {
		switch n := n.(type) {
		case *ast.GoStmt:
			add(n.Pos(), "a goroutine")
		case *ast.ChanType:
			add(n.Pos(), "a channel")
		case *ast.Ident:
			if b, ok := uses[n].(*types.Builtin); ok && (b.Name() == "print" || b.Name() == "println") {
				add(n.Pos(), "%s", b.Name())
			}
		case *ast.SelectorExpr:
			if from := packageOf(uses, n.X); slices.Contains(impureCalls[from], n.Sel.Name) {
				add(n.Pos(), "%s.%s", from, n.Sel.Name)
			}
		}
		return true
	})
	return found
}

// namesOf returns what the names in the files of one package stand for. It
// reads no other package: types stay partly unknown, but each name is known to
// be local, of the package, or imported.
func namesOf(fset *token.FileSet, files ...*ast.File) *types.Info {
	info := &types.Info{Defs: map[*ast.Ident]types.Object{}, Uses: map[*ast.Ident]types.Object{}}
	conf := types.Config{Importer: noImporter{}, FakeImportC: true, Error: func(error) {}}
	_, _ = conf.Check("p", fset, files, info) // errors are expected: nothing was imported
	return info
}

type noImporter struct{}

func (noImporter) Import(string) (*types.Package, error) { return nil, errors.New("not imported") }

// packageOf returns the import path of the package that the expression names,
// or "".
func packageOf(uses map[*ast.Ident]types.Object, x ast.Expr) string {
	if name, ok := x.(*ast.Ident); ok {
		if p, ok := uses[name].(*types.PkgName); ok {
			return p.Imported().Path()
		}
	}
	return ""
}
