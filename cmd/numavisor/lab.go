package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"time"

	"github.com/spf13/cobra"

	"github.com/numavisor/numavisor/internal/host/labcounter"
	"github.com/numavisor/numavisor/internal/topology"
	"github.com/numavisor/numavisor/lab"
)

func labCommand() *cobra.Command {
	c := &cobra.Command{
		Use:   "lab",
		Short: "Boot a multi-node NUMA host in QEMU and use it",
		Long: `Boots a multi-node NUMA host under QEMU's software emulation, on any machine. The lab
has a real kernel with memory and distances for each node, real KVM and real
libvirt. It uses the root file system of this machine, read-only, and writes changes
to memory: the lab does not change this machine, and leaves nothing behind.`,
		Args: knownCommand,
		RunE: func(c *cobra.Command, _ []string) error { return c.Help() },
	}
	c.AddCommand(labRunCommand(), labShellCommand(), labShapesCommand(), labScopeCommand(), labDemoCommand(),
		labBenchCommand())
	return c
}

// labFlags hold which lab to boot.
type labFlags struct {
	shape, scope, share, qemu, hypervisor string
	libvirt                               bool
	vms                                   int
	timeout                               time.Duration
}

func (l *labFlags) flags(c *cobra.Command) {
	f := c.Flags()
	f.StringVar(&l.shape, "shape", "square4", "a built-in shape ('numavisor lab shapes') or a file")
	f.StringVar(&l.hypervisor, "hypervisor", "kvm", "what runs VMs in the lab: kvm, or xen (commands run in dom0)")
	f.StringVar(&l.scope, "scope", "off", "the access counter: off, count, or felt (far memory is slow)")
	f.BoolVar(&l.libvirt, "libvirt", false, "start libvirtd and wait until it answers")
	f.IntVar(&l.vms, "guests", 0,
		"start this number of VMs by libvirt or xl alone (vm1, vm2, ...), 2 vCPUs and 192 MiB each")
	f.StringVar(&l.share, "share", "", "a folder of this machine that the lab sees, and may write to, as /lab/share")
	f.StringVar(&l.qemu, "qemu", "",
		"QEMU program (default: qemu-system-x86_64 from PATH; instead of one before 10.2 that of Debian's backports)")
	timeLimitFlag(f, &l.timeout, "end the lab after this time")
}

// mostVMs is how many VMs of 192 MiB the lab's nodes of 1 GiB hold.
const mostVMs = 12

// boot boots the lab that the flags describe, with its VMs ready.
func (l *labFlags) boot(ctx context.Context, c *cobra.Command) (*lab.Host, error) {
	s, err := lab.FindShape(l.shape)
	if err != nil {
		return nil, err
	}
	mode, err := labcounter.ParseMode(l.scope)
	switch {
	case err != nil:
		return nil, wrongUse("--scope: %w", err)
	case l.hypervisor != string(lab.KVM) && l.hypervisor != string(lab.Xen):
		return nil, wrongUse("--hypervisor %q: allowed are kvm and xen", l.hypervisor)
	case l.hypervisor == string(lab.Xen) && l.libvirt:
		return nil, wrongUse("--libvirt: libvirt's driver for Xen refuses the emulated CPU; use xl in a Xen lab")
	case l.vms < 0 || l.vms > mostVMs:
		return nil, wrongUse("--guests %d: allowed are 0 to %d", l.vms, mostVMs)
	}
	libvirt := l.libvirt || l.vms > 0 && l.hypervisor != string(lab.Xen)
	progress := progressLines(c.ErrOrStderr())
	h, err := lab.Boot(ctx, lab.Options{Shape: s, Hypervisor: lab.Hypervisor(l.hypervisor), Libvirt: libvirt,
		Share: l.share, QEMU: l.qemu, Progress: progress})
	if err != nil {
		return nil, err
	}
	if err := l.prepare(ctx, h, mode, libvirt, progress); err != nil {
		return nil, errors.Join(err, h.Close())
	}
	return h, nil
}

// prepare puts the VM's image into a lab with libvirt, starts the VMs, and sets the access counter.
func (l *labFlags) prepare(
	ctx context.Context, h *lab.Host, mode labcounter.Mode, libvirt bool, progress func(string, ...any),
) error {
	if libvirt || l.vms > 0 || l.hypervisor == string(lab.Xen) {
		if err := h.AddGuest(ctx); err != nil {
			return err
		}
	}
	names := make([]string, l.vms)
	for i := range names {
		names[i] = fmt.Sprintf("vm%d", i+1)
		if err := h.StartGuest(ctx, lab.Guest{Name: names[i]}); err != nil {
			return err
		}
	}
	for i, name := range names {
		if err := h.AwaitGuest(ctx, name); err != nil {
			return err
		}
		progress("VM %s is ready (%d of %d)", name, i+1, l.vms)
	}
	if mode == labcounter.Off {
		return nil
	}
	scope, err := h.Scope()
	if err != nil {
		return err
	}
	return scope.Set(ctx, mode)
}

