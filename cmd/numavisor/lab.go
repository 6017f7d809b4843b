package main

import (
	"context"
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
		Long: `Boots a real multi-node NUMA host under QEMU's software emulation, on any
machine: a real kernel with per-node memory and distances, real KVM, real
libvirt. Its root is this machine's root file system, read-only, below a memory
file system: nothing outside is changed, and nothing is left behind.`,
		Args: cobra.NoArgs,
		RunE: func(c *cobra.Command, _ []string) error { return c.Help() },
	}
	c.AddCommand(labRunCommand(), labShapesCommand(), labScopeCommand(), labDemoCommand(), labBenchCommand())
	return c
}

func labRunCommand() *cobra.Command {
	var shape, scope, share, qemu string
	var libvirt bool
	var timeout time.Duration
	c := &cobra.Command{
		Use:   "run [flags] -- COMMAND...",
		Short: "Run a command in a freshly booted lab",
		Long: `Boots a lab, runs the command in it as root, prints its output, and exits with
its status. 'numavisor' is on the lab's PATH. What the command writes is gone
with the lab, except in /lab/share, if a folder is shared with it. Boot takes
some 15 seconds.`,
		Example: `  numavisor lab run -- numactl --hardware
  numavisor lab run --libvirt -- numavisor topology
  numavisor lab run --shape genoa-cxl --scope felt --share . -- /lab/share/benchmark`,
		Args: cobra.MinimumNArgs(1),
		RunE: func(c *cobra.Command, args []string) error {
			s, err := lab.FindShape(shape)
			if err != nil {
				return err
			}
			mode, err := labcounter.ParseMode(scope)
			if err != nil {
				return wrongUse("--scope: %w", err)
			}
			ctx, cancel := context.WithTimeout(c.Context(), timeout)
			defer cancel()
			return runInLab(
				ctx,
				c,
				lab.Options{
					Shape:    s,
					Libvirt:  libvirt,
					Share:    share,
					QEMU:     qemu,
					Progress: progressLines(c.ErrOrStderr()),
				},
				mode,
				args,
			)
		},
	}
	f := c.Flags()
	f.StringVar(&shape, "shape", "square4", "a built-in shape ('numavisor lab shapes') or a file")
	f.StringVar(&scope, "scope", "off", "the access counter: off, count, or felt (far memory is slow)")
	f.BoolVar(&libvirt, "libvirt", false, "start libvirtd and wait until it answers")
	f.StringVar(&share, "share", "", "a folder of this machine that the lab sees, and may write to, as /lab/share")
	f.StringVar(&qemu, "qemu", "", "QEMU program (default: qemu-system-x86_64 from PATH)")
	timeLimitFlag(f, &timeout, "end the lab after this time")
	return c
}

func runInLab(ctx context.Context, c *cobra.Command, o lab.Options, mode labcounter.Mode, args []string) (err error) {
	h, err := lab.Boot(ctx, o)
	if err != nil {
		return err
	}
	defer func() {
		if closed := h.Close(); err == nil && closed != nil {
			err = closed
		}
	}()
	if mode != labcounter.Off {
		scope, err := h.Scope()
		if err != nil {
			return err
		}
		if err := scope.Set(ctx, mode); err != nil {
			return err
		}
	}
	status, err := h.Run(ctx, args, c.OutOrStdout(), c.ErrOrStderr())
	if err != nil {
		return fmt.Errorf("running %s in the lab: %w", args[0], err)
	}
	if status != 0 {
		return exitStatus(status)
	}
	return nil
}

func progressLines(w io.Writer) func(string, ...any) {
	return func(format string, args ...any) { fmt.Fprintf(w, "lab: "+format+"\n", args...) }
}

func labShapesCommand() *cobra.Command {
	return &cobra.Command{
		Use:   "shapes",
		Short: "List the built-in shapes",
		Long: `Lists the machines that the lab can imitate, in their ratios. A file of the
same form is a shape too: see 'numavisor lab shapes -o yaml'.`,
		Example: `  numavisor lab shapes
  numavisor lab run --shape genoa-cxl -- numactl --hardware`,
		Args: cobra.NoArgs,
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
		Long: `Switches the lab's access counter (off: full speed; count: cache misses are
counted by CPU and node; felt: and delayed by distance), reads its counts, or
zeroes them. Works inside a lab.`,
		Example:   `  numavisor lab run -- sh -c 'numavisor lab scope count; ./program; numavisor lab scope read'`,
		Args:      cobra.MatchAll(cobra.ExactArgs(1), cobra.OnlyValidArgs),
		ValidArgs: []string{"off", "count", "felt", "read", "reset"},
		RunE: func(c *cobra.Command, args []string) error {
			if _, err := os.Stat(labcounter.Path); err != nil {
				return fmt.Errorf("no access counter here: %w; this command works inside a lab", err)
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
