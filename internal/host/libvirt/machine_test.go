package libvirt

import (
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/numavisor/numavisor/internal/guest"
	"github.com/numavisor/numavisor/internal/topology"
)

// newGuest gives spec and placement of a guest with two cells on nodes 1 and 2.
func newGuest(vcpus int, memory topology.Bytes) (guest.Spec, guest.Placement) {
	s := guest.Spec{Name: "web1", VCPUs: vcpus, Memory: memory}
	p := guest.Placement{
		Guest:      "web1",
		Nodes:      nodeSet("1-2"),
		Visible:    true,
		MemoryMode: guest.MemoryPreferred,
		CPUMode:    guest.CPURange,
		Movable:    true,
	}
	for i := range 2 {
		p.Cells = append(
			p.Cells,
			guest.Cell{
				ID:        guest.CellID(i),
				Memory:    memory / 2,
				Nodes:     topology.SetOf(topology.NodeID(i + 1)),
				Distances: []int{10 + i*6, 16 - i*6},
			},
		)
	}
	for v := range vcpus {
		cell := v * 2 / vcpus
		p.Cells[cell].VCPUs = p.Cells[cell].VCPUs.With(guest.VCPUID(v))
		p.VCPUs = append(p.VCPUs,
			guest.VCPU{ID: guest.VCPUID(v), CPUs: topology.SetOf(topology.CPUID(cell*4+4), topology.CPUID(cell*4+5))})
	}
	return s, p
}

// TestDomainXML shows the XML of a guest with everything, its metadata left
// out. It gets no memfd: the assigned device pins its memory.
func TestDomainXML(t *testing.T) {
	s, p := newGuest(4, 2*topology.GiB)
	s.CPU.IOThreads, p.IOThreads, p.IOThread, p.Emulator = 1, 1, cpus("4"), cpus("4-9")
	s.Devices = []guest.DeviceSpec{{Address: "0000:3b:00.1", Passthrough: true}, {Address: "0000:3b:00.0"}}
	got, err := DomainXML(Metadata{Spec: s, Placement: p}, Machine{
		Kernel: "/boot/vmlinuz", Initrd: "/boot/rd.gz", Cmdline: "console=ttyS0 a=\"b<c\"",
		Emulator: "/usr/bin/qemu-system-x86_64",
		Disks:    []Disk{{Path: "/images/x.qcow2"}, {Path: "/dev/vg/data", ReadOnly: true}},
		Network:  "default", SerialLog: "/var/log/web1.log",
	})
	if err != nil {
		t.Fatal(err)
	}
	text := string(got)
	from, to := strings.Index(text, "  <metadata>"), strings.Index(text, "  <memory ")
	const want = `<domain type='kvm'>
  <name>web1</name>
  <memory unit='KiB'>2097152</memory>
  <vcpu placement='static'>4</vcpu>
  <iothreads>1</iothreads>
  <cputune>
    <vcpupin vcpu='0' cpuset='4-5'/>
    <vcpupin vcpu='1' cpuset='4-5'/>
    <vcpupin vcpu='2' cpuset='8-9'/>
    <vcpupin vcpu='3' cpuset='8-9'/>
    <emulatorpin cpuset='4-9'/>
    <iothreadpin iothread='1' cpuset='4'/>
  </cputune>
  <numatune>
    <memory mode='strict' nodeset='1-2'/>
    <memnode cellid='0' mode='preferred' nodeset='1'/>
    <memnode cellid='1' mode='preferred' nodeset='2'/>
  </numatune>
  <os>
    <type arch='x86_64' machine='q35'>hvm</type>
    <kernel>/boot/vmlinuz</kernel>
    <initrd>/boot/rd.gz</initrd>
    <cmdline>console=ttyS0 a="b&lt;c"</cmdline>
  </os>
  <features>
    <acpi/>
    <apic/>
  </features>
  <cpu mode='host-passthrough'>
    <topology sockets='2' cores='2' threads='1'/>
    <numa>
      <cell id='0' cpus='0-1' memory='1048576' unit='KiB'>
        <distances>
          <sibling id='0' value='10'/>
          <sibling id='1' value='16'/>
        </distances>
      </cell>
      <cell id='1' cpus='2-3' memory='1048576' unit='KiB'>
        <distances>
          <sibling id='0' value='16'/>
          <sibling id='1' value='10'/>
        </distances>
      </cell>
    </numa>
  </cpu>
  <clock offset='utc'/>
  <on_crash>destroy</on_crash>
  <devices>
    <emulator>/usr/bin/qemu-system-x86_64</emulator>
    <disk type='file' device='disk'>
      <driver name='qemu' type='qcow2' discard='unmap' iothread='1'/>
      <source file='/images/x.qcow2'/>
      <target dev='vda' bus='virtio'/>
    </disk>
    <disk type='block' device='disk'>
      <driver name='qemu' type='raw' discard='unmap' iothread='1'/>
      <source dev='/dev/vg/data'/>
      <target dev='vdb' bus='virtio'/>
      <readonly/>
    </disk>
    <controller type='usb' model='none'/>
    <interface type='network'>
      <source network='default'/>
      <model type='virtio'/>
    </interface>
    <serial type='file'>
      <source path='/var/log/web1.log'/>
    </serial>
    <hostdev mode='subsystem' type='pci' managed='yes'>
      <source>
        <address domain='0x0000' bus='0x3b' slot='0x00' function='0x1'/>
      </source>
    </hostdev>
    <memballoon model='none'/>
  </devices>
</domain>
`
	if diff := cmp.Diff(want, text[:from]+text[to:]); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
	d := mustParse(t, got)
	if d.Intent == nil || cmp.Diff(d.Intent.Spec, s) != "" ||
		cmp.Diff(d.Config.Devices, []string{"0000:3b:00.1"}) != "" {
		t.Errorf("reads back as %+v", d)
	}
}

