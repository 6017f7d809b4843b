package main

import (
	"fmt"
	"io"
	"slices"
	"time"

	"github.com/spf13/cobra"

	"github.com/numavisor/numavisor/internal/host/record"
	"github.com/numavisor/numavisor/internal/journal"
)

func historyCommand() *cobra.Command {
	var records string
	var since time.Duration
	var last int
	c := &cobra.Command{
		Use:   "history [VM]",
		Short: "Show what was done to this host's VMs, when and why",
		Long: `Reads the journal: moves with their reasons, their begin and how they ended,
advice, who accepted it, drift, others who move pages, alarms, pauses. The
daemon need not run. A move without an end was cut short: the next start of the
daemon, or 'numavisor apply', finishes or undoes it.`,
		Example: `  numavisor history
  numavisor history db1 --since 24h
  numavisor history --last 5 -o json`,
		Args: cobra.MaximumNArgs(1),
	}
	recordsFlag(c, &records)
	c.Flags().DurationVar(&since, "since", 0, "only what is not older than this (default: all that is kept)")
	c.Flags().IntVar(&last, "last", 0, "only the last so many entries (default: all)")
	c.RunE = func(c *cobra.Command, args []string) error {
		if since < 0 || last < 0 {
			return wrongUse("--since and --last must not be negative")
		}
		from := time.Time{}
		if since > 0 {
			from = time.Now().Add(-since)
		}
		entries, err := record.Journal{Folder: records}.Since(from)
		if err != nil {
			return err
		}
		entries = slices.DeleteFunc(entries, func(e journal.Entry) bool { return len(args) == 1 && !slices.Contains(e.Guests, args[0]) })
		if last > 0 {
			entries = entries[max(0, len(entries)-last):]
		}
		if entries == nil {
			entries = []journal.Entry{}
		}
		return emit(c, entries, func(w io.Writer) { printHistory(w, entries, records) })
	}
	return c
}

func printHistory(w io.Writer, entries []journal.Entry, folder string) {
	if len(entries) == 0 {
		fmt.Fprintf(w, "nothing is recorded in %s\n", folder)
		return
	}
	open := map[string]bool{}
	for _, e := range journal.CutShort(entries) {
		open[e.ID] = true
	}
	for _, e := range entries {
		fmt.Fprintf(w, "%s  %-14s", e.At.Local().Format(time.DateTime), e.Kind)
		if e.ID != "" {
			fmt.Fprintf(w, "  [%s]", e.ID)
		}
		fmt.Fprintf(w, "  %s\n", e.What)
		for _, detail := range historyDetails(e) {
			fmt.Fprintf(w, "    %s\n", detail)
		}
		if e.Kind == journal.MoveBegan && open[e.ID] {
			fmt.Fprintln(w, "    has not ended: it is on its way, or was cut short")
		}
	}
}

func historyDetails(e journal.Entry) []string {
	var all []string
	if e.Why != "" {
		all = append(all, "why: "+e.Why)
	}
	if e.By != "" && e.By != "balancer" {
		all = append(all, "by:  "+e.By)
	}
	if e.Ends() && e.Moved > 0 {
		all = append(all, fmt.Sprintf("%v copied in %.1f s", e.Moved, e.Took.Seconds()))
	}
	if !e.Until.IsZero() {
		all = append(all, "until "+e.Until.Local().Format(time.DateTime))
	}
	for _, s := range e.Shortfalls {
		all = append(all, "not done: "+s)
	}
	return all
}
