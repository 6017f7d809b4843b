package operate_test

import (
	"context"
	"errors"
	"strings"
	"testing"

	"github.com/numavisor/numavisor/internal/guest"
	"github.com/numavisor/numavisor/internal/host/apply"
	"github.com/numavisor/numavisor/internal/host/fake"
	"github.com/numavisor/numavisor/internal/host/move"
	"github.com/numavisor/numavisor/internal/host/observe"
	"github.com/numavisor/numavisor/internal/host/operate"
	"github.com/numavisor/numavisor/internal/inventory"
	"github.com/numavisor/numavisor/internal/journal"
	"github.com/numavisor/numavisor/internal/plan"
)

// masked is a hypervisor that shows its guests otherwise than they are.
type masked struct {
	observe.Hypervisor
	show func([]inventory.Guest) []inventory.Guest
}

func (m masked) Guests(ctx context.Context) ([]inventory.Guest, error) {
	guests, err := m.Hypervisor.Guests(ctx)
	return m.show(guests), err
}

// A guest whose process lives has not ended, whatever its hypervisor shows of
// it while it restarts: the move stays open, and is finished later.
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
			m := w.planned(t, plan.MoveGuest, map[string]string{"g": "0,2"})
			ctx, cancel := context.WithCancel(context.Background())
			w.Inject(fake.Fault{Before: fake.NthOf("Move", 1, func() error { cancel(); return nil })})
			kept := &book{}
			if _, err := w.move(ctx, m, kept); err == nil {
				t.Fatal("it was not stopped: this run tested nothing")
			}
			w.Inject(fake.Fault{})
			sees := w.host.Sources.Hypervisors
			w.host.Sources.Hypervisors = []observe.Hypervisor{masked{w.Host, show}}
			if moved, err := w.host.Recover(context.Background(), move.Request{Journal: kept}); err == nil {
				t.Errorf("recovered: %+v", moved)
			}
			if len(journal.CutShort(kept.entries)) != 1 {
				t.Fatalf("the journal has: %+v", kept.entries[len(kept.entries)-1])
			}
			w.host.Sources.Hypervisors = sees
			moved, err := w.host.Recover(context.Background(), move.Request{Journal: kept})
			if err != nil || len(moved) != 1 || !apply.Complete(moved[0].Guests[0].Outcomes) {
				t.Errorf("later: %+v, %v", moved, err)
			}
			w.inPlace(t, "g")
		})
	}
}

// renamed shows a fake host's guests as those of another hypervisor, and fails
// to see them all.
type renamed struct {
	*fake.Host
	name guest.Hypervisor
	err  error
}

func (r renamed) Name() guest.Hypervisor { return r.name }

func (r renamed) Guests(ctx context.Context) ([]inventory.Guest, error) {
	guests, err := r.Host.Guests(ctx)
	for i := range guests {
		guests[i].Hypervisor, guests[i].Can = r.name, inventory.CapabilitiesOf(r.name)
	}
	return guests, errors.Join(err, r.err)
}

// A new placement needs to know the room that the other guests of the same
// hypervisor take, whichever hypervisor that is.
func TestBind_RefusesWhereGuestsOfItsHypervisorAreHidden(t *testing.T) {
	for own, other := range map[guest.Hypervisor]guest.Hypervisor{guest.LibvirtQEMU: guest.PlainQEMU,
		guest.PlainQEMU: guest.LibvirtQEMU} {
		for name, hides := range map[string]guest.Hypervisor{"own": own, "other": other} {
			t.Run(string(own)+"/"+name, func(t *testing.T) {
				w := misplaced(t, kinds[0], folderOf(t))
				shows := renamed{w.Host, own, nil}
				w.host.Sources.Hypervisors = []observe.Hypervisor{shows,
					masked{renamed{w.Host, other, errLost}, func([]inventory.Guest) []inventory.Guest { return nil }}}
				if hides == own {
					shows.err = errLost
					w.host.Sources.Hypervisors = []observe.Hypervisor{shows}
				}
				b, err := w.host.Bind(context.Background(), operate.BindRequest{Name: "g", Anew: true, DryRun: true})
				if hides == other {
					if err != nil || len(b.Gaps) != 1 || !b.Gaps[0].HidesGuestsOf(other) {
						t.Errorf("%v; gaps %v", err, b.Gaps)
					}
					return
				}
				if want := "cannot see VMs of " + own.String() + ", so the free resources are unknown"; err == nil ||
					!strings.Contains(err.Error(), want) {
					t.Errorf("error %v, want one with %q", err, want)
				}
			})
		}
	}
}
