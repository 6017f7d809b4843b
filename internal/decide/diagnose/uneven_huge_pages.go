package diagnose

import (
	"fmt"
	"slices"

	"github.com/numavisor/numavisor/internal/plan"
	"github.com/numavisor/numavisor/internal/topology"
)

// unevenHugePages: if only some nodes have a huge page pool, guests with huge
// pages can only run there. Pages reserved by placements do not count, because
// Numavisor grows pools on demand.
func unevenHugePages(v *view) (found []Finding) {
	reserved := map[topology.NodeID]map[topology.Bytes]topology.Bytes{}
	for _, s := range v.guests {
		if s.Placement != nil {
			for _, r := range s.Placement.Reservations {
				if reserved[r.Node] == nil {
					reserved[r.Node] = map[topology.Bytes]topology.Bytes{}
				}
				reserved[r.Node][r.PageSize] += r.Memory
			}
		}
	}
	for _, size := range v.poolSizes() {
		if f, uneven := v.uneven(size, reserved); uneven {
			found = append(found, f)
		}
	}
	return found
}

func (v *view) poolSizes() []topology.Bytes {
	var sizes []topology.Bytes
	for _, n := range v.topology.Nodes {
		for _, p := range n.HugePages {
			sizes = append(sizes, p.Size)
		}
	}
	slices.Sort(sizes)
	return slices.Compact(sizes)
}

// uneven compares one size's pools on nodes of about equal memory.
func (v *view) uneven(
	size topology.Bytes, reserved map[topology.NodeID]map[topology.Bytes]topology.Bytes,
) (Finding, bool) {
	var largest topology.Bytes
	for _, n := range v.topology.Nodes {
		largest = max(largest, n.Memory)
	}
	var evidence []string
	var most, fewest, total uint64
	var poor topology.NodeID
	seen := 0
	for _, n := range v.topology.Nodes {
		if n.CPUs.IsEmpty() || n.Memory < largest/2 || size == 0 {
			continue
		}
		pages := pool(n, size).Total
		spare := pages - min(pages, uint64(reserved[n.ID][size]/size))
		evidence = append(
			evidence,
			fmt.Sprintf("node %d: %d pages of %v, %d free, %d not reserved for placed VMs "+
				"(nr_hugepages)", n.ID, pages, size,
				pool(n, size).Free, spare),
		)
		if seen == 0 || spare < fewest {
			fewest, poor = spare, n.ID
		}
		if spare > most {
			most, total = spare, pages
		}
		seen++
	}
	if seen < 2 || fewest >= most/2+most%2 || topology.Bytes(most)*size < minMemoryBytes {
		return Finding{}, false
	}
	path := fmt.Sprintf("/sys/devices/system/node/node%d/hugepages/hugepages-%dkB/nr_hugepages", poor,
		size/topology.KiB)
	value := fmt.Sprint(total)
	return Finding{
		Severity: Warning, Object: fmt.Sprintf("huge pages of %v", size), Evidence: evidence,
		Effect:  "VMs with huge pages fit only on some nodes; unbound VMs take pages from any node",
		Fix:     fmt.Sprintf("grow the pool of node %d, or let Numavisor grow pools on demand", poor),
		Command: fmt.Sprintf("echo %s > %s", value, path),
		Action:  &plan.Remedy{Kind: plan.WriteSetting, Path: path, Value: value}, // not safe: takes memory from others
	}, true
}

func pool(n topology.Node, size topology.Bytes) topology.HugePagePool {
	for _, p := range n.HugePages {
		if p.Size == size {
			return p
		}
	}
	return topology.HugePagePool{Size: size}
}
