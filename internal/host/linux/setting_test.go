package linux

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

func TestWriteSetting(t *testing.T) {
	root := t.TempDir()
	file := filepath.Join(root, "proc/sys/kernel/numa_balancing")
	if err := os.MkdirAll(filepath.Dir(file), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(file, []byte("1\n"), 0o644); err != nil {
		t.Fatal(err)
	}
	before, err := Root(root).WriteSetting("/proc/sys/kernel/numa_balancing", "0")
	if err != nil || before != "1" {
		t.Errorf("before %q, %v", before, err)
	}
	if data, _ := os.ReadFile(file); strings.TrimSpace(string(data)) != "0" {
		t.Errorf("the file holds %q", data)
	}
	for _, path := range []string{"/etc/passwd", "/proc/sys/../../etc/passwd", "relative", "/proc/1/mem"} {
		if _, err := Root(root).WriteSetting(path, "0"); err == nil {
			t.Errorf("%s was accepted", path)
		}
	}
}

func TestChosenWordOfASetting(t *testing.T) {
	file := filepath.Join(t.TempDir(), "enabled")
	if err := os.WriteFile(file, []byte("always [madvise] never\n"), 0o644); err != nil {
		t.Fatal(err)
	}
	if got, err := setting(file); err != nil || got != "madvise" {
		t.Errorf("got %q, %v", got, err)
	}
}
