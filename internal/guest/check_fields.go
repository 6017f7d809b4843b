package guest

import (
	"math/bits"
	"strings"
	"unicode"
	"unicode/utf8"

	"github.com/numavisor/numavisor/internal/topology"
)

// maxName leaves room for the suffixes that libvirt adds to the name of a
// guest's files (/etc/libvirt/qemu/NAME.xml.new) within the 255 bytes of a file
// name.
const maxName = 240

// name: as libvirt allows it (virDomainDefPostParse, virXMLCheckIllegalChars).
func (c *checker) name() {
	name := c.spec.Name
	unfit := func(r rune) bool { return r == '/' || unicode.IsControl(r) }
	switch {
	case name == "":
	case len(name) > maxName || !utf8.ValidString(name) || strings.ContainsFunc(name, unfit) ||
		strings.TrimSpace(name) == "" || name == "." || name == "..":
		c.fail("name", name,
			"1 to %d bytes of text without '/', line breaks and control characters, not only spaces or dots", maxName)
	}
}

func (c *checker) size() {
	s := c.spec
	least := 1
	if s.IsHandoff() {
		least = 0 // as many as the host's CPUs
	}
	c.between("vcpus", s.VCPUs, least, maxVCPUs)
	c.pageSize()
	unit := c.unit()
	switch {
	case s.Memory == 0:
		c.fail("memory", 0, "%v to %v, for example 16G", unit, maxMemory)
	case s.Memory > maxMemory:
		c.fail("memory", s.Memory, "at most %v", maxMemory)
	case s.Memory%unit != 0:
		c.fail("memory", uint64(s.Memory), "a whole number of pages of %v, the next is %d bytes", unit,
			uint64(s.Memory-s.Memory%unit+unit))
	}
}

// unit is the granularity of memory amounts.
func (c *checker) unit() topology.Bytes {
	if c.isHugePage() {
		return c.spec.PageSize
	}
	return smallPage
}

// isHugePage: every huge page size that Linux has on some architecture is
// between 64 KiB (arm64) and 16 GiB (POWER), and all are powers of two.
func (c *checker) isHugePage() bool {
	size := c.spec.PageSize
	return size >= 64*topology.KiB && size <= 16*topology.GiB && bits.OnesCount64(uint64(size)) == 1
}

func (c *checker) pageSize() {
	if c.spec.PageSize != 0 && !c.isHugePage() {
		c.fail(
			"page_size",
			c.spec.PageSize,
			"0 (the host's small pages) or a size of the host's huge pages, such as 2M or 1G: a power of two from "+
				"64K to 16G",
		)
	}
}

func (c *checker) cpu() {
	cpu := &c.spec.CPU
	oneOf(c, "cpu.binding", cpu.Binding)
	oneOf(c, "cpu.smt", cpu.SMT)
	oneOf(c, "cpu.emulator", cpu.Emulator)
	oneOf(c, "cpu.io_thread_policy", cpu.IOPolicy)
	c.between("cpu.io_threads", cpu.IOThreads, 0, maxIOThreads)
	if (cpu.SMT == SMTRequire || cpu.SMT == SMTIsolate) && cpu.Binding != CPUExclusive {
		c.fail("cpu.smt", string(cpu.SMT),
			"any or prefer with cpu.binding %s; %s needs cpu.binding exclusive, which gives vCPUs CPUs of their own",
			cpu.Binding, cpu.SMT)
	}
}

func (c *checker) memory() {
	mode := c.spec.Binding.Mode
	oneOf(c, "memory_binding.mode", mode)
	if mode == MemoryRestrictive && !c.oneCell() {
		c.fail(
			"memory_binding.mode",
			string(mode),
			"preferred, strict, interleave or none for a VM that may see several cells; restrictive does not "+
				"place cells' memory (libvirt gives QEMU no policy for them), so give it with topology off or one cell",
		)
	}
}

// oneCell reports whether the guest cannot see more than one cell.
func (c *checker) oneCell() bool {
	t := &c.spec.Topology
	switch t.Mode {
	case TopologyOff:
		return true
	case TopologyCells:
		return t.Count <= 1
	case TopologyAuto:
		return c.spec.Limits.MaxNodes == 1 || c.spec.Limits.Nodes.Len() == 1
	case TopologyMirror: // a cell for each node
	}
	return c.spec.Limits.Nodes.Len() == 1
}

func (c *checker) limits() {
	s, l := c.spec, &c.spec.Limits
	if l.MaxDistance != 0 {
		// 10 is a node to itself, 255 is unreachable (ACPI SLIT).
		if l.MaxDistance < 10 || l.MaxDistance > 254 {
			c.fail("limits.max_distance", l.MaxDistance, "0 (no limit) or a SLIT distance from 10 (one node) to 254")
		}
	}
	if l.MaxClass != "" {
		oneOf(c, "limits.max_class", l.MaxClass)
	}
	if l.MaxNodes < 0 {
		c.fail("limits.max_nodes", l.MaxNodes, "0 (no limit) or the greatest number of nodes")
	}
	if l.MaxNodes > 0 && s.Topology.Mode == TopologyMirror {
		c.fail("limits.max_nodes", l.MaxNodes,
			"0 with topology.mode mirror, which takes every node of limits.nodes; name the nodes there instead")
	}
	if cpus := l.CPUs.Len(); cpus > 0 && s.CPU.Binding == CPUExclusive && cpus < s.VCPUs {
		c.fail("limits.cpus", l.CPUs.String(),
			"at least %d CPUs, one for each vCPU, with cpu.binding exclusive; these are %d", s.VCPUs, cpus)
	}
}
