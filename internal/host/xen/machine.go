package xen

import (
	"cmp"
	"errors"
	"fmt"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"unicode"

	"github.com/numavisor/numavisor/internal/guest"
	"github.com/numavisor/numavisor/internal/topology"
)

// Machine is the input for a new guest in addition to spec and placement. With a kernel it is a PVH guest, else an HVM
// guest, which boots by firmware.
type Machine struct {
	UUID string
	MAC  string // of its network card
	UEFI bool   // boot by UEFI firmware instead of BIOS

	// Direct boot of a kernel; paths on the host.
	Kernel, Initrd, Cmdline string

	Disks     []Disk
	Network   string // name of a bridge; empty: none
	SerialLog string // file for the output of the serial port of an HVM guest; empty: none
}

// Disk is a disk image or block device of the host.
type Disk struct {
	Path     string
	Format   string // qcow2, raw, ...; empty: by the path's suffix, raw for an unknown one
	ReadOnly bool
}

var (
	validBridge = regexp.MustCompile(`^[A-Za-z0-9_.-]{1,15}$`) // a part of vif, in which a comma ends it
	validMAC    = regexp.MustCompile(`^[0-9a-f]{2}(:[0-9a-f]{2}){5}$`)
	diskFormats = []string{"raw", "qcow", "qcow2", "vhd"}
)

const (
	mostDisks = 26 // xvda to xvdz
	// emulatedDisks are those that the firmware of an HVM guest sees. QEMU emulates no such disk that is read-only.
	emulatedDisks = 4
)

// Definition returns the xl configuration of a new guest, bound to its placement.
func (m Machine) Definition(i guest.Intent) (guest.Definition, error) {
	if err := m.Check(i.Spec); err != nil {
		return guest.Definition{}, err
	}
	var text strings.Builder
	set := func(key, value string) {
		if value != "" {
			fmt.Fprintf(&text, "%s = \"%s\"\n", key, value)
		}
	}
	set("name", i.Spec.Name)
	set("uuid", m.UUID)
	set("type", m.kind())
	set("kernel", m.Kernel)
	set("ramdisk", m.Initrd)
	set("cmdline", m.Cmdline)
	if m.kind() == "hvm" {
		m.firmware(set)
		text.WriteString("vnc = 0\n")
	}
	memory := uint64(i.Spec.Memory / topology.MiB)
	fmt.Fprintf(&text, "vcpus = %d\nmemory = %d\nmaxmem = %d\n", len(i.Placement.VCPUs), memory, memory)
	set("pool", i.Spec.Limits.Pool)
	if m.Network != "" {
		fmt.Fprintf(&text, "vif = [ \"mac=%s,bridge=%s\" ]\n", m.MAC, m.Network)
	}
	if len(m.Disks) > 0 {
		fmt.Fprintf(&text, "disk = [ %s ]\n", strings.Join(m.disks(), ", "))
	}
	c, err := ParseConfig([]byte(text.String()))
	if err != nil {
		return guest.Definition{}, fmt.Errorf("new VM %q: %w", i.Spec.Name, err)
	}
	return guest.Definition{Name: i.Spec.Name, Text: c.Rewrite(&i.Placement), Intent: &i}, nil
}

// kind is the type of the guest, as xl names it.
func (m *Machine) kind() string {
	if m.Kernel != "" {
		return "pvh"
	}
	return "hvm"
}

// firmware writes the settings of a guest that boots by firmware.
func (m *Machine) firmware(set func(key, value string)) {
	bios, serial := "seabios", "pty"
	if m.UEFI {
		bios = "ovmf"
	}
	if m.SerialLog != "" {
		serial = "file:" + m.SerialLog
	}
	set("bios", bios)
	set("boot", "c")
	set("serial", serial)
	set("vga", "none")
}

// disks returns the disks as xl-disk-configuration(5) has them. The path is the last part: it ends with the text.
func (m *Machine) disks() (all []string) {
	names := m.diskNames()
	for i, d := range m.Disks {
		access := "rw"
		if d.ReadOnly {
			access = "ro"
		}
		all = append(all, fmt.Sprintf("\"format=%s,vdev=xvd%c,access=%s,target=%s\"", d.format(), names[i], access,
			d.Path))
	}
	return all
}

// diskNames returns the letters of the disks, in their order. In an HVM guest, read-only disks follow those that the
// firmware sees.
func (m *Machine) diskNames() []byte {
	names := make([]byte, len(m.Disks))
	next := byte('a')
	for pass := range 2 {
		if pass == 1 && m.kind() == "hvm" {
			next = max(next, 'a'+emulatedDisks)
		}
		for i := range m.Disks {
			if later := m.kind() == "hvm" && m.Disks[i].ReadOnly; later == (pass == 1) {
				names[i] = next
				next++
			}
		}
	}
	return names
}

