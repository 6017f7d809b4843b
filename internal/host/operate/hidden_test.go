package operate_test

import (
	"context"
	"errors"
	"strings"
	"testing"

	"github.com/numavisor/numavisor/internal/guest"
	"github.com/numavisor/numavisor/internal/host/fake"
	"github.com/numavisor/numavisor/internal/host/observe"
	"github.com/numavisor/numavisor/internal/host/operate"
	"github.com/numavisor/numavisor/internal/inventory"
)

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

// A new placement requires a complete list of the guests of the same hypervisor,
// whichever hypervisor that is.
func TestBind_RefusesWhereGuestsOfItsHypervisorAreHidden(t *testing.T) {
	for own, other := range map[guest.Hypervisor]guest.Hypervisor{guest.LibvirtQEMU: guest.PlainQEMU,
		guest.PlainQEMU: guest.LibvirtQEMU} {
		for name, hides := range map[string]guest.Hypervisor{"own": own, "other": other} {
			t.Run(string(own)+"/"+name, func(t *testing.T) {
				w := misplaced(t, kinds[0], folderOf(t))
				shows := renamed{w.Host, own, nil}
				w.Joined.Sources.Hypervisors = []observe.Hypervisor{shows,
					masked{Hypervisor: renamed{w.Host, other, errLost},
						Show: func([]inventory.Guest) []inventory.Guest { return nil }}}
				if hides == own {
					shows.err = errLost
					w.Joined.Sources.Hypervisors = []observe.Hypervisor{shows}
				}
				b, err := w.Joined.Bind(context.Background(),
					operate.BindRequest{Name: "g", Recompute: true, DryRun: true})
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
