package xenbench

import (
	"fmt"

	"github.com/numavisor/numavisor/lab"
)

// Way is a way to place VMs on a Xen host.
type Way struct {
	Name  string
	About string
	// settings are lines of the xl configuration of VM number vm on a host of this shape.
	settings func(s lab.Shape, vm int) string
	// create is the command that creates a VM; $1 is its configuration.
	create string
	// pin are the CPUs to which the VM is pinned once it runs; empty: it is not.
	pin func(s lab.Shape, vm int) string
}

// The names of the ways.
const (
	Default    = "default"
	Unplaced   = "unplaced"
	Pinned     = "pinned"
	AllLocal   = "all local"
	AllRemote  = "all remote"
	Numavisor  = "numavisor"
	xlCreate   = "xl create -q $1"
	anywhere   = "cpus = \"all\"\n" // without this, xl places the VM
	ownCommand = "numavisor create --xl $1 >/dev/null"
)

// Ways returns all ways, in the order of the report.
func Ways() []Way {
	none := func(lab.Shape, int) string { return "" }
	spread := func(lab.Shape, int) string { return anywhere }
	return []Way{
		{Default, "xl create: Xen's own placement since 4.2, by soft affinity", none, xlCreate, none},
		{Unplaced, "xl create with cpus = \"all\": no placement, as in Xen before 4.2; memory from all nodes", spread,
			xlCreate, none},
		{Pinned, "unplaced, and its vCPUs pinned to one node once it runs", spread, xlCreate, local},
		{AllLocal, "created with the CPUs of one node, where its memory is then", bound, xlCreate, none},
		{AllRemote, "as all local, and pinned to the farthest node once it runs", bound, xlCreate, farthest},
		{Numavisor, "numavisor create --xl", none, ownCommand, none},
	}
}

// home is the node of a VM that is placed by hand: VMs take turns.
func home(s lab.Shape, vm int) int { return vm % len(s.Nodes) }

// cpusOf lists the CPUs of a node.
func cpusOf(s lab.Shape, node int) string {
	first := 0
	for _, n := range s.Nodes[:node] {
		first += n.CPUs
	}
	return fmt.Sprintf("%d-%d", first, first+s.Nodes[node].CPUs-1)
}

func local(s lab.Shape, vm int) string { return cpusOf(s, home(s, vm)) }

func bound(s lab.Shape, vm int) string {
	return fmt.Sprintf("cpus = %q\ncpus_soft = %[1]q\n", local(s, vm))
}

// farthest lists the CPUs that are farthest from the VM's home.
func farthest(s lab.Shape, vm int) string {
	at := home(s, vm)
	to := at
	for node := range s.Nodes {
		if s.Latency(node, at) > s.Latency(to, at) {
			to = node
		}
	}
	return cpusOf(s, to)
}
