// Package labtest runs tests in a lab: it boots labs for tests, and runs the
// test programs of other packages inside one.
package labtest

import (
	"bytes"
	"context"
	"fmt"
	"go/ast"
	"go/build"
	"go/parser"
	"go/token"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/numavisor/numavisor/lab"
	"github.com/numavisor/numavisor/lab/rotate"
)

// InsideVariable is set to 1 in the environment of test programs inside a lab.
const InsideVariable = "NUMAVISOR_LAB_INSIDE"

// insideTime bounds one test program inside a lab: libvirt's starts up to 30 VMs,
// each in 5 s on an idle machine and in 20 s on a busy one.
const insideTime = 15 * time.Minute

// Build compiles the tests of a package folder into one program without the
// race detector, and returns its path.
func Build(t *testing.T, folder string) string {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Minute)
	defer cancel()
	program := filepath.Join(t.TempDir(), filepath.Base(folder)+".test")
	build := exec.CommandContext(ctx, "go", "test", "-c", "-ldflags=-s -w", "-o", program, folder)
	if out, err := build.CombinedOutput(); err != nil {
		t.Fatalf("building the tests of %s: %v\n%s", folder, err, out)
	}
	return program
}

// Inside runs tests of a package folder inside a lab by its test program, which
// the lab has as a command. Without names it runs all tests named TestLab* of
// the package's source. Every one of them must have passed, and none of them
// or their subtests may have been skipped.
func Inside(t *testing.T, h *lab.Host, program, folder string, names ...string) {
	t.Helper()
	there, err := TestNames(folder, "TestLab")
	if err != nil {
		t.Fatal(err)
	}
	if len(names) == 0 {
		names = there
	}
	for _, name := range names {
		if !slices.Contains(there, name) {
			t.Fatalf("%s has no test %s; it has %v", folder, name, there)
		}
	}
	ctx, cancel := context.WithTimeout(t.Context(), insideTime)
	defer cancel()
	var out, errOut bytes.Buffer
	argv := []string{"env", InsideVariable + "=1", rotate.Variable + "=" + os.Getenv(rotate.Variable), program,
		"-test.v", "-test.run", "^(" + strings.Join(names, "|") + ")$"}
	status, err := h.Run(ctx, argv, &out, &errOut)
	NoteFault(t, err)
	t.Logf("%s%s", out.String(), errOut.String())
	if err != nil || status != 0 {
		t.Errorf("the tests of %s inside the lab: status %d, %v", folder, status, err)
	}
	for _, fault := range Unproven(out.String(), names) {
		t.Error(fault)
	}
}

var verdict = regexp.MustCompile(`(?m)^ *--- (PASS|FAIL|SKIP): (\S+) \(`)

// Unproven reads the verbose output of a test program and says which of the
// named tests did not pass, and which tests were skipped.
func Unproven(output string, names []string) (faults []string) {
	passed := map[string]bool{}
	for _, m := range verdict.FindAllStringSubmatch(output, -1) {
		switch m[1] {
		case "PASS":
			passed[m[2]] = true
		case "SKIP":
			faults = append(faults, fmt.Sprintf("%s was skipped inside the lab", m[2]))
		}
	}
	for _, name := range names {
		if !passed[name] {
			faults = append(faults, fmt.Sprintf("%s did not pass inside the lab", name))
		}
	}
	return faults
}

// TestNames returns the names of the test functions in a package folder that
// begin with prefix, as the present build constraints select files.
func TestNames(folder, prefix string) ([]string, error) {
	files, err := parseTests(folder)
	if err != nil {
		return nil, err
	}
	var names []string
	for _, f := range files {
		for _, d := range f.Decls {
			if fn, ok := d.(*ast.FuncDecl); ok && fn.Recv == nil && strings.HasPrefix(fn.Name.Name, prefix) {
				names = append(names, fn.Name.Name)
			}
		}
	}
	if len(names) == 0 {
		return nil, fmt.Errorf("%s has no test whose name begins with %s", folder, prefix)
	}
	slices.Sort(names)
	return names, nil
}

// parseTests parses the test files of a package folder.
func parseTests(folder string) ([]*ast.File, error) {
	entries, err := os.ReadDir(folder)
	if err != nil {
		return nil, err
	}
	var files []*ast.File
	for _, e := range entries {
		if !strings.HasSuffix(e.Name(), "_test.go") {
			continue
		}
		if match, err := build.Default.MatchFile(folder, e.Name()); err != nil || !match {
			if err != nil {
				return nil, err
			}
			continue
		}
		f, err := parser.ParseFile(token.NewFileSet(), filepath.Join(folder, e.Name()), nil,
			parser.SkipObjectResolution)
		if err != nil {
			return nil, err
		}
		files = append(files, f)
	}
	return files, nil
}
