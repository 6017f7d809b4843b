package operate_test

import (
	"context"
	"fmt"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/numavisor/numavisor/internal/guest"
	"github.com/numavisor/numavisor/internal/host/fake"
	"github.com/numavisor/numavisor/internal/host/operate"
	"github.com/numavisor/numavisor/internal/inventory"
)

func bindProcess(w world, pid int, to string) (operate.Bound, error) {
	return w.Joined.BindProcess(
		context.Background(),
		operate.ProcessRequest{PID: pid, Change: func(s guest.Spec) (guest.Spec, error) {
			s.Limits.Nodes = nodes(to)
			return s.Normalize()
		}},
	)
}

// All of a process is bound: threads, memory, and the pages that it touches
// later. Its claim ends with it.
func TestBindProcess(t *testing.T) {
	w := newWorld(t, square, folderOf(t))
	pid := w.AddProgram(3, 100*mib, 1)
	b, err := bindProcess(w, pid, "2")
	if err != nil || !b.Complete() {
		t.Fatalf("%v, falls short: %v", err, b.Shortfalls())
	}
	if b.Truth.MemoryByNode[2] != 100*mib || len(b.Truth.MemoryByNode) != 1 {
		t.Errorf("memory is on %v", b.Truth.MemoryByNode)
	}
	threads, _, err := w.Threads(pid)
	if err != nil {
		t.Fatal(err)
	}
	for _, thread := range threads {
		if !thread.Affinity.SubsetOf(cpus("8-11")) || !thread.Mems.Equal(nodes("2")) {
			t.Errorf("thread %d: CPUs %s, nodes %s", thread.TID, thread.Affinity, thread.Mems)
		}
	}
	if claims, err := w.Joined.Ledger.Claims(); err != nil || len(claims) != 1 || claims[0].PID != pid {
		t.Errorf("claims %v, %v", claims, err)
	}
	w.EndProgram(pid)
	w.CheckSettled(t)
}

func TestBindProcessWithEveryCallFailing(t *testing.T) {
	folder := folderOf(t)
	clean := newWorld(t, square, folder)
	pid := clean.AddProgram(2, 100*mib, 1)
	clean.Inject(fake.Fault{})
	if _, err := bindProcess(clean, pid, "2"); err != nil {
		t.Fatal(err)
	}
	for _, call := range clean.Calls() {
		where := fmt.Sprintf("call %d (%s)", call.N, call.Method)
		w := newWorld(t, square, folder)
		pid := w.AddProgram(2, 100*mib, 1)
		w.Inject(before(call.N, func() error { return errLost }))
		b, err := bindProcess(w, pid, "2")
		// A call that lists VMs does not concern this process: its gaps are reported.
		if err == nil && !b.Complete() && len(b.Shortfalls()) == 0 {
			t.Errorf("%s: incomplete, with no reason given", where)
		}
		if err == nil && b.Complete() && b.Truth.MemoryByNode[2] != 100*mib {
			t.Errorf("%s: complete, with memory on %v", where, b.Truth.MemoryByNode)
		}
		w.Inject(fake.Fault{})
		if b, err := bindProcess(w, pid, "2"); err != nil || len(b.Truth.Differences) > 0 {
			t.Errorf("%s: the next bind does not finish the work: %v %v", where, err, b.Shortfalls())
		}
		if err := w.Audit(); err != nil {
			t.Errorf("%s: %v", where, err)
		}
	}
}

func TestBindProcessLeavesGuestsToTheirHypervisor(t *testing.T) {
	w := misplaced(t, kinds[0], folderOf(t))
	g := w.MustGuest(t, "g")
	if _, err := bindProcess(w, g.PID, "2"); err == nil || !strings.Contains(err.Error(), "run 'numavisor bind g'") {
		t.Errorf("error %v", err)
	}
	w.CheckUnchanged(t, g)
}

// The claim of a process that is about to start lasts as long as the process.
func TestPlaceNew(t *testing.T) {
	w := newWorld(t, square, folderOf(t))
	s := spec(t, guest.Spec{Name: "pid-77", VCPUs: 1, Memory: gib})
	n, err := w.Joined.PlaceNew(context.Background(), s, "true")
	p := n.Placement
	if err != nil || len(n.Gaps) > 0 || p.Emulator.IsEmpty() || !p.VCPUs[0].CPUs.SubsetOf(p.Emulator) {
		t.Fatalf("%v: %+v", err, p)
	}
	inv, err := w.Joined.Observe(context.Background())
	if err != nil || len(inv.Claims) != 1 || inv.Claims[0].PID != self.PID ||
		p.MemoryOn(inv.Claims[0].Placement.Reservations[0].Node) != gib {
		t.Errorf("%v, claims %+v", err, inv.Claims)
	}
	again, err := w.Joined.PlaceNew(context.Background(), s, "true")
	if err != nil || !again.Placement.Nodes.Equal(p.Nodes) {
		t.Errorf("new placement on %s, before on %s: its own claim is in its way (%v)", again.Placement.Nodes, p.Nodes,
			err)
	}
}

// A process is placed even if a hypervisor cannot be queried; the result then
// lists the gap, because the resources of its VMs were not counted.
func TestPlaceNew_NotesHiddenGuests(t *testing.T) {
	away := []inventory.Gap{inventory.UnseenGap(guest.LibvirtQEMU, errLost.Error())}
	unasked := func(w world) {
		w.Inject(fake.Fault{Before: fake.NthOf("Guests", 1, func() error { return errLost })})
	}
	w := newWorld(t, square, folderOf(t))
	unasked(w)
	n, err := w.Joined.PlaceNew(context.Background(), spec(t, guest.Spec{Name: "pid-77", VCPUs: 1, Memory: gib}), "true")
	if diff := cmp.Diff(away, n.Gaps); err != nil || diff != "" {
		t.Errorf("%v, a new process; gaps (-want +got):\n%s", err, diff)
	}
	pid := w.AddProgram(1, mib, 1)
	unasked(w)
	b, err := bindProcess(w, pid, "2")
	if diff := cmp.Diff(away, b.Gaps); err != nil || diff != "" {
		t.Errorf("%v, a running process; gaps (-want +got):\n%s", err, diff)
	}
	if b, err = bindProcess(w, pid, "2"); err != nil || len(b.Gaps) > 0 {
		t.Errorf("%v, gaps %v where all was seen", err, b.Gaps)
	}
}
