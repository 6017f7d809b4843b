package main

import (
	"errors"
	"io"

	"github.com/spf13/cobra"

	"github.com/numavisor/numavisor/internal/inventory"
	"github.com/numavisor/numavisor/internal/text"
)

func captureCommand() *cobra.Command {
	var on hostFlags
	c := &cobra.Command{
		Use:   "capture",
		Short: "Write the inventory: all that a decision needs, as one document",
		Long: `Writes the inventory of this host as one JSON document: topology, reservations, VMs
with their specs, placements and observed figures, and gaps (what could not be
read). If the daemon runs, the inventory also has the loads of VMs and nodes.
Repeat a decision with it on any machine ('numavisor place --inventory FILE'), or
attach it to a bug report. docs/inventory.schema.json describes its form. --root,
--hwloc, --capabilities and --xl-info write the inventory of the host that a file
describes, without VMs.

Exit status 3 means that Numavisor could not list all VMs of this host; the document
has this gap.`,
		Example: `  numavisor capture > host.json
  numavisor place --vcpus 8 --memory 16G --inventory host.json --explain`,
		Args: takes(0, 0),
		RunE: func(c *cobra.Command, _ []string) error {
			inv, err := on.captured(c)
			if err != nil {
				return err
			}
			if format := c.Flag("output"); !format.Changed {
				if err := format.Value.Set("json"); err != nil {
					return err
				}
			}
			return errors.Join(emit(c, inv, func(w io.Writer) {
				printf(w, "%s at %s: %s, %s, %s, %s\n", inv.Name, inv.Taken.Format("2006-01-02 15:04:05 MST"),
					text.Count(len(inv.Topology.Nodes), "node", "nodes"),
					text.Count(len(inv.Topology.CPUs), "CPU", "CPUs"), text.Count(len(inv.Guests), "VM", "VMs"),
					text.Count(len(inv.Gaps), "gap", "gaps"))
			}), unseen(&inv))
		},
	}
	on.flags(c, withTopology, withoutLibvirt, withSources)
	socketFlag(c, &on.socket)
	onlyHere(c)
	return c
}

// captured observes this host, with the loads that its daemon has measured, or
// reads the description of another host.
func (f *hostFlags) captured(c *cobra.Command) (inventory.Host, error) {
	if f.from.elsewhere() {
		return f.described(c.Context())
	}
	h, done, err := f.open(c)
	if err != nil {
		return inventory.Host{}, err
	}
	defer done()
	return h.ObserveLoads(c.Context())
}
