package main

import (
	"errors"
	"fmt"
	"io"

	"github.com/rogpeppe/go-internal/diff"
	"github.com/spf13/cobra"

	hostapi "github.com/numavisor/numavisor/internal/api/host"
	"github.com/numavisor/numavisor/internal/guest"
	"github.com/numavisor/numavisor/internal/host/operate"
	"github.com/numavisor/numavisor/internal/host/xen"
	"github.com/numavisor/numavisor/internal/text"
	"github.com/numavisor/numavisor/internal/topology"
)

// notWithXL are flags for machines that libvirt makes, or that an xl configuration has already.
func notWithXL() []string {
	return []string{"spec", "xml", "disk", "network", "kernel", "initrd", "append", "serial-log", "emulator-path",
		"hypervisor-type", "uefi", "vcpus", "memory", "page-size", "io-threads", "device",
		"movable", "immediate", "name", "emulator", "io-thread-policy", "make-room", "server", "memory-binding"}
}

// createOnXen creates a VM from an xl configuration.
func createOnXen(c *cobra.Command, on *hostFlags, how *createFlags, flags *guest.FlagSpec) error {
	given, err := readFile(c.Context(), how.xlFile, io.ReadAll)
	if err != nil {
		return err
	}
	config, err := xen.ParseConfig(given)
	if err != nil {
		return wrongFile(how.xlFile, err)
	}
	h, done, err := on.open(c)
	if err != nil {
		return err
	}
	defer done()
	if h.Xen == nil {
		return wrongUse("--xl %s: this is no Xen host; libvirt's VMs are created with --spec or --xml", how.xlFile)
	}
	t, err := h.Sources.Kernel.Topology()
	if err != nil {
		return err
	}
	asked, err := specOfXL(config, &t, flags)
	if err != nil {
		return wrongFile(how.xlFile, err)
	}
	r := operate.CreateRequest{Spec: asked, Transient: true, Cells: config.Cells()}
	r.Render = func(i guest.Intent) (operate.Rendered, error) {
		return operate.Rendered{Definition: guest.Definition{Name: i.Spec.Name, Text: config.Rewrite(&i.Placement),
			Intent: &i}}, nil
	}
	on.noteDaemon(c, hostapi.DefaultSocket, h.Policy)
	if !how.dryRun {
		return createVM(c, h, r, false)
	}
	would, err := h.WouldCreate(c.Context(), r)
	if err != nil {
		return err
	}
	return emit(c, would, func(w io.Writer) {
		printPlaced(w, would.Placement, would.Why, false)
		printf(w, "\nWould do:\n  1. reserve %s and %v on nodes %s\n  2. create VM %s with xl\n"+
			"  3. read its affinities and the nodes of its memory back from Xen\n\n%s",
			text.Count(asked.VCPUs, "vCPU", "vCPUs"), asked.Memory, would.Placement.Nodes, asked.Name,
			diff.Diff("given configuration", given, "configuration of "+text.Visible(asked.Name), []byte(would.XML)))
	})
}

// specOfXL is the request of a configuration, with the limits, the CPU binding and the cells of flags.
func specOfXL(config *xen.Config, t *topology.Topology, flags *guest.FlagSpec) (guest.Spec, error) {
	asked, err := config.Spec(t)
	if err != nil {
		return asked, err
	}
	if asked, err = flags.Apply(asked); err != nil {
		return asked, err
	}
	if asked, err = asked.Normalize(); err != nil {
		return asked, err
	}
	return asked, config.CheckCells(&asked)
}

// notOnXen refuses an action that works through processes of the kernel: those of dom0 are no VMs, and its
// kernel does not know the host's nodes.
func notOnXen(driver *xen.Driver, what string) error {
	if driver == nil {
		return nil
	}
	return fmt.Errorf("%s: not possible on a Xen host: dom0's kernel sees neither the VMs nor the nodes", what)
}

// errXenNeedsXL is the answer to a libvirt VM on a Xen host.
var errXenNeedsXL = errors.New("this is a Xen host, where libvirt creates no VMs: give an xl configuration with --xl")

// checkHypervisor refuses a definition for libvirt on a Xen host.
func checkHypervisor(driver *xen.Driver) error {
	if driver == nil {
		return nil
	}
	return usageError{fmt.Errorf("create: %w", errXenNeedsXL)}
}
