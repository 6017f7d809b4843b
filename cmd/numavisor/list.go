package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"github.com/numavisor/numavisor/internal/decide/drift"
	"github.com/numavisor/numavisor/internal/host/operate"
	"github.com/numavisor/numavisor/internal/inventory"
	"github.com/numavisor/numavisor/internal/text"
	"github.com/numavisor/numavisor/internal/topology"
)

func listCommand() *cobra.Command {
	var on hostFlags
	var show listing
	var in remote
	c := &cobra.Command{
		Use:     "list [VM...]",
		Aliases: []string{"ls"},
		Short:   "Show where each VM's memory and vCPUs really are",
		Long: `Shows for each VM, from the kernel's statistics: the nodes that it is placed on,
its memory by node, the share of this memory that is local to its vCPUs, the share
of time that the vCPUs wait for a CPU, and drift: what differs from the placement
that is recorded with the VM. Of a mirrored VM, VCPUS also shows how many of its vCPUs
have a CPU now, and no wait is shown: vCPUs without a CPU wait by design. -o wide
adds the nodes that the vCPUs ran on last, and the share of time that the VM's CPU
quota stops it (throttled; this is not part of the wait).

Exit status 3 means that Numavisor could not list all VMs of this host.`,
		Example: `  numavisor list
  numavisor list web1 db1 -o wide
  numavisor list --drifted --sort memory
  numavisor list --watch 2s`,
		RunE: func(c *cobra.Command, names []string) error {
			client, err := in.client(c)
			if err != nil {
				return err
			}
			if client != nil {
				return listRemote(c, client, names)
			}
			show.names = names
			if err := show.check(); err != nil {
				return err
			}
			h, done, err := on.open(c)
			if err != nil {
				return err
			}
			defer done()
			return show.repeat(c, func(ctx context.Context) error {
				inv, err := h.Observe(ctx)
				if err != nil {
					return err
				}
				return show.print(c, &inv)
			})
		},
	}
	on.flags(c, withoutLibvirt)
	in.flag(c)
	show.flags(c)
	return c
}

// unseen is the error for VMs that the command could not observe: the output is
// incomplete.
func unseen(inv *inventory.Host) error {
	var errs []error
	for _, g := range inv.HiddenBy() {
		errs = append(errs, fmt.Errorf("incomplete: the %s were not seen (see 'not seen' in the output)", g.What))
	}
	if len(errs) == 0 {
		return nil
	}
	return partialError{errors.Join(errs...)}
}

// guestList is what list prints.
type guestList struct {
	Guests []operate.Truth `json:"guests"`
	Gaps   []inventory.Gap `json:"gaps,omitempty"`
}

func printList(w io.Writer, t *topology.Topology, list guestList, wide bool) {
	switch {
	case len(list.Guests) == 0 && slices.ContainsFunc(list.Gaps, inventory.Gap.HidesGuests):
		fmt.Fprintln(w, "no VMs were seen")
	case len(list.Guests) == 0:
		fmt.Fprintln(w, "no VMs on this host")
	default:
		columns(w, listRows(t, list.Guests, wide))
		printf(w, "\nLOCAL: share of memory on the nodes of the VM's vCPUs, by %s\n", localSources(list.Guests))
		printf(w, "sources: memory %s; vCPUs and wait %s\n",
			sources(list.Guests, func(g operate.Truth) string { return g.MemorySource }),
			sources(list.Guests, func(g operate.Truth) string { return g.ThreadSource }))
	}
	for _, g := range list.Guests {
		notePlacedFor(w, g)
	}
	printGaps(w, list.Gaps)
}

// printGaps lists what the inventory lacks, each gap with its cause below it.
func printGaps(w io.Writer, gaps []inventory.Gap) {
	for _, g := range gaps {
		printf(w, "not seen: %s: %s\n", g.Object, g.What)
		printCauses(w, g.Why)
	}
}

