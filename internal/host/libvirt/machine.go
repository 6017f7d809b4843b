package libvirt

import (
	"cmp"
	"errors"
	"fmt"
	"path/filepath"
	"strconv"
	"strings"
	"unicode"

	"github.com/numavisor/numavisor/internal/guest"
	"github.com/numavisor/numavisor/internal/topology"
)

// Machine is the input for a new guest in addition to spec and placement. The
// zero value is a KVM guest without disks and network, with its serial port on
// a pty.
type Machine struct {
	Type     string // hypervisor type: kvm (default) or qemu (software emulation)
	Arch     string // x86_64 (default) or aarch64
	CPU      string // CPU mode: host-passthrough (default for kvm), host-model, maximum (default for qemu)
	UEFI     bool   // boot by UEFI firmware instead of BIOS (aarch64 always does)
	Emulator string // path of the QEMU binary; empty: libvirt's choice

	// Direct boot of a Linux kernel; paths on the host.
	Kernel, Initrd, Cmdline string

	Disks     []Disk
	Network   string // name of a libvirt network; empty: none
	UUID, MAC string // of the guest and of its network interface; empty: libvirt chooses
	SerialLog string // file for the output of the guest's serial port; empty: a pty
}

// Disk is a disk image or block device of the host.
type Disk struct {
	Path     string
	Format   string // qcow2, raw, ...; empty: by the path's suffix, raw for an unknown one
	ReadOnly bool
}

// machineTypes are QEMU's current board models.
var machineTypes = map[string]string{"x86_64": "q35", "aarch64": "virt"}

// DomainXML returns the complete XML of a new guest, bound to its placement,
// with the intent in its metadata. It has only the requested devices.
func DomainXML(intent Metadata, m Machine) ([]byte, error) {
	spec, p := intent.Spec, intent.Placement
	if err := m.Check(spec); err != nil {
		return nil, err
	}
	m = m.withDefaults()
	features := []tag{{name: "acpi"}}
	if m.Arch == "x86_64" {
		features = append(features, tag{name: "apic"})
	}
	domain := tag{name: "domain", attrs: []pair{{"type", m.Type}}, children: []tag{
		{name: "name", text: spec.Name},
	}}
	if m.UUID != "" {
		domain.children = append(domain.children, tag{name: "uuid", text: m.UUID})
	}
	add := func(t ...tag) { domain.children = append(domain.children, t...) }
	add(tag{name: "memory", attrs: []pair{{"unit", "KiB"}}, text: kib(spec.Memory)})
	if spec.PageSize > 0 { // needs no hugetlbfs mount, unlike hugetlbfs files
		add(tag{name: "memoryBacking", children: []tag{
			{name: "source", attrs: []pair{{"type", "memfd"}}}, {name: "access", attrs: []pair{{"mode", "shared"}}},
		}})
	}
	add(tag{name: "vcpu", attrs: []pair{{"placement", "static"}}, text: strconv.Itoa(spec.VCPUs)})
	if n := spec.CPU.IOThreads; n > 0 {
		add(tag{name: "iothreads", text: strconv.Itoa(n)})
	}
	add(m.os(), tag{name: "features", children: features}, m.cpu(p),
		tag{name: "clock", attrs: []pair{{"offset", "utc"}}},
		tag{name: "on_crash", text: "destroy"},
		tag{name: "devices", children: m.devices(spec)})
	return Rewrite([]byte(strings.TrimPrefix(domain.render("\n"), "\n")+"\n"), p, intent)
}

// Check reports whether DomainXML can make a guest of a spec on this machine,
// for any placement: call it before claiming resources.
func (m Machine) Check(spec guest.Spec) error {
	if err := m.withDefaults().check(spec); err != nil {
		return fmt.Errorf("new VM %q: %w", spec.Name, err)
	}
	return nil
}

func (m Machine) withDefaults() Machine {
	m.Type = cmp.Or(m.Type, "kvm")
	m.Arch = cmp.Or(m.Arch, "x86_64")
	if m.Type == "kvm" {
		m.CPU = cmp.Or(m.CPU, "host-passthrough")
	} else {
		m.CPU = cmp.Or(m.CPU, "maximum")
	}
	return m
}

