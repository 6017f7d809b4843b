package internal_test

import (
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
)

// noisy are packages that decisions do not import: they read or change the
// world, or make an answer depend on more than its arguments.
var noisy = []string{
	"context", "log", "log/slog", "math/rand", "math/rand/v2", "net", "net/http", "os", "os/exec", "sync", "syscall",
}

// clocks are functions of package time that read the clock or wait for it.
var clocks = []string{"Now", "Since", "Until", "Sleep", "After", "AfterFunc", "Tick", "NewTicker", "NewTimer"}

// TestDecisions_ArePure: rooms below internal/decide compute only. They read no
// clock and start no goroutine, so that a decision can be replayed.
func TestDecisions_ArePure(t *testing.T) {
	checked := 0
	err := filepath.WalkDir("decide", func(path string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() || !strings.HasSuffix(path, ".go") || strings.HasSuffix(path, "_test.go") {
			return err
		}
		checked++
		set := token.NewFileSet()
		file, err := parser.ParseFile(set, path, nil, 0)
		if err != nil {
			return err
		}
		for _, imp := range file.Imports {
			if name, _ := strconv.Unquote(imp.Path.Value); slices.Contains(noisy, name) {
				t.Errorf("%s imports %s", path, name)
			}
		}
		ast.Inspect(file, func(n ast.Node) bool {
			if what := impure(n); what != "" {
				t.Errorf("%v: %s", set.Position(n.Pos()), what)
			}
			return true
		})
		return nil
	})
	if err != nil || checked == 0 {
		t.Fatalf("%d files: %v", checked, err)
	}
}

// impure says what is impure about a node of the syntax tree; empty: nothing.
func impure(n ast.Node) string {
	switch n := n.(type) {
	case *ast.GoStmt:
		return "starts a goroutine"
	case *ast.ChanType:
		return "uses a channel"
	case *ast.SelectorExpr:
		if of, ok := n.X.(*ast.Ident); ok && of.Name == "time" && slices.Contains(clocks, n.Sel.Name) {
			return "reads the clock with time." + n.Sel.Name
		}
	}
	return ""
}
