package linux

import (
	"context"
	"errors"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/sys/unix"
)

func removeFile(t *testing.T, path string) {
	t.Helper()
	if err := os.Remove(path); err != nil && !os.IsNotExist(err) {
		t.Fatal(err)
	}
}

func pathsOf(groups []Cgroup) []string {
	var paths []string
	for _, g := range groups {
		paths = append(paths, g.Path)
	}
	return paths
}

func TestGuestCgroupWithoutSystemd(t *testing.T) {
	root, pid := captured(t, "anon")
	g, ok, err := root.GuestCgroupOf(pid)
	if err != nil || !ok {
		t.Fatalf("found %v, error %v", ok, err)
	}
	top := "/machine/qemu-1-anon.libvirt-qemu"
	if g.Top.Path != top || g.Threads.Path != top {
		t.Errorf("top %s, threads %s", g.Top.Path, g.Threads.Path)
	}
	want := []string{top + "/emulator", top + "/vcpu0", top + "/vcpu1", top + "/iothread1"}
	if diff := cmp.Diff(want, pathsOf(g.ThreadGroups())); diff != "" {
		t.Error(diff)
	}
	if have, err := g.VCPUs[1].CPUs(); err != nil || !have.Equal(cpus("3")) {
		t.Errorf("vCPU 1 on CPUs %s, error %v", have, err)
	}
	if path, err := root.Cgroup(pid); err != nil || path != top {
		t.Errorf("Cgroup %q, error %v", path, err)
	}
}

func systemdHost(t *testing.T) Root {
	t.Helper()
	scope := `sys/fs/cgroup/machine.slice/machine-qemu\x2d12\x2dmy\x2dvm.scope/`
	contents := map[string]string{
		"proc/77/cgroup":                   "0::/machine.slice/machine-qemu\\x2d12\\x2dmy\\x2dvm.scope/libvirt/emulator\n",
		"proc/78/cgroup":                   "0::/system.slice/ssh.service\n",
		"proc/79/cgroup":                   "12:cpuset:/machine/qemu-1-a.libvirt-qemu/emulator\n",
		"sys/fs/cgroup/cgroup.controllers": "cpuset memory\n",
		scope + "cgroup.procs":             "",
		scope + "libvirt/cgroup.procs":     "",
		"sys/fs/cgroup/machine.slice/machine-lxc\\x2d12\\x2dbox.scope/cgroup.procs": "",
		"sys/fs/cgroup/system.slice/ssh.service/cgroup.procs":                       "",
	}
	for _, leaf := range []string{"emulator", "vcpu0", "vcpu10", "vcpu2", "iothread1"} {
		contents[scope+"libvirt/"+leaf+"/cpuset.mems"] = "0\n"
		contents[scope+"libvirt/"+leaf+"/cpuset.mems.effective"] = "0\n"
	}
	return files(t, contents)
}

func TestGuestCgroupWithSystemd(t *testing.T) {
	root := systemdHost(t)
	g, ok, err := root.GuestCgroupOf(77)
	if err != nil || !ok {
		t.Fatalf("found %v, error %v", ok, err)
	}
	if !strings.HasSuffix(g.Top.Path, ".scope") || g.Threads.Name() != "libvirt" || len(g.VCPUs) != 3 {
		t.Errorf("%+v", g)
	}
	if names := g.ThreadGroups(); names[3].Name() != "vcpu10" {
		t.Errorf("vCPUs go by name and not by number: %v", pathsOf(names))
	}
	if _, ok, err := root.GuestCgroupOf(78); ok || err != nil {
		t.Errorf("ssh is no VM: %v, error %v", ok, err)
	}
	if _, _, err := root.GuestCgroupOf(79); err == nil {
		t.Error("a process that is only in a cgroup v1 hierarchy was found in v2")
	}
	if _, err := files(t, map[string]string{"sys/fs/cgroup/cpuset/tasks": ""}).CgroupOf(1); !errors.Is(
		err,
		ErrNoCgroupV2,
	) {
		t.Errorf("without cgroup v2: error %v", err)
	}
}

func TestGuestIDOf(t *testing.T) {
	for name, want := range map[string]int{
		"qemu-1-web.libvirt-qemu": 1, `machine-qemu\x2d34\x2dweb.scope`: 34, "qemu-2-a-3.libvirt-qemu": 2,
		"qemu-web.libvirt-qemu": 0, "qemu--1.libvirt-qemu": 0, "session-1.scope": 0, "lxc-1-a.libvirt-lxc": 0,
		"machine-lxc\\x2d1\\x2da.scope": 0, "": 0,
	} {
		if id, ok := guestIDOf(name); (ok && id != want) || ok != (want > 0) {
			t.Errorf("%s: id %d, %v", name, id, ok)
		}
	}
}

func TestSetMemsWritesThreadGroupsOnly(t *testing.T) {
	root := systemdHost(t)
	if err := root.SetMems(t.Context(), 77, nodes("0")); err != nil {
		t.Fatal(err)
	}
	err := root.SetMems(t.Context(), 77,
		nodes("0-1")) // the files' "effective" stays 0: as if a group above allowed only node 0
	var differs *NotEffectiveError
	if !errors.As(err, &differs) || differs.Effective != "0" ||
		!strings.Contains(err.Error(), "already written: none") {
		t.Errorf("error %v", err)
	}
	g, _, err := root.GuestCgroupOf(77)
	if err != nil {
		t.Fatal(err)
	}
	if have, err := g.Emulator.Mems(); err != nil || !have.Equal(nodes("0-1")) {
		t.Errorf("emulator has %s, error %v", have, err)
	}
	if _, err := os.Stat(g.Top.file("cpuset.mems")); err == nil {
		t.Error("wrote to the scope, which libvirt and systemd own")
	}
}

