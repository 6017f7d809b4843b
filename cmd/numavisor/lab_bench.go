package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/numavisor/numavisor/internal/topology"
	"github.com/numavisor/numavisor/lab/peers"
)

// bench is one call of lab bench.
type bench struct {
	peers.Options
	names      []string // of layouts
	dimensions peers.Dimensions
	memoryMiB  []uint
	idleMiB    uint
	seconds    int
	managers   []string
	rounds     int
	most       int
	file       string
	hypervisor string
}

// listLayouts is the value of --layout that lists the layouts.
const listLayouts = "list"

func labBenchCommand() *cobra.Command {
	var b bench
	c := &cobra.Command{
		Use:   "bench",
		Short: "Measure Numavisor against its peers and the hand-pinned baseline, in the lab",
		Long: `For each run, boots a NUMA host in which far memory is slow, and starts memory-bound
VMs in it under one manager: none, kernel NUMA balancing, numad, Numavisor's daemon, or
pinning by hand (baseline); on request also libvirt's placement='auto' or none with VMs
placed by libvirt's defaults. --layout says which host and VMs (--layout list describes
them); without it, the flags below describe a layout. Reports, for each layout, the work
that the VMs complete as a share of hand pinning's, the local share of their memory
accesses (from the lab's access counter), the bytes copied against those of the cheapest
plan, and which goals are met.

Hand pinning puts each VM that ever works on one node for the whole run, with a CPU for
each vCPU, on nodes other than node 0 if they have room; idle VMs stay where they are. It
knows from the beginning what the VMs will do, and moves nothing. The cheapest plan is
the one with which the fewest bytes are copied until each of these VMs is on one node; it
is found by trying all. VMs of all managers but baseline, auto, auto-mass and default
begin with their memory where the layout says, and vCPUs on other nodes; VMs that are
created in the midst of a run begin where libvirt and the kernel put them.

Managers take turns in each round. A failed run is reported and repeated, at most as
often as --rounds. With --results, the command adds runs to those in the file, so that
an interrupted benchmark continues with the first run that is missing; runs of a layout
that is defined in another way there are refused.

With --hypervisor xen: in one Xen lab, 1, 2, 4 and 8 VMs of two vCPUs (or --guests of
them) work on their memory, placed by Xen's default, by nothing, pinned once they run, all
local, all remote, and by 'numavisor create'. Reports the work and the share of local
accesses of each, side by side; --rounds is 1 by default, --seconds 6.

Exit status: 0 if all goals that were measured are met, 1 if a goal is missed, 2 for
a usage error, 3 if only runs failed.`,
		Example: `  numavisor lab bench --layout list
  numavisor lab bench --layout all --results bench.json
  numavisor lab bench --layout tight --layout late --managers numavisor,kernel,baseline --rounds 1
  numavisor lab bench --guests 4 --node-cpus 2 --vcpus 1,1,2,2 --start spread --rounds 1
  numavisor lab bench --layout all --results bench.json --most 0   # only the report
  numavisor lab bench --hypervisor xen --guests 4`,
		Args: takes(0, 0),
		RunE: func(c *cobra.Command, _ []string) error {
			if slices.Contains(b.names, listLayouts) {
				return emitLayouts(c)
			}
			if xen, err := b.onXen(); xen || err != nil {
				return errorOr(err, func() error { return b.benchXen(c) })
			}
			layouts, err := b.layouts(c.Flags())
			if err != nil {
				return usageError{err}
			}
			return b.run(c, layouts)
		},
	}
	b.flags(c.Flags())
	return c
}

