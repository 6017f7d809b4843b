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
)

// elsewhere is a bind that moves the guest to nodes where nothing of it is yet.
func elsewhere(ctx context.Context, w world) (operate.Bound, error) {
	return w.Joined.Bind(ctx, operate.BindRequest{Name: "g", Change: limitTo("0,2")})
}

// Whatever call fails, in whatever way: the guest runs on, the claim is
// released, every step has an outcome, nothing is called complete that is not,
// and once the fault is over another bind finishes the work.
func TestBindSurvivesABreakAtEveryCall(t *testing.T) {
	folder := folderOf(t)
	for _, k := range kinds {
		clean := misplaced(t, k, folder)
		if _, err := elsewhere(context.Background(), clean); err != nil {
			t.Fatalf("%s: %v", k.Name, err)
		}
		calls := clean.Calls()
		for _, b := range breakages {
			t.Run(k.Name+"/"+b.Name, func(t *testing.T) {
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
	w.Inject(b.Fault(w, call.N, cancel))
	bound, err := elsewhere(ctx, w)
	w.Inject(fake.Fault{})
	w.Drain()

	if w.StartTicksOf("g") != started && !b.Ends {
		t.Fatalf("%s: the guest does not run on", where)
	}
	if claims, err := w.Joined.Ledger.Claims(); err != nil || len(claims) > 0 {
		t.Errorf("%s: claims left behind: %v, %v", where, claims, err)
	}
	if bound.Outcomes != nil && len(bound.Outcomes) != len(bound.Plan.Steps) {
		t.Errorf("%s: %d outcomes for %d steps", where, len(bound.Outcomes), len(bound.Plan.Steps))
	}
	if bound.Outcomes != nil && err == nil && bound.Plan.Basis.StartTicks != w.StartTicksOf("g") {
		t.Errorf("%s: no error, although the guest that was bound is gone", where)
	}
	if err == nil && bound.Complete() {
		w.CheckInPlace(t, "g")
	}
	if err == nil && !bound.Complete() && len(bound.Shortfalls()) == 0 {
		t.Errorf("%s: incomplete, with no reason given", where)
	}
	if w.StartTicksOf("g") == 0 {
		return
	}
	finished, err := elsewhere(context.Background(), w)
	if err != nil || len(finished.Truth.Differences) > 0 {
		t.Errorf("%s: the next bind does not finish the work: %v %v", where, err, finished.Shortfalls())
	}
	w.CheckInPlace(t, "g")
	w.CheckSettled(t)
}

// A guest that shows no difference because nothing of it could be seen is not in place.
func TestBind_UnverifiedIsNotComplete(t *testing.T) {
	for _, method := range []string{"Threads", "Ranges"} {
		w := misplaced(t, kinds[0], folderOf(t))
		w.Inject(fake.Fault{Before: fake.NthOf(method, 2, func() error { return errLost })})
		b, err := elsewhere(context.Background(), w)
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
	if _, err := elsewhere(context.Background(), w); !errors.Is(err, apply.ErrGone) {
		t.Errorf("error %v, want that the guest is gone", err)
	}
}
