package internal_test

import (
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

// forPeople are fields whose text is for people. Code decides by kinds,
// references and error values, so that any text can be reworded.
var forPeople = []string{"What", "Why", "Object", "Reason"}

// textPredicates are functions of package strings that look into a text.
var textPredicates = []string{
	"Contains", "ContainsAny", "ContainsFunc", "HasPrefix", "HasSuffix", "EqualFold", "Index", "Cut", "CutPrefix",
	"CutSuffix", "Split", "Fields",
}

// kindsDerived are the functions that give older documents kinds: the only
// ones that may look into texts.
var kindsDerived = []string{"../internal/inventory/gap.go:deriveKind"}

func TestBehaviour_DoesNotDependOnText(t *testing.T) {
	inspectCode(t, func(where string, n ast.Node) {
		if slices.Contains(kindsDerived, where) {
			return
		}
		for _, finding := range decidesByText(n) {
			t.Errorf("%s: %s: decide by a kind, a reference or an error value instead", where, finding)
		}
	})
}

// decidesByText says in words what a node does with text that is for people.
func decidesByText(n ast.Node) (found []string) {
	switch n := n.(type) {
	case *ast.CallExpr:
		f, ok := n.Fun.(*ast.SelectorExpr)
		if !ok || !isName(f.X, "strings") || !slices.Contains(textPredicates, f.Sel.Name) || len(n.Args) == 0 {
			return nil
		}
		if name := textOf(n.Args[0]); name != "" {
			found = append(found, "strings."+f.Sel.Name+" on "+name)
		}
	case *ast.BinaryExpr:
		if n.Op != token.EQL && n.Op != token.NEQ {
			return nil
		}
		for _, pair := range [][2]ast.Expr{{n.X, n.Y}, {n.Y, n.X}} {
			if name := textOf(pair[0]); name != "" && holdsText(pair[1]) {
				found = append(found, name+" compared with a text")
			}
		}
	case *ast.SwitchStmt:
		if name := textOf(n.Tag); name != "" {
			found = append(found, "switch on "+name)
		}
	}
	return found
}

// textOf names the field for people, or the error, whose text an expression is; else empty.
func textOf(e ast.Expr) string {
	switch e := e.(type) {
	case *ast.SelectorExpr:
		if slices.Contains(forPeople, e.Sel.Name) {
			return "." + e.Sel.Name
		}
	case *ast.CallExpr:
		f, ok := e.Fun.(*ast.SelectorExpr)
		if ok && f.Sel.Name == "Error" && len(e.Args) == 0 {
			return "the text of an error"
		}
		if ok && f.Sel.Name == "String" && len(e.Args) == 0 {
			return textOf(f.X)
		}
	}
	return ""
}

// holdsText reports whether an expression is a text that is not empty, or joins one.
func holdsText(e ast.Expr) bool {
	switch e := e.(type) {
	case *ast.BasicLit:
		return e.Kind == token.STRING && e.Value != `""` && e.Value != "``"
	case *ast.BinaryExpr:
		return e.Op == token.ADD && (holdsText(e.X) || holdsText(e.Y))
	}
	return false
}

func isName(e ast.Expr, name string) bool {
	id, ok := e.(*ast.Ident)
	return ok && id.Name == name
}

// A gap without a kind could not be read back, and no decision would see it.
func TestGaps_HaveAKind(t *testing.T) {
	inspectCode(t, func(where string, n ast.Node) {
		literal, ok := n.(*ast.CompositeLit)
		if !ok ||
			!isGap(literal.Type) &&
				!(strings.HasPrefix(where, "../internal/inventory/") && isName(literal.Type, "Gap") &&
					len(literal.Elts) > 0) {
			return
		}
		if !slices.ContainsFunc(literal.Elts, func(e ast.Expr) bool {
			pair, ok := e.(*ast.KeyValueExpr)
			return ok && isName(pair.Key, "Kind")
		}) {
			t.Errorf("%s: an inventory.Gap without Kind", where)
		}
	})
}

func isGap(e ast.Expr) bool {
	s, ok := e.(*ast.SelectorExpr)
	return ok && isName(s.X, "inventory") && s.Sel.Name == "Gap"
}

// Code that decides asks what a hypervisor can do (inventory.Capabilities).
func TestDeciding_DoesNotAskForAHypervisor(t *testing.T) {
	inspectCode(t, func(where string, n ast.Node) {
		if !strings.HasPrefix(where, "../internal/decide/") && !strings.HasPrefix(where, "../internal/host/operate/") {
			return
		}
		if s, ok := n.(*ast.SelectorExpr); ok && isName(s.X, "guest") &&
			slices.Contains([]string{"LibvirtQEMU", "PlainQEMU", "Xen"}, s.Sel.Name) {
			t.Errorf("%s: asks for guest.%s: ask for a capability instead", where, s.Sel.Name)
		}
	})
}

// The rules find what they forbid.
func TestDecidesByText(t *testing.T) {
	for code, want := range map[string]string{
		`strings.HasPrefix(stay.Why, "waits")`:  "strings.HasPrefix on .Why",
		`strings.Contains(err.Error(), "busy")`: "strings.Contains on the text of an error",
		`strings.Cut(a.Object.String(), ": ")`:  "strings.Cut on .Object",
		`g.Object == "guest " + name`:           ".Object compared with a text",
		`"host" != g.Object`:                    ".Object compared with a text",
		`g.Why == ""`:                           "",
		`g.Object == other.Object`:              "",
		`strings.HasPrefix(path, "/sys/")`:      "",
		`g.Kind == "guests-unseen"`:             "",
	} {
		e, err := parser.ParseExpr(code)
		if err != nil {
			t.Fatal(err)
		}
		if got := strings.Join(decidesByText(e), "; "); got != want {
			t.Errorf("%s: found %q, want %q", code, got, want)
		}
	}
}

// inspectCode visits every node of all code but tests and rooms for tests
// (hosttest, statustest); where is the file and the function.
func inspectCode(t *testing.T, visit func(where string, n ast.Node)) {
	t.Helper()
	files := 0
	err := filepath.WalkDir("..", func(path string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() || !strings.HasSuffix(path, ".go") || strings.HasSuffix(path, "_test.go") ||
			strings.HasSuffix(filepath.Dir(path), "test") {
			return err
		}
		files++
		file, err := parser.ParseFile(token.NewFileSet(), path, nil, parser.SkipObjectResolution)
		if err != nil {
			return err
		}
		for _, decl := range file.Decls {
			where := filepath.ToSlash(path)
			if f, ok := decl.(*ast.FuncDecl); ok {
				where += ":" + f.Name.Name
			}
			ast.Inspect(decl, func(n ast.Node) bool {
				if n != nil {
					visit(where, n)
				}
				return true
			})
		}
		return nil
	})
	if err != nil || files < 100 {
		t.Fatalf("%d files read: %v", files, err)
	}
}