func (b *bench) flags(f *pflag.FlagSet) {
	d := peers.DefaultDimensions()
	f.StringVar(&b.hypervisor, "hypervisor", "kvm", "what runs the VMs: kvm, or xen, with which --guests, --rounds "+
		"and --seconds have an effect")
	f.StringSliceVar(&b.names, "layout", nil, "a named layout, 'all' or 'list'; may be repeated")
	f.IntVar(&b.dimensions.Guests, "guests", d.Guests, "number of VMs that work, up to 8")
	f.IntSliceVar(&b.dimensions.VCPUs, "vcpus", d.VCPUs,
		"vCPUs of each VM, one figure or one for each VM; all of them work all the time, and the emulated host has "+
			"two real cores")
	f.UintSliceVar(&b.memoryMiB, "memory", []uint{uint(d.Memory[0] / topology.MiB)},
		"memory of each VM in MiB, one figure or one for each VM; numad leaves VMs alone that use less than 300")
	f.IntVar(&b.dimensions.Nodes, "host-nodes", d.Nodes, "number of nodes of the host: 4 or 8")
	f.IntVar(&b.dimensions.NodeCPUs, "node-cpus", d.NodeCPUs, "CPUs of each node, 1 to 16")
	f.StringVar(&b.dimensions.Start, "start", d.Start, "where the VMs' memory is at the beginning: node0, or "+
		"spread over all nodes")
	f.IntVar(&b.dimensions.Idle, "idle-guests", 0, "idle VMs in addition, each on a node of its own")
	f.UintVar(&b.idleMiB, "idle-memory", uint(d.IdleMemory/topology.MiB), "memory of each idle VM in MiB")
	f.StringVar(&b.dimensions.Change, "change", d.Change, "what happens in the midst of a run: none, half of the VMs "+
		"become idle, or busy, or all change their working-set")
	f.IntVar(&b.dimensions.ChangeAt, "change-at", d.ChangeAt, "seconds from the beginning to the change")
	f.IntVar(&b.dimensions.Late, "late-guests", 0,
		"number of VMs to create 15 s after the others; they work 150 s later, since they boot slowly while others work")
	f.Float64Var(&b.dimensions.DelayScale, "delay-scale", d.DelayScale,
		"multiply the delays of accesses (85, 140 and 240 ns) by this")
	f.DurationVar(&b.Window, "window", 5*time.Second, "length of the parts of a run for which figures are reported")
	f.IntVar(&b.seconds, "seconds", 0, "length of a run, by the clocks of the VMs; 0: what the layout says")
	b.Limit = 8 * time.Minute
	f.Var((*timeLimit)(&b.Limit), "limit", "a run that takes longer, boot included, has failed")
	f.StringSliceVar(&b.managers, "managers",
		[]string{peers.None, peers.Kernel, peers.Numad, peers.Numavisor, peers.Baseline}, "managers to measure")
	f.IntVar(&b.rounds, "rounds", 3, "valid runs of each manager in each layout")
	f.IntVar(&b.most, "most", -1, "number of runs to make now; -1: all that are missing")
	f.StringVar(&b.file, "results", "", "add runs to this JSON file, and report all runs in it")
}

// dimensionFlags describe a layout; they have no effect on a named one.
func dimensionFlags() []string {
	return []string{"guests", "vcpus", "memory", "host-nodes", "node-cpus", "start", "idle-guests", "idle-memory",
		"change", "change-at", "late-guests", "delay-scale"}
}

func managerNames() []string {
	var names []string
	for _, m := range peers.Managers() {
		names = append(names, m.Name)
	}
	return names
}

// layoutNames are the values of --layout.
func layoutNames() []string {
	return append([]string{peers.AllLayouts, listLayouts}, peers.LayoutNames()...)
}

// layouts returns the layouts to measure, checked.
func (b *bench) layouts(f *pflag.FlagSet) ([]peers.Layout, error) {
	if b.Window < time.Second {
		return nil, fmt.Errorf("--window %v: a window lasts a second or more", b.Window)
	}
	if b.rounds < 1 {
		return nil, fmt.Errorf("--rounds %d: allowed are 1 or more", b.rounds)
	}
	layouts, err := b.chosen(f)
	if err != nil {
		return nil, err
	}
	for i := range layouts {
		l := &layouts[i]
		if b.seconds != 0 {
			l.Seconds = b.seconds
		}
		if err := l.Validate(); err != nil {
			return nil, fmt.Errorf("layout %s: %w", l.Name, err)
		}
		if length := time.Duration(l.Seconds) * time.Second; length < b.Window {
			return nil, fmt.Errorf("--window %v: a run of layout %s lasts %v, less than a window", b.Window, l.Name,
				length)
		}
	}
	return layouts, nil
}

// chosen returns the named layouts, or the one that the other flags describe.
func (b *bench) chosen(f *pflag.FlagSet) ([]peers.Layout, error) {
	if len(b.names) > 0 {
		for _, name := range dimensionFlags() {
			if f.Changed(name) {
				return nil, fmt.Errorf("--layout and --%s: a named layout has all dimensions; give one or the other", name)
			}
		}
		layouts, err := peers.FindLayouts(b.names)
		if err != nil {
			return nil, fmt.Errorf("--%w", err)
		}
		return layouts, nil
	}
	b.dimensions.Memory = nil
	for _, mib := range b.memoryMiB {
		b.dimensions.Memory = append(b.dimensions.Memory, topology.Bytes(mib)*topology.MiB)
	}
	b.dimensions.IdleMemory = topology.Bytes(b.idleMiB) * topology.MiB
	l, err := b.dimensions.Layout()
	return []peers.Layout{l}, err
}

