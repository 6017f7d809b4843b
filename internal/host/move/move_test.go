package move_test

import (
	"context"
	"errors"
	"maps"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/numavisor/numavisor/internal/decide/adopt"
	"github.com/numavisor/numavisor/internal/decide/balance"
	"github.com/numavisor/numavisor/internal/decide/place"
	"github.com/numavisor/numavisor/internal/guest"
	"github.com/numavisor/numavisor/internal/host/claim"
	"github.com/numavisor/numavisor/internal/host/fake"
	"github.com/numavisor/numavisor/internal/host/move"
	"github.com/numavisor/numavisor/internal/host/operate"
	"github.com/numavisor/numavisor/internal/inventory"
	"github.com/numavisor/numavisor/internal/journal"
	"github.com/numavisor/numavisor/internal/plan"
	"github.com/numavisor/numavisor/internal/status"
	"github.com/numavisor/numavisor/internal/topology"
)

// planned is a move as balancing plans it: each guest to its own nodes.
func planned(t tester, w world, kind plan.MoveKind, to map[string]string) plan.Move {
	t.Helper()
	inv, err := w.Joined.Observe(context.Background())
	if err != nil {
		t.Fatal(err)
	}
	m := plan.Move{Kind: kind, Why: "a test wants it"}
	placing := inv
	placing.Topology.Nodes = append([]topology.Node(nil), inv.Topology.Nodes...)
	for i := range placing.Topology.Nodes { // as if the guests of the move did not exist
		n := &placing.Topology.Nodes[i]
		for _, g := range inv.Guests {
			if _, moves := to[g.Name]; moves && g.Config.PageSize == 0 {
				n.Free += g.Seen.MemoryByNode[n.ID]
			}
		}
	}
	placing.Guests = nil
	for _, g := range inv.Guests {
		if _, moves := to[g.Name]; !moves {
			placing.Guests = append(placing.Guests, g)
		}
	}
	for i := range inv.Guests {
		g := &inv.Guests[i]
		nodes, moves := to[g.Name]
		if !moves {
			continue
		}
		s := balance.SpecOf(g)
		limited, _ := limitTo(nodes)(s)
		p, _, err := place.Place(place.Request{Host: &placing, Spec: limited, Policy: w.Joined.Policy})
		if err != nil {
			t.Fatalf("no place for %s on nodes %s: %v", g.Name, nodes, err)
		}
		m.Guests = append(m.Guests, plan.GuestMove{Guest: g.Name, Placement: adopt.Align(p, g.Config),
			Undo: plan.Undo{Placement: g.Placement, VCPUNodes: vcpusOn(g, &inv.Topology), Memory: g.Seen.MemoryByNode}})
	}
	return m
}

func vcpusOn(g *inventory.Guest, t *topology.Topology) (nodes topology.NodeSet) {
	for _, thread := range g.Seen.Threads {
		if thread.VCPU != nil {
			nodes = nodes.Union(t.NodesOf(thread.Affinity))
		}
	}
	return nodes
}

func carryOut(ctx context.Context, w world, m plan.Move, b *book) (move.Result, error) {
	return w.Joined.Move(ctx, move.Request{ID: "m1", Move: m, By: "test", Journal: b})
}

// ended checks that the move has begun and ended once in the journal, and returns how.
func ended(t tester, b *book) journal.Kind {
	t.Helper()
	var end []journal.Kind
	began := 0
	for _, e := range b.Recorded {
		if e.Kind == journal.MoveBegan {
			began++
		}
		if e.Ends() {
			end = append(end, e.Kind)
		}
		if e.ID != "m1" || len(e.Guests) == 0 || e.At.IsZero() {
			t.Errorf("an entry that says not of what: %+v", e)
		}
	}
	if began != 1 || len(end) != 1 {
		t.Fatalf("%d beginnings and ends %v", began, end)
	}
	return end[0]
}

func TestMove_EveryKindOfGuest(t *testing.T) {
	folder := folderOf(t)
	for _, k := range kinds {
		t.Run(k.Name, func(t *testing.T) {
			w := misplaced(t, k, folder)
			b := &book{}
			m := planned(t, w, plan.MoveGuest, map[string]string{"g": "0,3"})
			moved, err := carryOut(context.Background(), w, m, b)
			if err != nil || !moved.Complete() {
				t.Fatalf("%v: %s %v", err, moved.End, moved.Shortfalls())
			}
			w.CheckInPlace(t, "g")
			w.CheckSettled(t)
			if got := w.MustGuest(t, "g").Placement.Nodes; !got.SubsetOf(nodes("0,3")) {
				t.Errorf("recorded on nodes %s", got)
			}
			if end := ended(t, b); end != journal.MoveDone {
				t.Errorf("it ended as %s", end)
			}
		})
	}
}

