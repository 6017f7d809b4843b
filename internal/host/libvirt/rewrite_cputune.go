package libvirt

import (
	"strconv"

	"github.com/numavisor/numavisor/internal/guest"
	"github.com/numavisor/numavisor/internal/topology"
)

// vcpu makes placement static and removes the pin that applied to every thread
// without one of its own.
func (w *writer) vcpu() error {
	e := w.root.child("vcpu")
	if e == nil {
		w.insertBehind(tag{name: "vcpu", attrs: []pair{{"placement", "static"}}, text: "1"}, "currentMemory", "memory")
		return nil
	}
	w.setAttrs(e, pair{"placement", "static"}, pair{"cpuset", ""})
	return nil
}

// cpuTune replaces all pins. Quotas, shares, schedulers and cache settings stay.
func (w *writer) cpuTune() error {
	var pins []tag
	pin := func(name, idName, id string, cpus topology.CPUSet) {
		if cpus.IsEmpty() {
			return
		}
		t := tag{name: name}
		if idName != "" {
			t.attrs = append(t.attrs, pair{idName, id})
		}
		t.attrs = append(t.attrs, pair{"cpuset", cpus.String()})
		pins = append(pins, t)
	}
	for _, v := range w.placement.VCPUs {
		pin("vcpupin", "vcpu", strconv.Itoa(int(v.ID)), w.placement.StartPin(v))
	}
	if !w.latePin() {
		pin("emulatorpin", "", "", w.placement.Emulator)
	}
	for _, id := range w.domain.IOThreads {
		pin("iothreadpin", "iothread", strconv.Itoa(id), ioThreadCPUs(w.placement))
	}
	ours := func(e *element) bool {
		return e.prefix == "" && (e.name == "vcpupin" || e.name == "emulatorpin" || e.name == "iothreadpin")
	}
	if tune := w.root.child("cputune"); tune != nil {
		w.setChildren(tune, ours, pins)
	} else if len(pins) > 0 {
		w.insertBehind(tag{name: "cputune", children: pins}, "iothreadids", "iothreads", "vcpus", "vcpu",
			"currentMemory", "memory")
	}
	return nil
}

// ioThreadCPUs are the CPUs of I/O threads: those of the emulator if the
// placement has none for them.
func ioThreadCPUs(p guest.Placement) topology.CPUSet {
	if p.IOThreads == 0 && p.IOThread.IsEmpty() {
		return p.Emulator
	}
	return p.IOThread
}

func (w *writer) latePin() bool {
	return w.allocatesAtStart() && w.placement.MemoryMode != guest.MemoryRestrictive && !reachesAllCells(w.placement)
}

func (w *writer) allocatesAtStart() bool {
	c := w.domain.Config
	return allocatesAtStart(w.placement) || c.Immediate || c.PageSize > 0
}

func allocatesAtStart(p guest.Placement) bool { return p.Immediate || p.PageSize > 0 }

// EmulatorPinIsLate reports that Rewrite leaves the emulator's pin out, so that
// it must be set once the guest exists (started paused, Driver.PinEmulator).
//
// With allocation at start libvirt makes QEMU run the allocating threads on
// each cell's nodes; libvirt 9.0 ignores the emulator's own cpuset in this, and
// QEMU does not start ("Setting CPU affinity failed: Invalid argument",
// observed) if a cell's nodes have no CPU in it.
func EmulatorPinIsLate(p guest.Placement) bool {
	return !p.Emulator.IsEmpty() && allocatesAtStart(p) &&
		p.MemoryMode != guest.MemoryRestrictive && !reachesAllCells(p)
}

// reachesAllCells reports whether the emulator certainly has a CPU on the nodes
// of every cell. A placement does not say which CPUs a node has; those of the
// cell's vCPUs are on it.
func reachesAllCells(p guest.Placement) bool {
	for _, c := range p.Cells {
		reached := false
		for _, v := range p.VCPUs {
			reached = reached || (c.VCPUs.Contains(v.ID) && v.CPUs.Intersects(p.Emulator))
		}
		if !reached {
			return false
		}
	}
	return true
}
