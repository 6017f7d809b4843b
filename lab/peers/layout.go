package peers

import (
	"fmt"
	"strings"

	"github.com/numavisor/numavisor/internal/topology"
	"github.com/numavisor/numavisor/lab"
)

// Layout is the host and the guests of a run.
type Layout struct {
	Guests      int            `json:"guests"`
	VCPUs       int            `json:"vcpus"`        // of each guest
	GuestMemory topology.Bytes `json:"guest_memory"` // of each guest
	NodeCPUs    int            `json:"node_cpus"`    // of each of the four nodes
	// DelayScale is how many times 85, 140 and 240 ns an access is delayed:
	// more than once, since the emulated CPU is slower than a real one.
	DelayScale float64 `json:"delay_scale"`
}

const (
	nodes      = 4
	mostGuests = 6
	// hostMemory is the memory of a node in addition to the guests' memory: for
	// the kernel, libvirt and the memory file system, with some room.
	hostMemory = 768 * topology.MiB
)

// Validate returns an error for a layout that cannot run.
func (l Layout) Validate() error {
	switch {
	case l.Guests < 1 || l.Guests > mostGuests:
		return fmt.Errorf("guests: %d; allowed are 1 to %d", l.Guests, mostGuests)
	case l.VCPUs < 1:
		return fmt.Errorf("vCPUs: %d; allowed are 1 or more", l.VCPUs)
	case l.perNode()*l.VCPUs > l.NodeCPUs:
		return fmt.Errorf("vCPUs: %d guests of %d do not fit on three nodes of %d CPUs", l.Guests, l.VCPUs, l.NodeCPUs)
	case l.GuestMemory < 64*topology.MiB || l.GuestMemory%topology.MiB != 0:
		return fmt.Errorf("guest memory: %v; allowed are whole MiB from 64 on", l.GuestMemory)
	case !(l.DelayScale > 0):
		return fmt.Errorf("delay scale: %v; allowed is more than 0", l.DelayScale)
	}
	return nil
}

// perNode is how many guests share a node where they are spread.
func (l Layout) perNode() int { return (l.Guests + nodes - 2) / (nodes - 1) }

// shape is a square like square4, with room for all guests' memory on node 0.
func (l Layout) shape() (lab.Shape, error) {
	s, err := lab.FindShape("square4")
	if err != nil {
		return s, err
	}
	s.Name, s.DelayScale, s.DelayLocal = "peers", l.DelayScale, true
	for i := range s.Nodes {
		s.Nodes[i] = lab.Node{CPUs: l.NodeCPUs, Memory: topology.Bytes(l.Guests)*l.GuestMemory + hostMemory}
	}
	return s, s.Validate()
}

func (l Layout) names() []string {
	var names []string
	for i := range l.Guests {
		names = append(names, fmt.Sprintf("w%d", i))
	}
	return names
}

// home is the node of a guest that is pinned by hand: never node 0, where the host's
// own services run.
func (l Layout) home(guest int) int { return 1 + guest%(nodes-1) }

func (l Layout) cpusOf(node int) string {
	return fmt.Sprintf("%d-%d", node*l.NodeCPUs, (node+1)*l.NodeCPUs-1)
}

// pins binds each vCPU of a guest to a CPU of its home, and the emulator to its home.
func (l Layout) pins(guest int) string {
	var b strings.Builder
	first := l.home(guest)*l.NodeCPUs + guest/(nodes-1)*l.VCPUs
	for v := range l.VCPUs {
		fmt.Fprintf(&b, "<vcpupin vcpu='%d' cpuset='%d'/>", v, first+v)
	}
	return "<cputune>" + b.String() + "<emulatorpin cpuset='" + l.cpusOf(l.home(guest)) + "'/></cputune>"
}

// domain is a guest's definition for libvirt, like those of the demo, under any manager.
func (l Layout) domain(guest int, vcpuPlacement, tuning string) string {
	return fmt.Sprintf(
		`<domain type='kvm'><name>w%d</name><memory unit='MiB'>%d</memory><vcpu placement='%s'>%d</vcpu>%s
<os><type arch='x86_64' machine='q35'>hvm</type><kernel>%s</kernel><initrd>%s</initrd><cmdline>%s</cmdline></os><features><acpi/></features>
<cpu mode='host-passthrough'/><devices><serial type='pty'/><controller type='usb' model='none'/><memballoon model='none'/></devices></domain>`,
		guest,
		l.GuestMemory/topology.MiB,
		vcpuPlacement,
		l.VCPUs,
		tuning,
		lab.GuestKernel,
		lab.GuestInitrd,
		lab.GuestCommandLine,
	)
}

// release is a script that takes all limits of the worst-case start from the guests.
// It moves nothing: memory stays in place when a nodeset grows.
func (l Layout) release() string {
	all := fmt.Sprintf("0-%d", nodes*l.NodeCPUs-1)
	var b strings.Builder
	for _, name := range l.names() {
		for v := range l.VCPUs {
			fmt.Fprintf(&b, "virsh -q vcpupin %s %d %s --live || exit\n", name, v, all)
		}
		fmt.Fprintf(&b, "virsh -q emulatorpin %s %s --live || exit\n", name, all)
		fmt.Fprintf(&b, "virsh -q numatune %s --mode restrictive --nodeset 0-%d --live || exit\n", name, nodes-1)
	}
	return b.String()
}
