package xen

import (
	"fmt"
	"strings"
	"testing"

	"github.com/numavisor/numavisor/internal/guest"
	"github.com/numavisor/numavisor/internal/topology"
)

// intentOn is the intent of a guest on node 1 of a host whose nodes have four CPUs.
func intentOn(name string, vcpus int) guest.Intent {
	s := guest.Spec{Name: name, VCPUs: vcpus, Memory: 512 * topology.MiB, Topology: guest.TopologySpec{Mode: guest.TopologyOff}}
	p := guest.Placement{Guest: name, CPUMode: guest.CPURange, Nodes: topology.SetOf[topology.NodeID](1)}
	for v := range vcpus {
		p.VCPUs = append(p.VCPUs, guest.VCPU{ID: guest.VCPUID(v), CPUs: topology.MustParseSet[topology.CPUID]("4-7")})
	}
	return guest.Intent{Spec: s, Placement: p}
}

// Each kind of machine has exactly the settings that it asks for, and both affinities.
func TestMachine_Definition(t *testing.T) {
	const uuid = "01234567-89ab-4def-8123-456789abcdef"
	for name, c := range map[string]struct {
		machine Machine
		want    string
	}{
		"kernel": {Machine{UUID: uuid, MAC: "52:54:00:00:00:01", Kernel: "/i/vmlinuz", Initrd: "/i/initrd",
			Cmdline: "console=hvc0 root=/dev/xvda", Network: "xenbr0",
			Disks: []Disk{{Path: "/i/a,b.qcow2"}, {Path: "/i/seed.iso", Format: "raw", ReadOnly: true}}},
			`name = "web"
uuid = "01234567-89ab-4def-8123-456789abcdef"
type = "pvh"
kernel = "/i/vmlinuz"
ramdisk = "/i/initrd"
cmdline = "console=hvc0 root=/dev/xvda"
vcpus = 2
memory = 512
maxmem = 512
vif = [ "mac=52:54:00:00:00:01,bridge=xenbr0" ]
disk = [ "format=qcow2,vdev=xvda,access=rw,target=/i/a,b.qcow2", "format=raw,vdev=xvdb,access=ro,target=/i/seed.iso" ]
cpus = "4-7"
cpus_soft = "4-7"
`},
		"BIOS": {Machine{SerialLog: "/i/web.log", Disks: []Disk{{Path: "/i/seed.iso", ReadOnly: true}, {Path: "/dev/vg/web"}}},
			`name = "web"
type = "hvm"
bios = "seabios"
boot = "c"
serial = "file:/i/web.log"
vga = "none"
vnc = 0
vcpus = 2
memory = 512
maxmem = 512
disk = [ "format=raw,vdev=xvde,access=ro,target=/i/seed.iso", "format=raw,vdev=xvda,access=rw,target=/dev/vg/web" ]
cpus = "4-7"
cpus_soft = "4-7"
`},
		"UEFI": {Machine{UEFI: true}, `name = "web"
type = "hvm"
bios = "ovmf"
boot = "c"
serial = "pty"
vga = "none"
vnc = 0
vcpus = 2
memory = 512
maxmem = 512
cpus = "4-7"
cpus_soft = "4-7"
`},
	} {
		t.Run(name, func(t *testing.T) {
			d, err := c.machine.Definition(intentOn("web", 2))
			if err != nil || string(d.Text) != c.want || d.Name != "web" || d.Intent == nil {
				t.Errorf("%s\nerror %v, want\n%s", d.Text, err, c.want)
			}
		})
	}
}

