package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"slices"
	"time"

	"github.com/spf13/cobra"

	"github.com/numavisor/numavisor/internal/host/operate"
	"github.com/numavisor/numavisor/internal/host/record"
	"github.com/numavisor/numavisor/internal/journal"
	"github.com/numavisor/numavisor/internal/plan"
	"github.com/numavisor/numavisor/internal/status"
)

func applyCommand() *cobra.Command {
	var on hostFlags
	var records string
	var only []string
	c := &cobra.Command{
		Use:   "apply PLAN",
		Short: "Make the moves of a plan that 'numavisor balance -o json' printed",
		Long: `Makes the moves of a plan one after the other, the advised ones too: whoever
applies a plan has accepted it. Each move is checked against the host as it is
by then, written into the journal before anything is touched, and verified. A
plan made on a state that is no more is refused. "-" reads the plan from the
standard input. Moves that were cut short before are finished, or undone, first.

Exit status 3 means done in part: the report says what could not be done and why.`,
		Example: `  numavisor balance -o json > plan.json; numavisor apply plan.json
  numavisor balance -o json | numavisor apply - --guest db1`,
		Args: cobra.ExactArgs(1),
	}
	on.flags(c)
	recordsFlag(c, &records)
	c.Flags().StringSliceVar(&only, "guest", nil, "only the moves that concern these VMs")
	c.RunE = func(c *cobra.Command, args []string) error {
		round, err := readRound(c.InOrStdin(), args[0])
		if err != nil {
			return err
		}
		moves, err := movesOf(round, only)
		if err != nil {
			return err
		}
		h, done, err := on.open(c)
		if err != nil {
			return err
		}
		defer done()
		book := record.Journal{Folder: records}
		a := applying{h: h, book: book, progress: showMoving(c.ErrOrStderr())}
		err = a.all(c.Context(), moves)
		if printed := emit(c, a.ends, func(w io.Writer) { printHistory(w, a.ends, records) }); printed != nil {
			return printed
		}
		return err
	}
	return c
}

// readRound reads a plan from a file; "-" is standard input.
func readRound(stdin io.Reader, path string) (plan.Round, error) {
	if path != "-" {
		return readFile(path, parseRound)
	}
	return parseRound(stdin)
}

func parseRound(r io.Reader) (round plan.Round, err error) {
	d := json.NewDecoder(io.LimitReader(r, maxPlan))
	d.DisallowUnknownFields()
	if err := d.Decode(&round); err != nil {
		return round, fmt.Errorf("not a plan: %w; make one with 'numavisor balance -o json'", err)
	}
	for i, m := range round.Moves {
		if len(m.Guests) == 0 || slices.ContainsFunc(m.Guests, func(g plan.GuestMove) bool { return g.Guest == "" || g.Placement.Nodes.IsEmpty() }) {
			return round, fmt.Errorf("not a plan: moves[%d] names no guest, or no nodes for one; make one with 'numavisor balance -o json'", i)
		}
	}
	return round, nil
}

const maxPlan = 64 << 20

// movesOf picks the moves that concern any of the named guests; all without names.
func movesOf(r plan.Round, only []string) ([]plan.Move, error) {
	var moves []plan.Move
	for _, m := range r.Moves {
		if len(only) == 0 || slices.ContainsFunc(m.Guests, func(g plan.GuestMove) bool { return slices.Contains(only, g.Guest) }) {
			m.Advised = false
			moves = append(moves, m)
		}
	}
	if len(moves) == 0 && len(only) > 0 {
		return nil, fmt.Errorf("the plan has no move of %v; it has %d moves in all", only, len(r.Moves))
	}
	return moves, nil
}

// applying makes moves one after the other.
type applying struct {
	h        *operate.Host
	book     record.Journal
	progress func(status.Moving)
	ends     []journal.Entry
}

// all makes the moves until one fails. What was cut short comes first.
func (a *applying) all(ctx context.Context, moves []plan.Move) error {
	entries, err := a.book.Since(time.Now())
	if err != nil {
		return err
	}
	before, err := a.h.Recover(ctx, journal.CutShort(entries), a.book, a.progress, nil)
	a.ends = append(a.ends, before...)
	if err != nil {
		return fmt.Errorf("finishing what was cut short before: %w", err)
	}
	stamp := time.Now().UTC().Format("20060102T150405")
	for i, m := range moves {
		end, err := a.h.Move(ctx, operate.MoveRequest{ID: fmt.Sprintf("o%s-%d", stamp, i+1), Move: m, By: "operator", Journal: a.book, Progress: a.progress})
		if end.Kind != "" {
			a.ends = append(a.ends, end)
		}
		if err != nil || end.Kind != journal.MoveDone {
			return a.stopped(len(moves)-i-1, end, err)
		}
	}
	if a.ends == nil {
		a.ends = []journal.Entry{}
	}
	return nil
}

// stopped says how far it came: in part, if anything was done.
func (a *applying) stopped(left int, end journal.Entry, err error) error {
	if err == nil {
		err = fmt.Errorf("move %s was done in part", end.ID)
	}
	if left > 0 {
		err = fmt.Errorf("%w; %d moves after it were not begun", err, left)
	}
	if slices.ContainsFunc(a.ends, func(e journal.Entry) bool { return e.Kind == journal.MoveDone || e.Kind == journal.MovePartial }) || errors.Is(err, context.Canceled) && !errors.Is(err, operate.ErrStale) {
		return partialError{err}
	}
	return err
}

// showMoving shows a move on a terminal, and stays silent elsewhere.
func showMoving(w io.Writer) func(status.Moving) {
	f, ok := w.(*os.File)
	if !ok {
		return nil
	}
	if info, err := f.Stat(); err != nil || info.Mode()&os.ModeCharDevice == 0 {
		return nil
	}
	return func(m status.Moving) {
		fmt.Fprintf(f, "\r\033[K%s: %s: %v of %v, %v/s", m.ID, m.Step, m.Done, m.Total, m.BytesPerSecond)
		if m.Done >= m.Total {
			fmt.Fprint(f, "\r\033[K")
		}
	}
}
