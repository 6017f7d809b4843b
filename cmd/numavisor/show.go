package main

import (
	"cmp"
	"fmt"
	"io"

	"github.com/spf13/cobra"

	"github.com/numavisor/numavisor/internal/host/operate"
	"github.com/numavisor/numavisor/internal/inventory"
	"github.com/numavisor/numavisor/internal/text"
	"github.com/numavisor/numavisor/internal/topology"
)

func showCommand() *cobra.Command {
	var on hostFlags
	var in remote
	c := &cobra.Command{
		Use:   "show VM",
		Short: "Show one VM in detail: every cell and thread",
		Long: `Shows one VM in detail: its recorded placement; for each cell, its memory by node
and the kernel's memory policy; for each vCPU and helper thread, the CPUs that it
may run on, the CPU that it ran on last, and how long it waited for a CPU.

For this, the kernel walks all pages of the VM (numa_maps), which takes CPU time.
Use 'list' to look often.`,
		Example: `  numavisor show web1
  numavisor show web1 -o json`,
		Args: takes(1, 1),
		RunE: func(c *cobra.Command, args []string) error {
			client, err := in.client(c)
			if err != nil {
				return err
			}
			if client != nil {
				return showRemote(c, client, args[0])
			}
			h, done, err := on.open(c)
			if err != nil {
				return err
			}
			defer done()
			view, inv, err := h.Show(c.Context(), args[0])
			if err != nil {
				return err
			}
			return emit(c, view, func(w io.Writer) { printView(w, &inv.Topology, view) })
		},
	}
	on.flags(c)
	in.flag(c)
	return c
}

// printHandedOver prints what a mirrored VM has and how its agent frees vCPUs.
func printHandedOver(w io.Writer, g *inventory.HandedOver) {
	if g == nil {
		return
	}
	cpus := "no CPUs on record"
	if !g.CPUs.IsEmpty() {
		cpus = "CPUs " + g.CPUs.String()
	}
	printf(w, "hand-over: has %s, at least %d; took %d; %s\n", cpus, g.Min, g.Taken, g.AgentText())
	if g.Misbehaved > 0 {
		printf(w, "hand-over: %s stopped\n", text.Count(g.Misbehaved, "vCPU ran after its release, and was",
			"vCPUs ran after their release, and were"))
	}
}

// printScaled prints which vCPUs a VM uses whose number of vCPUs follows its demand.
func printScaled(w io.Writer, s *inventory.Scaled) {
	if s == nil {
		return
	}
	used := "all vCPUs"
	if !s.Used.IsEmpty() {
		used = "vCPUs " + s.Used.String()
	}
	printf(w, "vCPUs by demand: uses %s, at least %d; %s\n", used, s.Min, s.AgentText())
	if len(s.Divided) > 0 {
		printf(w, "vCPUs by accesses: %s\n", s.DividedText())
	}
}

func printView(w io.Writer, t *topology.Topology, v operate.View) {
	columns(w, listRows(t, []operate.Truth{v.Truth}, true))
	if len(v.Cells) > 0 {
		fmt.Fprintln(w)
		columns(w, cellRows(v))
	}
	if len(v.Threads) > 0 {
		fmt.Fprintln(w)
		columns(w, threadRows(v.Threads))
	}
	cells := none
	switch {
	case len(v.Cells) > 0 && v.Cells[0].Backing == "":
		cells = "the hypervisor"
	case len(v.Cells) > 0:
		cells = "numa_maps"
	}
	printf(w, "\nmemory by node from %s; cells from %s; threads from %s\n",
		cmp.Or(v.Truth.MemorySource, none), cells, cmp.Or(v.Truth.ThreadSource, none))
	notePlacedFor(w, v.Truth)
	printHandedOver(w, v.Truth.HandedOver)
	printScaled(w, v.Truth.Scaled)
	for _, d := range v.Truth.Differences {
		printf(w, "drift: %s\n", d)
	}
	printGaps(w, v.Gaps)
}

func cellRows(v operate.View) [][]string {
	rows := [][]string{{"CELL", "VCPUS", "MEMORY", "INTENDED", "MEMORY BY NODE", "POLICY", "BACKING", "PAGES OF"}}
	for _, c := range v.Cells {
		pages := "-"
		if c.PageSize > 0 {
			pages = c.PageSize.String()
		}
		rows = append(rows, []string{c.Name, text.Set(c.VCPUs), c.Memory.String(), text.Set(c.Intended),
			c.ByNode.String(), cmp.Or(c.Policy, "-"), cmp.Or(c.Backing, "-"), pages})
	}
	return rows
}

func threadRows(threads []inventory.Thread) [][]string {
	rows := [][]string{{"THREAD", "ROLE", "MAY RUN ON", "LAST ON", "MEMORY FROM", "RAN", "WAITED OR THROTTLED"}}
	for _, t := range threads {
		role := string(t.Role)
		if t.VCPU != nil {
			role = fmt.Sprintf("vcpu %d", *t.VCPU)
		}
		name, mems := t.Name, text.Set(t.Mems)
		if t.TID != 0 {
			name, mems = fmt.Sprintf("%d %s", t.TID, t.Name), "nodes "+mems
		}
		rows = append(
			rows,
			[]string{name, role, text.Set(t.Affinity), fmt.Sprint(t.LastCPU),
				mems, fmt.Sprintf("%.1f s", t.RunTime.Seconds()),
				fmt.Sprintf("%.1f s", t.WaitTime.Seconds())},
		)
	}
	return rows
}