// What an xl configuration cannot express, or would read as something else, is refused with its name.
func TestMachine_Refuses(t *testing.T) {
	disk := func(d Disk) Machine { return Machine{Disks: []Disk{d}} }
	for name, c := range map[string]struct {
		machine Machine
		change  func(*guest.Spec)
		says    string
	}{
		"quotation mark":      {disk(Disk{Path: `/i/a".raw`}), nil, "quotation marks"},
		"backslash":           {disk(Disk{Path: `/i/a\b.raw`}), nil, "quotation marks"},
		"new line":            {Machine{Kernel: "/k", Cmdline: "a\nname = 'x'"}, nil, "control characters"},
		"relative path":       {disk(Disk{Path: "a.raw"}), nil, "relative"},
		"path without a name": {disk(Disk{}), nil, "no path"},
		"format":              {disk(Disk{Path: "/a", Format: "raw,vdev=xvdz"}), nil, "format"},
		"bridge":              {Machine{Network: "br0,script=/x", MAC: "52:54:00:00:00:01"}, nil, "bridge"},
		"MAC address":         {Machine{Network: "br0", MAC: "52:54,bridge=x"}, nil, "MAC"},
		"UUID":                {Machine{UUID: "x"}, nil, "UUID"},
		"console of a kernel": {Machine{Kernel: "/k", SerialLog: "/l"}, nil, "xl console"},
		"firmware and kernel": {Machine{Kernel: "/k", UEFI: true}, nil, "uefi"},
		"initrd alone":        {Machine{Initrd: "/k"}, nil, "kernel"},
		"27 disks":            {Machine{Kernel: "/k", Disks: make([]Disk, 27)}, nil, "27 disks"},
		"name of a copy":      {Machine{}, func(s *guest.Spec) { s.Name += incoming }, "migrate"},
		"quotation in a name": {Machine{}, func(s *guest.Spec) { s.Name = `a"b` }, "quotation marks"},
		"cells":               {Machine{}, func(s *guest.Spec) { s.Topology.Mode = guest.TopologyCells }, "virtual NUMA"},
		"huge pages":          {Machine{}, func(s *guest.Spec) { s.PageSize = 2 * topology.MiB }, "page_size"},
		"part of a MiB":       {Machine{}, func(s *guest.Spec) { s.Memory++ }, "MiB"},
	} {
		t.Run(name, func(t *testing.T) {
			i := intentOn("web", 1)
			if c.change != nil {
				c.change(&i.Spec)
			}
			if d, err := c.machine.Definition(i); err == nil || !strings.Contains(err.Error(), c.says) {
				t.Errorf("error %v, want one that says %q\n%s", err, c.says, d.Text)
			}
		})
	}
}

// Whatever texts a machine has, the configuration either is refused or has exactly these values and no other settings.
func FuzzMachine(f *testing.F) {
	f.Add("web", "/i/vmlinuz", "console=hvc0", "/i/a.qcow2", "qcow2", "xenbr0", "db")
	f.Add(`a"`, "", "", "/i/a'b ]#.raw", "", "", "")
	f.Add("1", "/k;x", "a=1;b = [", "/x,target=/y", "raw", "br-0.1", "p q")
	f.Fuzz(func(t *testing.T, name, kernel, cmdline, disk, format, bridge, pool string) {
		m := Machine{Kernel: kernel, Cmdline: cmdline, Network: bridge, MAC: "52:54:00:00:00:01",
			Disks: []Disk{{Path: disk, Format: format}}}
		i := intentOn(name, 1)
		i.Spec.Limits.Pool = pool
		d, err := m.Definition(i)
		if err != nil {
			return
		}
		c, err := ParseConfig(d.Text)
		if err != nil {
			t.Fatalf("%v\n%s", err, d.Text)
		}
		want := map[string]string{"name": name, "kernel": kernel, "cmdline": cmdline, "pool": pool}
		for key, text := range want {
			if v, ok := c.get(key); v.text != text || ok != (text != "") {
				t.Errorf("%s is %q, want %q\n%s", key, v.text, text, d.Text)
			}
		}
		disks, _ := c.get("disk")
		only := fmt.Sprintf("format=%s,vdev=xvda,access=rw,target=%s", m.Disks[0].format(), disk)
		if len(disks.list) != 1 || disks.list[0].text != only {
			t.Errorf("disks are %+v, want %q", disks.list, only)
		}
		cards, _ := c.get("vif")
		if bridge != "" && (len(cards.list) != 1 || cards.list[0].text != "mac=52:54:00:00:00:01,bridge="+bridge) {
			t.Errorf("network cards are %+v", cards.list)
		}
		seen := map[string]bool{}
		for _, s := range c.settings {
			if seen[s.key] {
				t.Errorf("%s is set twice\n%s", s.key, d.Text)
			}
			seen[s.key] = true
		}
	})
}
