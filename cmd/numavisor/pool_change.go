package main

import (
	"errors"
	"fmt"
	"io"
	"strings"

	"github.com/spf13/cobra"

	"github.com/numavisor/numavisor/internal/decide/pools"
	"github.com/numavisor/numavisor/internal/host/local"
	"github.com/numavisor/numavisor/internal/host/operate"
	"github.com/numavisor/numavisor/internal/inventory"
	"github.com/numavisor/numavisor/internal/plan"
	"github.com/numavisor/numavisor/internal/text"
	"github.com/numavisor/numavisor/internal/topology"
)

// poolChange is a request for another layout of the pools.
type poolChange func(now plan.CPUPools, inv *inventory.Host) (plan.CPUPools, error)

// poolFlags are the flags of all commands that change pools.
type poolFlags struct {
	on     hostFlags
	dryRun bool
}

func (f *poolFlags) flags(c *cobra.Command) {
	f.on.flags(c, withRecords)
	c.Flags().BoolVar(&f.dryRun, "dry-run", false, "print the steps and change nothing")
}

// change changes the pools and prints the steps.
func (f *poolFlags) change(c *cobra.Command, what string, to poolChange) error {
	h, done, err := f.on.open(c)
	if err != nil {
		return err
	}
	defer done()
	if h.CPUPools == nil {
		return wrongUse("%s: this host has no CPU pools; only Xen has them", c.CommandPath())
	}
	if !f.dryRun {
		closeInterrupted(c, h)
	}
	return changePools(c, h, operate.PoolRequest{What: what, Change: to, DryRun: f.dryRun})
}

func changePools(c *cobra.Command, h *local.Host, r operate.PoolRequest) error {
	changed, err := h.ChangePools(c.Context(), r)
	if err == nil || changed.Done > 0 {
		if printed := emit(c, changed, func(w io.Writer) { printPoolSteps(w, &changed, r.DryRun) }); printed != nil {
			return printed
		}
	}
	if err != nil && changed.Done > 0 {
		return partialError{fmt.Errorf("%w; 'numavisor undo' restores the former CPU pools", err)}
	}
	return err
}

func printPoolSteps(w io.Writer, changed *operate.PoolsChanged, dryRun bool) {
	if len(changed.Steps) == 0 {
		printf(w, "nothing to do: the CPU pools are so already\n")
		return
	}
	steps := changed.Steps
	if dryRun {
		printf(w, "Would do:\n")
	} else {
		steps = steps[:changed.Done]
	}
	for i, s := range steps {
		printf(w, "  %d. %s\n", i+1, text.Visible(s.String()))
	}
	if len(changed.Rebind) > 0 {
		printf(w, "note: other CPUs for VMs %s; bind them: 'numavisor bind VM'\n",
			text.Visible(strings.Join(changed.Rebind, ", ")))
	}
}

func poolSplitCommand() *cobra.Command {
	var f poolFlags
	c := &cobra.Command{
		Use:   "split-by-node",
		Short: "Make a CPU pool for each node",
		Long: `Makes a CPU pool for each node, with the scheduler of the present single pool, which
becomes the pool of the first node: all VMs and dom0 stay in it until 'numavisor pool
move' moves them. 'xl cpupool-numa-split' makes the same pools. dom0 has all of its
vCPUs afterwards; boot Xen with dom0_max_vcpus to limit them.

Exit status 3 means done in part: 'numavisor undo' restores the former pools.`,
		Example: `  numavisor pool split-by-node --dry-run
  numavisor pool split-by-node`,
		Args: takes(0, 0),
		RunE: func(c *cobra.Command, _ []string) error {
			return f.change(c, "split the CPU pool by node",
				func(now plan.CPUPools, inv *inventory.Host) (plan.CPUPools, error) {
					return pools.Split(now, &inv.Topology)
				})
		},
	}
	f.flags(c)
	return c
}

