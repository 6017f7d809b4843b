package local_test

import (
	"context"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/numavisor/numavisor/internal/fleet"
	"github.com/numavisor/numavisor/internal/guest"
	"github.com/numavisor/numavisor/internal/host/local"
	"github.com/numavisor/numavisor/internal/topology"
	"github.com/numavisor/numavisor/internal/topology/topologytest"
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

// A clone refers to its base, and goes if the VM is not created. It belongs to its VM: that VM gets it
// again as it is, and no other VM gets it.
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
	v.Created = time.Unix(1e9, 0)
	_, undo, err := m.Prepare(t.Context(), v)
	if err != nil {
		t.Fatal(err)
	}
	out, err := exec.CommandContext(t.Context(), "qemu-img", "info", path).CombinedOutput()
	if err != nil || !strings.Contains(string(out), base) || !strings.Contains(string(out), "8 MiB") {
		t.Errorf("the clone is %s, %v", out, err)
	}
	// A resize, or a daemon that was killed, prepares the same VM again.
	if err := os.WriteFile(path, []byte("data"), 0o600); err != nil {
		t.Fatal(err)
	}
	_, undoSecond, err := m.Prepare(t.Context(), v)
	if err == nil {
		err = undoSecond()
	}
	if err != nil {
		t.Errorf("preparing the same VM again: %v", err)
	}
	other := newVM(v.Machine)
	other.Created = v.Created.Add(time.Second)
	if _, _, err := m.Prepare(t.Context(), other); err == nil {
		t.Error("a VM gets the clone of an earlier VM of its name")
	}
	if data, err := os.ReadFile(path); string(data) != "data" {
		t.Errorf("the clone of the VM was changed: %q, %v", data, err)
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
	text := definition(t, m, newVM(fleet.Machine{Disks: []fleet.Disk{{Pool: "p", Volume: "v"}}}))
	if !strings.Contains(text, "/pools/p/v") {
		t.Errorf("definition %s", text)
	}
	for _, d := range []fleet.Disk{{Pool: "p"}, {Volume: "v"}, {Pool: "p", Volume: "v", Path: "/x"}, {}} {
		if _, _, err := m.Prepare(t.Context(), newVM(fleet.Machine{Disks: []fleet.Disk{d}})); err == nil {
			t.Errorf("%+v is accepted", d)
		}
	}
}

// definition returns the domain XML of a VM on node 0.
func definition(t *testing.T, m *local.Machines, v *fleet.VM) string {
	t.Helper()
	render, _, err := m.Prepare(t.Context(), v)
	if err != nil {
		t.Fatal(err)
	}
	nodes := topology.SetOf[topology.NodeID](0)
	placed := guest.Placement{Guest: v.Name, Nodes: nodes, MemoryMode: guest.MemoryStrict,
		CPUMode: guest.CPUNone, VCPUs: []guest.VCPU{{ID: 0}},
		Cells: []guest.Cell{{Nodes: nodes, VCPUs: topology.SetOf[guest.VCPUID](0), Memory: v.Spec.Memory}}}
	r, err := render(guest.Intent{Spec: v.Spec, Placement: placed})
	if err != nil {
		t.Fatal(err)
	}
	return string(r.Definition.Text)
}

// What a guest recognizes its machine and its network by does not change when its VM is defined
// again, for example with another size or on another host. No two VMs have the same.
func TestMachines_GiveAVMItsIdentity(t *testing.T) {
	m := &local.Machines{Images: []string{t.TempDir()}}
	identity := func(change func(*fleet.VM)) []string {
		v := newVM(fleet.Machine{Network: "default"})
		v.Created = time.Unix(1e9, 0)
		change(v)
		text := definition(t, m, v)
		found := regexp.MustCompile(`<uuid>.*</uuid>|<mac address='52:54:00:.*'/>`).FindAllString(text, -1)
		if len(found) != 2 {
			t.Fatalf("UUID and MAC address are %q in %s", found, text)
		}
		return found
	}
	before := identity(func(*fleet.VM) {})
	for _, change := range []func(*fleet.VM){
		func(v *fleet.VM) { v.Spec.Memory *= 2 },
		func(v *fleet.VM) { v.Host, v.Generation = "other", 7 },
		func(v *fleet.VM) { v.Created = v.Created.UTC() },
	} {
		if now := identity(change); !slices.Equal(now, before) {
			t.Errorf("the VM has %q, it had %q", now, before)
		}
	}
	for _, change := range []func(*fleet.VM){
		func(v *fleet.VM) { v.Name, v.Spec.Name = "web2", "web2" },
		func(v *fleet.VM) { v.Created = v.Created.Add(time.Nanosecond) },
	} {
		if now := identity(change); now[0] == before[0] || now[1] == before[1] {
			t.Errorf("another VM has %q, as %q", now, before)
		}
	}
}

// On a Xen host the same rules for files hold, and the definition is an xl configuration, which xl does not store. A
// machine of another type is refused, and nothing is left of it.
func TestMachines_OnXen(t *testing.T) {
	images := t.TempDir()
	m := &local.Machines{Images: []string{images}, Definitions: local.XenDefinitions}
	kernel := filepath.Join(images, "vmlinuz")
	v := newVM(fleet.Machine{Type: "xen", Kernel: kernel, Network: "xenbr0",
		Disks: []fleet.Disk{{Path: filepath.Join(images, "web.raw")}}})
	var texts []string
	for range 2 {
		render, _, err := m.Prepare(t.Context(), v)
		if err != nil {
			t.Fatal(err)
		}
		made, err := render(guest.Intent{Spec: v.Spec, Placement: guest.Placement{Guest: "web", VCPUs: []guest.VCPU{{}}}})
		if err != nil || !made.Transient || made.Definition.Intent == nil {
			t.Fatalf("%+v, %v", made, err)
		}
		texts = append(texts, string(made.Definition.Text))
	}
	if texts[0] != texts[1] || !strings.Contains(texts[0], "type = \"pvh\"\nkernel = \""+kernel) ||
		!strings.Contains(texts[0], "bridge=xenbr0") || !strings.Contains(texts[0], "uuid = ") {
		t.Errorf("the definition is not the same each time, or not whole:\n%s\n%s", texts[0], texts[1])
	}
	for says, machine := range map[string]fleet.Machine{
		"type is kvm":   {Kernel: kernel},
		"not in a fold": {Type: "xen", Kernel: "/etc/shadow"},
		"volumes":       {Type: "xen", Disks: []fleet.Disk{{Pool: "p", Volume: "v"}}},
	} {
		m.Volume = func(context.Context, string, string) (string, error) { return images + "/x", nil }
		if _, _, err := m.Prepare(t.Context(), newVM(machine)); err == nil || !strings.Contains(err.Error(), says) {
			t.Errorf("%+v: error %v, want one that says %q", machine, err, says)
		}
	}
}

// The seed of cloud-init is an ISO 9660 image with the label and the files that its data source NoCloud looks for,
// under their own names (Joliet and Rock Ridge). It goes if the VM is not created.
func TestMachines_Seed(t *testing.T) {
	for _, program := range []string{"genisoimage", "isoinfo"} {
		if _, err := exec.LookPath(program); err != nil {
			topologytest.Missing(t, "%v: install genisoimage to test the seed of cloud-init", err)
		}
	}
	images := t.TempDir()
	m := &local.Machines{Images: []string{images}}
	const data = "#cloud-config\npassword: \"secret\"\n"
	v := newVM(fleet.Machine{CloudInit: data})
	v.Created = time.Date(2026, 11, 24, 1, 2, 3, 0, time.UTC)
	render, undo, err := m.Prepare(t.Context(), v)
	if err != nil {
		t.Fatal(err)
	}
	seed := filepath.Join(images, "web-seed.iso")
	node := topology.SetOf[topology.NodeID](0)
	cell := guest.Cell{VCPUs: topology.SetOf[guest.VCPUID](0), Memory: topology.GiB, Nodes: node}
	intent := guest.Intent{Spec: v.Spec, Placement: guest.Placement{Guest: "web", Nodes: node, Cells: []guest.Cell{cell},
		CPUMode: guest.CPURange, VCPUs: []guest.VCPU{{ID: 0, CPUs: topology.SetOf[topology.CPUID](0)}},
		Emulator: topology.SetOf[topology.CPUID](0), MemoryMode: guest.MemoryPreferred}}
	rendered, err := render(intent)
	if err != nil || !strings.Contains(string(rendered.Definition.Text), seed) {
		t.Errorf("the definition does not have the seed: %v\n%s", err, rendered.Definition.Text)
	}
	isoinfo := func(args ...string) string {
		t.Helper()
		out, err := exec.CommandContext(t.Context(), "isoinfo", append([]string{"-i", seed}, args...)...).CombinedOutput()
		if err != nil {
			t.Fatalf("isoinfo %v: %v: %s", args, err, out)
		}
		return string(out)
	}
	if label := isoinfo("-d"); !strings.Contains(label, "Volume id: cidata\n") {
		t.Errorf("the label is not cidata:\n%s", label)
	}
	const meta = "instance-id: \"web-20261124010203\"\nlocal-hostname: \"web\"\n"
	for _, names := range []string{"-J", "-R"} {
		if got := isoinfo(names, "-x", "/user-data"); got != data {
			t.Errorf("with %s user-data is %q, want %q", names, got, data)
		}
		if got := isoinfo(names, "-x", "/meta-data"); got != meta {
			t.Errorf("with %s meta-data is %q, want %q", names, got, meta)
		}
	}
	if info, err := os.Stat(seed); err != nil || info.Mode().Perm()&0o077 != 0 {
		t.Errorf("others may read the seed, which may have passwords: %v, %v", info.Mode(), err)
	}
	if err := undo(); err != nil {
		t.Error(err)
	}
	if _, err := os.Stat(seed); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("the seed of a VM that was not created is there: %v", err)
	}
	// The target of a migration makes it too, once.
	for range 2 {
		if err := m.MakeSeed(t.Context(), v); err != nil {
			t.Fatal(err)
		}
	}
	if got := isoinfo("-R", "-x", "/meta-data"); got != meta {
		t.Errorf("on the target of a migration meta-data is %q, want %q", got, meta)
	}
	if err := m.MakeSeed(t.Context(), newVM(fleet.Machine{})); err != nil {
		t.Errorf("a VM without cloud-init: %v", err)
	}
}
