package linux

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"testing"
	"time"
)

func TestGuestCPUTime(t *testing.T) {
	root := t.TempDir()
	write := func(name, text string) {
		t.Helper()
		path := filepath.Join(root, "sys/fs/cgroup", name)
		if err := os.MkdirAll(filepath.Dir(path), 0o750); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := Root(root).GuestCPUTime(); !errors.Is(err, ErrNoCgroupV2) {
		t.Errorf("without cgroup v2: %v", err)
	}
	write("cgroup.controllers", "cpu\n")
	if _, err := Root(root).GuestCPUTime(); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("without a group: %v", err)
	}
	write("machine.slice/cpu.stat", "usage_usec 1500000\nuser_usec 1000000\nsystem_usec 500000\n")
	if used, err := Root(root).GuestCPUTime(); used != 1500*time.Millisecond || err != nil {
		t.Errorf("%v, %v", used, err)
	}
	write("machine/cpu.stat", "usage_usec 250000\n")
	if used, err := Root(root).GuestCPUTime(); used != 1750*time.Millisecond || err != nil {
		t.Errorf("both layouts: %v, %v", used, err)
	}
	write("machine/cpu.stat", "usage_usec x\n")
	if _, err := Root(root).GuestCPUTime(); err == nil {
		t.Error("a damaged file is read")
	}
}
