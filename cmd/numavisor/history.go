package main

import (
	"cmp"
	"fmt"
	"io"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/numavisor/numavisor/internal/host/record"
	"github.com/numavisor/numavisor/internal/journal"
)

func historyCommand() *cobra.Command {
	var folder string
	var since time.Duration
	var last int
	var timeline bool
	var in remote
	c := &cobra.Command{
		Use:   "history [VM | --timeline [ID]]",
		Short: "Show what was done on this host, when and why",
		Long: `Shows the journal of this host, for one VM or for all: every move, bind, create,
delete, run and changed setting, with its beginning, its end and the user who
requested it; repairs and alarms; and what other programs did: changes to VMs, moves
of pages. If the process of an effect was killed, the effect ends as 'interrupted'.
-o json and -o yaml print all recorded values, the former ones included.

--timeline shows what one move (its ID, else the latest move) did in each second: what
was copied, which VMs waited for others, and where copying waited for the allowed rate.

With --server, shows what users and the server did with the VMs and hosts of a fleet.`,
		Example: `  numavisor history
  numavisor history db1 --since 24h
  numavisor history --last 20 -o json
  numavisor history --timeline`,
		Args: takes(0, 1),
	}
	recordsFlag(c.Flags(), &folder)
	in.flag(c)
	spanFlag(c.Flags(), &since, "since", "only entries that are not older than this, for example 24h or 7d")
	c.Flags().IntVar(&last, "last", 0, "only this number of the newest entries")
	c.Flags().BoolVar(&timeline, "timeline", false, "show what one move did in each second")
	c.RunE = func(c *cobra.Command, args []string) error {
		if since < 0 || last < 0 {
			return wrongUse("--since %v, --last %d: must not be negative", since, last)
		}
		if client, err := in.client(c, "since", "last"); client != nil || err != nil {
			return errorOr(err, func() error { return historyRemote(c, client, strings.Join(args, ""), since, last) })
		}
		switch {
		case timeline && (since > 0 || last > 0):
			return wrongUse("--timeline excludes --since and --last")
		case timeline:
			return showTimeline(c, folder, strings.Join(args, ""))
		}
		return historyHere(c, folder, strings.Join(args, ""), since, last)
	}
	return c
}

// historyHere shows the journal of this host, for one VM or, without a name, for all.
func historyHere(c *cobra.Command, folder, vm string, since time.Duration, last int) error {
	f := record.Filter{Last: last, Guest: vm}
	if since > 0 {
		f.Since = time.Now().Add(-since)
	}
	h, err := record.Journal{Folder: folder}.Read(f)
	if err != nil {
		return err
	}
	if err := emit(c, h, func(w io.Writer) { printHistory(w, h) }); err != nil {
		return err
	}
	if len(h.Unreadable) > 0 {
		return partialError{
			fmt.Errorf("could not read all of the journal in %s: %s", folder, strings.Join(h.Unreadable, "; "))}
	}
	return nil
}

func printHistory(w io.Writer, h record.History) {
	if len(h.Entries) == 0 {
		fmt.Fprintln(w, "nothing is recorded")
		return
	}
	rows := [][]string{{"TIME", "EVENT", "ID", "VMS", "BY", "WHAT"}}
	for _, e := range h.Entries {
		vms := cmp.Or(strings.Join(e.Guests, ", "), "-")
		rows = append(rows,
			[]string{moment(e.At), string(e.Kind), cmp.Or(e.ID, "-"), vms, cmp.Or(e.By, "-"), historyText(e)})
		for _, s := range e.Shortfalls {
			rows = append(rows, []string{"", "", "", "", "", "  not done: " + s})
		}
	}
	columns(w, rows)
}

// historyText describes in one line what was done and why.
func historyText(e journal.Entry) string {
	text := e.What
	if e.Ends() || e.Closes() && e.Moved > 0 {
		text += fmt.Sprintf("; %v copied", e.Moved)
		if e.Pulled > 0 {
			text += fmt.Sprintf(" and %v brought to the vCPUs by the kernel", e.Pulled)
		}
		text += fmt.Sprintf(" in %.1f s", e.Took.Seconds())
	}
	if e.Undoes != "" {
		text += "; undoes " + e.Undoes
	}
	if e.Why != "" {
		text += ": " + e.Why
	}
	if !e.Until.IsZero() {
		text += "; until " + moment(e.Until)
	}
	return strings.ReplaceAll(text, "\n", "; ")
}
