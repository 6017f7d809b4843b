package main

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

// The program is one static file below 5 MiB, of the standard library, x/sys and this
// module alone: a guest has room for it, and nothing else to install.
func TestTheProgramIsSmallAndStatic(t *testing.T) {
	deps := output(t, "list", "-deps", "-f", "{{if not .Standard}}{{.ImportPath}}{{end}}", ".")
	for dep := range strings.FieldsSeq(deps) {
		if !strings.HasPrefix(dep, "golang.org/x/sys/") && !strings.HasPrefix(dep, "github.com/numavisor/numavisor/") {
			t.Errorf("it links %s", dep)
		}
	}
	for dep := range strings.FieldsSeq(output(t, "list", "-deps", ".")) {
		if dep == "net" || dep == "net/http" {
			t.Errorf("it links %s, and needs no network", dep)
		}
	}
	program := filepath.Join(t.TempDir(), "numavisor-guest")
	output(t, "build", "-ldflags=-s -w", "-o", program, ".")
	file, err := os.Stat(program)
	if err != nil {
		t.Fatal(err)
	}
	if file.Size() >= 5<<20 {
		t.Errorf("the program has %d bytes; limit 5 MiB", file.Size())
	}
}

func output(t *testing.T, args ...string) string {
	t.Helper()
	c := exec.CommandContext(t.Context(), "go", args...)
	c.Env = append(os.Environ(), "CGO_ENABLED=0")
	out, err := c.CombinedOutput()
	if err != nil {
		t.Fatalf("go %s: %v\n%s", strings.Join(args, " "), err, out)
	}
	return string(out)
}

func TestUsage(t *testing.T) {
	for _, args := range [][]string{{"--unknown"}, {"argument"}} {
		if status := run(args); status != exitUsage {
			t.Errorf("%q: status %d", args, status)
		}
	}
	if status := run([]string{"--version"}); status != exitDone {
		t.Errorf("--version: status %d", status)
	}
}