func TestDomainXMLSockets(t *testing.T) {
	for _, c := range []struct {
		name, want string
		change     func(*guest.Placement)
	}{
		{"a socket a cell", "sockets='2' cores='2'", func(*guest.Placement) {}},
		{"hidden cells", "sockets='1' cores='4'", func(p *guest.Placement) { p.Visible = false }},
		{"uneven cells", "sockets='4' cores='1'", func(p *guest.Placement) {
			p.Cells[0].VCPUs,
				p.Cells[1].VCPUs = vcpuSet("0-2"), vcpuSet("3")
		}},
		{"interleaved vCPUs", "sockets='4' cores='1'", func(p *guest.Placement) {
			p.Cells[0].VCPUs,
				p.Cells[1].VCPUs = vcpuSet("0,2"), vcpuSet("1,3")
		}},
	} {
		s, p := newGuest(4, topology.GiB)
		c.change(&p)
		got, err := DomainXML(Metadata{Spec: s, Placement: p}, Machine{})
		if err != nil || !strings.Contains(string(got), c.want) {
			t.Errorf("%s: no %q, %v in\n%s", c.name, c.want, err, got)
		}
	}
}

// A guest that hands CPUs over sees the host's cores and caches, starts on the CPUs of its
// minimum, and has a port for its agent.
func TestDomainXML_Mirror(t *testing.T) {
	s, p := newGuest(8, 2*topology.GiB)
	s.CPU.Sharing, p.CPUMode = guest.SharingHandoff, guest.CPUHandoff
	p.Handoff = &guest.Handoff{Home: 1, Min: 2, Weight: 100, First: cpus("4-5"),
		Seen: guest.CPUTopology{Sockets: 2, Dies: 2, Cores: 1, Threads: 2}}
	for v := range p.VCPUs {
		p.VCPUs[v].CPUs = topology.SetOf(topology.CPUID(4 + v))
	}
	got, err := DomainXML(Metadata{Spec: s, Placement: p}, Machine{})
	if err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{
		"<topology sockets='2' dies='2' cores='1' threads='2'/>", "<cache mode='passthrough'/>",
		"<vcpupin vcpu='0' cpuset='4'/>", "<vcpupin vcpu='1' cpuset='5'/>", "<vcpupin vcpu='7' cpuset='4-5'/>",
		"<target type='virtio' name='org.numavisor.guest.0'/>", "<sibling id='1' value='16'/>",
	} {
		if !strings.Contains(strings.ReplaceAll(string(got), `"`, "'"), want) {
			t.Errorf("%s is missing in:\n%s", want, got)
		}
	}
}

