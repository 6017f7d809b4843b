package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"sync"
	"time"

	"github.com/google/renameio/v2"
	"golang.org/x/sync/errgroup"

	"github.com/numavisor/numavisor/internal/guest"
	"github.com/numavisor/numavisor/internal/host/agent"
	"github.com/numavisor/numavisor/internal/host/fake"
	"github.com/numavisor/numavisor/internal/host/migrate"
	"github.com/numavisor/numavisor/internal/host/record"
	"github.com/numavisor/numavisor/internal/inventory"
	"github.com/numavisor/numavisor/internal/topology"
	"github.com/numavisor/numavisor/tools/simhost"
)

// machine is the shape of each simulated host.
const machine = "nodes:2 cores:4 memory:4G huge:2M=256"

// hypervisor is a host in memory whose VMs survive the process: they are in a file, as libvirt's VMs survive a
// daemon. Running VMs are files in a folder that all hosts share, so that a second start is seen at once.
type hypervisor struct {
	*fake.Host
	folder, shared, name string
	libvirtd             connection
	breaks               func() breakPoint // of each hand-over; nil: none breaks

	mu  sync.Mutex
	vms map[string]*stored
}

// stored is a VM in the file.
type stored struct {
	Definition []byte
	Running    bool
}

func (h *hypervisor) path() string { return filepath.Join(h.folder, "vms.json") }

// load starts the VMs of the file again.
func (h *hypervisor) load() error {
	h.vms = map[string]*stored{}
	data, err := os.ReadFile(h.path())
	if err == nil {
		err = json.Unmarshal(data, &h.vms)
	}
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	if err := h.loadPools(); err != nil {
		return err
	}
	for name, vm := range h.vms {
		on, err := h.runsOn(name)
		if err != nil {
			return err
		}
		if paused, err := h.isPaused(name); err != nil {
			return err
		} else if vm.Running && on != "" && on != h.name && !paused {
			delete(h.vms, name) // it had migrated when the process was killed
			continue
		}
		definition := guest.Definition{Name: name, Text: vm.Definition}
		if err := h.Host.Start(context.Background(), definition, false); err != nil {
			return err
		}
		if !vm.Running {
			if err := h.Host.PowerOff(context.Background(), name); err != nil {
				return err
			}
		}
	}
	if err := h.absorb(context.Background()); err != nil {
		return err
	}
	return h.settle()
}

// settle removes the marks of VMs that did not start before the process was killed.
func (h *hypervisor) settle() error {
	marks, err := os.ReadDir(filepath.Join(h.shared, "running"))
	for _, m := range marks {
		path := filepath.Join(h.shared, "running", m.Name())
		of, err := os.ReadFile(path)
		if err == nil && string(of) == h.name && (h.vms[m.Name()] == nil || !h.vms[m.Name()].Running) {
			_ = os.Remove(path) // it is gone already if another host took it
		}
	}
	return err
}

// loadPools makes the pools of huge pages as large as they were: the kernel's survive a daemon too.
func (h *hypervisor) loadPools() error {
	data, err := os.ReadFile(h.poolPath())
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	var nodes []topology.Node
	if err == nil {
		err = json.Unmarshal(data, &nodes)
	}
	if err != nil {
		return err
	}
	for _, now := range h.Nodes().Nodes {
		for _, n := range nodes {
			for i, pool := range n.HugePages {
				if n.ID == now.ID && pool.Total > now.HugePages[i].Total {
					if _, err := h.GrowPool(n.ID, pool.Size, pool.Total-now.HugePages[i].Total); err != nil {
						return err
					}
				}
			}
		}
	}
	return nil
}

func (h *hypervisor) poolPath() string { return filepath.Join(h.folder, "pools.json") }

func (h *hypervisor) save() error {
	pools, err := json.Marshal(h.Nodes().Nodes)
	if err != nil {
		return err
	}
	if err := renameio.WriteFile(h.poolPath(), pools, 0o600, renameio.WithTempDir(h.folder)); err != nil {
		return err
	}
	data, err := json.Marshal(h.vms)
	if err != nil {
		return err
	}
	return renameio.WriteFile(h.path(), data, 0o600, renameio.WithTempDir(h.folder))
}

// mark notes that a VM runs here. It reports a VM that runs elsewhere.
func (h *hypervisor) mark(name string) error {
	path := filepath.Join(h.shared, "running", name)
	f, err := os.OpenFile(path, os.O_CREATE|os.O_EXCL|os.O_WRONLY, 0o600)
	if errors.Is(err, fs.ErrExist) {
		of, err := os.ReadFile(path)
		if err == nil && string(of) == h.name {
			return nil
		}
		return violation(h.shared, fmt.Sprintf("VM %s runs on host %s and was started on %s too", name, of, h.name))
	}
	if err != nil {
		return err
	}
	_, err = f.WriteString(h.name)
	return errors.Join(err, f.Close())
}

// violation records a broken invariant.
func violation(shared, text string) error {
	line := fmt.Sprintf("%s %s\n", time.Now().Format(time.StampMilli), text)
	return errors.Join(appendTo(filepath.Join(shared, "violations"), line), errors.New(text))
}

