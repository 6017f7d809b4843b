package main

import (
	"cmp"
	"context"
	"fmt"
	"io"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	fleetapi "github.com/numavisor/numavisor/internal/api/fleet"
	"github.com/numavisor/numavisor/internal/decide/migrate"
	"github.com/numavisor/numavisor/internal/text"
)

// balanceRemote shows the migrations that would relieve the hosts of a fleet.
func balanceRemote(c *cobra.Command, client *fleetapi.Client, explain bool) error {
	defer client.Close()
	p, err := client.Plan(c.Context())
	if err != nil {
		return err
	}
	return emit(c, p, func(w io.Writer) { printFleetPlan(w, &p, explain) })
}

func printFleetPlan(w io.Writer, p *fleetapi.Plan, explain bool) {
	switch {
	case p.Mode == "off":
		printf(w, "the server plans no migrations by itself: the policy's balance.migrate or balance.mode is off\n")
		return
	case p.Made.IsZero():
		printf(w, "the server has made no plan yet: it makes the first one within half a minute\n")
		return
	case len(p.Migrations) == 0:
		printf(w, "no migration would help; blocked VMs: %d\n", len(p.Blocked))
	default:
		rows := [][]string{{"VM", "FROM", "TO", "NODES", "COPY", "TAKES", "STOPS", "SAVES", "MODE"}}
		for i := range p.Migrations {
			m := &p.Migrations[i]
			mode := "auto"
			if m.Advised {
				mode = "advised"
			}
			rows = append(rows, []string{m.VM, m.From, m.To, text.Set(m.Nodes), m.Price.Bytes.String(),
				fmt.Sprintf("%.1f s", m.Price.Took.Seconds()), m.Price.Downtime.Round(time.Millisecond).String(),
				fmt.Sprintf("%.2f CPUs", m.Saves), mode})
		}
		columns(w, rows)
	}
	if !explain {
		return
	}
	for i := range p.Migrations {
		printf(w, "%s: %s\n", p.Migrations[i].VM, p.Migrations[i].Why)
	}
	for _, b := range p.Blocked {
		printf(w, "%s on host %s stays: %s\n", b.VM, b.Host, b.Why)
	}
}

// historyRemote shows what was done with the VMs and hosts of a fleet.
func historyRemote(c *cobra.Command, client *fleetapi.Client, vm string, since time.Duration, last int) error {
	defer client.Close()
	var all []fleetapi.HistoryEntry
	oldest := time.Time{}
	if since > 0 {
		oldest = time.Now().Add(-since)
	}
	for cursor, more := "", true; more; {
		page, err := client.History(c.Context(), vm, cmp.Or(min(last, 1000), 1000), cursor)
		if err != nil {
			return err
		}
		for _, e := range page.Entries {
			if more = !e.At.Before(oldest) && (last == 0 || len(all) < last); !more {
				break
			}
			all = append(all, e)
		}
		cursor = page.Next
		more = more && cursor != ""
	}
	slices.Reverse(all) // the newest last, as on a host
	return emit(c, fleetapi.History{Entries: append([]fleetapi.HistoryEntry{}, all...)}, func(w io.Writer) {
		if len(all) == 0 {
			fmt.Fprintln(w, "nothing is recorded")
			return
		}
		rows := [][]string{{"TIME", "OPERATION", "VM", "HOST", "BY", "WHAT"}}
		for _, e := range all {
			rows = append(rows, []string{moment(e.At), e.Operation, cmp.Or(e.VM, "-"), cmp.Or(e.Host, "-"), e.By,
				strings.ReplaceAll(e.What, "\n", "; ")})
		}
		columns(w, rows)
	})
}

// headroomRemote says whether the VMs of any one host of a fleet would fit on the others.
func headroomRemote(c *cobra.Command, client *fleetapi.Client) error {
	defer client.Close()
	h, err := client.Headroom(c.Context())
	if err != nil {
		return err
	}
	result := scheduled{}
	for _, one := range h.Hosts {
		shown := migrate.HostHeadroom{Host: one.Host, VMs: one.VMs, Proven: one.Proven}
		for _, m := range one.Missing {
			shown.Missing = append(shown.Missing, migrate.Missing{VM: m.VM, Why: m.Why})
		}
		result.Headroom = append(result.Headroom, shown)
	}
	err = emit(c, h, func(w io.Writer) {
		if len(h.Hosts) == 0 {
			fmt.Fprintln(w, "no host has joined")
		}
		result.print(w, false, false)
	})
	if err != nil {
		return err
	}
	return result.partial()
}

