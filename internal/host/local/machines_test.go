package local_test

import (
	"context"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/numavisor/numavisor/internal/fleet"
	"github.com/numavisor/numavisor/internal/guest"
	"github.com/numavisor/numavisor/internal/host/local"
	"github.com/numavisor/numavisor/internal/topology"
)

func newVM(m fleet.Machine) *fleet.VM {
	return &fleet.VM{Name: "web", Spec: guest.Spec{Name: "web", VCPUs: 1, Memory: topology.GiB}, Machine: m}
}

// Users of the fleet name paths of the host: only those in the folders for VMs' files are used.
func TestMachines_StayInTheirFolders(t *testing.T) {
	images, other := t.TempDir(), t.TempDir()
	if err := os.Symlink(other, filepath.Join(images, "link")); err != nil {
		t.Fatal(err)
	}
	m := &local.Machines{Images: []string{images}}
	for path, ok := range map[string]bool{
		filepath.Join(images, "web.raw"):         true,
		filepath.Join(images, "link", "web.raw"): false,
		filepath.Join(other, "web.raw"):          false,
		images + "/../web.raw":                   false,
		images:                                   false,
		"/etc/shadow":                            false,
		"web.raw":                                false,
	} {
		for _, machine := range []fleet.Machine{{Disks: []fleet.Disk{{Path: path}}}, {Kernel: path},
			{SerialLog: path}} {
			_, _, err := m.Prepare(t.Context(), newVM(machine))
			if (err == nil) != ok {
				t.Errorf("%+v: error %v, allowed %v", machine, err, ok)
			}
		}
	}
}

// A clone refers to its base, is not made over a file, and goes if the VM is not created.
func TestMachines_Clone(t *testing.T) {
	if _, err := exec.LookPath("qemu-img"); err != nil {
		t.Skip("needs qemu-img")
	}
	images := t.TempDir()
	base, path := filepath.Join(images, "base.raw"), filepath.Join(images, "web.qcow2")
	if err := os.WriteFile(base, make([]byte, 1<<20), 0o600); err != nil {
		t.Fatal(err)
	}
	m := &local.Machines{Images: []string{images}}
	v := newVM(fleet.Machine{Disks: []fleet.Disk{{Path: path, Base: base, Size: 8 << 20}}})
	_, undo, err := m.Prepare(t.Context(), v)
	if err != nil {
		t.Fatal(err)
	}
	out, err := exec.CommandContext(t.Context(), "qemu-img", "info", path).CombinedOutput()
	if err != nil || !strings.Contains(string(out), base) || !strings.Contains(string(out), "8 MiB") {
		t.Errorf("the clone is %s, %v", out, err)
	}
	if _, _, err := m.Prepare(t.Context(), v); err == nil {
		t.Error("a clone overwrites a file")
	}
	if _, err := os.Stat(path); err != nil {
		t.Errorf("a refused clone removed the file: %v", err)
	}
	if err := undo(); err != nil {
		t.Fatal(err)
	}
	if _, err := os.Stat(path); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("the clone is still there: %v", err)
	}
}

// A volume of a pool is found by libvirt; a disk is either that or a path.
func TestMachines_Volume(t *testing.T) {
	m := &local.Machines{Images: []string{t.TempDir()},
		Volume: func(_ context.Context, pool, volume string) (string, error) {
			return "/pools/" + pool + "/" + volume, nil
		}}
	render, _, err := m.Prepare(t.Context(), newVM(fleet.Machine{Disks: []fleet.Disk{{Pool: "p", Volume: "v"}}}))
	if err != nil {
		t.Fatal(err)
	}
	nodes := topology.SetOf[topology.NodeID](0)
	placed := guest.Placement{Guest: "web", Nodes: nodes, MemoryMode: guest.MemoryStrict,
		CPUMode: guest.CPUNone, VCPUs: []guest.VCPU{{ID: 0}},
		Cells: []guest.Cell{{Nodes: nodes, VCPUs: topology.SetOf[guest.VCPUID](0), Memory: topology.GiB}}}
	r, err := render(guest.Intent{Spec: newVM(fleet.Machine{}).Spec, Placement: placed})
	if err != nil || !strings.Contains(string(r.Definition.Text), "/pools/p/v") {
		t.Errorf("definition %s, error %v", r.Definition.Text, err)
	}
	for _, d := range []fleet.Disk{{Pool: "p"}, {Volume: "v"}, {Pool: "p", Volume: "v", Path: "/x"}, {}} {
		if _, _, err := m.Prepare(t.Context(), newVM(fleet.Machine{Disks: []fleet.Disk{d}})); err == nil {
			t.Errorf("%+v is accepted", d)
		}
	}
}
