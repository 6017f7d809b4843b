package main

import (
	"errors"
	"io"

	"github.com/spf13/cobra"
)

func captureCommand() *cobra.Command {
	var on hostFlags
	var socket string
	c := &cobra.Command{
		Use:   "capture",
		Short: "Write the inventory: everything a decision needs, as one document",
		Long: `Writes what was seen on the host as one JSON document: topology, reservations,
VMs with spec, placement and what was seen of them, and the gaps. Replay a
decision on it with 'numavisor place --inventory FILE'; attach it to a bug
report. Its form is docs/inventory.schema.json. Loads of VMs and nodes are in it
where a daemon runs that measures them.

Exit status 3 means that a hypervisor of this host could not be asked for its
VMs, or not for all: the document has the gap.`,
		Example: `  numavisor capture > host.json
  numavisor place --vcpus 8 --memory 16G --inventory host.json --explain`,
		Args: cobra.NoArgs,
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
			addLoads(c.Context(), socket, &inv)
			if format := c.Flag("output"); !format.Changed {
				if err := format.Value.Set("json"); err != nil {
					return err
				}
			}
			return errors.Join(emit(c, inv, func(w io.Writer) {
				printf(w, "%s at %s: %d nodes, %d CPUs, %d VMs, %d gaps\n", inv.Name,
					inv.Taken.Format("2006-01-02 15:04:05 MST"), len(inv.Topology.Nodes), len(inv.Topology.CPUs),
					len(inv.Guests), len(inv.Gaps))
			}), unseen(&inv))
		},
	}
	on.flags(c, withTopology, withoutLibvirt)
	socketFlag(c, &socket)
	return c
}