func TestEmptyCPUSetIsRefused(t *testing.T) {
	root := files(t, map[string]string{"g/cpuset.mems": "0-3\n", "g/cpuset.cpus": "0-7\n"})
	g := Cgroup{string(root), "/g"}
	if _, err := g.SetMems(t.Context(), nodes("")); err == nil || !strings.Contains(err.Error(), "write all") {
		t.Errorf("error %v", err)
	}
	if _, err := g.SetCPUs(cpus("")); err == nil {
		t.Error("emptied cpuset.cpus")
	}
	if have, err := g.Mems(); err != nil || !have.Equal(nodes("0-3")) {
		t.Errorf("cpuset.mems is %s now, error %v", have, err)
	}
}

func TestSetMemsDoesNotWaitForEver(t *testing.T) {
	root := files(t, map[string]string{"g/cpuset.mems.effective": "0\n"})
	// opening it for writing blocks, as a migrating kernel does
	if err := unix.Mkfifo(root.path("g/cpuset.mems"), 0o644); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { // a reader lets the writer end
		f, err := os.OpenFile(root.path("g/cpuset.mems"), os.O_RDONLY|unix.O_NONBLOCK, 0)
		if err == nil {
			time.Sleep(50 * time.Millisecond)
			f.Close()
		}
	})
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Millisecond)
	defer cancel()
	_, err := Cgroup{string(root), "/g"}.SetMems(ctx, nodes("0"))
	if !errors.Is(err, context.DeadlineExceeded) || !strings.Contains(err.Error(), "will continue") {
		t.Errorf("error %v", err)
	}
}

func TestEnableControllerFromTheTop(t *testing.T) {
	root := files(t, map[string]string{
		"cgroup.subtree_control": "cpu memory\n", "machine/cgroup.subtree_control": "cpuset\n", "machine/vm/cgroup.procs": ""})
	if err := (Cgroup{string(root), "/machine/vm"}).EnableController("cpuset"); err != nil {
		t.Fatal(err)
	}
	if text, _ := root.word("cgroup.subtree_control"); !strings.HasPrefix(text, "+cpuset") {
		t.Errorf("at the top: %q", text)
	}
	if text, _ := root.word("machine/cgroup.subtree_control"); text != "cpuset" {
		t.Errorf("was enabled already, now %q", text)
	}
}

func TestControllerThatCannotBeEnabled(t *testing.T) {
	root := files(t, map[string]string{"cgroup.subtree_control/busy": "", "vm/cgroup.procs": ""})
	if err := (Cgroup{string(root), "/vm"}).EnableController("cpuset"); err == nil ||
		!strings.Contains(err.Error(), "subtree_control") {
		t.Errorf("error %v", err)
	}
	if why := whyNotEnabled(unix.EBUSY); !strings.Contains(why, "holds processes") {
		t.Error(why)
	}
	if why := whyNotEnabled(unix.EINVAL); !strings.Contains(why, "no such controller") {
		t.Error(why)
	}
}

func TestOwnGroupNames(t *testing.T) {
	for _, name := range []string{"", ".", "..", "a/b", "a\nb"} {
		if _, err := CreateOwn(t.Context(), t.TempDir(), name, cpus(""), nodes("0")); err == nil {
			t.Errorf("made a group named %q", name)
		}
	}
}

func TestOwnGroupsInUseAndNewOnesStay(t *testing.T) {
	root := files(t, map[string]string{"numavisor/used/cgroup.procs": "12\n"})
	if err := RemoveEmptyOwn(string(root)); err != nil {
		t.Fatal(err)
	}
	old := time.Now().Add(-time.Hour)
	for _, name := range []string{"numavisor/used", "numavisor/new"} {
		if err := os.MkdirAll(root.path(name), 0o755); err != nil {
			t.Fatal(err)
		}
		if name != "numavisor/new" {
			if err := os.Chtimes(root.path(name), old, old); err != nil {
				t.Fatal(err)
			}
		}
	}
	if err := RemoveEmptyOwn(string(root)); err != nil {
		t.Error(err)
	}
	for _, name := range []string{"numavisor/used", "numavisor/new"} {
		if _, err := os.Stat(root.path(name)); err != nil {
			t.Errorf("%s was removed", name)
		}
	}
	if err := RemoveEmptyOwn(t.TempDir()); err != nil {
		t.Errorf("nothing was ever made: %v", err)
	}
}

func TestCPUStatAndPressure(t *testing.T) {
	root, pid := captured(t, "memfd")
	g, _, err := root.GuestCgroupOf(pid)
	if err != nil {
		t.Fatal(err)
	}
	stat, err := g.Top.CPUStat()
	if err != nil || stat.Usage != 3492843*time.Microsecond || stat.User != 1155874*time.Microsecond ||
		stat.System != 2336968*time.Microsecond {
		t.Errorf("%+v, error %v", stat, err)
	}
	some, full, err := g.Top.CPUPressure()
	if err != nil || some.Over10s != 0.0012 || full.Total != 39095*time.Microsecond {
		t.Errorf("some %+v full %+v, error %v", some, full, err)
	}
	if _, err := ParseCPUStat([]byte("usage_usec many\n")); err == nil {
		t.Error("a word passed as a number")
	}
	if _, _, err := ParsePressure([]byte("some avg10=x\n")); err == nil {
		t.Error("a word passed as a share")
	}
	if s, err := ParseCPUStat([]byte("usage_usec 9223372036854775807\n")); err != nil || s.Usage < 0 {
		t.Errorf("usage %v, error %v", s.Usage, err)
	}
}
