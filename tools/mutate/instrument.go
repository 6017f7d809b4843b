package main

import (
	"bytes"
	"fmt"
	"go/ast"
	"go/printer"
	"go/token"
	"go/types"
	"slices"
	"strings"
)

// mutant is one small change to the code.
type mutant struct {
	id   int
	file string
	line int
	what string // "if -> true", "< -> <=", "statement removed"
	code string // the expression or statement that it changes
}

func (m mutant) String() string { return fmt.Sprintf("%s:%d: %s: %s", m.file, m.line, m.what, m.code) }

// instrumenter writes all mutants of a file into its text, each behind a
// question to the chooser.
type instrumenter struct {
	fset  *token.FileSet
	info  *types.Info
	pkg   *types.Package
	src   []byte
	name  string
	first int // id of the file's first mutant

	header  map[ast.Node]bool
	mutants []mutant
	inserts []insert
	order   int
}

// insert is text to put at an offset, instead of cut bytes that stand there.
type insert struct {
	at, cut, order int
	text           string
}

// file returns the mutated text of a file and its mutants.
func (in *instrumenter) file(f *ast.File, chooserPath string) (string, []mutant) {
	in.header = map[ast.Node]bool{}
	ast.Inspect(f, in.visit)
	imports := fmt.Sprintf("; import mutant_ %q", chooserPath)
	in.inserts = append(in.inserts, insert{at: in.offset(f.Name.End()), text: imports})
	slices.SortStableFunc(in.inserts, func(a, b insert) int {
		switch {
		case a.at != b.at:
			return a.at - b.at
		case (a.order < 0) != (b.order < 0): // what ends here comes before what begins here
			return a.order - b.order
		}
		return a.order - b.order // begins: the outer first; ends: the inner first
	})
	var out bytes.Buffer
	last := 0
	for _, i := range in.inserts {
		out.Write(in.src[last:i.at])
		out.WriteString(i.text)
		last = i.at + i.cut
	}
	out.Write(in.src[last:])
	return out.String(), in.mutants
}

func (in *instrumenter) visit(n ast.Node) bool {
	switch n := n.(type) {
	case *ast.GenDecl:
		return n.Tok != token.CONST
	case *ast.ForStmt: // a mutated loop may not end
		in.skip(n.Init, n.Cond, n.Post)
	case *ast.IfStmt:
		in.skip(n.Init)
		if !in.constant(n.Cond) {
			yes, no := in.add(n.Cond, "if -> true"), in.add(n.Cond, "if -> false")
			in.wrap(n.Cond, fmt.Sprintf("(mutant_.On(%d) || !mutant_.On(%d) && (", yes, no), "))")
		}
	case *ast.SwitchStmt:
		in.skip(n.Init)
	case *ast.TypeSwitchStmt:
		in.skip(n.Init, n.Assign)
	case *ast.CommClause:
		in.skip(n.Comm)
	case *ast.LabeledStmt:
		in.skip(n.Stmt)
	case *ast.ExprStmt:
		if call, ok := n.X.(*ast.CallExpr); ok && !isPanic(call) {
			in.drop(n, "statement removed")
		}
	case *ast.AssignStmt:
		if n.Tok != token.DEFINE {
			in.drop(n, "assignment removed")
		}
	case *ast.IncDecStmt:
		in.drop(n, "step removed")
	case *ast.UnaryExpr:
		if n.Op == token.NOT {
			in.wrap(n, fmt.Sprintf("(mutant_.On(%d) != (", in.add(n, "! dropped")), "))")
		}
	case *ast.BinaryExpr:
		return in.binary(n)
	}
	return true
}

// swapped pairs each operator with the one that a mutant uses instead.
var swapped = map[token.Token]token.Token{
	token.LSS: token.LEQ, token.LEQ: token.LSS, token.GTR: token.GEQ, token.GEQ: token.GTR,
	token.EQL: token.NEQ, token.NEQ: token.EQL, token.LAND: token.LOR, token.LOR: token.LAND,
}

// arithmetic names the chooser's function for an operator.
var arithmetic = map[token.Token]string{token.ADD: "Add", token.SUB: "Sub", token.MUL: "Mul", token.QUO: "Div"}