// appendTo adds text to a file that several processes write, by one write.
func appendTo(path, text string) error {
	f, err := os.OpenFile(path, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil {
		return err
	}
	_, err = f.WriteString(text)
	return errors.Join(err, f.Close())
}

// change records what has happened to a VM.
func (h *hypervisor) change(name string, change func(), running bool) error {
	h.mu.Lock()
	defer h.mu.Unlock()
	if running {
		if err := h.mark(name); err != nil {
			return err
		}
	}
	change()
	err := errors.Join(h.save(), h.checkCPUs())
	if on, unread := h.runsOn(name); !running && unread == nil && on == h.name {
		err = errors.Join(err, os.Remove(h.markPath(name)))
	}
	return err
}

// checkCPUs records CPUs that two running VMs of this host have for themselves.
func (h *hypervisor) checkCPUs() error {
	owner := map[topology.CPUID]string{}
	for name, vm := range h.vms {
		i, ok := h.Intent(name)
		if !ok || !vm.Running {
			continue
		}
		for _, r := range i.Placement.Reservations {
			for cpu := range r.Exclusive.All() {
				if other := owner[cpu]; other != "" {
					text := fmt.Sprintf("CPU %d of host %s is given to %s and %s", cpu, h.name, other, name)
					return violation(h.shared, text)
				}
				owner[cpu] = name
			}
		}
	}
	return nil
}

// Start starts a new VM.
func (h *hypervisor) Start(ctx context.Context, d guest.Definition, transient bool) error {
	return h.libvirtd.ask(func() error {
		if err := h.Host.Start(ctx, d, transient); err != nil {
			return err
		}
		return h.change(d.Name, func() { h.vms[d.Name] = &stored{d.Text, true} }, true)
	})
}

// Launch starts a VM that was stopped.
func (h *hypervisor) Launch(ctx context.Context, name string) error {
	return h.libvirtd.ask(func() error {
		if err := h.Host.Launch(ctx, name); err != nil {
			return err
		}
		return h.change(name, func() { h.vms[name].Running = true }, true)
	})
}

// Remove ends a VM and removes it.
func (h *hypervisor) Remove(ctx context.Context, name string) error {
	return h.lose(name, func() error { return h.Host.Remove(ctx, name) }, func() { delete(h.vms, name) })
}

// Undefine removes a VM that does not run.
func (h *hypervisor) Undefine(ctx context.Context, name string) error {
	return h.lose(name, func() error { return h.Host.Undefine(ctx, name) }, func() { delete(h.vms, name) })
}

// ShutDown ends a VM.
func (h *hypervisor) ShutDown(ctx context.Context, name string) error {
	return h.lose(name, func() error { return h.Host.ShutDown(ctx, name) }, func() { h.vms[name].Running = false })
}

// PowerOff ends a VM.
func (h *hypervisor) PowerOff(ctx context.Context, name string) error {
	return h.lose(name, func() error { return h.Host.PowerOff(ctx, name) }, func() { h.vms[name].Running = false })
}

// lose ends the run of a VM, and records that.
func (h *hypervisor) lose(name string, end func() error, change func()) error {
	return h.libvirtd.ask(func() error {
		if err := end(); err != nil {
			return err
		}
		return h.change(name, change, false)
	})
}

// runHost is a daemon of a simulated host: the real agent on a host in memory.
func runHost(ctx context.Context, name, folder, shared string, join agent.JoinRequest) error {
	h := &hypervisor{Host: fake.MustNew(machine), folder: folder, shared: shared, name: name,
		libvirtd: connection{libvirtdFile(folder)}, breaks: drawBreak}
	if err := h.load(); err != nil {
		return err
	}
	h.libvirtd.inject(h.Host)
	on, err := simhost.Join(h.Host, folder)
	if err != nil {
		return err
	}
	on.Control, on.Domains, on.Kernel = h, h, h
	on.Journal = record.Journal{Folder: filepath.Join(folder, "journal")}
	on.Sources.HostName = func() (string, error) { return name, nil }
	on.Sources.HostID = func() (string, error) { return join.ID, nil }
	part := &migrate.Host{Host: on, Port: h, Name: name, URI: scheme + name}
	if err := on.CloseInterrupted(ctx); err != nil {
		return err // libvirtd may not run: the process is started again
	}
	log := debugLog()
	if err := part.Recover(ctx); err != nil { // the agent continues, as that of the real daemon
		log.Warn("interrupted migrations are not settled yet", "error", err)
	}
	a, err := simhost.Agent(ctx, join, agent.Options{Folder: filepath.Join(folder, "fleet"), Host: on,
		Loads: func(ctx context.Context) (inventory.Host, error) { return on.Observe(ctx) }, Program: "faults",
		Log: log, Look: time.Second, Grace: 100 * time.Millisecond, LeastWait: 100 * time.Millisecond,
		MostWait: time.Second, Migrations: part})
	if err != nil {
		return err
	}
	both, ctx := errgroup.WithContext(ctx)
	both.Go(func() error { return h.watchArrivals(ctx) })
	both.Go(func() error { return a.Run(ctx) })
	return both.Wait()
}

// debugLog is the log of a simulated host's daemon. It says what the host reported: see evidence.
func debugLog() *slog.Logger {
	return slog.New(slog.NewTextHandler(os.Stderr, &slog.HandlerOptions{Level: slog.LevelDebug}))
}