// poolCPUs reads a list of CPUs that is an argument.
func poolCPUs(list string) (topology.CPUSet, error) {
	cpus, err := topology.ParseSet[topology.CPUID](list)
	if err == nil && cpus.IsEmpty() {
		err = errors.New("it names no CPU")
	}
	if err != nil {
		return cpus, wrongUse("CPUs %q: %w; give a list as 4-7,12", list, err)
	}
	return cpus, nil
}

func poolCreateCommand() *cobra.Command {
	var f poolFlags
	var scheduler string
	c := &cobra.Command{
		Use:   "create NAME CPUS",
		Short: "Create a CPU pool with CPUs that other pools give up",
		Long: `Creates a CPU pool. Its CPUs leave the pools that they are in; each pool retains at
least one. Xen widens the hard affinity of VMs that lose all of their CPUs: bind them
again.`,
		Example: `  numavisor pool create db 4-7
  numavisor pool create realtime 6,7 --scheduler rtds --dry-run`,
		Args: takes(2, 2),
		RunE: func(c *cobra.Command, args []string) error {
			cpus, err := poolCPUs(args[1])
			if err != nil {
				return err
			}
			return f.change(c, fmt.Sprintf("create CPU pool %q with CPUs %s", args[0], cpus),
				func(now plan.CPUPools, _ *inventory.Host) (plan.CPUPools, error) {
					return pools.Create(now, args[0], scheduler, cpus)
				})
		},
	}
	f.flags(c)
	c.Flags().StringVar(&scheduler, "scheduler", "",
		"credit, credit2, null, rtds or arinc653 (default: that of the first pool)")
	return c
}

func poolDeleteCommand() *cobra.Command {
	var f poolFlags
	c := &cobra.Command{
		Use:   "delete NAME",
		Short: "Delete a CPU pool without VMs; the first pool takes its CPUs",
		Long: `Deletes a CPU pool. The first pool takes its CPUs. A pool with VMs is refused: 'numavisor
pool move' moves them to another pool. The first pool, in which dom0 runs, cannot be deleted.`,
		Example: `  numavisor pool delete db`,
		Args:    takes(1, 1),
		RunE: func(c *cobra.Command, args []string) error {
			return f.change(c, fmt.Sprintf("delete CPU pool %q", args[0]),
				func(now plan.CPUPools, _ *inventory.Host) (plan.CPUPools, error) { return pools.Delete(now, args[0]) })
		},
	}
	f.flags(c)
	return c
}

func poolAssignCommand() *cobra.Command {
	var f poolFlags
	c := &cobra.Command{
		Use:   "assign NAME CPUS",
		Short: "Give CPUs to a CPU pool; other pools give them up",
		Long: `Gives CPUs to a CPU pool. The pools that they are in give them up; each retains at least
one. Xen widens the hard affinity of VMs that lose all of their CPUs: bind them again.`,
		Example: `  numavisor pool assign db 2-3
  numavisor pool assign db 2-3 --dry-run`,
		Args: takes(2, 2),
		RunE: func(c *cobra.Command, args []string) error {
			cpus, err := poolCPUs(args[1])
			if err != nil {
				return err
			}
			return f.change(c, fmt.Sprintf("assign CPUs %s to CPU pool %q", cpus, args[0]),
				func(now plan.CPUPools, _ *inventory.Host) (plan.CPUPools, error) {
					return pools.Assign(now, args[0], cpus)
				})
		},
	}
	f.flags(c)
	return c
}

func poolMoveCommand() *cobra.Command {
	var f poolFlags
	c := &cobra.Command{
		Use:   "move VM NAME",
		Short: "Move a running VM to a CPU pool",
		Long: `Moves a running VM to a CPU pool. Xen removes the hard affinity of its vCPUs, and its
memory stays: bind the VM again.`,
		Example: `  numavisor pool move web1 db
  numavisor bind web1`,
		Args: takes(2, 2),
		RunE: func(c *cobra.Command, args []string) error {
			return f.change(c, fmt.Sprintf("move VM %s to CPU pool %q", args[0], args[1]),
				func(now plan.CPUPools, _ *inventory.Host) (plan.CPUPools, error) {
					return pools.Move(now, args[0], args[1])
				})
		},
	}
	f.flags(c)
	return c
}
