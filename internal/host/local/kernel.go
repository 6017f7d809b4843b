package local

import (
	"context"
	"errors"
	"fmt"
	"os/exec"
	"runtime"

	"github.com/numavisor/numavisor/internal/guest"
	"github.com/numavisor/numavisor/internal/host/apply"
	"github.com/numavisor/numavisor/internal/host/linux"
	"github.com/numavisor/numavisor/internal/inventory"
	"github.com/numavisor/numavisor/internal/plan"
	"github.com/numavisor/numavisor/internal/topology"
)

// kernel is this host's kernel in the form that observe, apply and the daemon need.
type kernel struct {
	linux.Root
	topologies *linux.Topologies
	// pace limits copying, for all ranges together; nil is full speed.
	pace func(context.Context, topology.Bytes) error
}

func (k kernel) Topology() (topology.Topology, error) { return k.topologies.Read() }

// Settings adds whether numad is installed: libvirt runs the program for
// placement='auto' and needs no numad daemon.
func (k kernel) Settings() (inventory.Kernel, []inventory.Gap) {
	settings, gaps := k.Root.Settings()
	_, err := exec.LookPath("numad")
	installed := err == nil
	settings.NumadInstalled = &installed
	return settings, gaps
}

// SetAffinity restricts one thread to CPUs.
func (k kernel) SetAffinity(tid int, cpus topology.CPUSet) error { return linux.SetAffinity(tid, cpus) }

// ExcludeFromNumad makes a running numad ignore a process.
func (k kernel) ExcludeFromNumad(ctx context.Context, pid int) error {
	return linux.ExcludeFromNumad(ctx, pid)
}

// Move copies the pages of one mapping to the step's nodes. At full speed it
// copies large slices: each call makes all CPUs drain their page lists.
func (k kernel) Move(ctx context.Context, pid int, s plan.Step,
	progress func(done, total topology.Bytes)) (plan.Moved, error) {
	if err := k.AllowMems(ctx, pid, s.Nodes); err != nil {
		return plan.Moved{}, fmt.Errorf("moving pages of process %d at %#x to nodes %s: %w", pid, s.Address, s.Nodes,
			err)
	}
	m := linux.Mover{PID: pid, Spread: s.Mode == guest.MemoryInterleave, Quick: s.Quick, Pace: k.pace,
		Progress: progress, CPUs: k.cpusOf,
		Threads: min(s.Threads, k.cpusOf(s.Nodes).Len(), runtime.NumCPU()/2)}
	if k.pace == nil {
		m.Chunk = apply.FullSlice
	}
	r, err := m.Move(ctx, inventory.MemoryRange{Address: s.Address, Size: s.Size, PageSize: s.PageSize}, s.Nodes)
	return plan.Moved{Moved: r.Moved, Failed: r.Failed, Why: r.Why}, err
}

// cpusOf returns the CPUs of nodes; none if the topology cannot be read. Each slice of a move asks for them:
// to read the topology takes longer than to copy some slices.
func (k kernel) cpusOf(nodes topology.NodeSet) topology.CPUSet {
	cpus, err := k.topologies.CPUsOf(nodes)
	if err != nil {
		return topology.CPUSet{}
	}
	return cpus
}

// plainQEMU lists VMs whose QEMU was started without libvirt.
type plainQEMU struct{ *linux.Arguments }

func (plainQEMU) Name() guest.Hypervisor { return guest.PlainQEMU }

func (p plainQEMU) Guests(context.Context) ([]inventory.Guest, error) {
	found, gaps, err := p.QEMUs()
	for _, g := range gaps {
		err = errors.Join(err, fmt.Errorf("%s: %s: %s", g.Object, g.What, g.Why))
	}
	var guests []inventory.Guest
	for _, q := range found {
		if q.Libvirt {
			continue // libvirt lists it, with more detail
		}
		guests = append(
			guests,
			inventory.Guest{
				Name:       q.Name,
				UUID:       q.UUID,
				Hypervisor: guest.PlainQEMU,
				Can:        inventory.CapabilitiesOf(guest.PlainQEMU),
				State:      "running",
				PID:        q.PID,
				Config:     inventory.Config{VCPUs: q.VCPUs, Memory: q.Memory, Devices: q.Devices},
			},
		)
	}
	return guests, err
}
