package main

import (
	"bytes"
	"os"
	"os/exec"
	"path/filepath"
	"testing"
	"time"
)

// git runs git in the repository; ok is false if it fails.
func git(t *testing.T, args ...string) (out string, ok bool) {
	t.Helper()
	text, err := exec.CommandContext(t.Context(), "git", args...).Output()
	return string(bytes.TrimSpace(text)), err == nil
}

// previous returns the programs of the commit before this one: its server, and this tool with its daemon. Without
// any history, as in an archive of the source, the test is skipped; a shallow clone fails in CI, which must fetch more.
func previous(t *testing.T) earlier {
	t.Helper()
	top, ok := git(t, "rev-parse", "--show-toplevel")
	if !ok {
		t.Skip("there is no history: this is no clone of the repository")
	}
	commit, ok := git(t, "rev-parse", "--verify", "HEAD~1^{commit}")
	if !ok {
		const why = "the previous commit is not in this clone: run 'git fetch --deepen 1'"
		if os.Getenv("CI") != "" {
			t.Fatal(why)
		}
		t.Skip(why)
	}
	folder := t.TempDir()
	archive := filepath.Join(folder, "source.tar")
	source := filepath.Join(folder, "source")
	if err := os.Mkdir(source, 0o700); err != nil {
		t.Fatal(err)
	}
	e := earlier{server: filepath.Join(folder, "server"), hosts: filepath.Join(folder, "faults")}
	for _, c := range []struct {
		at   string
		args []string
	}{
		{top, []string{"git", "archive", "-o", archive, commit}},
		{source, []string{"tar", "xf", archive}},
		{source, []string{"go", "build", "-o", e.server, "./cmd/numavisor-server"}},
		{source, []string{"go", "build", "-o", e.hosts, "./tools/faults"}},
	} {
		run := exec.CommandContext(t.Context(), c.args[0], c.args[1:]...)
		run.Dir = c.at
		if out, err := run.CombinedOutput(); err != nil {
			t.Fatalf("%v: %v: %s", c.args, err, out)
		}
	}
	return e
}

// A fleet of the previous commit's programs is upgraded one by one under load, in each of three orders: servers and
// daemons of both versions work together, and nothing is lost.
func TestUpgrade_FromThePreviousCommit(t *testing.T) {
	if testing.Short() {
		t.Skip("it takes a minute: 'go test ./tools/faults' or 'make test-upgrade'")
	}
	before, server := previous(t), build(t)
	for seed, order := range []string{"servers first", "hosts first", "mixed"} {
		t.Run(order, func(t *testing.T) {
			o := options{server: server, seed: uint64(seed), time: time.Second, id: 200 + os.Getpid()%50,
				before: before}
			report, err := o.run(t.Context())
			if err != nil {
				t.Fatalf("%s: %v", report, err)
			}
			t.Log(report)
		})
	}
}
