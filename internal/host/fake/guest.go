package fake

import (
	"fmt"
	"maps"
	"os"
	"slices"
	"time"

	"golang.org/x/sys/unix"

	"github.com/numavisor/numavisor/internal/guest"
	"github.com/numavisor/numavisor/internal/inventory"
	"github.com/numavisor/numavisor/internal/topology"
)

// domain is a guest in the hypervisor's records.
type domain struct {
	live    *Definition // nil: does not run
	stored  *Definition // nil: transient
	process *process    // nil: does not run
	garbled bool        // its intent is unreadable
	transit transit     // in a migration
	deaf    bool        // it does not power off when it is asked to
}

// process is a running program.
type process struct {
	pid      int
	ticks    uint64
	cgroup   string
	limits   []inventory.NodeLimit
	threads  []inventory.Thread // the first is the main one
	mappings []*mapping
}

func (h *Host) processes() map[int]*process {
	all := maps.Clone(h.programs)
	for _, d := range h.domains {
		if d.process != nil {
			all[d.process.pid] = d.process
		}
	}
	return all
}

func (h *Host) process(pid int) (*process, error) {
	if p, ok := h.processes()[pid]; ok {
		return p, nil
	}
	return nil, fmt.Errorf("process %d: %w (%w)", pid, os.ErrNotExist, unix.ESRCH)
}

func (h *Host) domain(name string) (*domain, error) {
	if d, ok := h.domains[name]; ok {
		return d, nil
	}
	return nil, fmt.Errorf("guest %s: %w", name, guest.ErrNotFound)
}

// definitions are those that a change applies to now and for the next start.
func (d *domain) definitions() []*Definition {
	return slices.DeleteFunc([]*Definition{d.live, d.stored}, func(d *Definition) bool { return d == nil })
}

// launch starts the program of a definition with a process id: with all memory
// that is allocated at once, else with the quarter that booting touches.
func (h *Host) launch(d Definition, pid int) (*process, error) {
	h.ticks++
	c, all := d.Config, h.topology.CPUSet()
	p := &process{pid: pid, ticks: h.ticks, cgroup: fmt.Sprintf("/machine.slice/machine-qemu-%d-%s.scope", pid, d.Name)}
	mems := h.topology.MemoryNodes()
	if t := c.NUMATune; t != nil && !t.Nodes.IsEmpty() && (t.Mode == "strict" || t.Mode == "restrictive") {
		mems = t.Nodes
	}
	thread := func(name string, role inventory.ThreadRole, vcpu *guest.VCPUID, pin topology.CPUSet) {
		if pin = pin.Intersect(all); pin.IsEmpty() {
			pin = all
		}
		first, _ := pin.First()
		p.threads = append(
			p.threads,
			inventory.Thread{
				TID:      pid + len(p.threads),
				Name:     name,
				Role:     role,
				VCPU:     vcpu,
				LastCPU:  first,
				Affinity: pin,
				Mems:     mems,
				RunTime:  time.Second,
			},
		)
	}
	thread("qemu-system-x86", inventory.RoleEmulator, nil, c.EmulatorPin)
	for v := range guest.VCPUID(c.VCPUs) {
		thread(fmt.Sprintf("CPU %d/KVM", v), inventory.RoleVCPU, &v, c.Pins[v])
	}
	for id := 1; id <= c.IOThreads; id++ {
		thread(fmt.Sprintf("IO iothread%d", id), inventory.RoleIOThread, nil, c.IOThreadPins[id])
	}
	p.mappings = mappingsOf(c)
	for _, m := range p.mappings {
		part := m.Size
		switch {
		case m.own || c.Immediate:
		case len(c.Devices) > 0:
			m.sticks = m.Size // vfio allocates and pins all memory
		default:
			part = m.Size / 4 / m.PageSize * m.PageSize
		}
		if got := h.touch(m, part, h.toucher(p, c, m), mems); got < part {
			h.end(p)
			return nil, fmt.Errorf("guest %s does not start: of %v for cell %d only %v could be allocated: %w", d.Name,
				part, m.cell, got, unix.ENOMEM)
		}
	}
	return p, nil
}

