package main

import (
	"context"
	"fmt"
	"math/rand/v2"
	"os"
	"slices"

	"github.com/numavisor/numavisor/internal/decide/schedule"
	"github.com/numavisor/numavisor/internal/fleet"
	"github.com/numavisor/numavisor/internal/guest"
	"github.com/numavisor/numavisor/internal/host/fake"
	"github.com/numavisor/numavisor/internal/inventory"
	"github.com/numavisor/numavisor/internal/policy"
	"github.com/numavisor/numavisor/internal/topology"
	"github.com/numavisor/numavisor/tools/simhost"
)

const (
	// machine is the shape of each host: 64 CPUs and 512 GiB on 8 nodes.
	machine = "nodes:8 sockets:2 cores:8 memory:64G distances:10,12,32"
	// kinds is in how many ways the hosts are filled.
	kinds = 20
	// mostOnHost are the VMs of a kind: with fewer VMs, each host has the first ones.
	mostOnHost = 12
)

// flavours are vCPUs and GiB of memory of the VMs, small ones first.
var flavours = []struct{ vcpus, gib int }{{1, 4}, {2, 8}, {2, 16}, {4, 16}, {4, 32}, {8, 32}, {8, 64}}

// drawSpec draws a VM; small ones are more frequent.
func drawSpec(random *rand.Rand, name string) guest.Spec {
	f := flavours[int(float64(len(flavours))*random.Float64()*random.Float64())]
	return guest.Spec{Name: name, VCPUs: f.vcpus, Memory: topology.Bytes(f.gib) * topology.GiB}
}

// kind is a host with its VMs, before they have names.
type kind struct {
	decisions []*schedule.Decision
	inventory inventory.Host // as a daemon reports it
}

// drawn is a fleet: host i is of kind i modulo kinds, and has the first VMs of that kind.
type drawn struct {
	hosts, vms int
	kinds      []kind
}

func hostName(i int) string     { return fmt.Sprintf("h%05d", i) }
func vmName(host, i int) string { return fmt.Sprintf("h%05d-%02d", host, i) }
func hostID(host string) string { return "id-" + host }

// vmsOn is how many VMs a host has.
func (d *drawn) vmsOn(host int) int {
	n := d.vms / d.hosts
	if host < d.vms%d.hosts {
		n++
	}
	return n
}

// drawFleet draws the kinds of a fleet. The same numbers give the same fleet.
func drawFleet(ctx context.Context, hosts, vms int) (*drawn, error) {
	d := &drawn{hosts: hosts, vms: vms}
	random := rand.New(rand.NewPCG(1, 0))
	for range min(kinds, hosts) {
		k, err := drawKind(ctx, random)
		if err != nil {
			return nil, err
		}
		d.kinds = append(d.kinds, k)
	}
	return d, nil
}

// drawKind fills a host.
func drawKind(ctx context.Context, random *rand.Rand) (k kind, err error) {
	h := fake.MustNew(machine)
	f, err := schedule.New([]schedule.Host{{Name: "kind", Inventory: &inventory.Host{Topology: h.Nodes()}}},
		policy.Policy{}, schedule.Weights{})
	if err != nil {
		return k, err
	}
	for i := range mostOnHost {
		d, err := f.Decide(schedule.Request{Spec: drawSpec(random, fmt.Sprintf("vm%02d", i))})
		if err != nil {
			return k, err
		}
		if err := f.Add(d); err != nil {
			return k, err
		}
		k.decisions = append(k.decisions, d)
		if err := startVM(ctx, h, d.Spec, d.Placement); err != nil {
			return k, err
		}
	}
	k.inventory, err = observe(ctx, h)
	return k, err
}

// startVM starts a VM as the daemon would have.
func startVM(ctx context.Context, h *fake.Host, s guest.Spec, p guest.Placement) error {
	definition, err := fake.Render(guest.Intent{Spec: s, Placement: p})
	if err != nil {
		return err
	}
	return h.Start(ctx, definition, false)
}

// observe returns the inventory of a host as its daemon reports it: without loads and threads.
func observe(ctx context.Context, h *fake.Host) (inventory.Host, error) {
	folder, err := os.MkdirTemp("", "claims")
	if err != nil {
		return inventory.Host{}, err
	}
	defer func() { _ = os.RemoveAll(folder) }() // it is temporary
	on, err := simhost.Join(h, folder)
	if err != nil {
		return inventory.Host{}, err
	}
	seen, err := on.Observe(ctx)
	for i := range seen.Guests {
		s := &seen.Guests[i].Seen
		s.Load, s.Threads, s.Ranges = nil, nil, nil
	}
	return seen, err
}

// vm returns the spec and the placement of a VM.
func (d *drawn) vm(host, i int) (guest.Spec, guest.Placement) {
	of := d.kinds[host%len(d.kinds)].decisions[i]
	spec, placement := of.Spec, of.Placement
	spec.Name, placement.Guest = vmName(host, i), vmName(host, i)
	return spec, placement
}

// record returns the record of a VM.
func (d *drawn) record(host, i int) fleet.VM {
	spec, placement := d.vm(host, i)
	tiers := []string{"gold", "silver", "bronze"}
	return fleet.VM{Name: spec.Name, Project: "default", Created: epoch, By: "admin", Spec: spec,
		Machine: fleet.Machine{Disks: []fleet.Disk{{Path: "/var/lib/libvirt/images/" + spec.Name + ".qcow2",
			Format: "qcow2"}}, Network: "default"},
		Labels: map[string]string{"tier": tiers[(host+i)%len(tiers)]}, Run: fleet.Running, Generation: 1,
		Host: hostName(host), Placement: placement}
}

// inventory returns the inventory of a host with its VMs.
func (d *drawn) inventory(host int) inventory.Host {
	out := d.kinds[host%len(d.kinds)].inventory
	out.Guests = slices.Clone(out.Guests[:d.vmsOn(host)]) // they ascend by name, as they were drawn
	for i := range out.Guests {
		spec, placement := d.vm(host, i)
		g := &out.Guests[i]
		g.Name, g.Spec, g.Placement = spec.Name, &spec, &placement
	}
	return out
}

// simulated returns a host in memory with its VMs.
func (d *drawn) simulated(ctx context.Context, host int) (*fake.Host, error) {
	h := fake.MustNew(machine)
	for i := range d.vmsOn(host) {
		spec, placement := d.vm(host, i)
		if err := startVM(ctx, h, spec, placement); err != nil {
			return nil, err
		}
	}
	return h, nil
}