func (m Machine) check(spec guest.Spec) error {
	switch {
	case spec.Name == "" || strings.ContainsAny(spec.Name, "/\n") || strings.TrimSpace(spec.Name) != spec.Name:
		return fmt.Errorf("name=%q: must not be empty, nor contain \"/\", nor begin or end with space", spec.Name)
	case m.Type != "kvm" && m.Type != "qemu":
		return fmt.Errorf("machine type=%q; allowed: kvm, qemu", m.Type)
	case machineTypes[m.Arch] == "":
		return fmt.Errorf("machine arch=%q; allowed: x86_64, aarch64", m.Arch)
	case m.CPU != "host-passthrough" && m.CPU != "host-model" && m.CPU != "maximum":
		return fmt.Errorf("machine CPU=%q; allowed: host-passthrough, host-model, maximum", m.CPU)
	case m.Kernel == "" && (m.Initrd != "" || m.Cmdline != ""):
		return errors.New("initrd and cmdline need a kernel")
	case spec.VCPUs < 1 && !spec.IsHandoff():
		return fmt.Errorf("vcpus=%d: at least 1 is needed", spec.VCPUs)
	case spec.Memory == 0 || spec.Memory%topology.MiB != 0:
		return fmt.Errorf("memory=%d: must be a whole number of MiB (%d bytes each); libvirt would round it up",
			spec.Memory, topology.MiB)
	case len(m.Disks) > 26:
		return fmt.Errorf("%d disks; allowed: up to 26", len(m.Disks))
	}
	texts := []string{spec.Name, m.Kernel, m.Initrd, m.Cmdline, m.Network, m.SerialLog, m.Emulator, m.UUID, m.MAC}
	paths := []string{m.Kernel, m.Initrd, m.SerialLog, m.Emulator}
	for i, d := range m.Disks {
		if d.Path == "" {
			return fmt.Errorf("disk %d has no path", i)
		}
		texts, paths = append(texts, d.Path, d.Format), append(paths, d.Path)
	}
	for _, p := range paths {
		if p != "" && !filepath.IsAbs(p) {
			return fmt.Errorf("path %q is relative; libvirt needs absolute paths", p)
		}
	}
	for _, t := range texts {
		if strings.ContainsFunc(t, unicode.IsControl) {
			return fmt.Errorf("%q contains control characters", t)
		}
	}
	return nil
}

func (m Machine) os() tag {
	t := tag{name: "os", children: []tag{
		{name: "type", attrs: []pair{{"arch", m.Arch}, {"machine", machineTypes[m.Arch]}}, text: "hvm"},
	}}
	if m.UEFI || (m.Arch == "aarch64" && m.Kernel == "") {
		t.attrs = []pair{{"firmware", "efi"}}
	}
	for _, part := range []pair{{"kernel", m.Kernel}, {"initrd", m.Initrd}, {"cmdline", m.Cmdline}} {
		if part.value != "" {
			t.children = append(t.children, tag{name: part.name, text: part.value})
		}
	}
	if m.Kernel == "" && len(m.Disks) > 0 {
		t.children = append(t.children, tag{name: "boot", attrs: []pair{{"dev", "hd"}}})
	}
	return t
}

// cpu is the CPU model, and the sockets and cores that the guest sees.
func (m Machine) cpu(p guest.Placement) tag {
	t := tag{name: "cpu", attrs: []pair{{"mode", m.CPU}}}
	if p.Handoff != nil {
		return m.mirror(t, p.Handoff.Seen)
	}
	t.children = []tag{cpuTopology(p)}
	return t
}

// cpuTopology gives each cell its own socket: Linux guests complain about cores that
// share a socket, and so a cache, across NUMA nodes.
func cpuTopology(p guest.Placement) tag {
	sockets, cores := 1, len(p.VCPUs)
	if p.Visible && len(p.Cells) > 1 {
		sockets, cores = len(p.VCPUs), 1
		if even(p.Cells) {
			sockets, cores = len(p.Cells), len(p.VCPUs)/len(p.Cells)
		}
	}
	return tag{name: "topology", attrs: []pair{
		{"sockets", strconv.Itoa(sockets)}, {"cores", strconv.Itoa(cores)}, {"threads", "1"},
	}}
}

// mirror shows the host's sockets, dies, cores and threads, and its caches where the
// guest sees the host's CPU model (QEMU's host-cache-info).
func (m Machine) mirror(t tag, seen guest.CPUTopology) tag {
	shape := tag{name: "topology", attrs: []pair{{"sockets", strconv.Itoa(seen.Sockets)}}}
	if seen.Dies > 1 {
		shape.attrs = append(shape.attrs, pair{"dies", strconv.Itoa(seen.Dies)})
	}
	shape.attrs = append(shape.attrs, pair{"cores", strconv.Itoa(seen.Cores)},
		pair{"threads", strconv.Itoa(seen.Threads)})
	t.children = append(t.children, shape)
	if m.CPU == "host-passthrough" && m.Arch == "x86_64" {
		t.children = append(t.children, tag{name: "cache", attrs: []pair{{"mode", "passthrough"}}})
	}
	return t
}

