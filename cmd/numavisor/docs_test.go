package main

import (
	"bytes"
	"flag"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

var updateDocs = flag.Bool("update-docs", false, "rewrite the output of commands that the documentation shows")

// Blocks of the documentation that a test keeps true: commands that are run
// (they read files of the repository only), and copies of files.
const (
	replayed = "```console replayed"
	copied   = "```text file="
)

func TestDocs_ShowRealOutput(t *testing.T) {
	blocks := 0
	for _, file := range documents(t) {
		text, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		var now strings.Builder
		rest, found := string(text), true
		for found {
			var line, block string
			line, rest, found = strings.Cut(rest, "\n")
			if now.WriteString(line); found {
				now.WriteString("\n")
			}
			source, isCopy := strings.CutPrefix(line, copied)
			if line != replayed && !isCopy {
				continue
			}
			if blocks++; !strings.HasPrefix(rest, "```\n") { // not empty
				block, rest, _ = strings.Cut(rest, "\n```\n")
				rest = "```\n" + rest
			}
			if isCopy {
				now.WriteString(contents(t, file, source))
			} else {
				now.WriteString(replay(t, file, block))
			}
		}
		if now.String() == string(text) {
			continue
		}
		if !*updateDocs {
			t.Errorf("%s shows output that is not printed (go test ./cmd/numavisor -run Docs -update-docs)", file)
		} else if err := os.WriteFile(file, []byte(now.String()), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	if blocks == 0 {
		t.Error("no document has a block whose output is checked")
	}
}

// contents returns the contents of a file.
func contents(t *testing.T, document, file string) string {
	t.Helper()
	text, err := os.ReadFile(file)
	if err != nil {
		t.Fatalf("%s: %v", document, err)
	}
	return strings.TrimRight(string(text), "\n") + "\n"
}

// documents are all pages of the repository, from its root, which becomes the working directory.
func documents(t *testing.T) []string {
	t.Helper()
	t.Chdir("../..")
	var all []string
	for _, pattern := range []string{"*.md", "docs/*.md", "docs/*/*.md", "examples/*.md", "examples/*/*.md"} {
		files, err := filepath.Glob(pattern)
		if err != nil {
			t.Fatal(err)
		}
		all = append(all, files...)
	}
	return all
}

// replay runs the commands of a block and returns the block with their output.
func replay(t *testing.T, file, block string) string {
	t.Helper()
	var now bytes.Buffer
	for line := range strings.SplitSeq(block, "\n") {
		command, is := strings.CutPrefix(line, "$ numavisor ")
		if !is {
			if strings.HasPrefix(line, "$") {
				t.Fatalf("%s: %q: only numavisor is replayed", file, line)
			}
			continue // output of an earlier run
		}
		now.WriteString(line + "\n")
		var stdout, stderr bytes.Buffer
		if status := run(strings.Fields(command), &stdout, &stderr); status != exitDone && status != exitFailed {
			t.Errorf("%s: %q: exit status %d: %s", file, strings.TrimSpace(line), status, &stderr)
		}
		for _, output := range []string{stdout.String(), stderr.String()} {
			for line := range strings.Lines(strings.TrimRight(output, "\n")) {
				now.WriteString(strings.TrimRight(line, " \n") + "\n")
			}
		}
	}
	return now.String()
}

func TestExamples_AreAccepted(t *testing.T) {
	t.Chdir("../../examples")
	const host = "inventories/two-nodes.json"
	for pattern, command := range map[string][]string{
		"inventories/*.json": {"balance", "--inventory"},
		"policies/*.yaml":    {"balance", "--inventory", host, "--policy"},
		"specs/*.yaml":       {"place", "--inventory", host, "--spec"},
		"virt-install/*.xml": {"place", "--inventory", host, "--xml"},
		"fleets/req*.yaml":   {"schedule", "--hosts", "fleets/rack.yaml", "--requests"},
	} {
		files, err := filepath.Glob(pattern)
		if err != nil || len(files) == 0 {
			t.Errorf("%s: no file (%v)", pattern, err)
		}
		for _, file := range files {
			var stderr bytes.Buffer
			args := append(slices.Clone(command), file)
			if file == "specs/mirrored.yaml" { // needs CPUs that the policy names
				args = append(args, "--policy", "policies/hand-over.yaml")
			}
			if status := run(args, io.Discard, &stderr); status != exitDone {
				t.Errorf("%s: exit status %d: %s", file, status, &stderr)
			}
		}
	}
}
