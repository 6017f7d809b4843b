package hosttest

import (
	"errors"
	"io/fs"
	"time"

	"golang.org/x/sys/unix"

	"github.com/numavisor/numavisor/internal/guest"
	"github.com/numavisor/numavisor/internal/host/observe"
	"github.com/numavisor/numavisor/internal/inventory"
	"github.com/numavisor/numavisor/internal/topology"
)

// observe observes the host, with one guest closely.
func (s *suite) observe(closely string) inventory.Host {
	s.Helper()
	var kernel observe.Kernel = s.Kernel
	if s.Kernel == nil {
		kernel = noProcesses{topology: s.Topology}
	}
	host, err := observe.Host(s.ctx, observe.Sources{
		Kernel: kernel, Hypervisors: []observe.Hypervisor{s.Hypervisor}, Now: time.Now,
		HostName: func() (string, error) { return "hosttest", nil },
	}, closely)
	if err != nil {
		s.Fatalf("observing the host: %v", err)
	}
	return host
}

// noProcesses is the kernel of a target whose guests have no processes: the
// suite asks it for the topology and the settings only.
type noProcesses struct {
	observe.Kernel
	topology topology.Topology
}

func (n noProcesses) Topology() (topology.Topology, error)            { return n.topology, nil }
func (noProcesses) Settings() (k inventory.Kernel, g []inventory.Gap) { return k, g }

// seen observes a guest closely.
func (s *suite) seen(name string) inventory.Guest {
	s.Helper()
	host := s.observe(name)
	g, ok := named(host.Guests, name)
	if !ok {
		s.Fatalf("guest %q is not observed; gaps: %v", name, host.Gaps)
	}
	return g
}

// threads checks on which CPUs the kernel lets the threads of a guest run.
func (s *suite) threads(name string, p guest.Placement) {
	s.Helper()
	if s.Kernel == nil {
		return
	}
	vcpus := map[guest.VCPUID]bool{}
	for _, t := range s.seen(name).Seen.Threads {
		switch {
		case t.VCPU != nil:
			vcpus[*t.VCPU] = true
			s.equal("thread "+t.Name, t.Affinity, p.VCPUs[*t.VCPU].CPUs)
		case t.Role == inventory.RoleIOThread:
			s.equal("thread "+t.Name, t.Affinity, p.IOThread)
		case t.Role == inventory.RoleEmulator:
			s.equal("thread "+t.Name, t.Affinity, p.Emulator)
		}
	}
	if len(vcpus) != len(p.VCPUs) {
		s.Errorf("threads of vCPUs %v are seen, want %d", vcpus, len(p.VCPUs))
	}
}

// mems checks from which nodes the kernel lets the threads of a guest take
// memory.
func (s *suite) mems(name string, nodes topology.NodeSet) {
	s.Helper()
	if s.Kernel == nil {
		return
	}
	for _, t := range s.seen(name).Seen.Threads {
		if !t.Mems.Equal(nodes) {
			s.Errorf("thread %s takes memory from nodes %s, want %s", t.Name, t.Mems, nodes)
		}
	}
}

// The observation of a guest's process matches its definition.
func testProcess(s *suite) {
	name, _, p := s.shared(true)
	if s.Kernel == nil {
		if pid := s.find(name).PID; pid != 0 {
			s.Errorf("the target declares no kernel; its guest has process %d", pid)
		}
		return
	}
	g := s.seen(name)
	s.threads(name, p)
	s.mems(name, p.Nodes)
	if got := g.Seen.MemoryByNode[s.node.ID]; got < guestMemory {
		s.Errorf("%v are on node %d, want at least the guest's %v; by node: %v", got, s.node.ID, guestMemory,
			g.Seen.MemoryByNode)
	}
	var cells topology.Bytes
	for _, r := range g.Seen.Ranges {
		if r.Cell != nil {
			cells += r.Size
		}
	}
	if cells != guestMemory {
		s.Errorf("mappings of %v count as the guest's memory, want %v", cells, guestMemory)
	}
	if g.Seen.CgroupPath == "" || g.Seen.ThreadSource == "" || g.Seen.MemorySource == "" {
		s.Errorf("cgroup %q, sources %q and %q: want all", g.Seen.CgroupPath, g.Seen.ThreadSource, g.Seen.MemorySource)
	}
	first, err := s.Kernel.StartTicks(g.PID)
	again, errAgain := s.Kernel.StartTicks(g.PID)
	if err != nil || errAgain != nil || first != again || first == 0 {
		s.Errorf("start times of one process: %d (%v) and %d (%v)", first, err, again, errAgain)
	}
	s.ended(name, g.PID)
}

// ended removes a guest and checks that the kernel reports its process as gone.
func (s *suite) ended(name string, pid int) {
	s.Helper()
	if err := s.Hypervisor.Remove(s.ctx, name); err != nil {
		s.Fatal(err)
	}
	_, ticksErr := s.Kernel.StartTicks(pid)
	_, _, threadsErr := s.Kernel.Threads(pid)
	for what, err := range map[string]error{"start time": ticksErr, "threads": threadsErr} {
		if !errors.Is(err, fs.ErrNotExist) && !errors.Is(err, unix.ESRCH) {
			s.Errorf("%s of a process that ended: error is %v, want that it is gone", what, err)
		}
	}
}
