package fake

import (
	"fmt"
	"slices"

	"github.com/numavisor/numavisor/internal/guest"
	"github.com/numavisor/numavisor/internal/inventory"
	"github.com/numavisor/numavisor/internal/topology"
)

// Events that change a host from outside: guests come, go and grow, other
// people pin and migrate. None of these counts as a call, and none fails except
// when the guest or memory is missing.

// Add starts an unmanaged guest, with a stored configuration.
func (h *Host) Add(d Definition) error {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.start(d, false)
}

// AddProgram starts a process that is not a guest, with a number of threads on
// any CPUs and its memory on one node, and returns its id.
func (h *Host) AddProgram(threads int, memory topology.Bytes, on topology.NodeID) int {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.ticks++
	p := &process{pid: h.nextPID(), ticks: h.ticks, cgroup: "/user.slice"}
	for i := range threads {
		p.threads = append(
			p.threads,
			inventory.Thread{
				TID:      p.pid + i,
				Name:     "work",
				Role:     inventory.RoleEmulator,
				Affinity: h.topology.CPUSet(),
				Mems:     h.topology.MemoryNodes(),
			},
		)
	}
	m := &mapping{
		own: true,
		MemoryRange: inventory.MemoryRange{
			Address:  0x550000000000,
			Size:     memory,
			Policy:   "default",
			PageSize: smallPage,
			Backing:  "anonymous",
			ByNode:   topology.MemoryByNode{},
		},
	}
	h.touch(m, memory, on, h.topology.MemoryNodes())
	p.mappings = []*mapping{m}
	h.programs[p.pid] = p
	return p.pid
}

// EndProgram ends a process of AddProgram.
func (h *Host) EndProgram(pid int) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if p, ok := h.programs[pid]; ok {
		h.end(p)
		delete(h.programs, pid)
	}
}

// Intent returns the intent in the metadata of a guest; ok is false if it has
// none.
func (h *Host) Intent(name string) (i guest.Intent, ok bool) {
	h.mu.Lock()
	defer h.mu.Unlock()
	d, ok := h.domains[name]
	if !ok {
		return i, false
	}
	for _, definition := range d.definitions() {
		if definition.Intent != nil {
			return *definition.Intent, true
		}
	}
	return i, false
}

// Guest returns all facts about a guest, without asking the drivers; ok is
// false if it does not exist.
func (h *Host) Guest(name string) (g inventory.Guest, ok bool) {
	h.mu.Lock()
	defer h.mu.Unlock()
	d, ok := h.domains[name]
	if !ok {
		return g, false
	}
	g = h.seenGuest(name)
	if d.process != nil {
		g.Seen.Threads = slices.Clone(d.process.threads)
		for _, m := range d.process.mappings {
			g.Seen.Ranges = append(g.Seen.Ranges, m.seen())
		}
	}
	return g, true
}

// StartTicksOf distinguishes one start of a guest from another; 0 means that it
// does not run.
func (h *Host) StartTicksOf(name string) uint64 {
	h.mu.Lock()
	defer h.mu.Unlock()
	if d, ok := h.domains[name]; ok && d.process != nil {
		return d.process.ticks
	}
	return 0
}

// Runs reports whether the process that started then still exists.
func (h *Host) Runs(pid int, ticks uint64) bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	p, err := h.process(pid)
	return err == nil && p.ticks == ticks
}

// Vanish ends a guest's process; its stored configuration stays, if it has one.
func (h *Host) Vanish(name string) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.vanish(name)
}

func (h *Host) vanish(name string) {
	d, ok := h.domains[name]
	if !ok || d.process == nil {
		return
	}
	h.end(d.process)
	d.process, d.live = nil, nil
	if d.stored == nil {
		delete(h.domains, name)
	}
}

// Replace ends a guest and starts another guest under its name, whose process
// happens to get the same id.
func (h *Host) Replace(d Definition) error {
	h.mu.Lock()
	defer h.mu.Unlock()
	old, err := h.domain(d.Name)
	if err != nil || old.process == nil {
		return fmt.Errorf("replacing guest %s: it does not run", d.Name)
	}
	pid := old.process.pid
	h.vanish(d.Name)
	delete(h.domains, d.Name)
	p, err := h.launch(d, pid)
	if err != nil {
		return err
	}
	h.domains[d.Name] = &domain{live: &d, process: p}
	return nil
}