func (d *Disk) format() string {
	of := map[string]string{".qcow2": "qcow2", ".qcow": "qcow", ".vhd": "vhd"}[strings.ToLower(filepath.Ext(d.Path))]
	return cmp.Or(d.Format, of, "raw")
}

// Check reports whether Definition can make a guest of a spec, for any placement: call it before claiming resources.
func (m Machine) Check(s guest.Spec) error {
	if err := errors.Join(m.checkSpec(s), m.checkParts(), m.checkTexts(s)); err != nil {
		return fmt.Errorf("new VM %q: %w", s.Name, err)
	}
	return nil
}

func (m *Machine) checkSpec(s guest.Spec) error {
	switch {
	case s.Name == "" || strings.TrimSpace(s.Name) != s.Name || strings.Contains(s.Name, "/"):
		return fmt.Errorf("name=%q: must not be empty, nor contain \"/\", nor begin or end with space", s.Name)
	case strings.HasSuffix(s.Name, incoming) || strings.HasSuffix(s.Name, migratedAway):
		return fmt.Errorf("name=%q: xl gives names that end so to VMs that migrate; choose another name", s.Name)
	case s.VCPUs < 1 || s.VCPUs > maxVCPUs:
		return fmt.Errorf("vcpus=%d: allowed are 1 to %d", s.VCPUs, maxVCPUs)
	case s.Memory == 0 || s.Memory%topology.MiB != 0:
		return fmt.Errorf("memory=%d: must be a whole number of MiB", uint64(s.Memory))
	case s.Topology.Mode == guest.TopologyCells:
		return errors.New("a VM of Xen that the fleet creates has no virtual NUMA nodes: set topology to off")
	case s.PageSize != 0 || len(s.Devices) > 0 || s.CPU.Sharing != "":
		return errors.New("page_size, devices and sharing have no form in the xl configuration: leave them out")
	}
	return nil
}

func (m *Machine) checkParts() error {
	switch {
	case m.Kernel == "" && (m.Initrd != "" || m.Cmdline != ""):
		return errors.New("initrd and cmdline need a kernel")
	case m.Kernel != "" && m.UEFI:
		return errors.New("with a kernel there is no firmware: leave out uefi or kernel")
	case m.Kernel != "" && m.SerialLog != "":
		return errors.New("the console of a VM that boots a kernel directly goes to no file: leave out serial_log, " +
			"and see 'xl console'")
	case m.Network != "" && !validBridge.MatchString(m.Network):
		return fmt.Errorf("network %q is no name of a bridge", m.Network)
	case m.Network != "" && !validMAC.MatchString(m.MAC):
		return fmt.Errorf("network: the MAC address %q is not valid", m.MAC)
	case m.UUID != "" && !validUUID.MatchString(m.UUID):
		return fmt.Errorf("UUID %q is not valid", m.UUID)
	case len(m.Disks) > mostDisks:
		return fmt.Errorf("%d disks; allowed: up to %d", len(m.Disks), mostDisks)
	}
	for i, name := range m.diskNames() {
		if d := &m.Disks[i]; !slices.Contains(diskFormats, d.format()) {
			return fmt.Errorf("disk %s: format %q; allowed: %s", d.Path, d.Format, strings.Join(diskFormats, ", "))
		}
		if name > 'z' {
			return fmt.Errorf("too many disks: a VM that boots by firmware has up to %d, and read-only ones follow "+
				"the first %d", mostDisks, emulatedDisks)
		}
	}
	return nil
}

// checkTexts refuses what a text of an xl configuration cannot have.
func (m *Machine) checkTexts(s guest.Spec) error {
	paths := []string{m.Kernel, m.Initrd, m.SerialLog}
	for i, d := range m.Disks {
		if d.Path == "" {
			return fmt.Errorf("disk %d has no path", i)
		}
		paths = append(paths, d.Path)
	}
	for _, p := range paths {
		if p != "" && !filepath.IsAbs(p) {
			return fmt.Errorf("path %q is relative; give an absolute one", p)
		}
		if strings.TrimSpace(p) != p {
			return fmt.Errorf("path %q begins or ends with space", p)
		}
	}
	for _, t := range append(paths, s.Name, m.Cmdline, s.Limits.Pool) {
		if strings.ContainsAny(t, unsafe) || strings.ContainsFunc(t, unicode.IsControl) {
			return fmt.Errorf("%q has quotation marks, backslashes or control characters, which an xl configuration "+
				"cannot have", t)
		}
	}
	return nil
}
