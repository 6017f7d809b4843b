package operate_test

import (
	"context"
	"errors"
	"fmt"
	"testing"

	"github.com/numavisor/numavisor/internal/decide/balance"
	"github.com/numavisor/numavisor/internal/guest"
	"github.com/numavisor/numavisor/internal/host/fake"
	"github.com/numavisor/numavisor/internal/host/operate"
	"github.com/numavisor/numavisor/internal/inventory"
	"github.com/numavisor/numavisor/internal/journal"
	"github.com/numavisor/numavisor/internal/plan"
	"github.com/numavisor/numavisor/internal/policy"
	"github.com/numavisor/numavisor/internal/topology"
)

// pages is a journal in memory, which may run full.
type pages struct {
	entries []journal.Entry
	full    func(journal.Entry) error // asked before an entry is taken; nil: never full
}

func (p *pages) Append(e journal.Entry) error {
	if p.full != nil {
		if err := p.full(e); err != nil {
			return err
		}
	}
	p.entries = append(p.entries, e)
	return nil
}

// astray adds a guest of others, its memory on one node and its vCPUs on another.
func (w world) astray(t tester, name string, vcpus int, size topology.Bytes, memory, cpu topology.NodeID) {
	t.Helper()
	machine := w.Nodes()
	home, _ := machine.Node(memory)
	away, _ := machine.Node(cpu)
	c := inventory.Config{VCPUs: vcpus, Memory: size, Source: "anonymous", Immediate: true, Pins: map[guest.VCPUID]topology.CPUSet{}, EmulatorPin: home.CPUs,
		NUMATune: &inventory.NUMATune{Mode: "restrictive", Nodes: topology.SetOf(memory)}}
	for v := range vcpus {
		c.Pins[guest.VCPUID(v)] = home.CPUs
	}
	w.add(t, fake.Definition{Name: name, Config: c})
	for v := range vcpus {
		if err := w.PinVCPU(context.Background(), name, guest.VCPUID(v), away.CPUs); err != nil {
			t.Fatal(err)
		}
	}
}

// planned is what the balancer would do now, all guests in mode auto.
func (w world) planned(t tester) plan.Round {
	t.Helper()
	inv, err := w.host.Observe(context.Background())
	if err != nil {
		t.Fatal(err)
	}
	p := policy.Policy{Balance: policy.Balance{Guests: map[string]policy.Mode{}}}
	for _, g := range inv.Guests {
		p.Balance.Guests[g.Name] = policy.ModeAuto
	}
	round, err := balance.Plan(balance.Request{Host: &inv, Policy: p, Now: inv.Taken, Lasting: true})
	if err != nil {
		t.Fatal(err)
	}
	return round
}

func TestAMoveIsMadeAndJournalled(t *testing.T) {
	w := newWorld(t, square, t.TempDir())
	w.astray(t, "a", 2, gib, 3, 0)
	move := plan.Move{Kind: plan.FetchLocal, Why: "its memory is far", Guests: []plan.GuestMove{w.to(t, "a", 0)}}
	var book pages
	end, err := w.host.Move(t.Context(), operate.MoveRequest{ID: "m1", Move: move, By: "balancer", Journal: &book})
	if err != nil || end.Kind != journal.MoveDone || end.Moved < 900*mib || end.ID != "m1" {
		t.Fatalf("%+v %v", end, err)
	}
	if len(book.entries) != 2 || book.entries[0].Kind != journal.MoveBegan || book.entries[0].Move == nil || book.entries[0].Why == "" || book.entries[1].Kind != journal.MoveDone {
		t.Errorf("journal %+v", book.entries)
	}
	w.inPlace(t, "a")
	w.settled(t)
	if _, err := w.host.Move(t.Context(), operate.MoveRequest{ID: "m2", Move: move, Journal: &book}); !errors.Is(err, operate.ErrStale) {
		t.Errorf("the same plan once more: %v", err)
	}
	if len(book.entries) != 2 {
		t.Errorf("a stale move is in the journal: %+v", book.entries[2:])
	}
}

