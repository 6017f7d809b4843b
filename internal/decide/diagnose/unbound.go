package diagnose

import (
	"fmt"
	"slices"
	"strings"

	"github.com/numavisor/numavisor/internal/inventory"
	"github.com/numavisor/numavisor/internal/text"
	"github.com/numavisor/numavisor/internal/topology"
)

// preallocatedUnbound: memory that QEMU allocates at start is on the nodes where
// the allocating threads ran. It stays there, because first touch by the vCPUs
// has no effect any more.
func preallocatedUnbound(v *view) (found []Finding) {
	for _, s := range slices.Concat(v.guests, v.stored) {
		why := preallocated(s.Config)
		if s.bound || s.pinned() || why == "" || v.startsAtHome(s) {
			continue
		}
		found = append(found, s.binding(Finding{
			Severity: Warning,
			Evidence: []string{why + ", no numatune (configuration)", s.memoryEvidence()},
			Effect: "the emulator's threads allocate all memory at start, on the nodes where they happen to run, not " +
				"near the vCPUs" + worthOfNUMATune,
		}))
	}
	return found
}

// worthOfNUMATune is the gain from numatune, measured on two nodes with a guest of
// 32 vCPUs, 128 GB, two cells and memory in hugetlbfs.
const worthOfNUMATune = "; with numatune such a VM ran SPEC CPU2017 fp rate 25 % and fp speed 12 % faster, " +
	"STREAM 78 % (Tencent Cloud, 2019)"

// startsAtHome reports whether the emulator and the vCPUs are pinned to the same
// single node: libvirt then starts QEMU there, so the memory that it allocates at
// start is local to the vCPUs.
func (v *view) startsAtHome(s *subject) bool {
	home := v.topology.NodesOf(s.vcpus)
	return s.cpuRestricted && home.Len() == 1 && v.topology.NodesOf(s.Config.EmulatorPin).Equal(home)
}

// preallocated returns why QEMU allocates all of a guest's memory at start, or ""
// if it does not.
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

// vfioUnbound: assigning a device allocates and pins all guest memory.
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
			Effect: "vfio allocates and pins all memory at start, on the nodes where the emulator runs; neither " +
				"first touch nor the kernel's balancing can move it later" + worthOfNUMATune,
		}))
	}
	return found
}

// smallPart: a guest smaller than this part of the smallest node fits wherever it
// runs, and first touch allocates its pages there.
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
				fmt.Sprintf("%d vCPUs, %v, allocated on demand, no numatune (configuration)", s.Config.VCPUs,
					s.Config.Memory),
				s.memoryEvidence(),
			},
			Effect:  "little: the VM is small, and first touch allocates its pages near the vCPU that uses them",
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
