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

	"github.com/numavisor/numavisor/internal/host/local"
	"github.com/numavisor/numavisor/internal/host/move"
	"github.com/numavisor/numavisor/internal/journal"
	"github.com/numavisor/numavisor/internal/plan"
)

// applyTime bounds moves by default: much longer than other actions take,
// since copying is paced.
const applyTime = 24 * time.Hour

func applyCommand() *cobra.Command {
	var on hostFlags
	var guests []string
	var resume, fullSpeed bool
	c := &cobra.Command{
		Use:   "apply PLAN.json | - | --resume",
		Short: "Carry out a plan of moves that balance made: vCPUs first, then memory, while VMs run",
		Long: `Carries out the moves of a plan as 'numavisor balance -o json' prints it, one
after the other, advised ones too. Each move is checked again first: a plan whose
VMs are not any more where it says is refused, and nothing is touched. VMs of one
move make room for each other: their memory is copied in turns. Copying is paced
so that the VMs hardly feel it (policy: balance.max_guest_wait, max_bandwidth).

What is done is kept in a journal ('numavisor history'). A move that was cut
short, by whatever, is finished first, or undone where its room is gone;
--resume does only that.

Exit status 3 means done in part: the report says what could not be done and why.`,
		Example: `  numavisor balance -o json > plan.json; numavisor apply plan.json
  numavisor balance -o json | numavisor apply - --guest db1
  numavisor apply --resume`,
		Args: cobra.MaximumNArgs(1),
	}
	on.flags(c, withTopology, withPolicy, withPace, withRecords)
	on.timeout = applyTime
	c.Flags().Lookup("timeout").DefValue = applyTime.String()
	c.Flags().StringSliceVar(&guests, "guest", nil, "only moves of this VM (may be given several times)")
	c.Flags().BoolVar(&resume, "resume", false, "only finish or undo moves that were cut short")
	c.Flags().BoolVar(&fullSpeed, "full-speed", false, "copy without regard to how the VMs bear it")
	c.RunE = func(c *cobra.Command, args []string) error {
		if resume == (len(args) == 1) || resume && len(guests) > 0 {
			return wrongUse("name one plan, or only --resume; see 'numavisor apply --help'")
		}
		var p plan.Plan
		if !resume {
			var err error
			if p, err = readFile(c.Context(), args[0], plan.Parse); err != nil {
				return err
			}
			if p.Moves, err = picked(p.Moves, guests); err != nil {
				return err
			}
		}
		h, done, err := on.open(c)
		if err != nil {
			return err
		}
		defer done()
		if name, err := h.Sources.HostName(); !resume && (err != nil || name != p.Host) {
			return errors.Join(fmt.Errorf("the plan is for host %s, this is %s", p.Host, name), err)
		}
		r := move.Request{By: h.By, Journal: h.Journal, FullSpeed: fullSpeed}
		r.Progress = progressOn(c.ErrOrStderr()).moving()
		moved, err := carryOut(c.Context(), h, p, r)
		if printed := emit(c, moved, func(w io.Writer) { printMoved(w, moved, err) }); printed != nil {
			return printed
		}
		return err
	}
	return c
}

// picked returns the moves that involve one of the named guests. Without names,
// it returns all moves.
func picked(moves []plan.Move, guests []string) ([]plan.Move, error) {
	if len(guests) == 0 {
		return moves, nil
	}
	var some []plan.Move
	for _, name := range guests {
		of := func(m plan.Move) bool {
			return slices.ContainsFunc(m.Guests, func(g plan.GuestMove) bool { return g.Guest == name })
		}
		if !slices.ContainsFunc(moves, of) {
			return nil, fmt.Errorf("the plan has no move of guest %s", name)
		}
	}
	for _, m := range moves {
		if slices.ContainsFunc(m.Guests, func(g plan.GuestMove) bool { return slices.Contains(guests, g.Guest) }) {
			some = append(some, m)
		}
	}
	return some, nil
}

// carryOut recovers interrupted moves, then makes the planned moves in their
// order and stops at the first that is incomplete: later moves were planned on
// top of it.
func carryOut(ctx context.Context, h *local.Host, p plan.Plan, r move.Request) ([]move.Result, error) {
	restart := r
	restart.By = "restart"
	all, err := h.Recover(ctx, restart)
	if all == nil {
		all = []move.Result{}
	}
	done := err == nil
	for _, r.Move = range p.Moves {
		if !done {
			break
		}
		r.ID = fmt.Sprintf("%s-%d", h.Clock().UTC().Format("20060102T150405.000000"), h.Self.PID)
		var moved move.Result
		moved, err = h.Move(ctx, r)
		if done = moved.Complete(); moved.Begun() {
			all = append(all, moved)
		}
	}
	var short []string
	for i := range all {
		short = append(short, all[i].Shortfalls()...)
	}
	switch {
	case errors.Is(err, move.ErrStopped):
		return all, partialError{fmt.Errorf("%w; the VMs run on, 'numavisor apply --resume' finishes it", err)}
	case err != nil && len(all) > 0:
		return all, partialError{err}
	case slices.ContainsFunc(all, inPart):
		return all, partialError{fmt.Errorf("done in part: %s", strings.Join(short, "; "))}
	}
	return all, err
}

func inPart(m move.Result) bool { return m.End == journal.MovePartial }

func printMoved(w io.Writer, all []move.Result, ended error) {
	if len(all) == 0 && ended == nil {
		fmt.Fprintln(w, "nothing to move")
	}
	for _, m := range all {
		end := string(m.End)
		if end == "" {
			end = "stopped half-way"
		}
		printf(w, "%s: %s; %v copied in %.1f s\n", m.Move, end, m.Bytes, m.Took.Seconds())
		if m.Why != "" {
			printf(w, "  %s\n", m.Why)
		}
		for _, b := range m.Guests {
			printf(w, "%s:\n", b.Plan.Guest)
			printBound(w, b)
		}
	}
}
