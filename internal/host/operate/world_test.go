package operate_test

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
	gib = topology.GiB
)

// square is the machine most tests run on: four nodes of four CPUs, each far from one other.
const square = "nodes:4 cores:4 memory:4G huge:2M=64 square distances:10,16,28"

func nodes(list string) topology.NodeSet { return topology.MustParseSet[topology.NodeID](list) }
func cpus(list string) topology.CPUSet   { return topology.MustParseSet[topology.CPUID](list) }

// tester is what *testing.T and *rapid.T have in common.
type tester interface {
	Helper()
	Errorf(format string, args ...any)
	Fatalf(format string, args ...any)
	Fatal(args ...any)
}

// world is a fake host, joined as cmd joins the real drivers.
type world struct {
	*fake.Host
	host *move.Host
}

// self is the process that holds the claims.
var self = hosttest.Self

// newWorld makes a host with a ledger of its own below a folder.
func newWorld(t tester, machine, folder string) world {
	t.Helper()
	return join(t, fake.MustNew(machine), folder)
}

func join(t tester, h *fake.Host, folder string) world {
	t.Helper()
	ledgerFolder, err := os.MkdirTemp(folder, "ledger")
	if err != nil {
		t.Fatal(err)
	}
	host := hosttest.Join(h, ledgerFolder, func() time.Time { return time.Unix(1700000000, 0) })
	host.Journal = &book{}
	return world{h, host}
}

func (w world) add(t tester, d fake.Definition) {
	t.Helper()
	if err := w.Add(d); err != nil {
		t.Fatal(err)
	}
}

// guest returns what the fake knows of a guest that must be there.
func (w world) guest(t tester, name string) inventory.Guest {
	t.Helper()
	g, ok := w.Guest(name)
	if !ok {
		t.Fatalf("guest %s is gone", name)
	}
	return g
}

// pools is the size of each node's first huge page pool.
func (w world) pools() []uint64 {
	var totals []uint64
	for _, n := range w.Nodes().Nodes {
		totals = append(totals, n.HugePages[0].Total)
	}
	return totals
}

// settled checks what must hold after every action, whatever came of it: no
// claim is left, no memory was lost, and all that began has an end in the journal.
func (w world) settled(t tester) {
	t.Helper()
	if claims, err := w.host.Ledger.Claims(); err != nil || len(claims) > 0 {
		t.Errorf("claims left behind: %v, %v", claims, err)
	}
	if err := w.Audit(); err != nil {
		t.Errorf("memory is lost or made: %v", err)
	}
	entries, err := w.host.Journal.Entries()
	if open := journal.Open(entries); err != nil || len(open) > 0 {
		t.Errorf("the journal has beginnings without an end: %+v, %v", open, err)
	}
}

// inPlace checks, from the fake's own books, that a guest is where the
// recorded placement wants it: every touched page and every thread.
func (w world) inPlace(t tester, name string) {
	t.Helper()
	g := w.guest(t, name)
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
			want = p.VCPUs[*thread.VCPU].CPUs
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

// unchanged checks that a guest is what it was, memory and threads included.
func (w world) unchanged(t tester, before inventory.Guest) {
	t.Helper()
	if diff := cmp.Diff(before, w.guest(t, before.Name)); diff != "" {
		t.Errorf("guest %s was touched (-before +after):\n%s", before.Name, diff)
	}
}

func (w world) bind(name string) (operate.Bound, error) {
	return w.host.Bind(context.Background(), operate.BindRequest{Name: name})
}

func render(i guest.Intent) (operate.Rendered, error) {
	text, err := fake.Render(i)
	return operate.Rendered{XML: text}, err
}

// spec is a normalized spec of a guest.
func spec(t tester, s guest.Spec) guest.Spec {
	t.Helper()
	normal, err := s.Normalize()
	if err != nil {
		t.Fatal(err)
	}
	return normal
}

func (w world) create(s guest.Spec) (operate.Created, error) {
	return w.host.Create(context.Background(), operate.CreateRequest{Spec: s, Render: render})
}

// folderOf is a folder for ledgers that lives as long as a test.
func folderOf(t *testing.T) string {
	t.Helper()
	return filepath.Clean(t.TempDir())
}

// limitTo changes a spec so that the guest goes to some of the given nodes.
func limitTo(list string) func(guest.Spec) (guest.Spec, error) {
	return func(s guest.Spec) (guest.Spec, error) {
		s.Limits.Nodes = nodes(list)
		return s, nil
	}
}
