package claim_test

import (
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/numavisor/numavisor/internal/guest"
	"github.com/numavisor/numavisor/internal/host/claim"
	"github.com/numavisor/numavisor/internal/inventory"
	"github.com/numavisor/numavisor/internal/topology"
)

// The claim of a process names it; that of a guest being created does not name the command.
func TestLedger_ClaimsNameOnlyBoundProcesses(t *testing.T) {
	noon := time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC)
	l := ledger(t)
	for name, process := range map[string]bool{"web": false, "postgres": true} {
		err := l.Locked(t.Context(), func(tx claim.Locked) error {
			return tx.Put(claim.Claim{
				Name: name, Holder: claim.Process{PID: 4711}, Process: process, By: "alice", Since: noon,
				Placement: guest.Placement{Guest: name},
			})
		})
		if err != nil {
			t.Fatal(err)
		}
	}
	note := filepath.Join(l.Folder, "claims", "README")
	if err := os.WriteFile(note, []byte("not a claim"), 0o600); err != nil {
		t.Fatal(err)
	}
	want := []inventory.Claim{
		{Name: "postgres", PID: 4711, Holder: 4711, By: "alice", Since: noon,
			Placement: guest.Placement{Guest: "postgres"}},
		{Name: "web", Holder: 4711, By: "alice", Since: noon, Placement: guest.Placement{Guest: "web"}},
	}
	got, err := l.Claims()
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("claims (-want +got):\n%s", diff)
	}
}

func TestLedger_GrownPoolsAddUpByNodeAndSize(t *testing.T) {
	l := ledger(t)
	for _, more := range [][]claim.Grown{
		{{Node: 0, Size: 2 * topology.MiB, Pages: 1}, {Node: 1, Size: 2 * topology.MiB, Pages: 2}},
		{{Node: 1, Size: topology.GiB, Pages: 4}, {Node: 1, Size: 2 * topology.MiB, Pages: 8}},
	} {
		if err := l.PutGrown("db", more); err != nil {
			t.Fatal(err)
		}
	}
	want := []claim.Grown{
		{Node: 0, Size: 2 * topology.MiB, Pages: 1},
		{Node: 1, Size: 2 * topology.MiB, Pages: 10},
		{Node: 1, Size: topology.GiB, Pages: 4},
	}
	got, err := l.GrownFor("db")
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("grown pools (-want +got):\n%s", diff)
	}
}