// Touch makes a guest use up to bytes more of each cell and returns how much it
// allocated in all.
func (h *Host) Touch(name string, bytes topology.Bytes) (topology.Bytes, error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	d, err := h.domain(name)
	if err != nil || d.process == nil {
		return 0, fmt.Errorf("guest %s does not run", name)
	}
	var got topology.Bytes
	for _, m := range d.process.mappings {
		if !m.own {
			got += h.touch(m, bytes/m.PageSize*m.PageSize, h.toucher(d.process, d.live.Config, m),
				d.process.threads[0].Mems)
		}
	}
	return got, nil
}

// Repin pins a vCPU behind the hypervisor's back, as taskset does.
func (h *Host) Repin(name string, v guest.VCPUID, cpus topology.CPUSet) error {
	h.mu.Lock()
	defer h.mu.Unlock()
	d, err := h.domain(name)
	if err != nil || d.process == nil {
		return fmt.Errorf("guest %s does not run", name)
	}
	d.process.pin(func(t inventory.Thread) bool { return t.VCPU != nil && *t.VCPU == v }, cpus)
	return nil
}

// LimitNodes restricts a guest to nodes by a cgroup above its own, as systemd's
// AllowedMemoryNodes= of a slice does. No nodes: the limits end.
func (h *Host) LimitNodes(name, file string, nodes topology.NodeSet) error {
	h.mu.Lock()
	defer h.mu.Unlock()
	d, err := h.domain(name)
	if err != nil || d.process == nil {
		return fmt.Errorf("guest %s does not run", name)
	}
	if nodes.IsEmpty() {
		d.process.limits = nil
		return nil
	}
	d.process.limits = append(d.process.limits, inventory.NodeLimit{File: file, Nodes: nodes})
	return h.setMems(d.process, d.process.threads[0].Mems)
}

// SwitchOff takes CPUs offline: threads stay on their remaining CPUs, and a
// thread that loses all may run on every CPU, as with the kernel's cpusets.
func (h *Host) SwitchOff(cpus topology.CPUSet) {
	h.mu.Lock()
	defer h.mu.Unlock()
	t := &h.topology
	t.Offline = t.Offline.Union(cpus)
	t.CPUs = slices.DeleteFunc(slices.Clone(t.CPUs), func(c topology.CPU) bool { return cpus.Contains(c.ID) })
	t.Nodes = slices.Clone(t.Nodes)
	for i := range t.Nodes {
		t.Nodes[i].CPUs = t.Nodes[i].CPUs.Minus(cpus)
	}
	for _, p := range h.processes() {
		for i := range p.threads {
			left := p.threads[i].Affinity.Minus(cpus)
			if left.IsEmpty() {
				left = t.CPUSet()
			}
			p.threads[i].Affinity = left
			if !left.Contains(p.threads[i].LastCPU) {
				p.threads[i].LastCPU, _ = left.First()
			}
		}
	}
}

// Smear spreads all memory of a guest evenly over nodes as far as there is
// room, as migratepages and kernel balancing do: cpusets do not prevent it.
func (h *Host) Smear(name string, nodes topology.NodeSet) error {
	h.mu.Lock()
	defer h.mu.Unlock()
	d, err := h.domain(name)
	if err != nil || d.process == nil {
		return fmt.Errorf("guest %s does not run", name)
	}
	for _, m := range d.process.mappings {
		if !m.own {
			h.bring(m, nodes, true)
		}
	}
	return nil
}

// Garble makes the recorded intent of a guest unreadable, until another one is recorded.
func (h *Host) Garble(name string) error {
	h.mu.Lock()
	defer h.mu.Unlock()
	d, err := h.domain(name)
	if err != nil {
		return err
	}
	d.garbled = true
	return nil
}

// Stick makes memory of each cell immovable, as device drivers that pin pages
// do.
func (h *Host) Stick(name string, bytes topology.Bytes) error {
	h.mu.Lock()
	defer h.mu.Unlock()
	d, err := h.domain(name)
	if err != nil || d.process == nil {
		return fmt.Errorf("guest %s does not run", name)
	}
	for _, m := range d.process.mappings {
		if !m.own {
			m.sticks = bytes
		}
	}
	return nil
}

// Deafen makes a guest ignore requests to power off.
func (h *Host) Deafen(name string) error {
	h.mu.Lock()
	defer h.mu.Unlock()
	d, err := h.domain(name)
	if err == nil {
		d.deaf = true
	}
	return err
}