// ownMemory is the memory that a VM program uses itself.
const ownMemory = 4 * topology.MiB

// mappingsOf gives a program's mappings: a block for each cell, cell 0 at the
// highest address, and below them its own memory.
func mappingsOf(c inventory.Config) []*mapping {
	cells := c.Cells
	if len(cells) == 0 {
		cells = []inventory.ConfigCell{{Memory: c.Memory}}
	}
	var all []*mapping
	address := uint64(0x7f0000000000)
	for _, cell := range cells {
		address -= uint64(cell.Memory) + 1<<30 // with a gap, so that no two adjoin
		m := &mapping{
			cell: cell.ID,
			MemoryRange: inventory.MemoryRange{
				Address:  address,
				Size:     cell.Memory,
				Policy:   "default",
				PageSize: smallPage,
				Backing:  c.Source,
				ByNode:   topology.MemoryByNode{},
			},
		}
		if c.PageSize > 0 {
			m.PageSize, m.Backing = c.PageSize, "hugetlbfs"
		}
		if c.Source == "memfd" {
			m.File = "/memfd:ram"
		}
		if t := c.NUMATune; t != nil {
			m.Policy = policyText(guest.MemoryMode(t.Mode), t.Nodes)
			for _, own := range t.Cells {
				if own.Cell == cell.ID {
					m.Policy = policyText(guest.MemoryMode(own.Mode), own.Nodes)
				}
			}
		}
		all = append(all, m)
	}
	heap := inventory.MemoryRange{
		Address:  0x550000000000,
		Size:     ownMemory,
		Policy:   "default",
		PageSize: smallPage,
		Backing:  "anonymous",
		ByNode:   topology.MemoryByNode{},
	}
	return append(all, &mapping{own: true, MemoryRange: heap})
}

// toucher is the node of the thread that touches a mapping: a vCPU of the
// cell, or the program itself.
func (h *Host) toucher(p *process, c inventory.Config, m *mapping) topology.NodeID {
	by := p.threads[0]
	for _, t := range p.threads {
		if t.VCPU == nil || m.own {
			continue
		}
		if len(c.Cells) == 0 ||
			slices.ContainsFunc(
				c.Cells,
				func(cell inventory.ConfigCell) bool { return cell.ID == m.cell && cell.VCPUs.Contains(*t.VCPU) },
			) {
			by = t
			break
		}
	}
	if cpu, ok := h.topology.CPU(by.LastCPU); ok {
		return cpu.Node
	}
	return topology.NoNode
}

// end gives back the memory of a process.
func (h *Host) end(p *process) {
	for _, m := range p.mappings {
		h.release(m)
	}
}

func (h *Host) nextPID() int {
	h.lastPID += 100 // room for the ids of its threads
	return h.lastPID
}

// start is the hypervisor's handling of a new definition.
func (h *Host) start(d Definition, transient bool) error {
	if _, taken := h.domains[d.Name]; taken {
		return fmt.Errorf("guest %s: creating it: %w", d.Name, guest.ErrExists)
	}
	p, err := h.launch(d, h.nextPID())
	if err != nil {
		return err
	}
	live := d
	made := &domain{live: &live, process: p}
	if !transient {
		stored := d
		made.stored = &stored
	}
	h.domains[d.Name] = made
	return nil
}

// seenGuest is the guest in the hypervisor's list.
func (h *Host) seenGuest(name string) inventory.Guest {
	d := h.domains[name]
	g := inventory.Guest{
		Name:       name,
		UUID:       "fake-" + name,
		Hypervisor: guest.LibvirtQEMU,
		Can:        inventory.CapabilitiesOf(guest.LibvirtQEMU),
		State:      "shutoff",
		Persistent: d.stored != nil,
	}
	now := d.stored
	if d.process != nil {
		g.State, g.PID, now = "running", d.process.pid, d.live
		if d.transit == suspended {
			g.State = "paused"
		}
	}
	g.Config = now.Config
	g.Config.Pins, g.Config.IOThreadPins = maps.Clone(g.Config.Pins), maps.Clone(g.Config.IOThreadPins)
	if now.Intent != nil && !d.garbled {
		g.SetIntent(*now.Intent)
	}
	return g
}
