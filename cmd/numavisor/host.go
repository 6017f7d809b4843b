package main

import (
	"context"
	"fmt"
	"os"
	"time"

	"github.com/spf13/cobra"

	"github.com/numavisor/numavisor/internal/host/claim"
	"github.com/numavisor/numavisor/internal/host/libvirt"
	"github.com/numavisor/numavisor/internal/host/linux"
	"github.com/numavisor/numavisor/internal/host/observe"
	"github.com/numavisor/numavisor/internal/host/operate"
	"github.com/numavisor/numavisor/internal/policy"
	"github.com/numavisor/numavisor/internal/topology"
)

// hostFlags say how to reach this host and what the operator set aside.
type hostFlags struct {
	uri, state, measured, housekeeping, policy, pace string
	timeout                                          time.Duration
}

func (f *hostFlags) flags(c *cobra.Command) {
	p := c.Flags()
	p.StringVar(&f.uri, "connect", "", "libvirt URI of this host (default: LIBVIRT_DEFAULT_URI, else qemu:///system)")
	p.StringVar(&f.state, "state", claim.DefaultFolder, "folder for reservations in flight")
	p.StringVar(&f.measured, "measured", "", "file with a measured latency and bandwidth matrix; it takes precedence over SLIT")
	p.StringVar(&f.housekeeping, "housekeeping", "", "CPUs that guests must not get, as a list")
	p.StringVar(&f.policy, "policy", "", "file with the operator's policy (YAML or JSON)")
	p.StringVar(&f.pace, "pace", "", "copy at most this much memory a second, more than 0, for example 500M (default: full speed)")
	timeLimitFlag(p, &f.timeout, "give up after this time")
}

// open joins the drivers into one host. done ends its connections and the command's deadline.
func (f *hostFlags) open(c *cobra.Command) (h *operate.Host, done func(), err error) {
	if err := f.checkURI(); err != nil {
		return nil, nil, err
	}
	ctx, cancel := context.WithTimeout(c.Context(), f.timeout)
	c.SetContext(ctx)
	housekeeping, err := topology.ParseSet[topology.CPUID](f.housekeeping)
	if err != nil {
		cancel()
		return nil, nil, wrongUse("--housekeeping: %w", err)
	}
	pace, err := f.copyPace()
	if err != nil {
		cancel()
		return nil, nil, err
	}
	h = &operate.Host{Clock: time.Now}
	h.Policy, err = f.readPolicy()
	var measured *topology.Measured
	if err == nil && f.measured != "" {
		measured, err = readFile(f.measured, topology.ParseMeasured)
	}
	if err != nil {
		cancel()
		return nil, nil, err
	}
	k := kernel{Root: linux.Live, topologies: linux.NewTopologies(string(linux.Live)), pace: linux.AtMost(pace)}
	qemu := libvirt.New(f.uri)
	h.Kernel, h.Meter, h.Control, h.Domains = k, k, qemu, qemu
	h.Ledger = claim.Ledger{Folder: f.state, Alive: func(p claim.Process) bool {
		return k.Alive(p.PID, p.StartTicks)
	}}
	h.Sources = observe.Sources{
		Kernel: k, Hypervisors: []observe.Hypervisor{libvirtGuests{qemu, k.Root}, plainQEMU{k.Root}}, Claims: h.Ledger.Claims,
		Now: time.Now, HostName: os.Hostname, Measured: measured, Housekeeping: housekeeping,
	}
	if h.Self.PID, h.Self.StartTicks, err = self(k); err != nil {
		cancel()
		return nil, nil, err
	}
	return h, func() { qemu.Close(); cancel() }, nil
}

// checkURI refuses the libvirt of another host, wherever the URI is from.
func (f *hostFlags) checkURI() error {
	uri, from := f.uri, "--connect"
	if uri == "" {
		uri, from = libvirt.DefaultURI(), "LIBVIRT_DEFAULT_URI"
	}
	if err := libvirt.CheckLocal(uri); err != nil {
		return wrongUse("%s %q %w", from, uri, err)
	}
	return nil
}

// copyPace returns how much memory may be copied a second; 0: full speed.
func (f *hostFlags) copyPace() (topology.Bytes, error) {
	if f.pace == "" {
		return 0, nil
	}
	pace, err := topology.ParseBytes(f.pace)
	switch {
	case err != nil:
		return 0, wrongUse("--pace: %w", err)
	case pace == 0:
		return 0, wrongUse("--pace %s: copies nothing; give more than 0, or leave it out for full speed", f.pace)
	}
	return pace, nil
}

// readPolicy returns the operator's policy; without a file, the default one.
func (f *hostFlags) readPolicy() (policy.Policy, error) {
	if f.policy == "" {
		return policy.Policy{}, nil
	}
	return readFile(f.policy, policy.Parse)
}

// onlyLive refuses flags that are about this host beside one that names another.
func (f *hostFlags) onlyLive(c *cobra.Command, other string) {
	for _, live := range []string{"connect", "state", "measured", "housekeeping", "pace"} {
		c.MarkFlagsMutuallyExclusive(other, live)
	}
}

func self(k kernel) (pid int, ticks uint64, err error) {
	pid = os.Getpid()
	if ticks, err = k.StartTicks(pid); err != nil {
		err = fmt.Errorf("reading our own start time: %w; is /proc mounted?", err)
	}
	return pid, ticks, err
}