// GuestPort is the virtio-serial port through which the agent in a guest that hands
// CPUs over, or uses some of its vCPUs, talks with the host.
const GuestPort = "org.numavisor.guest.0"

// even reports whether all cells have the same number of vCPUs, in ascending
// runs.
func even(cells []guest.Cell) bool {
	next := guest.VCPUID(0)
	for _, c := range cells {
		if c.VCPUs.Len() != cells[0].VCPUs.Len() {
			return false
		}
		for v := range c.VCPUs.All() {
			if v != next {
				return false
			}
			next++
		}
	}
	return next > 0
}

func (m Machine) devices(spec guest.Spec) []tag {
	var all []tag
	if m.Emulator != "" {
		all = append(all, tag{name: "emulator", text: m.Emulator})
	}
	for i, d := range m.Disks {
		all = append(all, d.tag(i, spec.CPU.IOThreads))
	}
	all = append(all, tag{name: "controller", attrs: []pair{{"type", "usb"}, {"model", "none"}}})
	if m.Network != "" {
		parts := []tag{{name: "source", attrs: []pair{{"network", m.Network}}}}
		if m.MAC != "" {
			parts = append(parts, tag{name: "mac", attrs: []pair{{"address", m.MAC}}})
		}
		parts = append(parts, tag{name: "model", attrs: []pair{{"type", "virtio"}}})
		all = append(all, tag{name: "interface", attrs: []pair{{"type", "network"}}, children: parts})
	}
	serial := tag{name: "serial", attrs: []pair{{"type", "pty"}}}
	if m.SerialLog != "" {
		serial = tag{
			name:     "serial",
			attrs:    []pair{{"type", "file"}},
			children: []tag{{name: "source", attrs: []pair{{"path", m.SerialLog}}}},
		}
	}
	all = append(all, serial)
	if spec.CPU.Sharing != "" {
		all = append(all, agentChannel())
	}
	for _, d := range spec.Devices {
		if d.Passthrough {
			all = append(all, hostdev(d.Address))
		}
	}
	return append(all, tag{name: "memballoon", attrs: []pair{{"model", "none"}}})
}

// tag writes a disk; I/O threads, numbered from 1, serve disks in turn.
func (d Disk) tag(index, ioThreads int) tag {
	format := d.Format
	if format == "" {
		format = map[string]string{".qcow2": "qcow2", ".vmdk": "vmdk",
			".vdi": "vdi"}[strings.ToLower(filepath.Ext(d.Path))]
	}
	driver := tag{
		name:  "driver",
		attrs: []pair{{"name", "qemu"}, {"type", cmp.Or(format, "raw")}, {"discard", "unmap"}},
	}
	if ioThreads > 0 {
		driver.attrs = append(driver.attrs, pair{"iothread", strconv.Itoa(index%ioThreads + 1)})
	}
	kind, source := "file", "file"
	if strings.HasPrefix(d.Path, "/dev/") {
		kind, source = "block", "dev"
	}
	t := tag{name: "disk", attrs: []pair{{"type", kind}, {"device", "disk"}}, children: []tag{
		driver,
		{name: "source", attrs: []pair{{source, d.Path}}},
		{name: "target", attrs: []pair{{"dev", "vd" + string(rune('a'+index))}, {"bus", "virtio"}}},
	}}
	if d.ReadOnly {
		t.children = append(t.children, tag{name: "readonly"})
	}
	return t
}

// hostdev assigns a PCI device, "0000:3b:00.0", by vfio.
func hostdev(address string) tag {
	a := tag{name: "address"}
	parts := strings.FieldsFunc(address, func(r rune) bool { return r == ':' || r == '.' })
	if len(parts) == 3 {
		parts = append([]string{"0000"}, parts...)
	}
	for i, name := range []string{"domain", "bus", "slot", "function"} {
		if i < len(parts) {
			a.attrs = append(a.attrs, pair{name, "0x" + parts[i]})
		}
	}
	return tag{name: "hostdev", attrs: []pair{{"mode", "subsystem"}, {"type", "pci"}, {"managed", "yes"}},
		children: []tag{{name: "source", children: []tag{a}}}}
}
