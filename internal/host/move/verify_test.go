package move_test

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	"github.com/numavisor/numavisor/internal/host/apply"
	"github.com/numavisor/numavisor/internal/host/move"
	"github.com/numavisor/numavisor/internal/host/observe"
	"github.com/numavisor/numavisor/internal/inventory"
	"github.com/numavisor/numavisor/internal/journal"
	"github.com/numavisor/numavisor/internal/plan"
	"github.com/numavisor/numavisor/internal/topology"
)

// pretending is a kernel that says that it has copied memory, and has not.
type pretending struct{ apply.Kernel }

func (pretending) Move(
	_ context.Context, _ int, step plan.Step, _ func(done, total topology.Bytes),
) (plan.Moved, error) {
	return plan.Moved{Moved: step.Size}, nil
}

// unmeasured is a kernel without figures of a guest's memory by node.
type unmeasured struct{ *pulling }

func (unmeasured) Memory(inventory.Guest) (topology.MemoryByNode, string, error) {
	return nil, "", errLost
}

// The kernel walks all memory of a guest to show its mappings. A move of the daemon to one node reads them before it
// begins, and at its end only if figures by node do not show that the memory is in place.
func TestMove_VerifiesByNode(t *testing.T) {
	for name, c := range map[string]struct {
		change func(*world, *move.Request)
		read   int
		end    journal.Kind
	}{
		"in place": {func(*world, *move.Request) {}, 2, journal.MoveDone},
		"not in place": {func(w *world, _ *move.Request) {
			w.Joined.Kernel = pretending{w.Joined.Kernel}
		}, 4, journal.MovePartial},
		"not measured": {func(w *world, _ *move.Request) {
			k, ok := w.Joined.Sources.Kernel.(*pulling)
			if !ok {
				t.Fatal("another kernel")
			}
			w.Joined.Sources.Kernel = unmeasured{k}
		}, 4, journal.MoveDone},
		"a command": {func(_ *world, r *move.Request) { r.Later = false }, 4, journal.MoveDone},
	} {
		synctest.Test(t, func(t *testing.T) {
			_, p, _, moved, err := pulledMove(t, 0, func(w *world, r *move.Request) {
				r.Pull, r.Later = false, true
				c.change(w, r)
			})
			if err != nil || moved.End != c.end {
				t.Errorf("%s: %v: %s, want %s", name, err, moved.End, c.end)
			}
			if p.read != c.read {
				t.Errorf("%s: mappings were read %d times, want %d", name, p.read, c.read)
			}
		})
	}
}

// sluggish is a hypervisor that answers late, as xl does on a busy host.
type sluggish struct{ observe.Hypervisor }

func (h sluggish) Guests(ctx context.Context) ([]inventory.Guest, error) {
	select {
	case <-ctx.Done():
		return nil, ctx.Err()
	case <-time.After(80 * time.Second):
		return h.Hypervisor.Guests(ctx)
	}
}

// A host that is slow to show its guests does not cause a rollback.
func TestMove_VerifiesOnASlowHost(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		_, _, _, moved, err := pulledMove(t, 0, func(w *world, r *move.Request) {
			r.Pull = false
			for i, h := range w.Joined.Sources.Hypervisors {
				w.Joined.Sources.Hypervisors[i] = sluggish{h}
			}
		})
		if err != nil || !moved.Complete() {
			t.Errorf("%v: %s %v", err, moved.End, moved.Shortfalls())
		}
	})
}