// Two nearly full nodes exchange their guests: only in turns there is room.
func TestASwapGoesInTurns(t *testing.T) {
	const size = 3*gib + 256*mib
	only := func(name string, from, to topology.NodeID) plan.GuestMove { // decided while the other is not there
		w := newWorld(t, square, t.TempDir())
		w.astray(t, name, 4, size, from, to)
		return w.to(t, name, to)
	}
	w := newWorld(t, square, t.TempDir())
	w.astray(t, "a", 4, size, 0, 3)
	w.astray(t, "b", 4, size, 3, 0)
	w.Fill(1, 0)
	w.Fill(2, 0)
	swap := plan.Move{Kind: plan.Swap, Why: "each is where the other belongs", Guests: []plan.GuestMove{only("a", 0, 3), only("b", 3, 0)}}
	var book pages
	end, err := w.host.Move(t.Context(), operate.MoveRequest{ID: "m1", Move: swap, Journal: &book})
	if err != nil || end.Kind != journal.MoveDone {
		t.Fatalf("%+v %v", end, err)
	}
	w.inPlace(t, "a")
	w.inPlace(t, "b")
	w.settled(t)
}

// to is a move of a guest that others made to one node.
func (w world) to(t tester, name string, node topology.NodeID) plan.GuestMove {
	t.Helper()
	b, err := w.host.Bind(context.Background(), operate.BindRequest{Name: name, DryRun: true, Change: func(s guest.Spec) (guest.Spec, error) {
		s.Limits.Nodes = topology.SetOf(node)
		return s, nil
	}})
	if err != nil {
		t.Fatal(err)
	}
	return plan.GuestMove{Guest: name, Placement: b.Plan.Placement}
}

// No guest is lost, none left undescribed and no claim kept, whichever call
// fails and whichever answer is lost; and Recover ends what was cut short.
func TestAMoveBrokenAtEveryStep(t *testing.T) {
	folder := t.TempDir()
	try := func(fault fake.Fault) (w world, book *pages, end journal.Entry, err error) {
		w, book = newWorld(t, square, folder), &pages{}
		w.astray(t, "a", 2, gib, 3, 0)
		w.astray(t, "b", 2, gib, 0, 3)
		m := plan.Move{Kind: plan.Swap, Why: "each is where the other belongs", Guests: []plan.GuestMove{w.to(t, "a", 0), w.to(t, "b", 3)}}
		w.Inject(fault)
		end, err = w.host.Move(t.Context(), operate.MoveRequest{ID: "m", Move: m, By: "balancer", Journal: book})
		return w, book, end, err
	}
	w, _, _, err := try(fake.Fault{})
	if err != nil {
		t.Fatal(err)
	}
	calls := w.Calls()
	lost := errors.New("broken")
	for n := 1; n <= len(calls); n++ {
		for kind, fault := range map[string]fake.Fault{
			"fails": {Before: fake.Nth(n, func() error { return lost })},
			"lost":  {After: fake.Nth(n, func() error { return lost })},
		} {
			name := fmt.Sprintf("call %d, %s, %s", n, calls[n-1].Method, kind)
			w, book, end, err := try(fault)
			w.settled(t)
			for _, g := range []string{"a", "b"} {
				w.guest(t, g)
			}
			began := len(book.entries) > 0
			if began != (len(book.entries) == 2 && book.entries[1].Ends() && book.entries[1].Kind == end.Kind) {
				t.Errorf("%s: journal %+v, end %+v", name, book.entries, end)
			}
			if end.Kind == journal.MoveDone {
				w.inPlace(t, "a")
				w.inPlace(t, "b")
			}
			if !began && err == nil {
				t.Errorf("%s: nothing begun, and no error", name)
			}
		}
	}
}

// The process ends at any call (kill -9): the next start finishes the move.
func TestAMoveCutShortAtEveryStepIsFinished(t *testing.T) {
	folder := t.TempDir()
	for n := 1; ; n++ {
		w, book := newWorld(t, square, folder), &pages{}
		w.astray(t, "a", 2, gib, 3, 0)
		w.astray(t, "b", 2, gib, 0, 3)
		m := plan.Move{Kind: plan.Swap, Why: "each is where the other belongs", Guests: []plan.GuestMove{w.to(t, "a", 0), w.to(t, "b", 3)}}
		ctx, kill := context.WithCancel(t.Context())
		w.Inject(fake.Fault{Before: fake.Nth(n, func() error { kill(); return nil })})
		_, err := w.host.Move(ctx, operate.MoveRequest{ID: "m", Move: m, By: "balancer", Journal: book})
		reached := ctx.Err() != nil
		kill()
		w.Inject(fake.Fault{})
		if !reached {
			if err != nil {
				t.Fatal(err)
			}
			return // past its last call
		}
		cut := journal.CutShort(book.entries)
		ends, err := w.host.Recover(t.Context(), cut, book, nil, nil)
		if err != nil || len(ends) != len(cut) {
			t.Fatalf("call %d: %d cut short, ends %+v: %v", n, len(cut), ends, err)
		}
		if len(book.entries) > 0 {
			w.inPlace(t, "a")
			w.inPlace(t, "b")
			if end := book.entries[len(book.entries)-1]; end.Kind != journal.MoveDone {
				t.Errorf("call %d: ended as %+v", n, end)
			}
		}
		w.settled(t)
	}
}

