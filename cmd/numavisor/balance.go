package main

import (
	"fmt"
	"io"

	"github.com/spf13/cobra"

	"github.com/numavisor/numavisor/internal/decide/balance"
	"github.com/numavisor/numavisor/internal/inventory"
	"github.com/numavisor/numavisor/internal/plan"
	"github.com/numavisor/numavisor/internal/text"
)

func balanceCommand() *cobra.Command {
	var on hostFlags
	var explain bool
	var in remote
	c := &cobra.Command{
		Use:   "balance",
		Short: "Plan moves of running VMs to other nodes, and say why; changes nothing",
		Long: `Plans moves of running VMs between the nodes of this host, or of a saved
inventory, and changes nothing. Each move has its benefit, its price, its reason,
and the placement that undoes it. The plan assumes that the current loads last; the
daemon waits until a VM has been degraded for some time. For a saved inventory, the
default policy applies unless --policy names a file.

The plan uses the CPU demand, the wait and the remote accesses of VMs. The daemon of
this host measures them, and a saved inventory can have them. Without them, the plan
assumes that all vCPUs are busy and that a VM accesses all of its memory equally
often.

With --server, shows the plan of a fleet's server instead: migrations that would relieve
hosts whose own moves do not help. Those in mode advised wait for 'numavisor migrate'.`,
		Example: `  numavisor balance --inventory host.json --explain
  numavisor capture > host.json; numavisor balance --inventory host.json -o json`,
		Args: takes(0, 0),
	}
	on.flags(c, withTopology, withPolicy, withoutLibvirt, withSources)
	c.Flags().BoolVar(&explain, "explain", false, "show reasons, prices, and why degraded VMs stay")
	socketFlag(c, &on.socket)
	in.flag(c)
	onlyHere(c)
	c.RunE = func(c *cobra.Command, _ []string) error {
		if !on.from.elsewhere() {
			if client, err := in.client(c, "explain"); client != nil || err != nil {
				return errorOr(err, func() error { return balanceRemote(c, client, explain) })
			}
		}
		wanted, err := on.readPolicy(c.Context())
		if err != nil {
			return err
		}
		on.notePolicyOfDaemon(c, on.socket, wanted)
		inv, err := on.inventory(c)
		if err != nil {
			return err
		}
		noteNoLoads(c, &inv)
		p, err := balance.Plan(balance.Request{Host: &inv, Policy: wanted, Now: inv.Taken, Lasting: true})
		if err != nil {
			return err
		}
		return emit(c, p, func(w io.Writer) { printPlan(w, p, explain) })
	}
	return c
}

// noteNoLoads prints a note where a plan has to estimate the loads of VMs.
func noteNoLoads(c *cobra.Command, inv *inventory.Host) {
	for _, g := range inv.Gaps {
		if g.Kind == inventory.LoadsUnmeasured {
			printf(
				c.ErrOrStderr(),
				"numavisor: note: loads are not known (%s): the plan assumes that all vCPUs are busy, and "+
					"that each VM accesses all of its memory equally often\n",
				g.Why,
			)
		}
	}
}

func printPlan(w io.Writer, r plan.Plan, explain bool) {
	if explain {
		fmt.Fprint(w, text.VisibleLines(r.Text()))
		for _, s := range r.Degraded {
			printf(w, "  degraded: %s: %s\n", s.Guest, s.Why)
		}
		return
	}
	if len(r.Moves) == 0 {
		printf(w, "nothing to move; degraded VMs: %d\n", len(r.Degraded))
		return
	}
	rows := [][]string{{"MOVE", "VM", "FROM", "TO", "COPY", "TAKES", "SAVES", "MODE"}}
	for _, m := range r.Moves {
		mode := "auto"
		if m.Advised {
			mode = "advised"
		}
		for i, g := range m.Guests {
			takes, saves := "", ""
			if i == 0 {
				takes = "-"
				if took, known := m.Cost.Time(); known {
					takes = fmt.Sprintf("%.1f s", took.Seconds())
				}
				saves = fmt.Sprintf("%.2f CPUs", m.Benefit.AccessCPUs+m.Benefit.WaitCPUs)
			}
			kind, from := m.Way(g)
			rows = append(rows, []string{string(kind), g.Guest, text.Set(from), text.Set(g.To()),
				g.Bytes.String(), takes, saves, mode})
		}
	}
	columns(w, rows)
}