// home is a world with a guest of each name on each node, its memory and vCPUs there.
func home(t tester, machine, folder string, memory topology.Bytes, at map[string]topology.NodeID) world {
	t.Helper()
	w := newWorld(t, machine, folder)
	none := topology.Bytes(0)
	w.Joined.Policy.KeepFree = &none
	top := w.Nodes()
	for _, name := range slices.Sorted(maps.Keys(at)) {
		on := []topology.NodeID{at[name], at[name]}
		d := kinds[1].Guest(name, memory, on, top.CPUsOf(topology.SetOf(at[name])))
		d.Config.Immediate = true
		w.MustAdd(t, d)
	}
	return w
}

// Two guests that fill their nodes except for 64 MiB exchange them: neither has
// room for more than that before the other moves.
func TestMove_SwapsWithLittleFreeMemory(t *testing.T) {
	w := home(t, square, folderOf(t), 2*gib, map[string]topology.NodeID{"a": 0, "b": 1})
	m := planned(t, w, plan.Swap, map[string]string{"a": "1", "b": "0"})
	w.Fill(0, 64*mib)
	w.Fill(1, 64*mib)
	b := &book{}
	moved, err := carryOut(context.Background(), w, m, b)
	if err != nil || !moved.Complete() {
		t.Fatalf("%v: %s %s %v", err, moved.End, moved.Why, moved.Shortfalls())
	}
	if copies := len(slices.DeleteFunc(w.Calls(),
		func(c fake.Call) bool { return c.Method != "Move" })); copies < 2*int(
		2*gib/(128*mib),
	) {
		t.Errorf("%d slices copied, with 64 MiB free", copies)
	}
	if got := w.MustGuest(t, "a").Placement.Nodes; !got.Equal(nodes("1")) {
		t.Errorf("a is on nodes %s", got)
	}
	if moved.Bytes < 4*gib {
		t.Errorf("%v copied", moved.Bytes)
	}
	w.CheckInPlace(t, "a")
	w.CheckInPlace(t, "b")
	w.Drain()
	w.CheckSettled(t)
}

// Without any free memory an exchange cannot begin: the move reports that and ends.
func TestMoveGivesUpWithoutRoom(t *testing.T) {
	w := home(t, square, folderOf(t), gib, map[string]topology.NodeID{"a": 0, "b": 1})
	m := planned(t, w, plan.Swap, map[string]string{"a": "1", "b": "0"})
	w.Fill(0, 0)
	w.Fill(1, 0)
	b := &book{}
	moved, err := carryOut(context.Background(), w, m, b)
	if err != nil || moved.End != journal.MovePartial || ended(t, b) != journal.MovePartial {
		t.Fatalf("%v: %s %s", err, moved.End, moved.Why)
	}
	if short := strings.Join(moved.Shortfalls(), "; "); !strings.Contains(short, "cannot allocate memory") ||
		!strings.Contains(short, "a: ") ||
		!strings.Contains(short, "b: ") {
		t.Errorf("falls short: %s", short)
	}
	w.Drain()
	w.CheckSettled(t)
	for _, name := range []string{"a", "b"} { // the missing part is shown, and repaired when there is room
		if b, err := w.Bind(name); err != nil || !b.Complete() {
			t.Errorf("bind afterwards: %v %v", err, b.Shortfalls())
		}
		w.CheckInPlace(t, name)
	}
}

