package demo

import (
	"fmt"
	"strings"
)

// control is the VM that Numavisor creates, and that stays where it is: what the others are compared with.
const control = "control"

// vm is a VM as operators find them: started by libvirt alone, with a mistake.
type vm struct {
	name    string
	mistake string
	tuning  string   // its <cputune> and <numatune>
	wrong   []string // the lines of the tuning that are wrong, as printed
	after   string   // what an operator did after the start, as a shell command
}

// misplaced returns the VMs of the demo; their nodes are those of the shape square4 and alike.
func misplaced() []vm {
	return []vm{
		{
			name:    "web1",
			mistake: "no NUMA setting at all: memory and vCPUs go where they happen to go",
		},
		{
			name:    "db1",
			mistake: "vCPUs pinned to node 3, memory bound to node 0 by a numatune copied from another VM",
			tuning: `<cputune><vcpupin vcpu='0' cpuset='6-7'/><vcpupin vcpu='1' cpuset='6-7'/></cputune>
<numatune><memory mode='strict' nodeset='0'/></numatune>`,
			wrong: []string{`<numatune><memory mode='strict' nodeset='0'/></numatune>`},
		},
		{
			name:    "app1",
			mistake: "created on node 1, then pinned to node 2 by hand: the memory stays on node 1",
			tuning: `<cputune><vcpupin vcpu='0' cpuset='2-3'/><vcpupin vcpu='1' cpuset='2-3'/><emulatorpin cpuset='2-3'/></cputune>
<numatune><memory mode='preferred' nodeset='1'/></numatune>`,
			wrong: []string{"virsh vcpupin app1 0 4-5; virsh vcpupin app1 1 4-5"},
			after: "virsh -q vcpupin app1 0 4-5; virsh -q vcpupin app1 1 4-5; virsh -q emulatorpin app1 4-5",
		},
	}
}

// story describes the VM and marks what is wrong.
func (v *vm) story() string {
	var b strings.Builder
	fmt.Fprintf(&b, "%s: %s\n", v.name, v.mistake)
	for _, line := range v.wrong {
		fmt.Fprintf(&b, "    wrong: %s\n", line)
	}
	return b.String()
}
