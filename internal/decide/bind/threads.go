package bind

import (
	"slices"

	"github.com/numavisor/numavisor/internal/guest"
	"github.com/numavisor/numavisor/internal/inventory"
	"github.com/numavisor/numavisor/internal/plan"
	"github.com/numavisor/numavisor/internal/topology"
)

// pinThreads moves vCPUs, emulator and I/O threads to their CPUs before the
// executor copies memory, so that pages first touched meanwhile are already on the
// intended nodes.
func (b *builder) pinThreads() {
	all := b.Topology.CPUSet()
	for _, v := range b.Placement.VCPUs {
		if b.handedOver(v.ID) {
			continue
		}
		want := orAll(b.Placement.StartPin(v), all)
		if b.Guest.Can.PinVCPU {
			if b.vcpuDiffers(v.ID, want) {
				b.add(
					plan.Step{
						Kind: plan.PinVCPU,
						VCPU: v.ID,
						CPUs: want,
						Why:  "vCPUs move before memory, so that what they touch next is already near",
					},
				)
			}
			continue
		}
		b.affinity(want, func(t inventory.Thread) bool { return t.VCPU != nil && *t.VCPU == v.ID })
	}
	if b.Guest.Can.NoHelpers {
		return
	}
	emulator := orAll(b.Placement.Emulator, all)
	b.pinEmulator(emulator)
	b.pinIOThreads(orAll(b.Placement.IOThread, all))
	// vhost workers are kernel threads of their own before Linux 6.4: libvirt does not pin them.
	b.affinity(emulator, func(t inventory.Thread) bool { return t.Role == inventory.RoleVhost })
}

// handedOver reports whether a vCPU of a guest that hands CPUs over runs within the
// CPUs that the guest mirrors. Which of them it has changes all the time.
func (b *builder) handedOver(id guest.VCPUID) bool {
	if b.Placement.CPUMode != guest.CPUHandoff {
		return false
	}
	mirror := topology.SetOf(b.Placement.Mirror()...)
	return slices.ContainsFunc(b.Guest.Seen.Threads, func(t inventory.Thread) bool {
		return t.VCPU != nil && *t.VCPU == id && !t.Affinity.IsEmpty() && t.Affinity.SubsetOf(mirror)
	})
}

func orAll(want, all topology.CPUSet) topology.CPUSet {
	if want.IsEmpty() {
		return all
	}
	return want
}

func (b *builder) vcpuDiffers(id guest.VCPUID, want topology.CPUSet) bool {
	if pin, ok := b.Guest.Config.Pins[id]; (ok && !pin.Equal(want)) || (!ok && !want.Equal(b.Topology.CPUSet())) {
		return true
	}
	for _, t := range b.Guest.Seen.Threads {
		if t.VCPU != nil && *t.VCPU == id {
			return !t.Affinity.Equal(b.online(want))
		}
	}
	return true
}

// online drops offline CPUs: the kernel removes them from a thread's allowed CPUs,
// and adds them again once they are back online.
func (b *builder) online(cpus topology.CPUSet) topology.CPUSet {
	if all := b.Topology.CPUSet(); cpus.Intersects(all) {
		return cpus.Intersect(all)
	}
	return cpus
}

func (b *builder) pinEmulator(want topology.CPUSet) {
	if !b.Guest.Can.PinVCPU {
		b.affinity(want, func(t inventory.Thread) bool {
			return t.Role == inventory.RoleEmulator || t.Role == inventory.RoleOther
		})
		return
	}
	differs := !orAll(b.Guest.Config.EmulatorPin, b.Topology.CPUSet()).Equal(want)
	for _, t := range b.Guest.Seen.Threads {
		if t.Role == inventory.RoleEmulator && !t.Affinity.SubsetOf(want) {
			differs = true
		}
	}
	if differs {
		b.add(
			plan.Step{
				Kind: plan.PinHelper,
				CPUs: want,
				Why:  "emulator threads and their buffers belong near the VM's memory",
			},
		)
	}
}

func (b *builder) pinIOThreads(want topology.CPUSet) {
	if !b.Guest.Can.PinVCPU {
		b.affinity(want, func(t inventory.Thread) bool { return t.Role == inventory.RoleIOThread })
		return
	}
	for id := 1; id <= b.Placement.IOThreads; id++ {
		if pin, ok := b.Guest.Config.IOThreadPins[id]; ok && pin.Equal(want) {
			continue
		}
		b.add(
			plan.Step{
				Kind:     plan.PinIO,
				IOThread: id,
				CPUs:     want,
				Why:      "I/O threads copy between device and VM memory",
			},
		)
	}
}

func (b *builder) affinity(want topology.CPUSet, which func(inventory.Thread) bool) {
	for _, t := range b.Guest.Seen.Threads {
		if which(t) && !t.Affinity.Equal(b.online(want)) {
			b.add(
				plan.Step{
					Kind: plan.Affinity,
					TID:  t.TID,
					CPUs: want,
					Why:  "thread " + t.Name + " runs on CPUs " + t.Affinity.String(),
				},
			)
		}
	}
}
