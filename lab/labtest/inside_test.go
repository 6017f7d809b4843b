package labtest

import (
	"go/ast"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

func TestUnproven_NamesWhatDidNotPass(t *testing.T) {
	const output = "=== RUN   TestLabA\n    a_test.go:3: fine\n--- PASS: TestLabA (0.10s)\n" +
		"=== RUN   TestLabB\n=== RUN   TestLabB/one\n    --- SKIP: TestLabB/one (0.00s)\n--- PASS: TestLabB " +
		"(0.00s)\n--- FAIL: TestLabC (0.00s)\nPASS\n"
	for _, c := range []struct {
		about, output string
		names, want   []string
	}{
		{"all passed", "--- PASS: TestLabA (0.10s)\nPASS\n", []string{"TestLabA"}, nil},
		{"no test ran", "testing: warning: no tests to run\nPASS\n", []string{"TestLabA"}, []string{"TestLabA did " +
			"not pass inside the lab"}},
		{"a subtest was skipped", output, []string{"TestLabA", "TestLabB"}, []string{"TestLabB/one was skipped " +
			"inside the lab"}},
		{"one failed", "--- FAIL: TestLabC (0.00s)\nFAIL\n", []string{"TestLabC"}, []string{"TestLabC did not pass " +
			"inside the lab"}},
		{"a longer name passed", "--- PASS: TestLabAll (0.00s)\n", []string{"TestLabA"}, []string{"TestLabA did " +
			"not pass inside the lab"}},
	} {
		if diff := cmp.Diff(c.want, Unproven(c.output, c.names)); diff != "" {
			t.Errorf("%s (-want +got):\n%s", c.about, diff)
		}
	}
}

func TestTestNames_AreThoseOfTheSource(t *testing.T) {
	got, err := TestNames("../../internal/host/watch", "TestLab")
	if err != nil || !slices.Contains(got, "TestLabWatchAgreesWithTheKernel") {
		t.Errorf("%v, %v", got, err)
	}
	if got, err := TestNames("../../internal/topology", "TestLab"); err == nil {
		t.Errorf("a package without such tests has %v", got)
	}
}

// 'make test' runs -run Lab: a test that boots a lab must have that in its
// name, or it never runs.
func TestNamesOfTestsThatBootALab(t *testing.T) {
	for _, folder := range []string{"..", "../drivers", "../e2e", "../peers"} {
		files, err := parseTests(folder)
		if err != nil {
			t.Fatal(err)
		}
		for _, name := range bootingTests(files) {
			if !strings.HasPrefix(name, "TestLab") {
				t.Errorf("%s: %s boots a lab; its name must begin with TestLab", folder, name)
			}
		}
	}
}

func TestBootingTests_FollowsCalls(t *testing.T) {
	files, err := parseTests("../e2e")
	if err != nil {
		t.Fatal(err)
	}
	// The test calls startProbed, which calls boot.
	if got := bootingTests(files); !slices.Contains(got, "TestLabPacedMoveOfSmallPagesLeavesTheGuestResponsive") {
		t.Errorf("not among %v", got)
	}
}

// bootingTests returns the test functions that boot a lab, themselves or by
// functions of the same files.
func bootingTests(files []*ast.File) (names []string) {
	calls := map[string][]string{}
	for _, f := range files {
		for _, d := range f.Decls {
			fn, ok := d.(*ast.FuncDecl)
			if !ok || fn.Body == nil {
				continue
			}
			ast.Inspect(fn.Body, func(n ast.Node) bool {
				call, ok := n.(*ast.CallExpr)
				if !ok {
					return true
				}
				switch called := call.Fun.(type) {
				case *ast.Ident:
					calls[fn.Name.Name] = append(calls[fn.Name.Name], called.Name)
				case *ast.SelectorExpr:
					if of, ok := called.X.(*ast.Ident); ok && (of.Name == "lab" || of.Name == "labtest") &&
						strings.HasPrefix(called.Sel.Name, "Boot") {
						calls[fn.Name.Name] = append(calls[fn.Name.Name], "Boot")
					}
				}
				return true
			})
		}
	}
	seen := map[string]bool{}
	var boots func(name string) bool
	boots = func(name string) bool {
		if name == "Boot" {
			return true
		}
		if seen[name] {
			return false
		}
		seen[name] = true
		return slices.ContainsFunc(calls[name], boots)
	}
	for name := range calls {
		if clear(seen); strings.HasPrefix(name, "Test") && name != "TestMain" && boots(name) {
			names = append(names, name)
		}
	}
	slices.Sort(names)
	return names
}