// localSources names the source of the VMs' local shares: one source for all,
// or the VMs with the worse one.
func localSources(guests []operate.Truth) string {
	var affinity []string
	for _, g := range guests {
		if g.LocalSource == drift.ByAffinity {
			affinity = append(affinity, g.Guest)
		}
	}
	switch {
	case len(affinity) == 0:
		return string(drift.ByLastCPU)
	case !slices.ContainsFunc(guests, func(g operate.Truth) bool { return g.LocalSource == drift.ByLastCPU }):
		return string(drift.ByAffinity)
	}
	return fmt.Sprintf("%s (of %s: %s)", drift.ByLastCPU, strings.Join(affinity, ", "), drift.ByAffinity)
}

// notePlacedFor says what to do about a VM that arrived with another host's
// placement.
func notePlacedFor(w io.Writer, g operate.Truth) {
	if g.PlacedFor != nil {
		printf(w, "%s was placed for host %s; 'numavisor bind %[1]s' places it here\n", g.Guest, g.PlacedFor)
	}
}

func listRows(t *topology.Topology, guests []operate.Truth, wide bool) [][]string {
	heading := []string{"VM", "STATE", "VCPUS", "MEMORY", "PLACED ON", "MEMORY BY NODE", "LOCAL", "WAIT", "DRIFT"}
	if wide {
		heading = append(heading, "VCPUS ON", "THROTTLED")
	}
	rows := [][]string{heading}
	for _, g := range guests {
		row := []string{g.Guest, g.State, vcpusText(g), g.Memory.String(), placedText(g),
			g.MemoryByNode.String(),
			shareText(g.LocalShare), shareText(g.WaitShare), driftText(g)}
		if wide {
			row = append(row, spreadText(t, g), shareText(g.ThrottledShare))
		}
		rows = append(rows, row)
	}
	return rows
}

// vcpusText shows the number of vCPUs; of a mirrored VM that runs, those of them that have a CPU, and of a VM whose
// number of vCPUs follows its demand, those that it uses: "4 of 16".
func vcpusText(g operate.Truth) string {
	if h := g.HandedOver; h != nil && !h.CPUs.IsEmpty() {
		return fmt.Sprintf("%d of %d", h.CPUs.Len(), g.VCPUs)
	}
	if s := g.Scaled; s != nil && !s.Used.IsEmpty() {
		return fmt.Sprintf("%d of %d", s.Used.Len(), g.VCPUs)
	}
	return fmt.Sprint(g.VCPUs)
}

func placedText(g operate.Truth) string {
	if g.PlacedFor != nil {
		return fmt.Sprintf("(for host %s)", g.PlacedFor)
	}
	if !g.Managed {
		return "unmanaged"
	}
	if g.Nodes.Len() == 1 {
		return "node " + g.Nodes.String()
	}
	return "nodes " + g.Nodes.String()
}

func shareText(share *float64) string {
	if share == nil {
		return "-"
	}
	return text.Percent(*share)
}

// spreadText shows how many vCPUs last ran on each node: "0: 1, 2: 3".
func spreadText(t *topology.Topology, g operate.Truth) string {
	var parts []string
	for _, n := range t.Nodes {
		if v := g.VCPUsByNode[n.ID]; v > 0 {
			parts = append(parts, fmt.Sprintf("%d: %d", n.ID, v))
		}
	}
	if len(parts) == 0 {
		return "-"
	}
	return strings.Join(parts, ", ")
}

func driftText(g operate.Truth) string {
	switch {
	case !g.Managed:
		return "-"
	case len(g.Differences) == 0:
		return "none"
	case g.InProgress:
		return "being bound or moved"
	case len(g.Differences) == 1:
		return g.Differences[0].String()
	}
	return fmt.Sprintf("drifted (%d): numavisor show %s", len(g.Differences), g.Guest)
}

// none stands for the source of a value that no source reported.
const none = "no source"

// sources joins the different sources of one figure.
func sources(guests []operate.Truth, of func(operate.Truth) string) string {
	var all []string
	for _, g := range guests {
		if s := of(g); s != "" && !strings.Contains(strings.Join(all, ", "), s) {
			all = append(all, s)
		}
	}
	if len(all) == 0 {
		return none
	}
	return strings.Join(all, ", ")
}
