package linux

import (
	"errors"
	"fmt"
	"os"

	"github.com/numavisor/numavisor/internal/topology"
)

// ReadTopology reads what the host is from sysfs, procfs and cgroup v2 below
// root: "/" for the running host, or the folder of a captured one, which holds
// its sys and proc. Symbolic links that lead out of root are not followed.
//
// Files that are missing, broken or too large become Gaps and reading goes on;
// it fails only where no CPU is to be found at all.
func ReadTopology(root string) (topology.Topology, error) {
	dir, err := os.OpenRoot(root)
	if err != nil {
		return topology.Topology{}, fmt.Errorf("reading the topology: %w; give the folder that holds the host's sys and proc", err)
	}
	defer dir.Close()
	t := &tree{root: dir}
	cpus, offline := t.cpus()
	if len(cpus) == 0 {
		return topology.Topology{}, errors.Join(fmt.Errorf(
			"reading the topology: no CPU in %s below %s; give the folder that holds the host's sys and proc, or check that sysfs is mounted",
			cpuFolder, root), t.err())
	}
	nodes := t.nodes(cpus)
	seen := topology.Topology{
		Nodes:        nodes,
		Devices:      t.devices(nodes),
		Housekeeping: t.housekeeping(cpus),
		Offline:      offline,
		Measured:     t.accessFigures(nodes),
		Source:       "sysfs " + root,
	}
	seen.Gaps = t.gaps
	topo, err := topology.Assemble(seen, cpus)
	if err != nil {
		return topology.Topology{}, fmt.Errorf("reading the topology below %s: %w", root, err)
	}
	return topo, nil
}
