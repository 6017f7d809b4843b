package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"slices"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/numavisor/numavisor/internal/guest"
	"github.com/numavisor/numavisor/internal/host/archive"
	"github.com/numavisor/numavisor/internal/host/hwloc"
	"github.com/numavisor/numavisor/internal/host/libvirt"
	"github.com/numavisor/numavisor/internal/host/linux"
	"github.com/numavisor/numavisor/internal/host/operate"
	"github.com/numavisor/numavisor/internal/host/xen"
	"github.com/numavisor/numavisor/internal/inventory"
	"github.com/numavisor/numavisor/internal/topology"
)

// hostSource says which description of another host a command reads. Zero: the
// command reads this host.
type hostSource struct {
	root, capabilities, xlInfo, hwloc, inventory string
}

// sourceFlags are the flags that name the description of another host.
func sourceFlags() []string { return []string{"root", "capabilities", "xl-info", "hwloc", "inventory"} }

// withSources is for commands that change nothing: they can read another host's
// description instead of this host.
func withSources(f *hostFlags, p *pflag.FlagSet) {
	s := &f.from
	p.StringVar(&s.root, "root", "", "folder with another host's /sys and /proc, or a text archive (.txtar) of them")
	p.StringVar(&s.capabilities, "capabilities", "", "file with 'virsh capabilities' XML ('-': standard input)")
	p.StringVar(&s.xlInfo, "xl-info", "", "file with the text of 'xl info -n'")
	p.StringVar(&s.hwloc, "hwloc", "", "file with hwloc XML ('lstopo --of xml')")
	p.StringVar(&s.inventory, "inventory", "", "file with a saved inventory (see 'numavisor capture')")
}

// onlyHere refuses flags that have an effect on this host only together with
// the description of another host, and more than one description.
func onlyHere(c *cobra.Command, more ...string) {
	exclusive(c, sourceFlags()...)
	for _, here := range append(more, "connect", "state", "timeout", "pace", "socket", "without-libvirt") {
		if c.Flags().Lookup(here) == nil {
			continue
		}
		for _, source := range sourceFlags() {
			exclusive(c, source, here)
		}
	}
}

// file returns the described host's name for messages: the path of its
// description; empty for this host.
func (s *hostSource) file() string {
	return cmp.Or(s.root, s.capabilities, s.xlInfo, s.hwloc, s.inventory)
}

// elsewhere reports whether a description is read instead of this host.
func (s *hostSource) elsewhere() bool { return s.file() != "" }

// read returns the described host. Only an inventory describes VMs.
func (s *hostSource) read(ctx context.Context) (inventory.Host, error) {
	if s.inventory != "" {
		return readFile(ctx, s.inventory, inventory.Parse)
	}
	inv := inventory.Host{Version: inventory.Version, Name: s.file(), Taken: time.Now().UTC(),
		Guests: []inventory.Guest{}}
	var err error
	switch {
	case s.capabilities != "":
		inv.Topology, err = readFile(ctx, s.capabilities, libvirt.ParseCapabilities)
	case s.xlInfo != "":
		inv.Topology, err = readFile(ctx, s.xlInfo, xen.ParseInfo)
	case s.hwloc != "":
		inv.Topology, err = readFile(ctx, s.hwloc, hwloc.Parse)
	default:
		err = readTree(ctx, s.root, &inv)
	}
	if err == nil {
		err = cmp.Or(inv.Topology.Validate(), inv.Validate())
	}
	inv.Gaps = append(inv.Gaps, inventory.Gap{Kind: inventory.OtherGap, Object: inventory.HostRef(), What: "its VMs",
		Why: "the description of the host has none"})
	return inv, err
}

// readTree reads a captured sys and proc: a folder, or a text archive that is
// unpacked for as long as it is read.
func readTree(ctx context.Context, path string, inv *inventory.Host) error {
	info, err := os.Stat(path)
	if err != nil {
		return fmt.Errorf("--root %s: %w; give a folder that holds a host's sys and proc", path, err)
	}
	folder := path
	if !info.IsDir() {
		if folder, err = os.MkdirTemp("", "numavisor-root-"); err != nil {
			return err
		}
		defer os.RemoveAll(folder)
		_, err = readFile(ctx, path, func(r io.Reader) (struct{}, error) {
			return struct{}{}, archive.Unpack(r, folder)
		})
		if errors.Is(err, archive.ErrNotArchive) {
			return wrongUse("--root %s: not a folder and %w", path, archive.ErrNotArchive)
		} else if err != nil {
			return err
		}
	}
	if inv.Topology, err = linux.ReadTopology(folder); err != nil {
		return fmt.Errorf("--root %s: %w", path, err)
	}
	inv.Topology.Source = "sysfs " + path
	inv.Kernel, inv.Gaps = linux.Root(folder).Settings()
	return nil
}

// adjust applies the operator's measured figures and housekeeping CPUs to a described host.
func (f *hostFlags) adjust(ctx context.Context, t *topology.Topology) error {
	o, err := f.options(ctx)
	if err == nil && o.Measured != nil {
		err = t.Measure(o.Measured)
	}
	if err != nil {
		return err
	}
	return t.Housekeep(o.Housekeeping)
}

// described returns the host that a source flag describes, with the operator's
// measured figures and housekeeping CPUs.
func (f *hostFlags) described(ctx context.Context) (inventory.Host, error) {
	inv, err := f.from.read(ctx)
	if err == nil {
		err = f.adjust(ctx, &inv.Topology)
	}
	return inv, err
}

// inventory observes this host, or reads the description of another one, which
// needs neither root nor a hypervisor. A decision about this host must count all
// VMs; a note lists what a description does not show.
func (f *hostFlags) inventory(c *cobra.Command) (inventory.Host, error) {
	if f.from.elsewhere() {
		inv, err := f.described(c.Context())
		if err == nil {
			noteUncounted(c, f.from.file()+" does not show", inv.RoomHiddenBy())
		}
		if err == nil && f.from.inventory == "" {
			printf(c.ErrOrStderr(), "numavisor: note: %s describes no VMs: the host counts as one without VMs\n",
				f.from.file())
		}
		return inv, err
	}
	h, done, err := f.open(c)
	if err != nil {
		return inventory.Host{}, err
	}
	defer done()
	inv, err := h.ObserveLoads(c.Context())
	if err != nil {
		return inv, err
	}
	err = operate.RoomIsKnown(&inv)
	ofLibvirt := func(g inventory.Gap) bool { return g.HidesGuestsOf(guest.LibvirtQEMU) }
	if err != nil && slices.ContainsFunc(inv.Gaps, ofLibvirt) {
		err = fmt.Errorf("%w; or add --without-libvirt, to decide as if libvirt had no VMs", err)
	}
	return inv, err
}
