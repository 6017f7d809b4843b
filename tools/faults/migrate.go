package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/gofrs/flock"
	"github.com/google/renameio/v2"

	fleetapi "github.com/numavisor/numavisor/internal/api/fleet"
	"github.com/numavisor/numavisor/internal/guest"
	"github.com/numavisor/numavisor/internal/host/fake"
	"github.com/numavisor/numavisor/internal/topology"
)

// Simulated hosts migrate VMs through the folder that they share. The source writes the VM's definition for the target
// to arriving/TARGET/VM, and pauses the VM. At one moment, the mark of the running VM (running/VM) then names the
// target instead of the source: from then on the VM runs there, also if the process of either host is dead. The
// target's process adds it to its VMs when it sees that, at its next start at the latest.

// scheme is that of the URI by which simulated hosts reach one another.
const scheme = "sim://"

// copyTime is for how long the memory of a VM is copied at most.
const copyTime = 500 * time.Millisecond

func (h *hypervisor) markPath(name string) string { return filepath.Join(h.shared, "running", name) }

func (h *hypervisor) arrivals(host string) string { return filepath.Join(h.shared, "arriving", host) }

// runsOn returns the host on which a VM runs; empty: none.
func (h *hypervisor) runsOn(name string) (string, error) {
	of, err := os.ReadFile(h.markPath(name))
	if errors.Is(err, fs.ErrNotExist) {
		return "", nil
	}
	return string(of), err
}

// at is the connection to the libvirtd of another host, by its URI.
func (h *hypervisor) at(uri string) (host string, c connection) {
	host = strings.TrimPrefix(uri, scheme)
	return host, connection{libvirtdFile(filepath.Join(filepath.Dir(h.folder), host))}
}

// Migrate implements migrate.Port. The end of ctx aborts the copy; after the hand-over it changes nothing.
func (h *hypervisor) Migrate(ctx context.Context, m guest.Departure) (t guest.Transfer, err error) {
	to, libvirtd := h.at(m.URI)
	err = h.libvirtd.ask(func() error {
		return libvirtd.ask(func() error {
			copying := h.copying(m.Name)
			if _, err := copying.TryLockContext(ctx, time.Millisecond); err != nil {
				return err
			}
			defer copying.Unlock() //nolint:errcheck // the end of the process does so too
			if err := h.send(to, m); err != nil {
				return err
			}
			select {
			case <-ctx.Done():
				return ctx.Err()
			case <-time.After(rand.N(copyTime)):
			}
			return h.handOver(ctx, m.Name, to)
		})
	})
	return guest.Transfer{Copied: topology.MiB}, err
}

// copying is locked while a VM is copied to another host: until then it is arriving there.
func (h *hypervisor) copying(name string) *flock.Flock {
	return flock.New(filepath.Join(h.shared, "copying-"+name))
}

// arrives reports whether a VM is being copied to this host.
func (h *hypervisor) arrives(name string) (bool, error) {
	if _, err := os.Stat(filepath.Join(h.arrivals(h.name), name)); err != nil {
		if errors.Is(err, fs.ErrNotExist) {
			err = nil
		}
		return false, err
	}
	copying := h.copying(name)
	free, err := copying.TryRLock()
	return !free, errors.Join(err, copying.Close())
}

// send writes the definition of a VM for its target.
func (h *hypervisor) send(to string, m guest.Departure) error {
	definition, err := fake.Render(m.Intent)
	if err != nil {
		return err
	}
	if err := os.MkdirAll(h.arrivals(to), 0o750); err != nil {
		return err
	}
	return renameio.WriteFile(filepath.Join(h.arrivals(to), m.Name), definition.Text, 0o600,
		renameio.WithTempDir(h.shared))
}

// absorb adds VMs that have arrived to those of this host. No caller's end ends that: the VMs run already.
func (h *hypervisor) absorb(ctx context.Context) error {
	ctx = context.WithoutCancel(ctx)
	h.mu.Lock()
	defer h.mu.Unlock()
	files, err := os.ReadDir(h.arrivals(h.name))
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	for _, f := range files {
		path, name := filepath.Join(h.arrivals(h.name), f.Name()), f.Name()
		on, unread := h.runsOn(name)
		if unread != nil {
			return unread
		}
		if on != h.name {
			continue // it is copied, or its migration has failed
		}
		if h.vms[name] == nil {
			text, err := os.ReadFile(path)
			if err != nil {
				return err
			}
			if err := h.Host.Start(ctx, guest.Definition{Name: name, Text: text}, false); err != nil {
				return violation(h.shared, fmt.Sprintf("VM %s has arrived on %s and cannot run: %v", name, h.name, err))
			}
			h.vms[name] = &stored{text, true}
			if err := errors.Join(h.save(), h.checkCPUs()); err != nil {
				return err
			}
		}
		if err := os.Remove(path); err != nil {
			return err
		}
	}
	return err
}

