package main

import (
	"os/exec"
	"path/filepath"
	"runtime/debug"
	"strings"
	"testing"
)

// The linker's values have priority: the Makefile builds without -buildvcs.
func TestBuild_TakesWhatTheToolchainRecordedOnlyForWhatIsMissing(t *testing.T) {
	info := &debug.BuildInfo{Main: debug.Module{Version: "v1.2.3"}, Settings: []debug.BuildSetting{
		{Key: "vcs.revision", Value: "0123"}, {Key: "vcs.time", Value: "2026-01-02T03:04:05Z"},
	}}
	for _, c := range []struct{ linked, want build }{
		{build{}, build{Version: "v1.2.3", Commit: "0123", Date: "2026-01-02T03:04:05Z"}},
		{build{Version: "v2"}, build{Version: "v2", Commit: "0123", Date: "2026-01-02T03:04:05Z"}},
		{build{Version: "v2", Commit: "9", Date: "d"}, build{Version: "v2", Commit: "9", Date: "d"}},
		{build{Commit: "9"}, build{Version: "v1.2.3", Commit: "9"}}, // the date of another commit would be wrong
	} {
		if got := c.linked.completedFrom(info); got != c.want {
			t.Errorf("%+v: got %+v, want %+v", c.linked, got, c.want)
		}
	}
}

// The Makefile's flags name variables as text: a renamed variable is no error of the linker.
func TestMakefile_LinksTheVersion(t *testing.T) {
	flags, err := exec.Command("make", "-s", "-C", "../..", "print-ldflags", "VERSION=v7.8.9", "COMMIT=0123456789",
		"DATE=2026-01-02T03:04:05Z").Output()
	if err != nil {
		t.Fatal(err)
	}
	program := filepath.Join(t.TempDir(), "numavisor")
	if out, err := exec.Command("go", "build", "-trimpath", "-ldflags", strings.TrimSpace(string(flags)), "-o",
		program, ".").CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	out, err := exec.Command(program, "--version").Output()
	if want := "numavisor version v7.8.9 (commit 0123456789, 2026-01-02T03:04:05Z, go"; err != nil ||
		!strings.HasPrefix(string(out), want) || strings.Count(string(out), "\n") != 1 {
		t.Errorf("--version prints %q (%v), want one line that begins with %q", out, err, want)
	}
}
