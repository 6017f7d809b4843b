package linux

import (
	"os"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"testing"

	"github.com/rogpeppe/go-internal/txtar"

	"github.com/numavisor/numavisor/internal/topology"
)

// captured unpacks testdata/NAME.txtar and returns it as a root, with the
// process id of the VM in it (0 if there is none). An archive holds neither NUL
// nor links: line breaks of cmdline stand for NUL, fd and exe hold link targets.
func captured(t testing.TB, name string) (Root, int) {
	t.Helper()
	archive, err := txtar.ParseFile(filepath.Join("testdata", name+".txtar"))
	if err != nil {
		t.Fatal(err)
	}
	root, pid := Root(t.TempDir()), 0
	for _, f := range archive.Files {
		parts := strings.Split(f.Name, "/")
		if id, err := strconv.Atoi(parts[1]); err == nil && parts[0] == "proc" {
			pid = id
		}
		path := root.path(f.Name)
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			t.Fatal(err)
		}
		switch filepath.Base(path) {
		case "fd":
			err = linkAll(path, string(f.Data))
		case "exe":
			err = os.Symlink(strings.TrimSpace(string(f.Data)), path)
		case "cmdline":
			err = os.WriteFile(path, []byte(strings.ReplaceAll(string(f.Data), "\n", "\x00")), 0o644)
		default:
			err = os.WriteFile(path, f.Data, 0o644)
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	return root, pid
}

func linkAll(folder, list string) error {
	if err := os.Mkdir(folder, 0o755); err != nil {
		return err
	}
	for line := range strings.Lines(list) {
		fd, target, _ := strings.Cut(strings.TrimSpace(line), " -> ")
		if err := os.Symlink(target, filepath.Join(folder, fd)); err != nil {
			return err
		}
	}
	return nil
}

// files makes a root with the given files.
func files(t testing.TB, contents map[string]string) Root {
	t.Helper()
	root := Root(t.TempDir())
	for name, text := range contents {
		if err := os.MkdirAll(filepath.Dir(root.path(name)), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(root.path(name), []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	return root
}

func nodes(list string) topology.NodeSet { return topology.MustParseSet[topology.NodeID](list) }
func cpus(list string) topology.CPUSet   { return topology.MustParseSet[topology.CPUID](list) }

type byNode = topology.MemoryByNode

// lockThread keeps a test on its thread until it ends.
func lockThread() { runtime.LockOSThread() }
