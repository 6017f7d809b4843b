package main

import (
	"bytes"
	"flag"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

var updateDocs = flag.Bool("update-docs", false, "rewrite the output of commands that the documentation shows")

// replayed opens a block of the documentation whose commands are run by
// TestDocs_ShowRealOutput. They read files of the repository only.
const replayed = "```console replayed\n"

func TestDocs_ShowRealOutput(t *testing.T) {
	blocks := 0
	for _, file := range documents(t) {
		text, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		before, rest, found := strings.Cut(string(text), replayed)
		now := before
		for found {
			blocks++
			var block string
			block, rest, _ = strings.Cut(rest, "```\n")
			now += replayed + replay(t, file, block) + "```\n"
			before, rest, found = strings.Cut(rest, replayed)
			now += before
		}
		if now == string(text) {
			continue
		}
		if !*updateDocs {
			t.Errorf("%s shows output that the commands do not print (go test ./cmd/numavisor -run Docs -update-docs)",
				file)
		} else if err := os.WriteFile(file, []byte(now), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	if blocks == 0 {
		t.Error("no document has a replayed block")
	}
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
	for line := range strings.Lines(block) {
		command, is := strings.CutPrefix(line, "$ numavisor ")
		if !is {
			if strings.HasPrefix(line, "$") {
				t.Fatalf("%s: %q: only numavisor is replayed", file, line)
			}
			continue // output of an earlier run
		}
		now.WriteString(line)
		var stdout, stderr bytes.Buffer
		if status := run(strings.Fields(command), &stdout, &stderr); status != exitDone && status != exitFailed {
			t.Errorf("%s: %q: exit status %d: %s", file, strings.TrimSpace(line), status, &stderr)
		}
		for _, output := range []string{stdout.String(), stderr.String()} {
			if output = strings.TrimRight(output, "\n"); output != "" {
				now.WriteString(output + "\n")
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
	} {
		files, err := filepath.Glob(pattern)
		if err != nil || len(files) == 0 {
			t.Errorf("%s: no file (%v)", pattern, err)
		}
		for _, file := range files {
			var stderr bytes.Buffer
			if status := run(append(command[:len(command):len(command)], file), io.Discard, &stderr); status != exitDone {
				t.Errorf("%s: exit status %d: %s", file, status, &stderr)
			}
		}
	}
}