// fleetView is what top shows of a fleet.
type fleetView struct {
	Hosts []fleetapi.Host `json:"hosts"`
	// Moves are the migrations in progress.
	Moves []fleetapi.Move `json:"moves"`
	// VMs are those that get least of the CPU time that they want.
	VMs []fleetapi.VM `json:"vms"`
}

// mostShown is how many VMs top shows of a fleet.
const mostShown = 15

// topRemote shows the load of a fleet's hosts, once or until the user stops it.
func topRemote(c *cobra.Command, client *fleetapi.Client, once bool, interval time.Duration) error {
	defer client.Close()
	format, err := c.Flags().GetString("output")
	if err != nil {
		return err
	}
	live := !once && format == "table" && isTerminal(c.OutOrStdout())
	for {
		view, err := readFleetView(c.Context(), client)
		if err != nil {
			return err
		}
		if !live {
			return emit(c, view, func(w io.Writer) { printFleetView(w, &view) })
		}
		var b strings.Builder
		printFleetView(&b, &view)
		printf(c.OutOrStdout(), "\x1b[H\x1b[2J%s\n%s; Ctrl-C ends\n", b.String(), moment(time.Now()))
		select {
		case <-c.Context().Done():
			return nil
		case <-time.After(interval):
		}
	}
}

func readFleetView(ctx context.Context, client *fleetapi.Client) (v fleetView, err error) {
	if v.Hosts, err = client.Hosts(ctx); err != nil {
		return v, err
	}
	moves, err := client.Moves(ctx, "", 100, "")
	if err != nil {
		return v, err
	}
	for i := range moves.Moves {
		if moves.Moves[i].Outcome == fleetapi.MoveRunning {
			v.Moves = append(v.Moves, moves.Moves[i])
		}
	}
	vms, err := client.VMs(ctx, fleetapi.Filter{})
	if err != nil {
		return v, err
	}
	vms = slices.DeleteFunc(vms, func(vm fleetapi.VM) bool { return vm.Load == nil })
	slices.SortStableFunc(vms, func(a, b fleetapi.VM) int {
		return cmp.Or(cmp.Compare(b.Load.Wait, a.Load.Wait), cmp.Compare(b.Load.CPU, a.Load.CPU))
	})
	v.VMs = vms[:min(len(vms), mostShown)]
	return v, nil
}

func printFleetView(w io.Writer, v *fleetView) {
	if len(v.Hosts) == 0 {
		fmt.Fprintln(w, "no host has joined")
		return
	}
	figure := func(f *float64) string {
		if f == nil {
			return "-"
		}
		return fmt.Sprintf("%.1f", *f)
	}
	rows := [][]string{{"HOST", "STATE", "CPUS", "USED", "WAIT", "MEMORY", "VMS", "ALARMS"}}
	for i := range v.Hosts {
		h := &v.Hosts[i]
		alarms := 0
		for _, n := range h.Alarms {
			alarms += n
		}
		rows = append(rows, []string{h.Name, string(h.State), fmt.Sprint(h.CPUs), figure(h.CPU), figure(h.Wait),
			h.Memory.String(), fmt.Sprint(h.VMs), fmt.Sprint(alarms)})
	}
	columns(w, rows)
	for i := range v.Moves {
		m := &v.Moves[i]
		printf(w, "%s migrates from %s to %s since %s, %v left: %s%s\n", m.VM, m.From, m.To, moment(m.Began),
			m.Remaining, m.Why, optionsText(m.Options))
	}
	if len(v.VMs) == 0 {
		return
	}
	fmt.Fprintln(w)
	rows = [][]string{{"VM", "HOST", "NODES", "CPUS USED", "WAIT", "LOCAL"}}
	for i := range v.VMs {
		vm := &v.VMs[i]
		local := "-"
		if vm.Load.LocalShare != nil {
			local = fmt.Sprintf("%.0f %%", 100**vm.Load.LocalShare)
		}
		rows = append(rows, []string{vm.Name, vm.Host, text.Set(vm.Placement.Nodes), fmt.Sprintf("%.1f", vm.Load.CPU),
			fmt.Sprintf("%.1f", vm.Load.Wait), local})
	}
	columns(w, rows)
}
