package peers

import (
	"fmt"
	"strings"

	"github.com/numavisor/numavisor/internal/topology"
	"github.com/numavisor/numavisor/lab"
)

// cpusOf lists the CPUs of a node.
func (l Layout) cpusOf(node int) string {
	return fmt.Sprintf("%d-%d", node*l.NodeCPUs, (node+1)*l.NodeCPUs-1)
}

// pins binds each vCPU of a working VM to a CPU of its own, on the VM's node of
// an assignment, and the emulator to that node. An idle VM gets the CPUs of the
// nodes of its memory.
func (l Layout) pins(vm int, nodes []int) string {
	var b strings.Builder
	v := l.VMs[vm]
	if nodes[vm] == stays {
		var cpus []string
		for _, n := range v.Start {
			cpus = append(cpus, l.cpusOf(n))
		}
		set := strings.Join(cpus, ",")
		for i := range v.VCPUs {
			fmt.Fprintf(&b, "<vcpupin vcpu='%d' cpuset='%s'/>", i, set)
		}
		return "<cputune>" + b.String() + "<emulatorpin cpuset='" + set + "'/></cputune>"
	}
	first := nodes[vm] * l.NodeCPUs
	for other := range vm {
		if nodes[other] == nodes[vm] {
			first += l.VMs[other].VCPUs
		}
	}
	for i := range v.VCPUs {
		fmt.Fprintf(&b, "<vcpupin vcpu='%d' cpuset='%d'/>", i, first+i)
	}
	return "<cputune>" + b.String() + "<emulatorpin cpuset='" + l.cpusOf(nodes[vm]) + "'/></cputune>"
}

func memoryOn(mode string, nodes ...int) string {
	return fmt.Sprintf("<numatune><memory mode='%s' nodeset='%s'/></numatune>", mode, list(nodes))
}

// worstStart limits a VM's memory to the nodes where the layout starts it, and
// its vCPUs to other nodes.
func (l Layout) worstStart(vm int) string {
	nodes, _ := l.starts() // there are some: Validate has seen them
	return l.pins(vm, nodes) + memoryOn("restrictive", l.VMs[vm].Start...)
}

// byHand limits a VM to its place in the hand-pinned baseline.
func (l Layout) byHand(vm int) string {
	nodes, _ := l.homes()
	on := []int{nodes[vm]}
	if nodes[vm] == stays {
		on = l.VMs[vm].Start
	}
	return l.pins(vm, nodes) + memoryOn("strict", on...)
}

// domain is a VM's definition for libvirt, like those of the demo, under any manager.
func (l Layout) domain(vm int, vcpuPlacement, tuning string) string {
	return fmt.Sprintf(
		`<domain type='kvm'><name>%s</name><memory unit='MiB'>%d</memory><vcpu placement='%s'>%d</vcpu>%s
<os><type arch='x86_64' machine='q35'>hvm</type><kernel>%s</kernel><initrd>%s</initrd><cmdline>%s</cmdline></os>
<features><acpi/></features><cpu mode='host-passthrough'/>
<devices><serial type='pty'/><controller type='usb' model='none'/><memballoon model='none'/></devices></domain>`,
		nameOf(vm), l.VMs[vm].Memory/topology.MiB, vcpuPlacement, l.VMs[vm].VCPUs, tuning,
		lab.GuestKernel, lab.GuestInitrd, lab.GuestCommandLine)
}

// scatter is a script that distributes a VM's memory over the nodes of its
// start, if there are several; $1 is the VM's name.
func (l Layout) scatter(vm int) string {
	start := l.VMs[vm].Start
	if len(start) == 1 {
		return ""
	}
	return fmt.Sprintf("%s $(cat /run/libvirt/qemu/$1.pid) %s", lab.Scatter, strings.ReplaceAll(list(start), ",", " "))
}

// release is a script that takes all limits of the worst-case start from a VM,
// whose name is $1. It moves nothing: memory stays in place when a nodeset grows.
func (l Layout) release(vm int) string {
	all := fmt.Sprintf("0-%d", l.Nodes*l.NodeCPUs-1)
	var b strings.Builder
	for v := range l.VMs[vm].VCPUs {
		fmt.Fprintf(&b, "virsh -q vcpupin $1 %d %s --live || exit\n", v, all)
	}
	fmt.Fprintf(&b, "virsh -q emulatorpin $1 %s --live || exit\n", all)
	fmt.Fprintf(&b, "virsh -q numatune $1 --mode restrictive --nodeset 0-%d --live\n", l.Nodes-1)
	return b.String()
}
