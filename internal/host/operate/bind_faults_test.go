package operate_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"

	"github.com/numavisor/numavisor/internal/host/apply"
	"github.com/numavisor/numavisor/internal/host/fake"
	"github.com/numavisor/numavisor/internal/host/operate"
	"github.com/numavisor/numavisor/internal/topology"
)

var errLost = errors.New("the machine is on fire")

// breakage is one way in which the world breaks at one call.
type breakage struct {
	name  string
	fault func(w world, call int, cancel func()) fake.Fault
	ends  bool // the guest that was to be bound is no longer there
}

func before(call int, do func() error) fake.Fault { return fake.Fault{Before: fake.Nth(call, do)} }

var breakages = []breakage{
	{name: "the call fails", fault: func(_ world, call int, _ func()) fake.Fault {
		return before(call, func() error { return errLost })
	}},
	{name: "the call is done, its answer lost", fault: func(_ world, call int, _ func()) fake.Fault {
		return fake.Fault{After: fake.Nth(call, func() error { return errLost })}
	}},
	{name: "the context ends", fault: func(_ world, call int, cancel func()) fake.Fault {
		return before(call, func() error { cancel(); return nil })
	}},
	{name: "all nodes fill up", fault: func(w world, call int, _ func()) fake.Fault {
		return before(call, func() error {
			for id := range topology.NodeID(4) {
				w.Fill(id, 0)
			}
			return nil
		})
	}},
	{name: "the guest ends", ends: true, fault: func(w world, call int, _ func()) fake.Fault {
		return before(call, func() error { w.Vanish("g"); return nil })
	}},
	{
		name: "another guest takes its name and process id",
		ends: true,
		fault: func(w world, call int, _ func()) fake.Fault {
			return before(call, func() error { return w.Replace(replacement) })
		},
	},
}

// replacement is what takes the place of a guest: its vCPU is on other CPUs
// than its memory, so that it is not in place by chance.
var replacement = kinds[0].guest("g", 32*mib, []topology.NodeID{1}, cpus("12-15"))

// misplaced is a guest of a kind whose vCPUs are far from its memory, alone on its host.
func misplaced(t tester, k kind, folder string) world {
	t.Helper()
	w := newWorld(t, square, folder)
	w.add(t, k.guest("g", 32*mib, []topology.NodeID{1, 2}, cpus("12-15")))
	return w
}

// elsewhere is a bind that moves the guest to nodes where nothing of it is yet.
func (w world) elsewhere(ctx context.Context) (operate.Bound, error) {
	return w.host.Bind(ctx, operate.BindRequest{Name: "g", Change: limitTo("0,2")})
}

// Whatever call fails, in whatever way: the guest runs on, the claim is
// released, every step has an outcome, nothing is called complete that is not,
// and once the fault is over another bind finishes the work.
func TestBindSurvivesABreakAtEveryCall(t *testing.T) {
	folder := folderOf(t)
	for _, k := range kinds {
		clean := misplaced(t, k, folder)
		if _, err := clean.elsewhere(context.Background()); err != nil {
			t.Fatalf("%s: %v", k.name, err)
		}
		calls := clean.Calls()
		for _, b := range breakages {
			t.Run(k.name+"/"+b.name, func(t *testing.T) {
				for _, call := range calls {
					brokenBind(t, misplaced(t, k, folder), b, call)
				}
			})
		}
	}
}

func brokenBind(t *testing.T, w world, b breakage, call fake.Call) {
	t.Helper()
	where := fmt.Sprintf("call %d (%s)", call.N, call.Method)
	started := w.StartTicksOf("g")
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	w.Inject(b.fault(w, call.N, cancel))
	bound, err := w.elsewhere(ctx)
	w.Inject(fake.Fault{})
	w.Drain()

	if w.StartTicksOf("g") != started && !b.ends {
		t.Fatalf("%s: the guest does not run on", where)
	}
	if claims, err := w.host.Ledger.Claims(); err != nil || len(claims) > 0 {
		t.Errorf("%s: claims left behind: %v, %v", where, claims, err)
	}
	if bound.Outcomes != nil && len(bound.Outcomes) != len(bound.Plan.Steps) {
		t.Errorf("%s: %d outcomes for %d steps", where, len(bound.Outcomes), len(bound.Plan.Steps))
	}
	if bound.Outcomes != nil && err == nil && bound.Plan.Basis.StartTicks != w.StartTicksOf("g") {
		t.Errorf("%s: no error, although the guest that was bound is gone", where)
	}
	if err == nil && bound.Complete() {
		w.inPlace(t, "g")
	}
	if err == nil && !bound.Complete() && len(bound.Shortfalls()) == 0 {
		t.Errorf("%s: incomplete without a word why", where)
	}
	if w.StartTicksOf("g") == 0 {
		return
	}
	finished, err := w.elsewhere(context.Background())
	if err != nil || len(finished.Truth.Differences) > 0 {
		t.Errorf("%s: the next bind does not finish the work: %v %v", where, err, finished.Shortfalls())
	}
	w.inPlace(t, "g")
	w.settled(t)
}

// A guest that shows no difference because nothing of it could be seen is not in place.
func TestBind_UnverifiedIsNotComplete(t *testing.T) {
	for _, method := range []string{"Threads", "Ranges"} {
		w := misplaced(t, kinds[0], folderOf(t))
		w.Inject(fake.Fault{Before: fake.NthOf(method, 2, func() error { return errLost })})
		b, err := w.elsewhere(context.Background())
		if err == nil || !strings.Contains(err.Error(), errLost.Error()) {
			t.Errorf("%s failed when the bind was verified, yet: %v, truth %+v", method, err, b.Truth)
		}
		if !apply.Complete(b.Outcomes) {
			t.Errorf("%s: the steps themselves were done: %v", method, b.Outcomes)
		}
	}
}

// A well-placed replacement of the guest is not the guest that was bound.
func TestBind_DetectsAReplacedGuest(t *testing.T) {
	w := misplaced(t, kinds[0], folderOf(t))
	w.Inject(fake.Fault{Before: fake.NthOf("Guests", 2, func() error { return w.Replace(replacement) })})
	if _, err := w.elsewhere(context.Background()); !errors.Is(err, apply.ErrGone) {
		t.Errorf("error %v, want that the guest is gone", err)
	}
}