func labRunCommand() *cobra.Command {
	var l labFlags
	c := &cobra.Command{
		Use:   "run [flags] -- COMMAND...",
		Short: "Run a command in a freshly booted lab",
		Long: `Boots a lab, which takes about 15 seconds, runs a command in it as root, prints the
output of the command, and exits with its status. 'numavisor' is on the lab's PATH.
Files that the command writes are lost when the lab ends, except those below
/lab/share (--share). With --libvirt or Xen, /lab/vmlinuz and /lab/files/guest.initrd are a
kernel and an initial file system for VMs.

With --hypervisor xen the lab boots Debian's Xen, and the command runs in its control
domain (dom0), which has 1 GiB and 2 vCPUs; 'xl' is on the PATH. The first such lab
downloads Xen's packages, without installing them on this machine.`,
		Example: `  numavisor lab run -- numactl --hardware
  numavisor lab run --hypervisor xen --guests 2 -- xl vcpu-list
  numavisor lab run --guests 3 -- numavisor list
  numavisor lab run --shape genoa-cxl --scope felt --share . -- /lab/share/benchmark`,
		Args: takes(1, anyNumber),
		RunE: func(c *cobra.Command, args []string) (err error) {
			ctx, cancel := context.WithTimeout(c.Context(), l.timeout)
			defer cancel()
			h, err := l.boot(ctx, c)
			if err != nil {
				return err
			}
			defer func() { err = cmp.Or(err, h.Close()) }()
			status, err := h.Run(ctx, args, c.OutOrStdout(), c.ErrOrStderr())
			if err != nil {
				return fmt.Errorf("running %s in the lab: %w", args[0], err)
			}
			if status != 0 {
				return exitError(status)
			}
			return nil
		},
	}
	l.flags(c)
	return c
}

func progressLines(w io.Writer) func(string, ...any) {
	return func(format string, args ...any) { fmt.Fprintf(w, "lab: "+format+"\n", args...) }
}

func labShapesCommand() *cobra.Command {
	return &cobra.Command{
		Use:   "shapes",
		Short: "List the built-in shapes",
		Long: `Lists the machines whose nodes, CPUs and distances the lab can imitate, with less
memory. --shape also takes a file with a shape of your own, in the form that
'numavisor lab shapes -o yaml' prints.`,
		Example: `  numavisor lab shapes
  numavisor lab run --shape genoa-cxl -- numactl --hardware`,
		Args: takes(0, 0),
		RunE: func(c *cobra.Command, _ []string) error {
			shapes, err := lab.Shapes()
			if err != nil {
				return err
			}
			return emit(c, shapes, func(w io.Writer) {
				rows := [][]string{{"SHAPE", "NODES", "CPUS", "MEMORY", "IMITATES"}}
				for _, s := range shapes {
					rows = append(rows,
						[]string{s.Name, fmt.Sprint(len(s.Nodes)), fmt.Sprint(s.CPUs()), s.Memory().String(), s.About})
				}
				columns(w, rows)
			})
		},
	}
}

func labScopeCommand() *cobra.Command {
	return &cobra.Command{
		Use:   "scope off|count|felt|read|reset",
		Short: "Inside a lab: switch and read the access counter",
		Long: `Switches the lab's access counter, prints its counts (read), or sets them to zero
(reset). off: full speed; count: cache misses are counted by CPU and node; felt: they
are also delayed by distance. Works only inside a lab.`,
		Example:   `  numavisor lab run -- sh -c 'numavisor lab scope count; ./program; numavisor lab scope read'`,
		Args:      cobra.MatchAll(takes(1, 1), cobra.OnlyValidArgs),
		ValidArgs: []string{"off", "count", "felt", "read", "reset"},
		RunE: func(c *cobra.Command, args []string) error {
			if _, err := os.Stat(labcounter.Path); err != nil {
				return fmt.Errorf("no access counter here: %w; this command works only inside a lab", err)
			}
			scope, err := labcounter.Open(labcounter.Path)
			if err != nil {
				return err
			}
			ctx, cancel := context.WithTimeout(c.Context(), 30*time.Second)
			defer cancel()
			switch args[0] {
			case "read":
				m, err := scope.Read()
				if err != nil {
					return err
				}
				return emit(c, m, func(w io.Writer) { printMisses(w, m) })
			case "reset":
				return scope.Reset()
			}
			mode, err := labcounter.ParseMode(args[0])
			if err != nil {
				return usageError{err}
			}
			return scope.Set(ctx, mode)
		},
	}
}

func printMisses(w io.Writer, m labcounter.Misses) {
	heading := []string{"CPU"}
	for _, n := range m.Nodes {
		heading = append(heading, fmt.Sprintf("node %d", n))
	}
	rows := [][]string{heading}
	for c, misses := range m.CPUs {
		row := []string{fmt.Sprint(topology.CPUID(c))}
		for _, n := range misses {
			row = append(row, fmt.Sprint(n))
		}
		rows = append(rows, row)
	}
	columns(w, rows)
}