func emitLayouts(c *cobra.Command) error {
	layouts := peers.Layouts()
	return emit(c, layouts, func(w io.Writer) {
		rows := [][]string{{"LAYOUT", "ABOUT", "HOST AND VMS"}}
		for _, l := range layouts {
			rows = append(rows, []string{l.Name, l.About, l.String()})
		}
		columns(w, rows)
	})
}

func (b *bench) run(c *cobra.Command, layouts []peers.Layout) error {
	var managers []peers.Manager
	for _, name := range b.managers {
		m, err := peers.FindManager(name)
		if err != nil {
			return wrongUse("--managers: %w", err)
		}
		managers = append(managers, m)
	}
	results := peers.Results{Version: peers.ResultsVersion}
	if b.file != "" {
		var err error
		if results, err = peers.Read(b.file); err != nil {
			return err
		}
	}
	if err := results.Add(b.Window.Seconds(), layouts); err != nil {
		return fmt.Errorf("results in %s: %w; give the same flags or another file", b.file, err)
	}
	b.Progress, b.Build = progressLines(c.ErrOrStderr()), thisBuild().Version
	for made := 0; b.most < 0 || made < b.most; made++ {
		tasks := peers.Tasks(results.Runs, layouts, managers, b.rounds)
		if len(tasks) == 0 {
			break
		}
		b.Progress("run %d of %d: layout %s, %s, round %d; about %v left", len(results.Runs)+1,
			len(results.Runs)+len(tasks), tasks[0].Layout.Name, tasks[0].Manager.Name, tasks[0].Round,
			peers.Left(tasks, results.Runs, layouts))
		if err := b.one(c.Context(), tasks[0], &results); err != nil {
			return err
		}
	}
	if err := emit(c, benchReport{results, results.Summaries(), results.Verdicts()}, func(w io.Writer) {
		printBench(w, results)
	}); err != nil {
		return err
	}
	return benchOutcome(results)
}

// benchReport is what -o json shows: the file of results, and what follows from it.
type benchReport struct {
	peers.Results
	Summaries []peers.Summary `json:"summaries"`
	Verdicts  []peers.Verdict `json:"verdicts"`
}

func (b *bench) one(ctx context.Context, task peers.Task, results *peers.Results) error {
	run, err := peers.Measure(ctx, b.Options, task)
	if err != nil {
		return fmt.Errorf("benchmark of %s in layout %s: %w", task.Manager.Name, task.Layout.Name, err)
	}
	if run.Failed != "" {
		b.Progress("%s: the run failed: %s", task.Manager.Name, run.Failed)
	}
	results.Runs = append(results.Runs, run)
	if b.file == "" {
		return nil
	}
	return results.Write(b.file)
}

func printBench(w io.Writer, r peers.Results) {
	fmt.Fprint(w, "Runs: work in millions of cache lines a second; OTHERS is the share of this machine's CPU time "+
		"that other programs used\n\n")
	columns(w, r.RunTable())
	for _, failure := range r.Failures() {
		fmt.Fprintln(w, failure)
	}
	builds := ""
	if b := r.Builds(); len(b) > 0 {
		builds = "; Numavisor " + strings.Join(b, " and ")
	}
	fmt.Fprintf(w, "\nLayouts: medians (and spread) of the valid runs; Numavisor's settled part, then the whole run of "+
		"each manager, as shares of hand pinning%s\n\n", builds)
	columns(w, r.LayoutTable())
	fmt.Fprint(w, "\nGoals\n\n")
	rows := [][]string{}
	for _, v := range r.Verdicts() {
		rows = append(rows, []string{v.State(), v.Layout, v.Goal, v.Measured})
	}
	if len(rows) > 0 {
		columns(w, rows)
	}
}

// benchOutcome returns an error if a goal is missed or runs have failed.
func benchOutcome(r peers.Results) error {
	var missed []string
	for _, v := range r.Verdicts() {
		if v.Known && !v.Met {
			missed = append(missed, v.Layout+": "+v.Goal+" ("+v.Measured+")")
		}
	}
	if len(missed) > 0 {
		return errors.New("not met: " + strings.Join(missed, "; "))
	}
	failed := 0
	for _, run := range r.Runs {
		if run.Failed != "" {
			failed++
		}
	}
	if failed > 0 {
		return partialError{fmt.Errorf("%d of %d runs failed", failed, len(r.Runs))}
	}
	return nil
}
