package linux

import (
	"errors"
	"os"
	"strings"
	"testing"
)

const machineGroup = "sys/fs/cgroup/machine/qemu-1-gz.libvirt-qemu"

// narrowed is a host whose VM, process 77, is kept to node 0 by the groups that are given.
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

// Somebody wrote 0 into the VM's own group: libvirt widens only the groups below it.
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

// A slice above belongs to others: the error names its file, its value and the command.
func TestAllowMems_NamesTheGroupAbove(t *testing.T) {
	root := narrowed(t, "sys/fs/cgroup/machine")
	err := root.AllowMems(t.Context(), 77, nodes("3"))
	var limit *MemsLimitError
	if !errors.As(err, &limit) {
		t.Fatalf("%v; wanted a MemsLimitError", err)
	}
	file := root.path("sys/fs/cgroup/machine/cpuset.mems")
	if want := "echo 0,3 > " + file; limit.File != file || limit.Allowed.String() != "0" ||
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
