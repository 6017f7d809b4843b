package operate_test

import (
	"context"
	"errors"
	"fmt"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/numavisor/numavisor/internal/host/fake"
	"github.com/numavisor/numavisor/internal/host/operate"
	"github.com/numavisor/numavisor/internal/topology"
)

// createBreakages are those of a bind, and the end of the guest that is created.
var createBreakages = append(
	breakages[:4:4],
	breakage{Name: "the guest ends at once", Fault: func(w world, call int, _ func()) fake.Fault {
		return before(call, func() error { w.Vanish("new"); return nil })
	}},
)

// Whichever call fails, in whatever way: no other guest is touched, the claim
// is released, a missing guest has left nothing behind, an existing one that
// differs from the request is reported, and deleting it leaves nothing.
func TestCreateSurvivesABreakAtEveryCall(t *testing.T) {
	folder := folderOf(t)
	for name, asked := range specs {
		clean := neighboured(t, folder)
		if _, err := clean.Create(spec(t, asked)); err != nil {
			t.Fatalf("%s: %v", name, err)
		}
		calls := clean.Calls()
		for _, b := range createBreakages {
			t.Run(name+"/"+b.Name, func(t *testing.T) {
				for _, call := range calls {
					brokenCreate(t, neighboured(t, folder), name, b, call)
				}
			})
		}
	}
}

// neighboured is a host with a guest on each of two nodes.
func neighboured(t tester, folder string) world {
	t.Helper()
	w := newWorld(t, square, folder)
	w.MustAdd(t, kinds[3].Guest("other", 64*mib, []topology.NodeID{1}, cpus("4-7")))
	w.Inject(fake.Fault{})
	return w
}

func brokenCreate(t *testing.T, w world, name string, b breakage, call fake.Call) {
	t.Helper()
	where := fmt.Sprintf("call %d (%s)", call.N, call.Method)
	asked := spec(t, specs[name])
	other, empty := w.MustGuest(t, "other"), w.Nodes()
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	w.Inject(b.Fault(w, call.N, cancel))
	made, err := w.Joined.Create(ctx, operate.CreateRequest{Spec: asked, Render: render})
	w.Inject(fake.Fault{})
	w.Drain()

	w.CheckUnchanged(t, other)
	w.CheckSettled(t)
	if err == nil && len(made.Shortfalls()) == 0 {
		w.CheckInPlace(t, "new")
	}
	if _, there := w.Guest("new"); !there {
		if err == nil {
			t.Errorf("%s: no guest and no error", where)
		}
		if diff := cmp.Diff(empty, w.Nodes()); diff != "" {
			t.Errorf("%s: %v; left behind (-before +after):\n%s", where, err, diff)
		}
		if _, err := w.Create(asked); err != nil {
			t.Errorf("%s: the next create fails: %v", where, err)
		}
	} else if _, err := w.Create(asked); !errors.Is(err, operate.ErrExists) {
		t.Errorf("%s: the guest exists, but creating it again: %v", where, err)
	}
	if err := w.Joined.Delete(context.Background(), operate.DeleteRequest{Name: "new"}); err != nil {
		t.Errorf("%s: deleting it: %v", where, err)
	}
	if diff := cmp.Diff(empty, w.Nodes()); diff != "" {
		t.Errorf("%s: left behind by a delete (-before +after):\n%s", where, diff)
	}
}
