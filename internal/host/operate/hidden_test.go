package operate_test

import (
	"context"
	"testing"

	"github.com/numavisor/numavisor/internal/host/apply"
	"github.com/numavisor/numavisor/internal/host/fake"
	"github.com/numavisor/numavisor/internal/host/observe"
	"github.com/numavisor/numavisor/internal/host/operate"
	"github.com/numavisor/numavisor/internal/inventory"
	"github.com/numavisor/numavisor/internal/journal"
	"github.com/numavisor/numavisor/internal/plan"
)

// masked is a hypervisor that shows its guests otherwise than they are.
type masked struct {
	*fake.Host
	show func([]inventory.Guest) []inventory.Guest
}

func (m masked) Guests(ctx context.Context) ([]inventory.Guest, error) {
	guests, err := m.Host.Guests(ctx)
	return m.show(guests), err
}

// A guest whose process lives has not ended, whatever its hypervisor shows of
// it while it restarts: the move stays open, and is finished later.
func TestAGuestThatIsNotShownHasNotEnded(t *testing.T) {
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
			m := w.planned(t, plan.MoveGuest, map[string]string{"g": "0,2"})
			ctx, cancel := context.WithCancel(context.Background())
			w.Inject(fake.Fault{Before: fake.NthOf("Move", 1, func() error { cancel(); return nil })})
			kept := &book{}
			if _, err := w.move(ctx, m, kept); err == nil {
				t.Fatal("it was not stopped, the test shows nothing")
			}
			w.Inject(fake.Fault{})
			sees := w.host.Sources.Hypervisors
			w.host.Sources.Hypervisors = []observe.Hypervisor{masked{w.Host, show}}
			if moved, err := w.host.Recover(context.Background(), operate.MoveRequest{Keep: kept}); err == nil {
				t.Errorf("recovered: %+v", moved)
			}
			if len(journal.CutShort(kept.entries)) != 1 {
				t.Fatalf("the journal has: %+v", kept.entries[len(kept.entries)-1])
			}
			w.host.Sources.Hypervisors = sees
			moved, err := w.host.Recover(context.Background(), operate.MoveRequest{Keep: kept})
			if err != nil || len(moved) != 1 || !apply.Complete(moved[0].Guests[0].Outcomes) {
				t.Errorf("later: %+v, %v", moved, err)
			}
			w.inPlace(t, "g")
		})
	}
}
