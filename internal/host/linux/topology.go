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

// ReadTopology reads what the host is from sysfs, procfs and cgroup v2 below
// root: "/" for the running host, or the folder of a captured one, which holds
// its sys and proc. Symbolic links that lead out of root are not followed.
//
// Files that are missing, broken or too large become Gaps and reading goes on;
// it fails only where no CPU is to be found at all.
func ReadTopology(root string) (topology.Topology, error) {
	return NewTopologies(root).Read()
}

// Topologies reads one host again and again. Most files of a topology tell of
// single CPUs and PCI devices, many of each: CPUs are read once for as long as
// the same are online, devices as long as the same are there, and anew when they
// were last read keepDevices ago, for drivers and names change alone. It may be
// used from several goroutines.
type Topologies struct {
	root string

	mu      sync.Mutex
	cpus    *keptCPUs
	devices *keptDevices
}

const keepDevices = 10 * time.Minute

// keptDevices is what was read of the devices when these were there.
type keptDevices struct {
	addresses []string
	nodes     topology.NodeSet
	at        time.Time
	seen      []topology.Device
	gaps      []string
}

// keptCPUs is what was read of the CPUs when these were online.
type keptCPUs struct {
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
			"reading the topology: %w; give the folder that holds the host's sys and proc", err)
	}
	defer dir.Close()
	t := &tree{root: dir}
	cpus, offline := k.readCPUs(t)
	if len(cpus) == 0 {
		return topology.Topology{}, errors.Join(fmt.Errorf(
			"reading the topology: no CPU in %s below %s; give the folder that holds the host's sys and proc, or "+
				"check that sysfs is mounted",
			cpuFolder,
			k.root,
		), t.err())
	}
	nodes := t.nodes(cpus)
	seen := topology.Topology{
		Nodes:        nodes,
		Devices:      k.readDevices(t, nodes),
		Housekeeping: t.housekeeping(cpus),
		Offline:      offline,
		Measured:     t.accessFigures(nodes),
		Source:       "sysfs " + k.root,
	}
	seen.Gaps = t.gaps
	topo, err := topology.Assemble(seen, cpus)
	if err != nil {
		return topology.Topology{}, fmt.Errorf("reading the topology below %s: %w", k.root, err)
	}
	return topo, nil
}

// readCPUs reads the CPUs if others are online than before, or if it is not
// told which are. What is online is read first: who comes or goes meanwhile
// makes the next reading a whole one.
func (k *Topologies) readCPUs(t *tree) ([]topology.SeenCPU, topology.CPUSet) {
	online, told := t.text(cpuFolder + "/online")
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.cpus == nil || !told || online != k.cpus.online {
		fresh := &tree{root: t.root}
		seen, offline := fresh.cpus()
		k.cpus = &keptCPUs{online, seen, offline, fresh.gaps}
	}
	t.gaps = append(t.gaps, k.cpus.gaps...)
	return slices.Clone(k.cpus.seen), k.cpus.offline
}

// readDevices reads the devices if there are others than before, other nodes, or
// the last reading is old.
func (k *Topologies) readDevices(t *tree, nodes []topology.Node) []topology.Device {
	addresses := t.names(pciFolder)
	var ids topology.NodeSet
	for i := range nodes {
		ids = ids.With(nodes[i].ID)
	}
	k.mu.Lock()
	defer k.mu.Unlock()
	if d := k.devices; d == nil || time.Since(d.at) > keepDevices || !d.nodes.Equal(ids) ||
		!slices.Equal(addresses, d.addresses) {
		fresh := &tree{root: t.root}
		seen := fresh.devices(addresses, nodes)
		k.devices = &keptDevices{addresses, ids, time.Now(), seen, fresh.gaps}
	}
	t.gaps = append(t.gaps, k.devices.gaps...)
	return slices.Clone(k.devices.seen)
}
