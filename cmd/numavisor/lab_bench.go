package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"reflect"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/numavisor/numavisor/internal/topology"
	"github.com/numavisor/numavisor/lab/peers"
)

// bench is one call of lab bench.
type bench struct {
	peers.Options
	managers []string
	repeats  int
	most     int
	file     string
}

func labBenchCommand() *cobra.Command {
	var b bench
	var memoryMiB uint64
	var length time.Duration
	c := &cobra.Command{
		Use:   "bench",
		Short: "Measure Numavisor against its peers and the hand-pinned baseline, in the lab",
		Long: `For each run, boots a NUMA host of four nodes in which far memory is slow, and starts
memory-bound VMs in it under one manager: none, kernel NUMA balancing, numad,
libvirt's placement='auto', Numavisor's daemon, pinning by hand, or none with VMs
placed by libvirt's defaults. Reports the work that the VMs complete, the distance of
their memory accesses (from the lab's access counter), and which of Numavisor's
promises are met.

Managers take turns. A failed run is reported and repeated, at most as often as
--repeats. With --results, the command adds runs to those in the file, so that an
interrupted benchmark can continue. Exit status 1 means that a promise was broken, 3
that runs failed.`,
		Example: `  numavisor lab bench --results bench.json
  numavisor lab bench --managers kernel,baseline --repeats 1 --length 30s
  numavisor lab bench --results bench.json --most 0   # only the report`,
		Args: takes(0, 0),
		RunE: func(c *cobra.Command, _ []string) error {
			b.GuestMemory = topology.Bytes(memoryMiB) * topology.MiB
			if b.Window < time.Second || length < b.Window {
				return wrongUse(
					"--window %v, --length %v: windows last a second or more, and a run at least one window", b.Window,
					length)
			}
			if b.repeats < 1 {
				return wrongUse("--repeats %d: allowed are 1 or more", b.repeats)
			}
			b.Windows = int(length / b.Window)
			if err := b.Validate(); err != nil {
				return usageError{err}
			}
			b.Progress = progressLines(c.ErrOrStderr())
			return b.run(c)
		},
	}
	f := c.Flags()
	f.IntVar(&b.Guests, "guests", 3, "number of VMs, up to 6")
	f.IntVar(&b.VCPUs, "vcpus", 1,
		"vCPUs of each VM; all of them work all the time, and the emulated host has two real cores")
	f.Uint64Var(&memoryMiB, "memory", 352, "memory of each VM in MiB; numad leaves VMs alone that use less than 300")
	f.IntVar(&b.NodeCPUs, "node-cpus", 4, "CPUs of each of the host's four nodes")
	f.Float64Var(&b.DelayScale, "delay-scale", 3, "multiply the delays of accesses (85, 140 and 240 ns) by this")
	f.DurationVar(&b.Window, "window", 5*time.Second, "length of the parts of a run for which figures are reported")
	f.DurationVar(&length, "length", 75*time.Second, "length of a run, by the clocks of the VMs")
	b.Limit = 8 * time.Minute
	f.Var((*timeLimit)(&b.Limit), "limit", "a run that takes longer, boot included, has failed")
	f.StringSliceVar(&b.managers, "managers", managerNames(), "managers to measure")
	f.IntVar(&b.repeats, "repeats", 3, "valid runs of each manager")
	f.IntVar(&b.most, "most", -1, "number of runs to make now; -1: all that are missing")
	f.StringVar(&b.file, "results", "", "add runs to this JSON file, and report all runs in it")
	return c
}

func managerNames() []string {
	var names []string
	for _, m := range peers.Managers() {
		names = append(names, m.Name)
	}
	return names
}

func (b *bench) run(c *cobra.Command) error {
	var managers []peers.Manager
	for _, name := range b.managers {
		m, err := peers.FindManager(name)
		if err != nil {
			return wrongUse("--managers: %w", err)
		}
		managers = append(managers, m)
	}
	results, err := b.load()
	if err != nil {
		return err
	}
	for made := 0; b.most < 0 || made < b.most; made++ {
		m, ok := peers.Next(results.Runs, managers, b.repeats)
		if !ok {
			break
		}
		if err := b.one(c.Context(), m, &results); err != nil {
			return err
		}
	}
	if err := emit(c, results, func(w io.Writer) { printBench(w, results) }); err != nil {
		return err
	}
	return benchOutcome(results)
}

func (b *bench) one(ctx context.Context, m peers.Manager, results *peers.Results) error {
	run, err := peers.Measure(ctx, b.Options, m)
	if err != nil {
		return fmt.Errorf("benchmark of %s: %w", m.Name, err)
	}
	if run.Failed != "" {
		b.Progress("%s: the run failed: %s", m.Name, run.Failed)
	}
	results.Runs = append(results.Runs, run)
	return b.save(*results)
}

// load returns the earlier results. It refuses those of another layout: they are
// not comparable.
func (b *bench) load() (peers.Results, error) {
	fresh := peers.Results{Layout: b.Layout, Window: b.Window.Seconds(), Windows: b.Windows}
	if b.file == "" {
		return fresh, nil
	}
	data, err := os.ReadFile(b.file)
	if errors.Is(err, os.ErrNotExist) {
		return fresh, nil
	}
	if err != nil {
		return fresh, err
	}
	var old peers.Results
	if err := json.Unmarshal(data, &old); err != nil {
		return fresh, fmt.Errorf("results in %s: %w", b.file, err)
	}
	fresh.Runs = old.Runs
	if !reflect.DeepEqual(old, fresh) {
		return fresh, fmt.Errorf(
			"results in %s are from another host, other VMs or other windows: %+v; give the same flags or another file",
			b.file, old.Layout)
	}
	return old, nil
}

// save replaces the file in one step.
func (b *bench) save(results peers.Results) error {
	if b.file == "" {
		return nil
	}
	data, err := json.MarshalIndent(results, "", " ")
	if err != nil {
		return err
	}
	if err := os.WriteFile(b.file+".new", append(data, '\n'), 0o644); err != nil {
		return err
	}
	return os.Rename(b.file+".new", b.file)
}

func printBench(w io.Writer, r peers.Results) {
	fmt.Fprintf(w,
		"Runs: %d VMs of %d vCPUs and %v on 4 nodes of %d CPUs. Work is millions of cache lines a second.\n\n",
		r.Layout.Guests, r.Layout.VCPUs, r.Layout.GuestMemory, r.Layout.NodeCPUs)
	columns(w, r.RunTable())
	for _, failure := range r.Failures() {
		fmt.Fprintln(w, failure)
	}
	fmt.Fprint(w, "\nMedians of valid runs: whole run, then after the last move\n\n")
	columns(w, r.MedianTable())
	fmt.Fprint(w, "\nPromises\n\n")
	rows := [][]string{}
	for _, v := range r.Verdicts() {
		state := map[bool]string{true: "met", false: "BROKEN"}[v.Met]
		if !v.Known {
			state = "-"
		}
		rows = append(rows, []string{state, v.Promise, v.Measured})
	}
	columns(w, rows)
}

// benchOutcome returns an error if a promise is broken or runs have failed.
func benchOutcome(r peers.Results) error {
	var broken []string
	for _, v := range r.Verdicts() {
		if v.Known && !v.Met {
			broken = append(broken, v.Promise+" ("+v.Measured+")")
		}
	}
	if len(broken) > 0 {
		return fmt.Errorf("not met: %s", strings.Join(broken, "; "))
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
