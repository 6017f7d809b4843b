package diagnose

import (
	"fmt"
	"maps"
	"slices"

	"github.com/numavisor/numavisor/internal/inventory"
	"github.com/numavisor/numavisor/internal/topology"
)

// boundToNothing: a guest is pinned to CPUs that are all offline, or bound to
// nodes without memory. Shut-off guests count too, because their next start fails.
func boundToNothing(v *view) (found []Finding) {
	online := v.topology.CPUSet()
	for _, s := range slices.Concat(v.guests, v.stored) {
		var evidence []string
		for _, p := range pinsOf(&s.Config) {
			if !online.IsEmpty() && !p.cpus.IsEmpty() && !p.cpus.Intersects(online) {
				evidence = append(
					evidence,
					fmt.Sprintf("%s is pinned to CPUs %s (configuration); online CPUs are %s "+
						"(%s)", p.who, p.cpus, online,
						orUnknown(v.topology.Source)),
				)
			}
		}
		for _, m := range nodesOf(s.Config.NUMATune) {
			if !v.memoryNodes.IsEmpty() && !m.nodes.IsEmpty() && !m.nodes.Intersects(v.memoryNodes) {
				evidence = append(
					evidence,
					fmt.Sprintf("%s is bound to nodes %s (configuration); nodes with memory are %s "+
						"(%s)", m.who, m.nodes,
						v.memoryNodes, orUnknown(v.topology.Source)),
				)
			}
		}
		if len(evidence) == 0 {
			continue
		}
		found = append(found, Finding{
			Severity: Error, Object: s.object(), Evidence: evidence,
			Effect:  "the VM does not start; if it runs, the kernel has moved it to other CPUs or nodes",
			Fix:     "bind the VM's configuration to other nodes, or bring the CPUs or memory back online",
			Command: s.rewriteCommand(""),
		})
	}
	return found
}

// pinning is the pin of some threads in a configuration.
type pinning struct {
	who  string
	cpus topology.CPUSet
}

func pinsOf(c *inventory.Config) []pinning {
	var all []pinning
	for _, v := range slices.Sorted(maps.Keys(c.Pins)) {
		all = append(all, pinning{fmt.Sprintf("vCPU %d", v), c.Pins[v]})
	}
	all = append(all, pinning{"the emulator", c.EmulatorPin})
	for _, i := range slices.Sorted(maps.Keys(c.IOThreadPins)) {
		all = append(all, pinning{fmt.Sprintf("I/O thread %d", i), c.IOThreadPins[i]})
	}
	return all
}

// tuning is the numatune of the guest or of a cell.
type tuning struct {
	who   string
	nodes topology.NodeSet
}

func nodesOf(t *inventory.NUMATune) []tuning {
	if t == nil {
		return nil
	}
	all := []tuning{{"memory", t.Nodes}}
	for _, c := range t.Cells {
		all = append(all, tuning{fmt.Sprintf("cell %d", c.Cell), c.Nodes})
	}
	return all
}