// watchArrivals absorbs VMs until ctx ends.
func (h *hypervisor) watchArrivals(ctx context.Context) error {
	for ctx.Err() == nil {
		if err := h.absorb(ctx); err != nil {
			return err
		}
		time.Sleep(20 * time.Millisecond)
	}
	return nil
}

// Presence implements migrate.Port.
func (h *hypervisor) Presence(ctx context.Context, name string) (p guest.Presence, err error) {
	err = h.libvirtd.ask(func() error {
		arrives, err := h.arrives(name) // before absorb: else the VM could arrive between the two
		if err := errors.Join(err, h.absorb(ctx)); err != nil {
			return err
		}
		h.mu.Lock()
		defer h.mu.Unlock()
		paused, err := h.isPaused(name)
		if err != nil {
			return err
		}
		switch vm := h.vms[name]; {
		case vm == nil && arrives:
			p = guest.Suspended
		case vm == nil:
			p = guest.Absent
		case vm.Running && paused:
			p = guest.Suspended
		case vm.Running:
			p = guest.Runs
		default:
			p = guest.Stored
		}
		return nil
	})
	return p, err
}

// Arrived implements migrate.Port.
func (h *hypervisor) Arrived(context.Context, string) (t guest.Transfer, err error) {
	err = h.libvirtd.ask(func() error { return nil })
	return guest.Transfer{Copied: topology.MiB, Downtime: time.Millisecond}, err
}

// RunsAt implements migrate.Port.
func (h *hypervisor) RunsAt(_ context.Context, uri, name string) (runs bool, err error) {
	host, libvirtd := h.at(uri)
	err = libvirtd.ask(func() error {
		on, err := h.runsOn(name)
		runs = on == host
		return err
	})
	return runs, err
}

// AbortMigration implements migrate.Port: the end of the context aborts.
func (h *hypervisor) AbortMigration(_ context.Context, name string) error {
	return fmt.Errorf("VM %s is not being migrated: %w", name, guest.ErrRefused)
}

// GrowPool implements apply.Kernel; the pools of the kernel survive a daemon.
func (h *hypervisor) GrowPool(node topology.NodeID, size topology.Bytes, pages uint64) (uint64, error) {
	return h.resize(h.Host.GrowPool, node, size, pages)
}

// ShrinkPool implements apply.Kernel.
func (h *hypervisor) ShrinkPool(node topology.NodeID, size topology.Bytes, pages uint64) (uint64, error) {
	return h.resize(h.Host.ShrinkPool, node, size, pages)
}

func (h *hypervisor) resize(do func(topology.NodeID, topology.Bytes, uint64) (uint64, error), node topology.NodeID,
	size topology.Bytes, pages uint64,
) (uint64, error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	n, err := do(node, size, pages)
	return n, errors.Join(err, h.save())
}

// endArrived ends the VMs that have arrived on a host without power, and are not among its VMs yet.
func (f *aFleet) endArrived(host string, vms map[string]*stored) error {
	folder := filepath.Join(f.shared, "arriving", host)
	files, err := os.ReadDir(folder)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	for _, file := range files {
		name := file.Name()
		mark := filepath.Join(f.shared, "running", name)
		if of, err := os.ReadFile(mark); err != nil || string(of) != host || vms[name] != nil {
			continue
		}
		text, err := os.ReadFile(filepath.Join(folder, name))
		if err := errors.Join(err, os.Remove(mark), os.Remove(filepath.Join(folder, name))); err != nil {
			return err
		}
		vms[name] = &stored{text, false}
	}
	return err
}

// migrate asks for a migration of a VM to a host. A refusal is an answer: the VM does not run, or its host is not to be
// reached.
func (f *aFleet) migrate(ctx context.Context, random *rand.Rand, name string) (taken bool, err error) {
	to := one(random, f.hosts).Name
	short, cancel := context.WithTimeout(ctx, requestTime)
	defer cancel()
	_, err = one(random, f.clients).MigrateVM(short, name, fleetapi.VMMigrate{To: to, Why: "test"}, fleetapi.Change{})
	p, ok := errors.AsType[*fleetapi.Problem](err)
	if ok && p.Status >= 500 && p.Type != fleetapi.ProblemUnavailable {
		return false, fmt.Errorf("migrate %s to %s: %w", name, to, err)
	}
	return err == nil, nil
}

// handedOver is the file with a line for each VM that a host has handed over to another one.
func handedOver(shared string) string { return filepath.Join(shared, "handed-over") }

// migrated counts the VMs that hosts have handed over.
func (f *aFleet) migrated() int {
	text, err := os.ReadFile(handedOver(f.shared))
	if err != nil {
		return 0 // none
	}
	return strings.Count(string(text), "\n")
}

// vmsOf reads the VMs of a host.
func (f *aFleet) vmsOf(host string) (map[string]*stored, error) {
	vms := map[string]*stored{}
	data, err := os.ReadFile(filepath.Join(f.folder, host, "vms.json"))
	if errors.Is(err, fs.ErrNotExist) {
		return vms, nil // it has had no VM
	}
	if err == nil {
		err = json.Unmarshal(data, &vms)
	}
	return vms, err
}
