package fleetofone_test

import (
	"strings"
	"testing"
	"time"

	"github.com/numavisor/numavisor/internal/alarm"
	fleetapi "github.com/numavisor/numavisor/internal/api/fleet"
	"github.com/numavisor/numavisor/internal/guest"
	"github.com/numavisor/numavisor/internal/host/operate/operatetest"
	"github.com/numavisor/numavisor/internal/inventory"
	"github.com/numavisor/numavisor/internal/journal"
	"github.com/numavisor/numavisor/internal/plan"
	"github.com/numavisor/numavisor/internal/policy"
	"github.com/numavisor/numavisor/internal/status"
)

// busyStatus gives the daemon advice, a move in progress and an alarm, and the journal their entries.
func busyStatus(s *socket) {
	s.t.Helper()
	began := time.Now().Add(-time.Minute).UTC()
	move := plan.Move{Kind: plan.MoveGuest, Why: "node 1 is full", Benefit: plan.Benefit{WaitCPUs: 1.5},
		Guests: []plan.GuestMove{{Guest: "other", Bytes: 32 * mib, Saves: 1,
			Placement: guest.Placement{Guest: "other", Nodes: operatetest.Nodes("2")}}},
		Cost: plan.Price{Bytes: 32 * mib, Took: time.Second}}
	s.daemon.mu.Lock()
	defer s.daemon.mu.Unlock()
	s.daemon.status.Mode, s.daemon.status.Planned = policy.ModeAdvise, began
	s.daemon.status.Advice = []status.Advice{{ID: "a", Since: began, Move: move}}
	s.daemon.status.Blocked = []plan.Blocked{{Guest: "web1", Kind: plan.BlockedNoGain, Why: "no move helps"}}
	s.daemon.status.Moving = []status.Moving{{ID: "m2", Began: began, Move: move, Done: 8 * mib, Total: 32 * mib}}
	s.daemon.status.Alarms = []alarm.Alarm{{Quantity: alarm.GuestWait, Object: inventory.GuestRef("other"),
		Severity: alarm.Warning, Worst: 0.5, Threshold: 0.1, First: began, Why: "it waits", Guests: []string{"web1"}}}
	for _, e := range []journal.Entry{
		{At: began.Add(-time.Hour), Kind: journal.MoveBegan, ID: "m1", Guests: []string{"other"}, Move: &move,
			Why: move.Why, What: "move other"},
		{At: began.Add(-time.Minute), Kind: journal.MoveUndone, ID: "m1", Guests: []string{"other"}, What: "move other",
			Why: "libvirt restarted", By: journal.ByBalancer},
		{At: began, Kind: journal.MoveBegan, ID: "m2", Guests: []string{"other"}, Move: &move, Why: move.Why,
			What: "move other"},
	} {
		if err := s.Joined.Journal.Append(e); err != nil {
			s.t.Fatal(err)
		}
	}
}

// Moves between the nodes of the host have the form of moves between hosts.
func TestPlanMovesAndAlarms_OfTheHost(t *testing.T) {
	s := serve(t, nil)
	s.reset(t)
	busyStatus(s)
	ctx := t.Context()
	p, err := s.client.Plan(ctx)
	if err != nil || p.Mode != policy.ModeAdvise || len(p.Migrations) != 1 || len(p.Blocked) != 1 {
		t.Fatalf("%s: %v", text(p), err)
	}
	if m := p.Migrations[0]; m.From != host || m.To != host || m.Nodes.String() != "2" || !m.Advised || m.Saves != 1.5 ||
		m.Relieves != "other" || m.Price.Bytes != 32*mib || m.Why != "node 1 is full" {
		t.Errorf("%s", text(m))
	}
	moves, err := s.client.Moves(ctx, "other", 10, "")
	if err != nil || len(moves.Moves) != 2 {
		t.Fatalf("%s: %v", text(moves), err)
	}
	if m := moves.Moves[0]; m.Outcome != fleetapi.MoveRunning || m.Remaining != 24*mib ||
		!strings.Contains(m.Why, "nodes 2: node 1 is full") {
		t.Errorf("%s", text(m))
	}
	if m := moves.Moves[1]; m.Outcome != fleetapi.MoveStayed || m.Message != "libvirt restarted" || m.Ended.IsZero() {
		t.Errorf("%s", text(m))
	}
	if first, err := s.client.Moves(ctx, "", 1, ""); err != nil || first.Next == "" || len(first.Moves) != 1 {
		t.Errorf("%s: %v", text(first), err)
	} else if second, err := s.client.Moves(ctx, "", 1, first.Next); err != nil || second.Next != "" ||
		second.Moves[0].ID != moves.Moves[1].ID {
		t.Errorf("%s: %v", text(second), err)
	}
	alarms, err := s.client.Alarms(ctx)
	if err != nil || len(alarms.Alarms) != 1 || alarms.Alarms[0].Count != 1 || len(alarms.Lasting) != 1 ||
		alarms.Lasting[0].Object != "guest other" || alarms.Lasting[0].Host != host {
		t.Errorf("%s: %v", text(alarms), err)
	}
	history, err := s.client.History(ctx, "other", 10, "")
	if err != nil || len(history.Entries) != 1 || history.Entries[0].Operation != "move" ||
		!strings.Contains(history.Entries[0].What, "libvirt restarted") || history.Entries[0].By != journal.ByBalancer {
		t.Errorf("%s: %v", text(history), err)
	}
}

// A VM that was deleted, and created again by another program, does not have the reasons of its predecessor.
func TestWhy_EndsWithTheVM(t *testing.T) {
	s := serve(t, nil)
	s.create("web1")
	if _, err := s.client.DeleteVM(t.Context(), "web1", fleetapi.Change{}); err != nil {
		t.Fatal(err)
	}
	s.MustAdd(t, operatetest.Kinds[0].Guest("web1", 32*mib, nil, operatetest.CPUs("4-7")))
	if vm, err := s.client.VM(t.Context(), "web1"); err != nil || vm.Why != nil || !vm.Created.IsZero() {
		t.Errorf("%s: %v", text(vm), err)
	}
}
