package xen

import (
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"

	"github.com/numavisor/numavisor/internal/guest"
	"github.com/numavisor/numavisor/internal/inventory"
	"github.com/numavisor/numavisor/internal/topology"
)

// CellsError means that a VM cannot have the virtual NUMA nodes that its configuration or a request has.
type CellsError struct{ Why string }

func (e *CellsError) Error() string { return "virtual NUMA nodes (vnuma): " + e.Why }

// virtualNode is an entry of vnuma. A placement rewrites pnode and distances where they are in the text.
type virtualNode struct {
	memory           topology.Bytes
	vcpus            guest.VCPUSet
	pnode, distances value
}

// virtualNodes reads vnuma (xl.cfg(5)); nil: the configuration has none.
func (c *Config) virtualNodes() (nodes []virtualNode, err error) {
	found := slices.DeleteFunc(slices.Clone(c.settings), func(s setting) bool { return s.key != "vnuma" })
	switch {
	case len(found) == 0:
		return nil, nil
	case len(found) > 1 || found[0].adds:
		return nil, &CellsError{"is set more than once"}
	case found[0].value.is != isList || len(found[0].value.list) == 0:
		return nil, &CellsError{"is not a list of nodes"}
	}
	var all guest.VCPUSet
	vcpus := 0
	for i, entry := range found[0].value.list {
		n, err := entry.virtualNode()
		if err != nil {
			return nil, &CellsError{fmt.Sprintf("node %d: %v", i, err)}
		}
		all, vcpus = all.Union(n.vcpus), vcpus+n.vcpus.Len()
		nodes = append(nodes, n)
	}
	if all.Len() != vcpus || !all.Equal(topology.Range(0, guest.VCPUID(vcpus-1))) {
		return nil, &CellsError{"each vCPU must be in one node"}
	}
	return nodes, nil
}

// virtualNode reads an entry of vnuma: a list of texts "key=value", in which each key is once.
func (v value) virtualNode() (n virtualNode, err error) {
	if v.is != isList {
		return n, errors.New("is not a list")
	}
	seen := map[string]bool{}
	for _, one := range v.list {
		key, text, ok := strings.Cut(one.text, "=")
		key, text = strings.TrimSpace(key), strings.TrimSpace(text)
		if one.is != isString || !ok || seen[key] {
			return n, fmt.Errorf("%q: each setting is a text \"key=value\", and there once", one.text)
		}
		seen[key] = true
		switch key {
		case "pnode":
			n.pnode = one
		case "vdistances":
			n.distances = one
		case "size":
			var mib uint64
			mib, err = strconv.ParseUint(text, 10, 32)
			n.memory = topology.Bytes(mib) * topology.MiB
		case "vcpus":
			n.vcpus, err = topology.ParseSet[guest.VCPUID](text)
		default:
			err = errors.New("is unknown")
		}
		if err != nil {
			return n, fmt.Errorf("%s: %w", key, err)
		}
	}
	if n.pnode.is == isNone || n.distances.is == isNone || n.memory == 0 || n.vcpus.IsEmpty() {
		return n, errors.New("pnode, size, vcpus and vdistances are required, each of them above nothing")
	}
	return n, nil
}

// Cells returns the virtual nodes of the configuration as those of a guest that runs; none if it has none.
func (c *Config) Cells() (cells []inventory.ConfigCell) {
	nodes, _ := c.virtualNodes() // Spec has refused what cannot be read
	for i, n := range nodes {
		cells = append(cells, inventory.ConfigCell{ID: guest.CellID(i), Memory: n.memory, VCPUs: n.vcpus})
	}
	return cells
}

// CheckCells refuses virtual nodes that Xen or the guest's kernel would not accept, as a *CellsError.
func (c *Config) CheckCells(s *guest.Spec) error {
	asked := &s.Topology
	own, err := c.virtualNodes()
	switch {
	case err != nil:
		return err
	case own != nil && !slices.EqualFunc(own, asked.Cells, func(n virtualNode, a guest.CellSpec) bool {
		return n.memory == a.Memory && n.vcpus.Len() == a.VCPUs
	}):
		return &CellsError{"the configuration has its own: remove vnuma from it, or leave out --topology and --cells"}
	case asked.Mode == guest.TopologyOff:
		return nil
	}
	switch kind := c.Type(); kind {
	case "hvm":
	case "pvh":
		return &CellsError{"a PVH VM with them does not start, since libxl cannot write its ACPI tables (seen with " +
			"Xen 4.17): use type = \"hvm\", or leave them out"}
	default:
		return &CellsError{fmt.Sprintf("the kernel of a VM of type %s does not use them: use type = \"hvm\", or leave "+
			"them out", kind)}
	}
	memory, err := c.number("memory", uint64(s.Memory/topology.MiB))
	if err != nil {
		return err
	}
	if topology.Bytes(memory)*topology.MiB != s.Memory {
		return &CellsError{fmt.Sprintf("memory is %d MiB, and the VM may have %v: Xen gives virtual nodes to a VM "+
			"only if it starts with all of its memory", memory, s.Memory)}
	}
	for i, cell := range asked.Cells {
		if cell.Memory%topology.MiB != 0 {
			return &CellsError{fmt.Sprintf("cell %d has %v: allowed are whole MiB", i, cell.Memory)}
		}
	}
	return nil
}

// vnumaEdits are the changes that bring the virtual nodes of the configuration to the nodes of a placement.
func (c *Config) vnumaEdits(p *guest.Placement) (edits []edit) {
	nodes, err := c.virtualNodes()
	if err != nil || len(nodes) != len(p.Cells) {
		return nil // Spec has refused it
	}
	for i, n := range nodes {
		edits = append(edits, edit{n.pnode.from, n.pnode.to, pnode(&p.Cells[i])},
			edit{n.distances.from, n.distances.to, vdistances(&p.Cells[i])})
	}
	return edits
}

// vnuma is the setting for the cells of a placement.
func vnuma(p *guest.Placement) string {
	lines := make([]string, len(p.Cells))
	for i := range p.Cells {
		cell := &p.Cells[i]
		lines[i] = fmt.Sprintf("  [ \"%s\", \"size=%d\", \"vcpus=%s\", \"%s\" ]", pnode(cell), cell.Memory/topology.MiB,
			cell.VCPUs, vdistances(cell))
	}
	return "vnuma = [\n" + strings.Join(lines, ",\n") + "\n]\n"
}

func pnode(cell *guest.Cell) string {
	node, _ := cell.Nodes.First()
	return fmt.Sprintf("pnode=%d", node)
}

func vdistances(cell *guest.Cell) string {
	return "vdistances=" + strings.Trim(strings.ReplaceAll(fmt.Sprint(cell.Distances), " ", ","), "[]")
}
