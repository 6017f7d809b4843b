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

	hostapi "github.com/numavisor/numavisor/internal/api/host"
	"github.com/numavisor/numavisor/internal/host/local"
	"github.com/numavisor/numavisor/internal/host/move"
	"github.com/numavisor/numavisor/internal/journal"
	"github.com/numavisor/numavisor/internal/plan"
	"github.com/numavisor/numavisor/internal/text"
)

// applyTime bounds moves by default: much longer than other actions take,
// since copying is paced.
const applyTime = 24 * time.Hour

func applyCommand() *cobra.Command {
	var on hostFlags
	var guests []string
	var resume, fullSpeed, dryRun bool
	c := &cobra.Command{
		Use:   "apply PLAN.json | - | --resume",
		Short: "Carry out a plan of 'balance' while the VMs run",
		Long: `Carries out the moves of a plan ('numavisor balance -o json') one after the other,
advised moves included. Before each move, apply checks that its VMs are still on the
nodes that the plan names; if not, it refuses the move and changes nothing. If
several VMs of one move make room for each other, apply copies their memory in
turns. It limits the copy rate so that the VMs hardly slow down (policy:
balance.max_guest_wait, balance.max_bandwidth).

The journal records each move ('numavisor history'). A move can be interrupted: by
Ctrl-C, by --timeout, or by the end of the process. The next apply finishes this move
first, or rolls it back if its target nodes no longer have room. --resume does only
that.

Exit status 3 means done in part: the output says what was not done, and why.`,
		Example: `  numavisor balance -o json > plan.json; numavisor apply plan.json
  numavisor balance -o json | numavisor apply - --guest db1
  numavisor apply --resume`,
		Args: takes(0, 1),
	}
	on.flags(c, withTopology, withPolicy, withPace, withRecords)
	on.timeout = applyTime
	c.Flags().Lookup("timeout").DefValue = applyTime.String()
	c.Flags().StringSliceVar(&guests, "guest", nil, "only moves of this VM; may be repeated")
	c.Flags().BoolVar(&resume, "resume", false, "only finish or roll back interrupted moves")
	c.Flags().BoolVar(&dryRun, "dry-run", false, "check the plan, print the steps of each move, and change nothing")
	c.Flags().BoolVar(&fullSpeed, "full-speed", false, "do not limit the copy rate, even if VMs slow down")
	c.RunE = func(c *cobra.Command, args []string) error {
		p, err := planToApply(c.Context(), args, guests, resume)
		if err != nil {
			return err
		}
		h, done, err := on.open(c)
		if err != nil {
			return err
		}
		defer done()
		if name, err := h.Sources.HostName(); !resume && (err != nil || name != p.Host) {
			return errors.Join(fmt.Errorf("the plan is for host %s; this host is %s", p.Host, name), err)
		}
		on.noteDaemon(c, hostapi.DefaultSocket, h.Policy)
		if dryRun {
			return showWould(c, h, p)
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

// planToApply reads the plan and takes the moves of the named guests from it.
// With resume there is no plan: only interrupted moves are finished.
func planToApply(ctx context.Context, args, guests []string, resume bool) (p plan.Plan, err error) {
	if resume == (len(args) == 1) || resume && len(guests) > 0 {
		return p, wrongUse("name one plan, or only --resume; see 'numavisor apply --help'")
	}
	if resume {
		return p, nil
	}
	if p, err = readFile(ctx, args[0], plan.Parse); err == nil {
		p.Moves, err = picked(p.Moves, guests)
	}
	return p, err
}

// showWould prints what a plan would do, up to the first move that would be refused.
func showWould(c *cobra.Command, h *local.Host, p plan.Plan) error {
	would, err := h.Would(c.Context(), p.Moves, h.Journal)
	if err != nil && len(would.Moves) == 0 {
		return err
	}
	return errors.Join(emit(c, would, func(w io.Writer) { printWould(w, would) }), err)
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
			return nil, fmt.Errorf("the plan has no move of VM %s", name)
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
		return all, partialError{fmt.Errorf("%w; the VMs run on; 'numavisor apply --resume' finishes the move", err)}
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
			end = "interrupted"
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

// printWould prints what a plan would do, move by move.
func printWould(w io.Writer, p move.Preview) {
	for _, m := range p.Interrupted {
		printf(w, "would first finish the interrupted move, or roll it back: %s\n", m)
	}
	if len(p.Moves) == 0 {
		fmt.Fprintln(w, "nothing to move")
	}
	for i, m := range p.Moves {
		printf(w, "move %d, %s\n", i+1, m.Move)
		for _, g := range m.Guests {
			fmt.Fprint(w, text.VisibleLines(g.Plan.Text()))
		}
	}
}
