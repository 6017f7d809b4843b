package main

import (
	"fmt"
	"io"
	"strings"

	"github.com/spf13/cobra"

	"github.com/numavisor/numavisor/internal/inventory"
	"github.com/numavisor/numavisor/internal/text"
)

func poolCommand() *cobra.Command {
	c := &cobra.Command{
		Use:   "pool",
		Short: "Show and change the CPU pools of a Xen host",
		Long: `A CPU pool of Xen is a part of the host's CPUs with a scheduler of its own. A VM runs on
the CPUs of its pool only; place, create and bind obey that. 'numavisor undo' takes
changes of the pools back.`,
		Args: knownCommand,
		RunE: func(c *cobra.Command, _ []string) error { return c.Help() },
	}
	c.AddCommand(poolListCommand(), poolSplitCommand(), poolCreateCommand(), poolDeleteCommand(), poolAssignCommand(),
		poolMoveCommand())
	return c
}

// shownPool is a pool with its VMs.
type shownPool struct {
	inventory.Pool
	VMs []string `json:"vms"`
}

func poolListCommand() *cobra.Command {
	var on hostFlags
	c := &cobra.Command{
		Use:   "list",
		Short: "List the CPU pools with their CPUs, scheduler and VMs",
		Long: `Lists the CPU pools of this Xen host. New VMs are in the first pool, unless their
configuration or --pool names another. The VMs exclude dom0.`,
		Example: `  numavisor pool list
  numavisor pool list -o json`,
		Args: takes(0, 0),
		RunE: func(c *cobra.Command, _ []string) error {
			h, done, err := on.open(c)
			if err != nil {
				return err
			}
			defer done()
			inv, err := h.Observe(c.Context())
			if err != nil {
				return err
			}
			return emit(c, poolsOf(&inv), func(w io.Writer) { printPools(w, &inv) })
		},
	}
	on.flags(c)
	return c
}

// poolsOf returns the pools with the VMs in them.
func poolsOf(inv *inventory.Host) []shownPool {
	all := make([]shownPool, len(inv.Pools))
	for i := range inv.Pools {
		all[i] = shownPool{Pool: inv.Pools[i], VMs: []string{}}
		for j := range inv.Guests {
			if inv.Guests[j].Pool == all[i].Name {
				all[i].VMs = append(all[i].VMs, inv.Guests[j].Name)
			}
		}
	}
	return all
}

func printPools(w io.Writer, inv *inventory.Host) {
	if len(inv.Pools) == 0 {
		printf(w, "this host has no CPU pools; only Xen has them\n")
		return
	}
	rows := [][]string{{"POOL", "SCHEDULER", "CPUS", "NODES", "VMS"}}
	for _, p := range poolsOf(inv) {
		vms := "-"
		if len(p.VMs) > 0 {
			vms = strings.Join(p.VMs, ", ")
		}
		rows = append(rows, []string{text.Visible(p.Name), text.Visible(p.Scheduler), text.Set(p.CPUs),
			fmt.Sprint(inv.Topology.NodesOf(p.CPUs)), text.Visible(vms)})
	}
	columns(w, rows)
}