// A guest that has changed since the plan is left alone.
func TestMoveRefusesAStalePlan(t *testing.T) {
	folder := folderOf(t)
	for _, c := range []struct {
		name string
		harm func(w world) error
		want string
		is   error
	}{
		{"a user pinned it", func(w world) error { return w.Repin("a", 0, cpus("8-11")) }, "may run on nodes 2",
			move.ErrStale},
		{"its memory has moved", func(w world) error { return w.Smear("a", nodes("0,3")) }, "has changed nodes",
			move.ErrStale},
		{"it was bound", func(w world) error {
			_, err := w.Joined.Bind(context.Background(), operate.BindRequest{Name: "a", Change: limitTo("2")})
			return err
		}, "has been placed on nodes 2", move.ErrStale},
		{"it was shut off", func(w world) error { w.Vanish("a"); return nil }, "is shutoff", move.ErrStale},
		{"it was deleted", func(w world) error {
			return w.Joined.Delete(context.Background(), operate.DeleteRequest{Name: "a", Force: true})
		}, "no such VM", move.ErrStale},
		{"the target is taken", func(w world) error {
			s := spec(t, guest.Spec{Name: "c", VCPUs: 1, Memory: 3 * gib, Limits: guest.Limits{Nodes: nodes("1")},
				Topology: guest.TopologySpec{Mode: guest.TopologyOff}})
			_, err := w.Create(s)
			return err
		}, "promised", move.ErrStale},
		{"it is being bound", func(w world) error {
			return w.Joined.Ledger.Locked(context.Background(),
				func(tx claim.Locked) error { return tx.Put(claim.Claim{Name: "a", Holder: self}) })
		}, "already", operate.ErrBusy},
		{"libvirt does not answer", func(w world) error {
			w.Inject(fake.Fault{Before: fake.NthOf("Guests", 1, func() error { return errLost })})
			return nil
		}, "could not see|free resources are unknown", nil},
		{"its mappings cannot be read", func(w world) error {
			w.Inject(fake.Fault{Before: fake.NthOf("Ranges", 1, func() error { return errLost })})
			return nil
		}, "could not be observed", nil},
	} {
		t.Run(c.name, func(t *testing.T) {
			w := home(t, square, folder, 2*gib, map[string]topology.NodeID{"a": 0})
			m := planned(t, w, plan.MoveGuest, map[string]string{"a": "1"})
			if err := c.harm(w); err != nil {
				t.Fatal(err)
			}
			before, there := w.Guest("a")
			claimed, _ := w.Joined.Ledger.Claims()
			b := &book{}
			_, err := carryOut(context.Background(), w, m, b)
			if err == nil || !regexp.MustCompile(c.want).MatchString(err.Error()) ||
				c.is != nil && !errors.Is(err, c.is) {
				t.Errorf("error %v, want %q (%v)", err, c.want, c.is)
			}
			if there {
				w.CheckUnchanged(t, before)
			}
			if claims, err := w.Joined.Ledger.Claims(); err != nil || len(claims) != len(claimed) {
				t.Errorf("claims %v, were %v: %v", claims, claimed, err)
			}
			if len(b.Recorded) > 0 {
				t.Errorf("recorded: %+v", b.Recorded)
			}
		})
	}
}

// While the kernel brings memory to vCPUs, a move accepts that half of it has gone to other nodes; else a tenth.
func TestMove_WhileMemoryDrifts(t *testing.T) {
	for _, c := range []struct {
		to     string
		drifts bool
		stale  bool
	}{{"0,3", false, true}, {"0,3", true, false}, {"2,3", true, true}, {"1", false, false}} {
		w := home(t, square, folderOf(t), 2*gib, map[string]topology.NodeID{"a": 0})
		m := planned(t, w, plan.MoveGuest, map[string]string{"a": "1"})
		if err := w.Smear("a", nodes(c.to)); err != nil {
			t.Fatal(err)
		}
		_, err := w.Joined.Move(t.Context(), move.Request{ID: "m1", Move: m, Journal: &book{}, Drifts: c.drifts})
		if errors.Is(err, move.ErrStale) != c.stale || !c.stale && err != nil {
			t.Errorf("memory now on %s, it drifts %v: %v", c.to, c.drifts, err)
		}
	}
}

// A move that cannot be recorded in the journal does not begin.
func TestMove_IsRecordedBeforeAnyChange(t *testing.T) {
	w := home(t, square, folderOf(t), gib, map[string]topology.NodeID{"a": 0})
	m := planned(t, w, plan.MoveGuest, map[string]string{"a": "1"})
	before := w.MustGuest(t, "a")
	b := &book{Fail: func(n int, _ journal.Entry) error { return errLost }}
	if _, err := carryOut(context.Background(), w, m, b); !errors.Is(err, errLost) {
		t.Errorf("error %v", err)
	}
	w.CheckUnchanged(t, before)
	w.CheckSettled(t)
}

