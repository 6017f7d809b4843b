package move_test

import (
	"context"
	"errors"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/numavisor/numavisor/internal/host/move"
	"github.com/numavisor/numavisor/internal/journal"
	"github.com/numavisor/numavisor/internal/plan"
	"github.com/numavisor/numavisor/internal/topology"
)

// A dry run has the steps that the move carries out, and changes nothing.
func TestWould_HasTheStepsAndChangesNothing(t *testing.T) {
	w := home(t, square, folderOf(t), 512*mib, map[string]topology.NodeID{"g": 0})
	m := planned(t, w, plan.MoveGuest, map[string]string{"g": "2"})
	before, host := w.MustGuest(t, "g"), w.Nodes()
	b := &book{}
	would, err := w.Joined.Would(context.Background(), []plan.Move{m}, b)
	if err != nil || len(would.Moves) != 1 || len(would.Interrupted) != 0 {
		t.Fatalf("%+v, %v", would, err)
	}
	w.CheckUnchanged(t, before)
	if diff := cmp.Diff(host, w.Nodes()); diff != "" {
		t.Errorf("the host has changed (-before +after):\n%s", diff)
	}
	if entries, _ := b.Entries(); len(entries) > 0 {
		t.Errorf("the journal has %+v", entries)
	}
	w.CheckSettled(t)
	moved, err := carryOut(context.Background(), w, m, b)
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(moved.Guests[0].Plan, would.Moves[0].Guests[0].Plan); diff != "" {
		t.Errorf("other steps than carried out (-done +dry run):\n%s", diff)
	}
	if _, err := w.Joined.Would(context.Background(), []plan.Move{planned(t, w, plan.MoveGuest,
		map[string]string{"g": "0"})}, b); err != nil {
		t.Errorf("the way back: %v", err)
	}
}

// Of several moves each is checked as if those before it were made.
func TestWould_ChecksEachMoveAfterThoseBeforeIt(t *testing.T) {
	w := home(t, square, folderOf(t), 512*mib, map[string]topology.NodeID{"g": 0})
	there := planned(t, w, plan.MoveGuest, map[string]string{"g": "2"})
	again := there
	again.Guests = append([]plan.GuestMove(nil), there.Guests...)
	again.Guests[0].Undo.VCPUNodes = nodes("3") // planned from another state
	again.Guests[0].Placement.Nodes = nodes("1")
	would, err := w.Joined.Would(context.Background(), []plan.Move{there, again}, &book{})
	if !errors.Is(err, move.ErrStale) || len(would.Moves) != 1 {
		t.Errorf("%d moves, error %v; want one move and ErrStale", len(would.Moves), err)
	}
}

func TestWould_NamesInterruptedMovesFirst(t *testing.T) {
	w := home(t, square, folderOf(t), 512*mib, map[string]topology.NodeID{"g": 0})
	m := planned(t, w, plan.MoveGuest, map[string]string{"g": "2"})
	b := &book{}
	if err := b.Append(journal.Entry{Kind: journal.MoveBegan, ID: "m0", Move: &m}); err != nil {
		t.Fatal(err)
	}
	would, err := w.Joined.Would(context.Background(), nil, b)
	if err != nil || len(would.Interrupted) != 1 || would.Interrupted[0].Kind != plan.MoveGuest {
		t.Errorf("%+v, %v", would, err)
	}
}
