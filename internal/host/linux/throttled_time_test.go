package linux

import (
	"os"
	"path/filepath"
	"testing"
	"time"
)

func TestRoot_Throttled(t *testing.T) {
	root := t.TempDir()
	write := func(text string, path ...string) {
		t.Helper()
		file := filepath.Join(append([]string{root}, path...)...)
		if err := os.MkdirAll(filepath.Dir(file), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(file, []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	const group = "sys/fs/cgroup/machine.slice/machine-qemu\\x2d1\\x2dweb.scope"
	write("cgroup2 /sys/fs/cgroup cgroup2 rw 0 0\n", "proc/mounts")
	write("24 1 0:21 / /sys/fs/cgroup rw shared:1 - cgroup2 cgroup2 rw\n", "proc/self/mountinfo")
	write("0::/machine.slice/machine-qemu\\x2d1\\x2dweb.scope/libvirt/emulator\n", "proc/7/cgroup")
	write("", "sys/fs/cgroup/cgroup.controllers")
	write("usage_usec 1\nthrottled_usec 1000000\n", group, "cpu.stat")
	write("", group, "libvirt/cgroup.procs")
	write("usage_usec 1\n", group, "libvirt/emulator/cpu.stat")
	write("usage_usec 1\nthrottled_usec 2000000\n", group, "libvirt/vcpu0/cpu.stat")
	write("usage_usec 1\nthrottled_usec 4000000\n", group, "libvirt/vcpu1/cpu.stat")
	if got, err := Root(root).Throttled(7); err != nil || got != 7*time.Second {
		t.Errorf("throttled for %v, %v; want 7 s", got, err)
	}
	write("0::/user.slice\n", "proc/8/cgroup")
	if got, err := Root(root).Throttled(8); err != nil || got != 0 {
		t.Errorf("a process without a VM's group: %v, %v", got, err)
	}
}
