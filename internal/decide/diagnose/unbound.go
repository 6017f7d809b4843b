package diagnose

import (
	"fmt"
	"slices"
	"strings"

	"github.com/numavisor/numavisor/internal/inventory"
	"github.com/numavisor/numavisor/internal/text"
	"github.com/numavisor/numavisor/internal/topology"
)

// preallocatedUnbound: memory taken all at once at start, by whichever thread
// takes it, lies where that thread ran. It stays there: nothing is left to
// first touch by the vCPUs.
func preallocatedUnbound(v *view) (found []Finding) {
	for _, s := range slices.Concat(v.guests, v.stored) {
		why := preallocated(s.Config)
		if s.bound || s.pinned() || why == "" || v.startsAtHome(s) {
			continue
		}
		found = append(found, s.binding(Finding{
			Severity: Warning,
			Evidence: []string{why + ", no numatune (configuration)", s.memoryEvidence()},
			Effect: "all memory is taken at start by the emulator's threads, on the nodes where they happen to " +
				"run, not near the vCPUs" + worthOfNUMATune,
		}))
	}
	return found
}

// worthOfNUMATune was measured on two nodes, guest of 32 vCPUs, 128 GB and two
// cells, memory in hugetlbfs, with numatune against without.
const worthOfNUMATune = "; with numatune such a guest ran SPEC CPU2017 fp rate 25 % and fp speed 12 % faster, " +
	"STREAM 78 % (Tencent Cloud, 2019)"

// startsAtHome reports whether the emulator is held to the one node that the
// vCPUs are held to: libvirt starts QEMU there already, so what it takes at
// start is local to them.
func (v *view) startsAtHome(s *subject) bool {
	home := v.topology.NodesOf(s.vcpus)
	return s.cpuHeld && home.Len() == 1 && v.topology.NodesOf(s.Config.EmulatorPin).Equal(home)
}

// preallocated says why a guest has all its memory from the start; "" if not.
func preallocated(c inventory.Config) string {
	switch {
	case c.PageSize > 0:
		return fmt.Sprintf("huge pages of %v", c.PageSize)
	case c.Source == "hugetlbfs":
		return "memory in hugetlbfs"
	case c.Immediate:
		return "memory allocated at start"
	case c.Locked:
		return "memory locked"
	}
	return ""
}

// vfioUnbound: assigning a device pins all guest memory, which populates it.
func vfioUnbound(v *view) (found []Finding) {
	for _, s := range slices.Concat(v.guests, v.stored) {
		if s.bound || !s.pinned() || v.startsAtHome(s) {
			continue
		}
		found = append(found, s.binding(Finding{
			Severity: Warning,
			Evidence: []string{
				fmt.Sprintf("devices %s assigned, no numatune (configuration)", strings.Join(s.Config.Devices, ", ")),
				s.memoryEvidence(),
				"transparent huge pages: " + orUnknown(v.host.Kernel.TransparentHugePages),
			},
			Effect: "vfio populates and pins all memory at start, on the nodes where the emulator runs; neither " +
				"first touch nor the kernel's balancing can bring it nearer" + worthOfNUMATune,
		}))
	}
	return found
}

// smallPart: a guest smaller than this part of the smallest node finds room
// wherever it runs, and first touch puts its pages there.
const smallPart = 32

// bindingMattersLittle is for small guests that take memory on demand.
func bindingMattersLittle(v *view) (found []Finding) {
	for _, s := range v.guests {
		if s.bound || s.pinned() || preallocated(s.Config) != "" || !v.isSmall(s) {
			continue
		}
		found = append(found, Finding{
			Severity: Info, Object: s.object(),
			Evidence: []string{
				fmt.Sprintf("%d vCPUs, %v, taken on demand, no numatune (configuration)", s.Config.VCPUs,
					s.Config.Memory),
				s.memoryEvidence(),
			},
			Effect:  "little: it is small, and first touch puts its pages near the vCPU that uses them",
			Fix:     "none needed; bind it if its latency matters",
			Command: "numavisor bind " + text.ShellWord(s.Name),
		})
	}
	return found
}

func (v *view) isSmall(s *subject) bool {
	var least topology.Bytes
	for _, n := range v.topology.Nodes {
		if n.Memory > 0 && !n.CPUs.IsEmpty() && (least == 0 || n.Memory < least) {
			least = n.Memory
		}
	}
	return s.Config.Memory > 0 && s.Config.Memory <= least/smallPart
}
