// Package operatetest is the host on which the tests of operate and move act: a
// fake joined with a ledger and a journal, guests of every kind, and the ways in
// which a host breaks.
package operatetest

import (
	"context"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/numavisor/numavisor/internal/guest"
	"github.com/numavisor/numavisor/internal/host/fake"
	"github.com/numavisor/numavisor/internal/host/hosttest"
	"github.com/numavisor/numavisor/internal/host/move"
	"github.com/numavisor/numavisor/internal/host/observe"
	"github.com/numavisor/numavisor/internal/host/operate"
	"github.com/numavisor/numavisor/internal/inventory"
	"github.com/numavisor/numavisor/internal/journal"
	"github.com/numavisor/numavisor/internal/topology"
)

const (
	mib = topology.MiB
)

// Square is the machine that most tests run on: four nodes of four CPUs, each far from one other.
const Square = "nodes:4 cores:4 memory:4G huge:2M=64 square distances:10,16,28"

// Nodes parses a list of nodes.
func Nodes(list string) topology.NodeSet { return topology.MustParseSet[topology.NodeID](list) }

// CPUs parses a list of CPUs.
func CPUs(list string) topology.CPUSet { return topology.MustParseSet[topology.CPUID](list) }

// T is what *testing.T and *rapid.T have in common.
type T interface {
	Helper()
	Errorf(format string, args ...any)
	Fatalf(format string, args ...any)
	Fatal(args ...any)
}

// World is a fake host, joined as host/local joins the real drivers.
type World struct {
	*fake.Host
	Joined *move.Host // acts on the fake
}

// New makes a host with a ledger of its own below a folder.
func New(t T, machine, folder string) World {
	t.Helper()
	return Join(t, fake.MustNew(machine), folder)
}

// Join joins a fake that a test has made. The ledger is below the folder, the
// journal in memory, and the clock stands still.
func Join(t T, h *fake.Host, folder string) World {
	t.Helper()
	ledgerFolder, err := os.MkdirTemp(folder, "ledger")
	if err != nil {
		t.Fatal(err)
	}
	host := hosttest.Join(h, ledgerFolder, func() time.Time { return time.Unix(1700000000, 0) })
	host.Journal = &Book{}
	return World{Host: h, Joined: host}
}

// MustAdd starts a guest of another program.
func (w World) MustAdd(t T, d fake.Definition) {
	t.Helper()
	if err := w.Add(d); err != nil {
		t.Fatal(err)
	}
}

// MustGuest returns what the fake knows of a guest that must be there.
func (w World) MustGuest(t T, name string) inventory.Guest {
	t.Helper()
	g, ok := w.Guest(name)
	if !ok {
		t.Fatalf("guest %s is gone", name)
	}
	return g
}

// Pools is the size of each node's first huge page pool.
func (w World) Pools() []uint64 {
	var totals []uint64
	for _, n := range w.Nodes().Nodes {
		totals = append(totals, n.HugePages[0].Total)
	}
	return totals
}

// CheckSettled checks what must hold after every action, whatever its end: no
// claim is left, no memory was lost, and all that began has an end in the journal.
func (w World) CheckSettled(t T) {
	t.Helper()
	if claims, err := w.Joined.Ledger.Claims(); err != nil || len(claims) > 0 {
		t.Errorf("claims left behind: %v, %v", claims, err)
	}
	if err := w.Audit(); err != nil {
		t.Errorf("memory is lost or duplicated: %v", err)
	}
	entries, err := w.Joined.Journal.Entries()
	if open := journal.Open(entries); err != nil || len(open) > 0 {
		t.Errorf("the journal has beginnings without an end: %+v, %v", open, err)
	}
}

// CheckInPlace checks, from the state of the fake, that a guest is where the
// recorded placement wants it: every touched page and every thread.
func (w World) CheckInPlace(t T, name string) {
	t.Helper()
	g := w.MustGuest(t, name)
	if g.Placement == nil {
		t.Fatalf("guest %s has no recorded placement", name)
	}
	p := *g.Placement
	cells := observe.AssignCells(g.Seen.Ranges, g.Config)
	for _, r := range cells {
		want := p.Nodes
		if r.Cell != nil && p.Visible {
			want = p.Cells[*r.Cell].Nodes
		}
		for id, bytes := range r.ByNode {
			if !want.Contains(id) && r.Cell != nil {
				t.Errorf("%v of cell %d are on node %d, not on %s", bytes, *r.Cell, id, want)
			}
		}
	}
	for _, thread := range g.Seen.Threads {
		want := p.Emulator
		switch {
		case thread.VCPU != nil:
			want = p.StartPin(p.VCPUs[*thread.VCPU])
		case thread.Role == inventory.RoleIOThread:
			want = p.IOThread
		}
		if !want.IsEmpty() && !thread.Affinity.Equal(want) {
			t.Errorf("thread %s runs on CPUs %s, not %s", thread.Name, thread.Affinity, want)
		}
		if !thread.Mems.Equal(p.Nodes) {
			t.Errorf("thread %s takes memory from nodes %s, not %s", thread.Name, thread.Mems, p.Nodes)
		}
	}
}

// CheckUnchanged checks that a guest has not changed, memory and threads included.
func (w World) CheckUnchanged(t T, before inventory.Guest) {
	t.Helper()
	if diff := cmp.Diff(before, w.MustGuest(t, before.Name)); diff != "" {
		t.Errorf("guest %s was touched (-before +after):\n%s", before.Name, diff)
	}
}

// Bind binds a guest like a user who names no limits.
func (w World) Bind(name string) (operate.Bound, error) {
	return w.Joined.Bind(context.Background(), operate.BindRequest{Name: name})
}

// Render writes an intent as a definition for the fake.
func Render(i guest.Intent) (operate.Rendered, error) {
	definition, err := fake.Render(i)
	return operate.Rendered{Definition: definition}, err
}

// Spec normalizes the spec of a guest.
func Spec(t T, s guest.Spec) guest.Spec {
	t.Helper()
	normal, err := s.Normalize()
	if err != nil {
		t.Fatal(err)
	}
	return normal
}

// Create creates a guest of a spec.
func (w World) Create(s guest.Spec) (operate.Created, error) {
	return w.Joined.Create(context.Background(), operate.CreateRequest{Spec: s, Render: Render})
}

// Folder is a folder for ledgers that lives as long as a test.
func Folder(t *testing.T) string {
	t.Helper()
	return filepath.Clean(t.TempDir())
}

// LimitTo changes a spec so that the guest goes to some of the given nodes.
func LimitTo(list string) func(guest.Spec) (guest.Spec, error) {
	return func(s guest.Spec) (guest.Spec, error) {
		s.Limits.Nodes = Nodes(list)
		return s, nil
	}
}

// Misplaced is a guest of a kind whose vCPUs are far from its memory, alone on its host.
func Misplaced(t T, k Kind, folder string) World {
	t.Helper()
	w := New(t, Square, folder)
	w.MustAdd(t, k.Guest("g", 32*mib, []topology.NodeID{1, 2}, CPUs("12-15")))
	return w
}

// WithProgram is a host with a misplaced guest g and a program, whose ID is
// returned. A user named alice acts on it, and the book is its journal.
func WithProgram(t *testing.T, b *Book) (World, int) {
	t.Helper()
	w := Misplaced(t, Kinds[0], Folder(t))
	pid := w.AddProgram(1, 100*mib, 1)
	w.Joined.Journal, w.Joined.By = b, "alice (uid 1000)"
	w.Inject(fake.Fault{})
	return w, pid
}