func TestDomainXMLRefuses(t *testing.T) {
	for _, c := range []struct {
		says   string
		change func(*guest.Spec, *Machine)
	}{
		{"name", func(s *guest.Spec, _ *Machine) { s.Name = "" }},
		{"name", func(s *guest.Spec, _ *Machine) { s.Name = "a/b" }},
		{"control characters", func(s *guest.Spec, m *Machine) { m.Kernel, m.Cmdline = "/k", "a\x01b" }},
		{`type="xen"`, func(_ *guest.Spec, m *Machine) { m.Type = "xen" }},
		{`arch="vax"`, func(_ *guest.Spec, m *Machine) { m.Arch = "vax" }},
		{`CPU="486"`, func(_ *guest.Spec, m *Machine) { m.CPU = "486" }},
		{"need a kernel", func(_ *guest.Spec, m *Machine) { m.Initrd = "/rd" }},
		{`"x.qcow2" is relative`, func(_ *guest.Spec, m *Machine) { m.Disks = []Disk{{Path: "x.qcow2"}} }},
		{"disk 0 has no path", func(_ *guest.Spec, m *Machine) { m.Disks = make([]Disk, 1) }},
		{"up to 26", func(_ *guest.Spec, m *Machine) { m.Disks = make([]Disk, 27) }},
		{"whole number of MiB", func(s *guest.Spec, _ *Machine) { s.Memory += topology.KiB }},
		{"vCPUs", func(s *guest.Spec, _ *Machine) { s.VCPUs = 3 }},
		{"memory", func(s *guest.Spec, _ *Machine) { s.Memory /= 2 }},
	} {
		s, p := newGuest(4, topology.GiB)
		var m Machine
		c.change(&s, &m)
		p.Guest = s.Name
		if _, err := DomainXML(Metadata{Spec: s, Placement: p}, m); err == nil ||
			!strings.Contains(err.Error(), c.says) {
			t.Errorf("wanted an error with %q, got %v", c.says, err)
		}
	}
}

// TestCannot: Cannot lists the parts that no domain XML provides, and no others.
func TestCannot(t *testing.T) {
	for _, c := range []struct {
		name, want string
		change     func(*guest.Placement)
	}{
		{"preferred", "", func(*guest.Placement) {}},
		{"strict", "", func(p *guest.Placement) { p.MemoryMode = guest.MemoryStrict }},
		{"interleave", "", func(p *guest.Placement) {
			p.MemoryMode = guest.MemoryInterleave
			p.Cells[0].Nodes, p.Cells[1].Nodes = p.Nodes, p.Nodes
		}},
		{"restrictive cells", "each cell's memory on its node",
			func(p *guest.Placement) { p.MemoryMode = guest.MemoryRestrictive }},
		{"hidden cells", "each cell's memory on its node", func(p *guest.Placement) { p.Visible = false }},
		{"hidden interleave", "the outer limit to nodes 1-2", func(p *guest.Placement) {
			p.Visible, p.MemoryMode = false, guest.MemoryInterleave
			p.Cells[0].Nodes, p.Cells[1].Nodes = p.Nodes, p.Nodes
		}},
		{"none", "", func(p *guest.Placement) { p.MemoryMode = guest.MemoryNone }},
		{"far emulator", "the emulator's pin in the configuration", func(p *guest.Placement) {
			p.Immediate,
				p.Emulator = true, cpus("0")
		}},
	} {
		s, p := newGuest(4, topology.GiB)
		c.change(&p)
		xml, err := DomainXML(Metadata{Spec: s, Placement: p}, Machine{})
		if err != nil {
			t.Fatal(err)
		}
		var got []string
		for _, r := range Cannot(mustParse(t, xml), p) {
			got = append(got, r.What)
		}
		if strings.Join(got, ", ") != c.want {
			t.Errorf("%s: cannot %q, wanted %q", c.name, got, c.want)
		}
	}
}