func (in *instrumenter) binary(n *ast.BinaryExpr) bool {
	if in.constant(n) || in.header[n] {
		return !in.constant(n)
	}
	if other, ok := swapped[n.Op]; ok {
		mutated := fmt.Sprintf("(%s) %s (%s)", in.text(n.X), other, in.text(n.Y))
		if !strings.Contains(mutated, "func(") && !strings.Contains(mutated, "\n") {
			id := in.add(n, fmt.Sprintf("%s -> %s", n.Op, other))
			in.wrap(n, fmt.Sprintf("(mutant_.On(%d) && (%s) || !mutant_.On(%d) && (", id, mutated, id), "))")
		}
		return true
	}
	name, ok := arithmetic[n.Op]
	if !ok || !in.number(n) || !in.number(n.X) || !in.number(n.Y) || in.constant(n.X) && in.constant(n.Y) {
		return true
	}
	typed, ok := in.instance(n)
	if !ok {
		return true
	}
	id := in.add(n, n.Op.String()+" swapped")
	in.wrap(n, fmt.Sprintf("mutant_.%s%s(%d, ", name, typed, id), ")")
	in.inserts = append(in.inserts, insert{at: in.offset(n.OpPos), cut: len(n.Op.String()), order: 1 << 30, text: ","})
	return true
}

// instance returns the type argument of the chooser's function for an operation,
// empty where the compiler infers it. In 1<<n - 1 it cannot: the constant takes
// the type that the context asks for, and an argument of a generic function asks
// for none. Such an operation of a type from another package has no mutant.
func (in *instrumenter) instance(n *ast.BinaryExpr) (string, bool) {
	if !in.untypedShift(n.X) && !in.untypedShift(n.Y) {
		return "", true
	}
	switch t := in.info.Types[n].Type.(type) {
	case *types.Basic:
		return "[" + t.Name() + "]", true
	case *types.Named:
		return "[" + t.Obj().Name() + "]", t.Obj().Pkg() == in.pkg
	}
	return "", false
}

// untypedShift reports whether an operand shifts a constant by an amount that is
// known at run time. Within a call or a conversion the type is known.
func (in *instrumenter) untypedShift(e ast.Expr) bool {
	found := false
	ast.Inspect(e, func(n ast.Node) bool {
		if shift, ok := n.(*ast.BinaryExpr); ok && (shift.Op == token.SHL || shift.Op == token.SHR) {
			found = found || in.constant(shift.X) && !in.constant(shift)
		}
		_, call := n.(*ast.CallExpr)
		return !call && !found
	})
	return found
}

func (in *instrumenter) add(n ast.Node, what string) int {
	id := in.first + len(in.mutants)
	var code bytes.Buffer
	if err := printer.Fprint(&code, in.fset, n); err != nil {
		panic(err) // the node was parsed from a file
	}
	short := strings.Join(strings.Fields(code.String()), " ")
	if len(short) > 120 {
		short = short[:117] + "..."
	}
	in.mutants = append(in.mutants, mutant{id, in.name, in.fset.Position(n.Pos()).Line, what, short})
	return id
}

// drop makes a mutant that leaves a statement out.
func (in *instrumenter) drop(n ast.Stmt, what string) {
	if !in.header[n] {
		in.wrap(n, fmt.Sprintf("if !mutant_.On(%d) { ", in.add(n, what)), " }")
	}
}

func (in *instrumenter) wrap(n ast.Node, before, after string) {
	in.order++
	in.inserts = append(in.inserts,
		insert{at: in.offset(n.Pos()), order: in.order, text: before},
		insert{at: in.offset(n.End()), order: -in.order, text: after})
}

// skip excludes nodes that cannot stand inside another statement.
func (in *instrumenter) skip(nodes ...ast.Node) {
	for _, n := range nodes {
		in.header[n] = true
	}
}

func (in *instrumenter) offset(p token.Pos) int { return in.fset.Position(p).Offset }

func (in *instrumenter) text(n ast.Node) string {
	return string(in.src[in.offset(n.Pos()):in.offset(n.End())])
}

func (in *instrumenter) constant(e ast.Expr) bool { return in.info.Types[e].Value != nil }

func (in *instrumenter) number(e ast.Expr) bool {
	t := in.info.Types[e].Type
	if t == nil {
		return false
	}
	b, ok := t.Underlying().(*types.Basic)
	return ok && b.Info()&types.IsNumeric != 0 && b.Info()&(types.IsComplex|types.IsUntyped) == 0
}

func isPanic(call *ast.CallExpr) bool {
	name, ok := call.Fun.(*ast.Ident)
	return ok && name.Name == "panic"
}
