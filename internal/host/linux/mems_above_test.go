package linux

import (
	"errors"
	"maps"
	"os"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/numavisor/numavisor/internal/inventory"
)

const machineGroup = "sys/fs/cgroup/machine/qemu-1-gz.libvirt-qemu"

// narrowed is a host whose VM, process 77, is restricted to node 0 by the given
// groups.
func narrowed(t *testing.T, limited ...string) Root {
	t.Helper()
	contents := map[string]string{
		"proc/77/cgroup":                        "0::/machine/qemu-1-gz.libvirt-qemu/emulator\n",
		"sys/fs/cgroup/cgroup.controllers":      "cpuset memory\n",
		"sys/fs/cgroup/machine/cpuset.mems":     "\n",
		machineGroup + "/cpuset.mems":           "0-3\n",
		machineGroup + "/emulator/cpuset.mems":  "0-3\n",
		machineGroup + "/emulator/cgroup.procs": "77\n",
		machineGroup + "/cpuset.mems.effective": "0,3\n",
		"sys/fs/cgroup/cpuset.mems.effective":   "0-3\n",
	}
	for _, g := range limited {
		contents[g+"/cpuset.mems"] = "0\n"
	}
	return files(t, contents)
}

// 0 was written into the VM's own group from outside: libvirt widens only the
// groups below it.
func TestAllowMems_WidensTheGroupOfTheVM(t *testing.T) {
	root := narrowed(t, machineGroup)
	if err := root.AllowMems(t.Context(), 77, nodes("3")); err != nil {
		t.Fatal(err)
	}
	if text, err := os.ReadFile(root.path(machineGroup + "/cpuset.mems")); err != nil ||
		strings.TrimSpace(string(text)) != "0,3" {
		t.Errorf("the VM's group has %q, %v; wanted 0,3", text, err)
	}
}

// A slice above is not Numavisor's: the error names its file, its value and the
// command.
func TestAllowMems_NamesTheGroupAbove(t *testing.T) {
	root := narrowed(t, "sys/fs/cgroup/machine")
	err := root.AllowMems(t.Context(), 77, nodes("3"))
	var limit *inventory.NodeLimitError
	if !errors.As(err, &limit) {
		t.Fatalf("%v; wanted a inventory.NodeLimitError", err)
	}
	file := root.path("sys/fs/cgroup/machine/cpuset.mems")
	if want := "echo 0,3 > " + file; limit.File != file || limit.Nodes.String() != "0" ||
		!strings.Contains(err.Error(), want) {
		t.Errorf("%v; wanted %q in it", err, want)
	}
	if text, err := os.ReadFile(file); err != nil || string(text) != "0\n" {
		t.Errorf("the group above has %q, %v; wanted it unchanged", text, err)
	}
}

func TestAllowMems_ChangesNothingThatAllowsTheNodes(t *testing.T) {
	root := narrowed(t)
	if err := root.AllowMems(t.Context(), 77, nodes("1,3")); err != nil {
		t.Fatal(err)
	}
	if text, err := os.ReadFile(root.path(machineGroup + "/cpuset.mems")); err != nil || string(text) != "0-3\n" {
		t.Errorf("the VM's group has %q, %v; wanted it unchanged", text, err)
	}
}

// A VM may be widened by Numavisor from its own group down: only what is above
// limits it. A process without libvirt gets a group below /numavisor.
func TestNodeLimits(t *testing.T) {
	const above = "sys/fs/cgroup/machine"
	for name, c := range map[string]struct {
		files map[string]string
		want  []string // file below the root, and its value
	}{
		"no limit":    {nil, nil},
		"VM's group":  {map[string]string{machineGroup + "/cpuset.mems": "0\n"}, nil},
		"group above": {map[string]string{above + "/cpuset.mems": "0-1\n"}, []string{above + "/cpuset.mems", "0-1"}},
		"other process": {map[string]string{"proc/77/cgroup": "0::/user.slice\n",
			"sys/fs/cgroup/user.slice/cpuset.mems": "0\n"}, nil},
		"own process": {map[string]string{"proc/77/cgroup": "0::/numavisor/pid-77\n",
			"sys/fs/cgroup/numavisor/cpuset.mems": "0\n", "sys/fs/cgroup/numavisor/pid-77/cpuset.mems": "1\n"},
			[]string{"sys/fs/cgroup/numavisor/cpuset.mems", "0"}},
		"process that would come below a limit": {map[string]string{"proc/77/cgroup": "0::/user.slice\n",
			"sys/fs/cgroup/numavisor/cpuset.mems": "1\n"},
			[]string{"sys/fs/cgroup/numavisor/cpuset.mems", "1"}},
		"slices": {map[string]string{
			"proc/77/cgroup": "0::/machine.slice/machine-a.slice/machine-qemu\\x2d1\\x2dgz.scope/libvirt/emulator\n",
			"sys/fs/cgroup/machine.slice/cpuset.mems":                                               "0-2\n",
			"sys/fs/cgroup/machine.slice/machine-a.slice/cpuset.mems":                               "0\n",
			`sys/fs/cgroup/machine.slice/machine-a.slice/machine-qemu\x2d1\x2dgz.scope/cpuset.mems`: "0\n",
		}, []string{"sys/fs/cgroup/machine.slice/cpuset.mems", "0-2",
			"sys/fs/cgroup/machine.slice/machine-a.slice/cpuset.mems", "0"}},
	} {
		contents := map[string]string{
			"proc/77/cgroup":                   "0::/machine/qemu-1-gz.libvirt-qemu/emulator\n",
			"sys/fs/cgroup/cgroup.controllers": "cpuset memory\n",
		}
		maps.Copy(contents, c.files)
		root := files(t, contents)
		limits, err := root.NodeLimits(77)
		if err != nil {
			t.Errorf("%s: %v", name, err)
		}
		var want []inventory.NodeLimit
		for i := 0; i < len(c.want); i += 2 {
			want = append(want, inventory.NodeLimit{File: root.path(c.want[i]), Nodes: nodes(c.want[i+1])})
		}
		if diff := cmp.Diff(want, limits); diff != "" {
			t.Errorf("%s:\n%s", name, diff)
		}
	}
}

func TestNodeLimits_WithoutCgroupV2(t *testing.T) {
	root := files(t, map[string]string{"proc/77/cgroup": "3:cpuset:/machine\n"})
	if limits, err := root.NodeLimits(77); err != nil || len(limits) > 0 {
		t.Errorf("%v, %v; want none", limits, err)
	}
}

func TestNodeLimits_RefusesWhatIsNoList(t *testing.T) {
	root := narrowed(t)
	if err := os.WriteFile(root.path("sys/fs/cgroup/machine/cpuset.mems"), []byte("zero\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := root.NodeLimits(77); err == nil || !strings.Contains(err.Error(), "cpuset.mems") {
		t.Errorf("%v; want an error that names cpuset.mems", err)
	}
}