// While a guest is moved, no other guest gets the resources of its former or new
// placement; afterwards those of the former one are free.
func TestMove_ReservesBothPlacementsUntilItsEnd(t *testing.T) {
	w := home(t, square, folderOf(t), 2*gib, map[string]topology.NodeID{"a": 0})
	m := planned(t, w, plan.MoveGuest, map[string]string{"a": "1"})
	other := spec(
		t,
		guest.Spec{
			Name:     "c",
			VCPUs:    1,
			Memory:   5 * gib / 2,
			Limits:   guest.Limits{Nodes: nodes("0-1"), MaxNodes: 1},
			Topology: guest.TopologySpec{Mode: guest.TopologyOff},
		},
	)
	tries := 0
	b := &book{}
	b.Fail = func(int, journal.Entry) error {
		if b.Asked == 1 {
			return nil // the ledger is still locked
		}
		if tries++; len(b.Recorded) > 0 {
			if _, err := w.Create(other); err == nil {
				t.Error("resources of a guest that is being moved were given to another")
			}
		}
		return nil
	}
	if moved, err := carryOut(context.Background(), w, m, b); err != nil || !moved.Complete() || tries < 3 {
		t.Fatalf("%v, %d tries: %v", err, tries, moved.Shortfalls())
	}
	if c, err := w.Create(other); err != nil || !c.Placement.Nodes.Equal(nodes("0")) {
		t.Errorf("what it had is not free: %v, %s", err, c.Placement.Nodes)
	}
}

// A change of pins alone is a move, and so is copying alone.
func TestMoveOfVCPUsOrMemoryOnly(t *testing.T) {
	for _, c := range []struct {
		kind   plan.MoveKind
		vcpus  topology.NodeID
		copied bool
	}{{plan.Repin, 2, false}, {plan.FetchLocal, 1, true}} {
		w := newWorld(t, square, folderOf(t))
		top := w.Nodes()
		w.MustAdd(t, kinds[1].Guest("g", 64*mib, []topology.NodeID{0}, top.CPUsOf(topology.SetOf(c.vcpus))))
		if err := w.Smear("g", nodes("0")); err != nil {
			t.Fatal(err)
		}
		to := "0"
		if c.copied {
			to = "1"
		}
		b := &book{}
		moved, err := carryOut(context.Background(), w, planned(t, w, c.kind, map[string]string{"g": to}), b)
		if err != nil || !moved.Complete() {
			t.Fatalf("%s: %v %v", c.kind, err, moved.Shortfalls())
		}
		ram := moved.Bytes > 8*mib
		if ram != c.copied {
			t.Errorf("%s: %v copied", c.kind, moved.Bytes)
		}
		w.CheckInPlace(t, "g")
	}
}

// If nothing is copied, no guest is restricted to its nodes before the vCPUs of all
// have moved, because that may take long; one observation verifies all.
func TestMove_AllVCPUsBeforeAnyLimit(t *testing.T) {
	w := newWorld(t, square, folderOf(t))
	top := w.Nodes()
	to := map[string]string{"g1": "0", "g2": "0"}
	for name := range to {
		w.MustAdd(t, kinds[1].Guest(name, 64*mib, []topology.NodeID{0}, top.CPUsOf(topology.SetOf(topology.NodeID(2)))))
		if err := w.Smear(name, nodes("0")); err != nil {
			t.Fatal(err)
		}
	}
	m := planned(t, w, plan.Batch, to)
	w.Inject(fake.Fault{})
	if moved, err := carryOut(context.Background(), w, m, &book{}); err != nil || !moved.Complete() {
		t.Fatalf("%v %v", err, moved.Shortfalls())
	}
	pinned, looks := 0, 0
	for _, c := range w.Calls() {
		switch c.Method {
		case "PinVCPU":
			pinned++
		case "TuneLive", "SetMems":
			if pinned < len(m.Guests[0].Placement.VCPUs)+len(m.Guests[1].Placement.VCPUs) {
				t.Errorf("restricted after %d pins of vCPUs", pinned)
			}
		case "Topology":
			looks++
		}
	}
	if looks != 2 {
		t.Errorf("%d observations of the host; one before the move and one after are enough", looks)
	}
}

// Progress is reported in values that only rise, to the end.
func TestMove_ReportsItsProgress(t *testing.T) {
	w := home(t, square, folderOf(t), 2*gib, map[string]topology.NodeID{"a": 0, "b": 1})
	m := planned(t, w, plan.Swap, map[string]string{"a": "1", "b": "0"})
	var all []status.Moving
	_, err := w.Joined.Move(context.Background(),
		move.Request{ID: "m7", Move: m, Journal: &book{}, Progress: func(s status.Moving) { all = append(all, s) }})
	if err != nil || len(all) < 16 {
		t.Fatalf("%v, reported %d times", err, len(all))
	}
	for i, s := range all {
		if s.ID != "m7" || s.Step == "" || s.Done > s.Total || i > 0 && s.Done < all[i-1].Done {
			t.Errorf("reported %+v", s)
		}
	}
	if last := all[len(all)-1]; last.Done != last.Total || last.Total < 4*gib {
		t.Errorf("at the end %v of %v", last.Done, last.Total)
	}
}
