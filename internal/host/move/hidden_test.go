package move_test

import (
	"context"
	"testing"

	"github.com/numavisor/numavisor/internal/host/apply"
	"github.com/numavisor/numavisor/internal/host/fake"
	"github.com/numavisor/numavisor/internal/host/move"
	"github.com/numavisor/numavisor/internal/host/observe"
	"github.com/numavisor/numavisor/internal/inventory"
	"github.com/numavisor/numavisor/internal/journal"
	"github.com/numavisor/numavisor/internal/plan"
)

// A guest whose process lives has not ended, whatever its hypervisor shows of it
// while the hypervisor restarts: the move stays open, and is finished later.
func TestRecover_UnlistedGuestHasNotEnded(t *testing.T) {
	for name, show := range map[string]func([]inventory.Guest) []inventory.Guest{
		"without its process": func(all []inventory.Guest) []inventory.Guest {
			for i := range all {
				all[i].PID = 0
			}
			return all
		},
		"not at all": func([]inventory.Guest) []inventory.Guest { return nil },
	} {
		t.Run(name, func(t *testing.T) {
			w := misplaced(t, kinds[0], folderOf(t))
			m := planned(t, w, plan.MoveGuest, map[string]string{"g": "0,2"})
			ctx, cancel := context.WithCancel(context.Background())
			w.Inject(fake.Fault{Before: fake.NthOf("Move", 1, func() error { cancel(); return nil })})
			records := &book{}
			if _, err := carryOut(ctx, w, m, records); err == nil {
				t.Fatal("it was not stopped: this run tested nothing")
			}
			w.Inject(fake.Fault{})
			sees := w.Joined.Sources.Hypervisors
			w.Joined.Sources.Hypervisors = []observe.Hypervisor{masked{Hypervisor: w.Host, Show: show}}
			if moved, err := w.Joined.Recover(context.Background(), move.Request{Journal: records}); err == nil {
				t.Errorf("recovered: %+v", moved)
			}
			if len(journal.InterruptedMoves(records.Recorded)) != 1 {
				t.Fatalf("the journal has: %+v", records.Recorded[len(records.Recorded)-1])
			}
			w.Joined.Sources.Hypervisors = sees
			moved, err := w.Joined.Recover(context.Background(), move.Request{Journal: records})
			if err != nil || len(moved) != 1 || !apply.Complete(moved[0].Guests[0].Outcomes) {
				t.Errorf("later: %+v, %v", moved, err)
			}
			w.CheckInPlace(t, "g")
		})
	}
}

// renamed shows a fake host's guests as those of another hypervisor, and fails
// to see them all.