// A guest that ends in mid-move leaves the others their move.
func TestAGuestThatDiesInMidMove(t *testing.T) {
	w, book := newWorld(t, square, t.TempDir()), &pages{}
	w.astray(t, "a", 2, gib, 3, 0)
	w.astray(t, "b", 2, gib, 0, 3)
	m := plan.Move{Kind: plan.Swap, Why: "each is where the other belongs", Guests: []plan.GuestMove{w.to(t, "a", 0), w.to(t, "b", 3)}}
	w.Inject(fake.Fault{Before: fake.NthOf("Move", 3, func() error { return w.Remove(t.Context(), "a") })})
	end, err := w.host.Move(t.Context(), operate.MoveRequest{ID: "m", Move: m, Journal: book})
	if err == nil || end.Kind != journal.MovePartial {
		t.Fatalf("%+v %v", end, err)
	}
	w.inPlace(t, "b")
	w.settled(t)
}

// The journal runs full: a move that cannot be written down is not begun.
func TestNoMoveWithoutItsEntry(t *testing.T) {
	w := newWorld(t, square, t.TempDir())
	w.astray(t, "a", 2, gib, 3, 0)
	full := errors.New("no space left on device")
	_, err := w.host.Move(t.Context(), operate.MoveRequest{ID: "m", Move: w.planned(t).Moves[0], Journal: &pages{full: func(journal.Entry) error { return full }}})
	if !errors.Is(err, full) {
		t.Fatal(err)
	}
	if g := w.guest(t, "a"); g.Placement != nil {
		t.Error("it was touched")
	}
	w.settled(t)
}

// Room that was there when it was cut short is gone: guests go back to where they were.
func TestAMoveWhoseRoomIsGoneIsUndone(t *testing.T) {
	w, book := newWorld(t, square, t.TempDir()), &pages{}
	w.astray(t, "a", 2, gib, 3, 0)
	if _, err := w.host.Bind(t.Context(), operate.BindRequest{Name: "a"}); err != nil {
		t.Fatal(err)
	}
	before := *w.guest(t, "a").Placement
	home, _ := before.Nodes.First()
	away := (home + 1) % 4
	back := w.to(t, "a", away)
	back.Undo.Placement = &before
	ctx, kill := context.WithCancel(t.Context())
	w.Inject(fake.Fault{Before: fake.NthOf("Move", 2, func() error { kill(); return nil })})
	if _, err := w.host.Move(ctx, operate.MoveRequest{ID: "m", Move: plan.Move{Kind: plan.MoveGuest, Why: "test", Guests: []plan.GuestMove{back}}, Journal: book}); err == nil || len(book.entries) != 1 {
		t.Fatalf("not cut short: %v, journal %+v", err, book.entries)
	}
	w.Inject(fake.Fault{})
	for i := range 4 {
		w.add(t, fake.Definition{Name: fmt.Sprintf("big%d", i), Config: inventory.Config{VCPUs: 1, Memory: 3 * gib, Source: "anonymous", NUMATune: &inventory.NUMATune{Mode: "strict", Nodes: topology.SetOf(away)}}})
	}
	ends, err := w.host.Recover(t.Context(), journal.CutShort(book.entries), book, nil, nil)
	if err != nil || len(ends) != 1 || ends[0].Kind != journal.MoveUndone {
		t.Fatalf("%+v %v", ends, err)
	}
	if g := w.guest(t, "a"); !g.Placement.Nodes.Equal(before.Nodes) {
		t.Errorf("it is on nodes %s", g.Placement.Nodes)
	}
	w.inPlace(t, "a")
	w.settled(t)
}
