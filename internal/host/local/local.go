// Package local joins this host's drivers: the kernel, libvirt, QEMU processes
// without libvirt, Xen where this is its control domain, the ledger of reservations, the journal and the meters.
// Commands, the daemon and tests open a host here, so that all of them read it
// and act on it in the same way. The package makes no decisions.
package local

import (
	"cmp"
	"fmt"
	"os"
	"time"

	"github.com/numavisor/numavisor/internal/host/claim"
	"github.com/numavisor/numavisor/internal/host/libvirt"
	"github.com/numavisor/numavisor/internal/host/linux"
	"github.com/numavisor/numavisor/internal/host/migrate"
	"github.com/numavisor/numavisor/internal/host/move"
	"github.com/numavisor/numavisor/internal/host/observe"
	"github.com/numavisor/numavisor/internal/host/operate"
	"github.com/numavisor/numavisor/internal/host/record"
	"github.com/numavisor/numavisor/internal/host/xen"
	"github.com/numavisor/numavisor/internal/inventory"
	"github.com/numavisor/numavisor/internal/policy"
	"github.com/numavisor/numavisor/internal/topology"
)

// Options say where to read this host from and what the operator configured.
// Zero fields mean the running kernel, libvirt's default URI, the default
// folders, no limit and no configuration.
type Options struct {
	// Root is the folder that contains sys and proc; a test sets another one.
	Root linux.Root
	// URI is libvirt's; it must name this host (libvirt.CheckLocal).
	URI string
	// WithoutLibvirt leaves libvirt out: its VMs do not appear, and nothing says what they use.
	WithoutLibvirt bool
	// Claims is the folder of reservations that no VM shows yet.
	Claims string
	// Records is the folder of the journal and the alarms.
	Records string
	// Measured are the operator's latencies and bandwidths; they replace SLIT.
	Measured *topology.Measured
	// Housekeeping CPUs are never given to guests.
	Housekeeping topology.CPUSet
	Policy       policy.Policy
	// Pace limits copying, in bytes a second.
	Pace topology.Bytes
}

// Host is this host with its open connections. Close closes them.
type Host struct {
	*move.Host
	Journal record.Journal
	// Xen drives the host's guests if it is a Xen host; nil: libvirt and the kernel do.
	Xen *xen.Driver

	root linux.Root
	qemu *libvirt.Driver
}

// URIError means that a libvirt URI cannot be used, because it is malformed or
// may name another host.
type URIError struct {
	URI string
	Err error
}

func (e *URIError) Error() string { return fmt.Sprintf("libvirt URI %q %v", e.URI, e.Err) }

// Unwrap returns the reason.
func (e *URIError) Unwrap() error { return e.Err }

// Open joins the drivers. It does not connect yet: the first query connects to
// libvirt. The error is a *URIError for an unusable URI.
func Open(o Options) (*Host, error) {
	uri := cmp.Or(o.URI, libvirt.DefaultURI())
	if err := libvirt.CheckLocal(uri); err != nil {
		return nil, &URIError{uri, err}
	}
	root := cmp.Or(o.Root, linux.Live)
	self, err := thisProcess()
	if err != nil {
		return nil, err
	}
	qemu, arguments := libvirt.New(uri), linux.NewArguments(root)
	qemu.Arguments = arguments.Of
	if root != linux.Live {
		qemu.Arguments = linux.NewArguments(linux.Live).Of // libvirt's VMs run here
	}
	kernel := kernel{Root: root, topologies: linux.NewTopologies(string(root)), pace: linux.AtMost(o.Pace)}
	journal := record.Journal{Folder: cmp.Or(o.Records, record.DefaultFolder)}
	ledger := claim.Ledger{Folder: cmp.Or(o.Claims, claim.DefaultFolder), Alive: alive}
	hypervisors := []observe.Hypervisor{libvirtGuests{qemu, arguments}, plainQEMU{arguments}}
	if o.WithoutLibvirt {
		hypervisors = hypervisors[1:]
	}
	h := &Host{
		Host: &move.Host{Host: operate.Host{
			Sources: observe.Sources{
				Kernel:      kernel,
				Hypervisors: hypervisors,
				Claims:      ledger.Claims, Now: time.Now, HostName: os.Hostname, HostID: kernel.HostID,
				Measured: o.Measured, Housekeeping: o.Housekeeping,
			},
			Kernel: kernel, Control: qemu, Domains: qemu, Settings: kernel,
			Journal: journal, Ledger: ledger, Self: self, Policy: o.Policy, Clock: time.Now,
		}, Meter: kernel},
		Journal: journal,
		root:    root, qemu: qemu,
	}
	h.AwaitStart = h.awaitStart
	h.Sources.Complete = h.addRecorded
	if xen.Here(string(root)) {
		h.useXen(xenKernel{kernel, xen.New(nil)})
	}
	return h, nil
}

// useXen makes Xen the host's only hypervisor: this is its control domain, in which no VM runs.
func (h *Host) useXen(k xenKernel) {
	h.Sources.Kernel, h.Sources.Hypervisors, h.Sources.Pools = k, []observe.Hypervisor{k.xen}, k.xen.Pools
	h.Sources.ControlDomain = k.xen.ControlDomain
	h.Kernel, h.Control, h.Domains = k, k.xen, k.xen
	h.Meter = nil // it measures threads of the kernel
	h.Xen, h.CPUPools = k.xen, k.xen
	k.xen.Shared = libvirt.SharedPaths
	h.Sources.Complete = func(inv *inventory.Host) {
		inv.MachineTypes, inv.NoNewVMs, inv.NearMemoryOnly = h.MachineTypes(), true, true
	}
}

// Migrations is this host's part in live migrations between hosts of a fleet, in which it has
// a name; uri is by which other hosts' hypervisors reach this one's.
func (h *Host) Migrations(name, uri string, machines *Machines) *migrate.Host {
	if h.Xen != nil {
		return &migrate.Host{Host: &h.Host.Host, Port: h.Xen, Name: name, URI: uri, Define: machines.Define}
	}
	// A VM that changes its memory faster than the network copies it would migrate for a day, and a
	// drain would not end.
	return &migrate.Host{Host: &h.Host.Host, Port: h.qemu, Name: name, URI: uri, MakeFiles: machines.MakeSeed,
		AutoConverge: true}
}

// MigrationURI is by which hypervisors of other hosts reach this one's, unless the operator names another URI. host is
// the name by which they find it.
func (h *Host) MigrationURI(host string) string {
	if h.Xen != nil {
		return xen.MigrationURI(host)
	}
	return "qemu+tls://" + host + "/system"
}

// Close closes the connections to libvirt.
func (h *Host) Close() { h.qemu.Close() }

// alive reports whether the holder of a claim is running. Processes of the
// running kernel hold claims, wherever guests are read from.
func alive(p claim.Process) bool { return linux.Live.Alive(p.PID, p.StartTicks) }

// thisProcess identifies the running program as a holder of claims.
func thisProcess() (claim.Process, error) {
	pid := os.Getpid()
	ticks, err := linux.Live.StartTicks(pid)
	if err != nil {
		return claim.Process{}, fmt.Errorf("reading our own start time: %w; check that /proc is mounted", err)
	}
	return claim.Process{PID: pid, StartTicks: ticks}, nil
}
