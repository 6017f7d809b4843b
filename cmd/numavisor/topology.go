package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"slices"
	"strconv"
	"strings"

	"github.com/spf13/cobra"

	"github.com/numavisor/numavisor/internal/host/hwloc"
	"github.com/numavisor/numavisor/internal/host/libvirt"
	"github.com/numavisor/numavisor/internal/host/linux"
	"github.com/numavisor/numavisor/internal/host/xen"
	"github.com/numavisor/numavisor/internal/inventory"
	"github.com/numavisor/numavisor/internal/text"
	"github.com/numavisor/numavisor/internal/topology"
)

func topologyCommand() *cobra.Command {
	var from topologySource
	var drawn string
	c := &cobra.Command{
		Use:   "topology",
		Short: "Show the host's nodes, CPUs, distances, huge pages and devices",
		Long: `Shows what the host is: nodes with CPUs, memory, huge page pools and
distances; distance classes (local, neighbour, remote) per pair; SMT siblings,
cores, dies and L3 domains; PCI devices with their node; the housekeeping CPUs
that VMs do not get. Reads this host, or a description of another one.
With --picture, draws sockets, nodes, CPUs, memory, devices and VMs as text, or
as SVG for a page.`,
		Example: `  numavisor topology
  numavisor topology --picture
  numavisor topology --picture=svg > host.svg
  numavisor topology --root captured/web1 -o json
  virsh capabilities | numavisor topology --capabilities -`,
		Args: cobra.NoArgs,
		RunE: func(c *cobra.Command, _ []string) error {
			inv, err := from.host(c, drawn != "")
			switch {
			case err != nil:
				return err
			case drawn != "":
				return drawHost(c, drawn, &inv)
			}
			return emit(c, inv.Topology, func(w io.Writer) { printTopology(w, &inv.Topology) })
		},
	}
	from.flags(c)
	c.Flags().StringVar(&drawn, "picture", "", "draw the host: text or svg (--picture alone: text)")
	c.Flags().Lookup("picture").NoOptDefVal = "text"
	return c
}

// topologySource is where a topology is read from.
type topologySource struct {
	root, capabilities, xlInfo, hwloc, inventory string
	measured, housekeeping                       string
}

// host reads the topology. It also reads the VMs if the topology is of a saved
// inventory, or if it is of this host and the caller requests them.
func (s *topologySource) host(c *cobra.Command, vms bool) (inventory.Host, error) {
	if s.inventory != "" {
		inv, err := readFile(c.Context(), s.inventory, inventory.Parse)
		if err == nil {
			inv.Topology, err = s.adjust(c.Context(), inv.Topology)
		}
		return inv, err
	}
	t, err := s.read(c.Context())
	here := s.root == "/" && s.capabilities == "" && s.xlInfo == "" && s.hwloc == ""
	if err == nil && vms && here {
		return withVMs(c, t), nil
	}
	return inventory.Host{Topology: t}, err
}

func (s *topologySource) flags(c *cobra.Command) {
	f := c.Flags()
	f.StringVar(&s.root, "root", "/", "folder that holds the host's /sys and /proc (a captured tree)")
	f.StringVar(&s.capabilities, "capabilities", "", "file with 'virsh capabilities' XML ('-': standard input)")
	f.StringVar(&s.xlInfo, "xl-info", "", "file with the text of 'xl info -n'")
	f.StringVar(&s.hwloc, "hwloc", "", "file with hwloc XML ('lstopo --of xml')")
	f.StringVar(&s.measured, "measured", "",
		"file with a measured latency and bandwidth matrix; it takes precedence over SLIT")
	f.StringVar(&s.housekeeping, "housekeeping", "", "CPUs that VMs must not get, as a list")
	f.StringVar(&s.inventory, "inventory", "", "file with a saved inventory (see 'numavisor capture')")
	c.MarkFlagsMutuallyExclusive("root", "capabilities", "xl-info", "hwloc", "inventory")
}

func (s *topologySource) read(ctx context.Context) (topology.Topology, error) {
	t, err := s.readForeign(ctx)
	if err != nil {
		return t, err
	}
	return s.adjust(ctx, t)
}

// adjust applies the operator's measured figures and housekeeping CPUs.
func (s *topologySource) adjust(ctx context.Context, t topology.Topology) (topology.Topology, error) {
	if s.measured != "" {
		m, err := readFile(ctx, s.measured, topology.ParseMeasured)
		if err == nil {
			err = t.Measure(m)
		}
		if err != nil {
			return t, err
		}
	}
	more, err := s.housekeepingCPUs()
	if err != nil {
		return t, err
	}
	return t, t.Housekeep(more)
}

func (s *topologySource) readForeign(ctx context.Context) (topology.Topology, error) {
	switch {
	case s.capabilities != "":
		return readFile(ctx, s.capabilities, libvirt.ParseCapabilities)
	case s.xlInfo != "":
		return readFile(ctx, s.xlInfo, xen.ParseInfo)
	case s.hwloc != "":
		return readFile(ctx, s.hwloc, hwloc.Parse)
	}
	return capturedTopology(s.root)
}

// capturedTopology reads the topology below a folder that holds sys and proc.
func capturedTopology(root string) (topology.Topology, error) {
	if info, err := os.Stat(root); err != nil || !info.IsDir() {
		return topology.Topology{}, fmt.Errorf("--root %s: %w; give a folder that holds a host's sys and proc", root,
			cmp.Or(err, errNotFolder))
	}
	return linux.ReadTopology(root)
}

var errNotFolder = errors.New("not a folder")

func (s *topologySource) housekeepingCPUs() (topology.CPUSet, error) {
	cpus, err := topology.ParseSet[topology.CPUID](s.housekeeping)
	if err != nil {
		return cpus, wrongUse("--housekeeping: %w", err)
	}
	return cpus, nil
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
		"\n%d CPUs online, %d cores, %d L3 domains, %d sockets; offline %s; housekeeping %s\n",
		len(t.CPUs),
		count(t.CPUs, func(c topology.CPU) topology.CoreID { return c.Core }),
		count(t.CPUs, func(c topology.CPU) topology.L3ID { return c.L3 }),
		count(t.CPUs, func(c topology.CPU) topology.SocketID { return c.Socket }),
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
		return "SLIT; latency (" + measured + ") is known for some pairs only and decides nothing"
	}
	return "SLIT (what firmware claims; measured figures take precedence where there are any)"
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
			d, told := t.Distance(from.ID, to.ID)
			switch {
			case t.LatencyComplete() && timed:
				figure = fmt.Sprintf("%.0fns", ns)
			case told && timed:
				figure = fmt.Sprintf("%d (%.0fns)", d, ns)
			case told:
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
