package main

import (
	"fmt"
	"io"
	"slices"
	"strconv"
	"strings"

	"github.com/spf13/cobra"

	"github.com/numavisor/numavisor/internal/host/local"
	"github.com/numavisor/numavisor/internal/inventory"
	"github.com/numavisor/numavisor/internal/text"
	"github.com/numavisor/numavisor/internal/topology"
)

func topologyCommand() *cobra.Command {
	var on hostFlags
	var drawn string
	c := &cobra.Command{
		Use:   "topology",
		Short: "Show the host's nodes, CPUs, distances, huge pages and devices",
		Long: `Shows the hardware of this host, or of the host that a file describes: nodes with
CPUs, memory, huge page pools and distances; the distance class (local, neighbour,
remote) of each pair of nodes; SMT siblings, cores, dies and L3 domains; PCI
devices with their nodes; and housekeeping CPUs, which VMs do not get.

--picture draws sockets, nodes, CPUs, memory, devices and VMs as text, or as SVG.`,
		Example: `  numavisor topology
  numavisor topology --picture
  numavisor topology --picture=svg > host.svg
  numavisor topology --root captured/web1 -o json
  virsh capabilities | numavisor topology --capabilities -`,
		Args: takes(0, 0),
		RunE: func(c *cobra.Command, _ []string) error {
			inv, err := on.topologyOf(c, drawn != "")
			switch {
			case err != nil:
				return err
			case drawn != "":
				return drawHost(c, drawn, &inv)
			}
			return emit(c, inv.Topology, func(w io.Writer) { printTopology(w, &inv.Topology) })
		},
	}
	withTopology(&on, c.Flags())
	withSources(&on, c.Flags())
	onlyHere(c)
	c.Flags().StringVar(&drawn, "picture", "", "draw the host: text or svg (--picture alone: text)")
	c.Flags().Lookup("picture").NoOptDefVal = "text"
	return c
}

// topologyOf reads the topology that the flags describe. With vms, it also
// observes the VMs of this host; an inventory has them in any case.
func (f *hostFlags) topologyOf(c *cobra.Command, vms bool) (inventory.Host, error) {
	if f.from.elsewhere() {
		return f.described(c.Context())
	}
	if vms {
		inv, err := f.withVMs(c)
		if err == nil {
			return inv, nil
		}
		printf(c.ErrOrStderr(), "numavisor: note: the picture shows no VMs: %v\n", err)
	}
	t, err := local.Topology()
	if err == nil {
		err = f.adjust(c.Context(), &t)
	}
	return inventory.Host{Topology: t}, err
}

func printTopology(w io.Writer, t *topology.Topology) {
	rows := [][]string{{"NODE", "CPUS", "MEMORY", "FREE", "HUGE PAGES free/total", "DEVICES"}}
	for _, n := range t.Nodes {
		rows = append(
			rows,
			[]string{fmt.Sprint(n.ID), text.Set(n.CPUs), n.Memory.String(), n.Free.String(), poolText(n.HugePages),
				devicesOn(t, n.ID)},
		)
	}
	columns(w, rows)
	fmt.Fprintln(w)
	printDistances(w, t)
	printf(
		w,
		"\n%s online, %s, %s, %s; offline %s; housekeeping %s\n",
		text.Count(len(t.CPUs), "CPU", "CPUs"),
		text.Count(count(t.CPUs, func(c topology.CPU) topology.CoreID { return c.Core }), "core", "cores"),
		text.Count(count(t.CPUs, func(c topology.CPU) topology.L3ID { return c.L3 }), "L3 domain", "L3 domains"),
		text.Count(count(t.CPUs, func(c topology.CPU) topology.SocketID { return c.Socket }), "socket", "sockets"),
		text.Set(t.Offline),
		text.Set(t.Housekeeping),
	)
	printf(w, "source: %s; distances: %s\n", t.Source, distanceSource(t))
	for _, g := range t.Gaps {
		printf(w, "not seen: %s\n", g)
	}
}

func distanceSource(t *topology.Topology) string {
	measured := "measured"
	if t.Measured != nil && t.Measured.Source != "" {
		measured += ", " + t.Measured.Source
	}
	switch {
	case t.LatencyComplete():
		return measured
	case t.Measured != nil && t.Measured.LatencyNanos != nil:
		return "SLIT; latency (" + measured + ") is known only for some pairs of nodes, and not used"
	}
	return "SLIT (from firmware; measured figures take precedence)"
}

// printDistances shows the matrix, each figure with the first letter of its class.
func printDistances(w io.Writer, t *topology.Topology) {
	heading := []string{"FROM\\TO"}
	for _, n := range t.Nodes {
		heading = append(heading, fmt.Sprint(n.ID))
	}
	rows := [][]string{heading}
	for _, from := range t.Nodes {
		row := []string{fmt.Sprint(from.ID)}
		for _, to := range t.Nodes {
			figure := "-"
			ns, timed := t.Latency(from.ID, to.ID)
			d, listed := t.Distance(from.ID, to.ID)
			switch {
			case t.LatencyComplete() && timed:
				figure = fmt.Sprintf("%.0fns", ns)
			case listed && timed:
				figure = fmt.Sprintf("%d (%.0fns)", d, ns)
			case listed:
				figure = strconv.Itoa(d)
			}
			row = append(row, figure+" "+string(from.Classes[to.ID]))
		}
		rows = append(rows, row)
	}
	columns(w, rows)
}

func poolText(pools []topology.HugePagePool) string {
	var parts []string
	for _, p := range pools {
		if p.Total > 0 {
			parts = append(parts, fmt.Sprintf("%v: %d/%d", p.Size, p.Free, p.Total))
		}
	}
	if len(parts) == 0 {
		return "-"
	}
	return strings.Join(parts, ", ")
}

func devicesOn(t *topology.Topology, node topology.NodeID) string {
	var parts []string
	for _, d := range t.Devices {
		if d.Node == node && d.Kind != topology.DeviceOther {
			parts = append(
				parts,
				strings.TrimSpace(
					fmt.Sprintf("%s %s", d.Kind, strings.Join(append([]string{d.Address}, d.Names...), " "))),
			)
		}
	}
	if len(parts) == 0 {
		return "-"
	}
	return strings.Join(parts, ", ")
}

func count[T any, K comparable](all []T, key func(T) K) int {
	var keys []K
	for _, v := range all {
		if k := key(v); !slices.Contains(keys, k) {
			keys = append(keys, k)
		}
	}
	return len(keys)
}
