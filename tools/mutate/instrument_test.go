package main

import (
	"go/ast"
	"go/parser"
	"go/token"
	"go/types"
	"slices"
	"strings"
	"testing"
)

// instrument returns the mutated text of a file and descriptions of its mutants.
func instrument(t *testing.T, src string) (text string, mutants []string) {
	t.Helper()
	fset := token.NewFileSet()
	f, err := parser.ParseFile(fset, "f.go", src, parser.SkipObjectResolution)
	if err != nil {
		t.Fatal(err)
	}
	info := &types.Info{Types: map[ast.Expr]types.TypeAndValue{}}
	conf := types.Config{Importer: other{}}
	pkg, err := conf.Check("f", fset, []*ast.File{f}, info)
	if err != nil {
		t.Fatal(err)
	}
	in := &instrumenter{fset: fset, info: info, pkg: pkg, src: []byte(src), name: "f.go"}
	text, found := in.file(f, "example.org/chooser")
	for _, m := range found {
		mutants = append(mutants, m.what+": "+m.code)
	}
	return text, mutants
}

// other is an importer of the package other, which has a type T of integers.
type other struct{}

func (other) Import(path string) (*types.Package, error) {
	pkg := types.NewPackage(path, "other")
	name := types.NewTypeName(token.NoPos, pkg, "T", nil)
	types.NewNamed(name, types.Typ[types.Int64], nil)
	pkg.Scope().Insert(name)
	pkg.MarkComplete()
	return pkg, nil
}

// A generic function cannot infer the type of a constant that is shifted by a
// variable; without a type argument the mutated package does not compile.
func TestInstrument_ShiftedConstantHasTypeArgument(t *testing.T) {
	for _, test := range []struct{ decl, expr, want string }{
		{"", "var x uint64 = 1<<n - 1", "mutant_.Sub[uint64](0, 1<<n , 1)"},
		{"", "x := uint8(1 + 1<<n)", "uint8(mutant_.Add[uint8](0, 1 , 1<<n))"},
		{"type key int64", "var x key = 1<<n - 1", "mutant_.Sub[key](0, 1<<n , 1)"},
		{"", "x := uint64(1)<<n - 1", "mutant_.Sub[uint64](0, uint64(1)<<n , 1)"},
		{"", "x := n<<1 + 1", "mutant_.Add(0, n<<1 , 1)"},
		{"", "x := int(1<<n) - n", "mutant_.Sub(0, int(1<<n) , n)"},
		{`import "other"`, "var x other.T = 1<<n - 1", "var x other.T = 1<<n - 1"},
	} {
		text, _ := instrument(t, "package f\n"+test.decl+"\nfunc f(n int) { "+test.expr+"; _ = x }\n")
		if !strings.Contains(text, test.want) {
			t.Errorf("%s: got\n%s\nwant in it: %s", test.expr, text, test.want)
		}
	}
}

func TestInstrument_EachConditionAndStatementHasMutants(t *testing.T) {
	_, got := instrument(t, "package f\nfunc f(a, b int) { if a < b { a = b; f(b, a) } }\n")
	want := []string{"if -> true: a < b", "if -> false: a < b", "< -> <=: a < b", "assignment removed: a = b",
		"statement removed: f(b, a)"}
	if !slices.Equal(got, want) {
		t.Errorf("got %q, want %q", got, want)
	}
}
