package move_test

import (
	"context"
	"testing"

	"github.com/numavisor/numavisor/internal/guest"
	"github.com/numavisor/numavisor/internal/host/hosttest"
	"github.com/numavisor/numavisor/internal/host/move"
	"github.com/numavisor/numavisor/internal/host/operate"
	"github.com/numavisor/numavisor/internal/plan"
	"github.com/numavisor/numavisor/internal/status"
	"github.com/numavisor/numavisor/internal/topology"
)

// While a guest is bound or moved, the inventory names the user, the process
// and the start, even if the guest already shows its new placement.
func TestObserve_NamesTheHolderOfAClaim(t *testing.T) {
	w := newWorld(t, square, folderOf(t))
	s := spec(t, guest.Spec{Name: "g", VCPUs: 1, Memory: 256 * mib})
	if _, err := w.Create(s); err != nil {
		t.Fatal(err)
	}
	w.Joined.By = "alice"
	if err := w.Smear("g", nodes("3")); err != nil {
		t.Fatal(err)
	}
	looks := 0
	look := func(by string) {
		looks++
		inv, err := w.Joined.Observe(t.Context())
		c, ok := inv.Claim("g")
		if err != nil || !ok || c.By != by || c.Holder != hosttest.Self.PID || c.Since.IsZero() {
			t.Errorf("by %s: claim %+v, %v", by, c, err)
		}
	}
	w.Joined.Progress = func(plan.Step, topology.Bytes, topology.Bytes) { look("alice") }
	if b, err := w.Joined.Bind(t.Context(), operate.BindRequest{Name: "g"}); err != nil {
		t.Fatal(err, b.Shortfalls())
	}
	m := planned(t, w, plan.MoveGuest, map[string]string{"g": "2"})
	request := move.Request{ID: "m1", Move: m, By: "balancer", Journal: &book{},
		Progress: func(status.Moving) { look("balancer") }}
	if _, err := w.Joined.Move(context.Background(), request); err != nil || looks < 2 {
		t.Fatalf("%v, observed %d times", err, looks)
	}
	inv, err := w.Joined.Observe(t.Context())
	if c, ok := inv.Claim("g"); err != nil || ok {
		t.Errorf("after both: claim %+v, %v", c, err)
	}
}
