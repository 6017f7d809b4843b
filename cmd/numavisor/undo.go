package main

import (
	"fmt"
	"io"
	"strings"

	"github.com/spf13/cobra"

	"github.com/numavisor/numavisor/internal/host/move"
	"github.com/numavisor/numavisor/internal/journal"
)

func undoCommand() *cobra.Command {
	var on hostFlags
	var force, fullSpeed bool
	c := &cobra.Command{
		Use:   "undo [ID]",
		Short: "Undo a bind, a move, a changed setting or changed CPU pools of the journal",
		Long: `Undoes the effect with an ID ('numavisor history' shows IDs); without an ID, the
last bind, move, changed setting or change of CPU pools that a user requested and that
is not undone yet. VMs return to their former nodes, pins and limits while they run; a
setting of the kernel gets its former value. The journal records the undo.

undo refuses if the VM was restarted, if its former CPUs or memory are taken, or if
the VM or the setting was changed since; --force undoes in this last case, too. To
undo a create, use 'numavisor delete'. A delete, a run and the bind of a process
without a VM cannot be undone.

Exit status 3 means done in part: the output says what was not done, and why.`,
		Example: `  numavisor undo
  numavisor history --last 5
  numavisor undo 20260301T120000-k3x9qa`,
		Args: takes(0, 1),
	}
	on.flags(c, withTopology, withPolicy, withPace, withRecords)
	on.timeout = applyTime
	c.Flags().Lookup("timeout").DefValue = applyTime.String()
	c.Flags().BoolVar(&force, "force", false, "undo even if the VM or the setting was changed since")
	c.Flags().BoolVar(&fullSpeed, "full-speed", false, "do not limit the copy rate, even if VMs slow down")
	c.RunE = func(c *cobra.Command, args []string) error {
		h, done, err := on.open(c)
		if err != nil {
			return err
		}
		defer done()
		closeInterrupted(c, h)
		r := move.UndoRequest{Force: force, Move: move.Request{Progress: progressOn(c.ErrOrStderr()).moving(),
			FullSpeed: fullSpeed}}
		if len(args) == 1 {
			r.ID = args[0]
		}
		u, err := h.Undo(c.Context(), r)
		return reportUndone(c, u, err)
	}
	return c
}

// reportUndone prints what the command reverted, also after an error.
func reportUndone(c *cobra.Command, u move.Undone, err error) error {
	touched := u.Moved != nil && u.Moved.Begun()
	if err == nil || touched {
		if printed := emit(c, u, func(w io.Writer) { printUndone(w, u) }); printed != nil {
			return printed
		}
	}
	switch {
	case err != nil && touched:
		return partialError{fmt.Errorf("%w; the VMs run on; 'numavisor undo %s' tries again", err, u.Of.ID)}
	case err == nil && touched && u.Moved.End != journal.MoveUndone:
		return partialError{fmt.Errorf("undone in part: %s", strings.Join(u.Moved.Shortfalls(), "; "))}
	}
	return err
}

func printUndone(w io.Writer, u move.Undone) {
	fmt.Fprintf(w, "undoes %s of %s by %s: %s\n", u.Of.ID, moment(u.Of.At), u.Of.By, u.Of.What)
	if u.Pools != nil {
		printPoolSteps(w, u.Pools, false)
		return
	}
	if u.Moved == nil {
		fmt.Fprintln(w, u.What)
		return
	}
	printMoved(w, []move.Result{*u.Moved}, nil)
	for _, n := range u.Notes {
		fmt.Fprintf(w, "note: %s\n", n)
	}
}
