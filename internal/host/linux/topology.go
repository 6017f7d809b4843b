package linux

import (
	"errors"
	"fmt"
	"os"
	"slices"
	"sync"
	"time"

	"github.com/numavisor/numavisor/internal/topology"
)

// ReadTopology reads the host's topology from sysfs, procfs and cgroup v2 below
// root: "/" for the running host, or the folder of a captured one, with its sys
// and proc. It does not follow symbolic links that lead out of root.
//
// Files that are missing, broken or too large become Gaps and reading goes on;
// it fails only where it finds no CPU at all.
func ReadTopology(root string) (topology.Topology, error) {
	return NewTopologies(root).Read()
}

// Topologies reads one host again and again. Most files of a topology describe
// single CPUs and PCI devices, many of each. Topologies reads the CPUs again
// only when other CPUs are online, and the devices only when other devices
// exist or the last reading is older than devicesMaxAge, since drivers and
// names can change alone. Of nodes it reads how much memory they have, from files
// that stay open, and the rest only when other CPUs or nodes are online. Several
// goroutines may use it.
type Topologies struct {
	root string

	mu      sync.Mutex
	cpus    *knownCPUs
	nodes   *knownNodes
	devices *knownDevices
	last    *topology.Topology
}

const devicesMaxAge = 10 * time.Minute

// knownDevices is the result of the last reading of the devices.
type knownDevices struct {
	addresses []string
	nodes     topology.NodeSet
	at        time.Time
	seen      []topology.Device
	gaps      []string
}

// knownCPUs is the result of the last reading of the CPUs.
type knownCPUs struct {
	online  string
	seen    []topology.SeenCPU
	offline topology.CPUSet
	gaps    []string
}

// NewTopologies has read nothing yet. root is ReadTopology's.
func NewTopologies(root string) *Topologies { return &Topologies{root: root} }

// Read is ReadTopology.
func (k *Topologies) Read() (topology.Topology, error) {
	dir, err := os.OpenRoot(k.root)
	if err != nil {
		return topology.Topology{}, fmt.Errorf(
			"reading the topology: %w; name the folder that contains the host's sys and proc", err)
	}
	defer dir.Close()
	t := &tree{root: dir}
	defer t.close()
	cpus, offline := k.readCPUs(t)
	if len(cpus) == 0 {
		return topology.Topology{}, errors.Join(fmt.Errorf(
			"reading the topology: no CPU in %s below %s; name the folder that contains the host's sys and proc, or "+
				"check that sysfs is mounted",
			cpuFolder,
			k.root,
		), t.err())
	}
	nodes, measured := k.readNodes(t, cpus)
	seen := topology.Topology{
		Nodes:        nodes,
		Devices:      k.readDevices(t, nodes),
		Housekeeping: t.housekeeping(cpus),
		Offline:      offline,
		Measured:     measured,
		Source:       "sysfs " + k.root,
	}
	seen.Gaps = t.gaps
	topo, err := topology.Assemble(seen, cpus)
	if err != nil {
		return topology.Topology{}, fmt.Errorf("reading the topology below %s: %w", k.root, err)
	}
	last := topo
	last.Nodes = slices.Clone(topo.Nodes) // the caller may write to its own
	k.mu.Lock()
	defer k.mu.Unlock()
	k.last = &last
	return topo, nil
}

// CPUsOf returns the CPUs of nodes as they were last read; it reads only if they never were.
func (k *Topologies) CPUsOf(nodes topology.NodeSet) (topology.CPUSet, error) {
	k.mu.Lock()
	last := k.last
	k.mu.Unlock()
	if last != nil {
		return last.CPUsOf(nodes), nil
	}
	t, err := k.Read()
	if err != nil {
		return topology.CPUSet{}, err
	}
	return t.CPUsOf(nodes), nil
}

// readCPUs reads the CPUs if others are online than before, or if the kernel
// has no list of them. It reads the list first: a CPU that comes or goes
// meanwhile makes the next reading a complete one.
func (k *Topologies) readCPUs(t *tree) ([]topology.SeenCPU, topology.CPUSet) {
	online, found := t.text(cpuFolder + "/online")
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.cpus == nil || !found || online != k.cpus.online {
		fresh := &tree{root: t.root}
		defer fresh.close()
		seen, offline := fresh.cpus()
		k.cpus = &knownCPUs{online, seen, offline, fresh.gaps}
	}
	t.gaps = append(t.gaps, k.cpus.gaps...)
	return slices.Clone(k.cpus.seen), k.cpus.offline
}

// readNodes reads the nodes, and how fast their memory is by the firmware. Of nodes that are known, it reads only how
// much memory they have.
func (k *Topologies) readNodes(t *tree, cpus []topology.SeenCPU) ([]topology.Node, *topology.Measured) {
	ids := t.numbered(nodeFolder, "node")
	k.mu.Lock()
	defer k.mu.Unlock()
	if n := k.nodes; n != nil && n.online == k.cpus.online && slices.Equal(n.ids, ids) {
		if nodes, ok := n.again(); ok {
			return nodes, n.measured
		}
	}
	k.nodes.close()
	k.nodes = nil
	fresh := &tree{root: t.root}
	defer fresh.close()
	nodes := fresh.nodes(cpus)
	measured := fresh.accessFigures(nodes)
	if t.gaps = append(t.gaps, fresh.gaps...); len(fresh.gaps) == 0 && len(ids) > 0 {
		k.nodes = newKnownNodes(k.root, k.cpus.online, ids, nodes, measured)
	}
	return nodes, measured
}

// readDevices reads the devices if there are others than before, other nodes,
// or if the last reading is old.
func (k *Topologies) readDevices(t *tree, nodes []topology.Node) []topology.Device {
	addresses := t.names(pciFolder)
	var ids topology.NodeSet
	for i := range nodes {
		ids = ids.With(nodes[i].ID)
	}
	k.mu.Lock()
	defer k.mu.Unlock()
	if d := k.devices; d == nil || time.Since(d.at) > devicesMaxAge || !d.nodes.Equal(ids) ||
		!slices.Equal(addresses, d.addresses) {
		fresh := &tree{root: t.root}
		defer fresh.close()
		seen := fresh.devices(addresses, nodes)
		k.devices = &knownDevices{addresses, ids, time.Now(), seen, fresh.gaps}
	}
	t.gaps = append(t.gaps, k.devices.gaps...)
	return slices.Clone(k.devices.seen)
}
