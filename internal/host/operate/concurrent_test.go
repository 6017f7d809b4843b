package operate_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"

	"github.com/numavisor/numavisor/internal/decide/place"
	"github.com/numavisor/numavisor/internal/guest"
	"github.com/numavisor/numavisor/internal/host/fake"
	"github.com/numavisor/numavisor/internal/host/observe"
	"github.com/numavisor/numavisor/internal/host/operate"
	"github.com/numavisor/numavisor/internal/inventory"
	"github.com/numavisor/numavisor/internal/topology"
)

// together creates guests at the same time, each as a program of its own would:
// they share only the host and the ledger's folder. None starts before all are
// decided, so that only claims separate them.
func together(w world, specs []guest.Spec) []error {
	errs := make([]error, len(specs))
	var all, deciding sync.WaitGroup
	deciding.Add(len(specs))
	for i, s := range specs {
		all.Go(func() {
			decided := sync.OnceFunc(deciding.Done)
			defer decided()
			program := *w.Joined
			program.Domains = late{w.Joined.Domains, func() { decided(); deciding.Wait() }}
			_, errs[i] = program.Create(context.Background(), operate.CreateRequest{Spec: s, Render: render})
		})
	}
	all.Wait()
	return errs
}

// late starts guests when it may.
type late struct {
	operate.Domains
	wait func()
}

func (l late) Start(ctx context.Context, definition guest.Definition, transient bool) error {
	l.wait()
	return l.Domains.Start(ctx, definition, transient)
}

// Guests that are created at the same time never get the same resources: no node
// promises more memory than it has, no CPU is exclusive to two guests, and every
// created guest is on its nodes.
func TestCreate_ConcurrentGuestsNeverShareRoom(t *testing.T) {
	w := newWorld(t, "nodes:4 cores:4 memory:2G huge:2M=128 square", folderOf(t))
	var asked []guest.Spec
	for i := range 16 {
		s := guest.Spec{Name: fmt.Sprintf("g%d", i), VCPUs: 2, Memory: 400 * mib}
		switch i % 4 {
		case 1:
			s.CPU.Binding = guest.CPUExclusive
		case 2:
			s.PageSize = 2 * mib
		case 3:
			s.Binding.Immediate = true
		}
		asked = append(asked, spec(t, s))
	}
	made := 0
	for i, err := range together(w, asked) {
		var noFit *place.NoFitError
		switch {
		case err == nil:
			made++
			w.CheckInPlace(t, asked[i].Name)
		case !errors.As(err, &noFit):
			t.Errorf("guest %s: %v", asked[i].Name, err)
		}
	}
	if made < 4 {
		t.Errorf("%d guests were made; each of four nodes has room for one", made)
	}
	promised, exclusive := topology.MemoryByNode{}, topology.CPUSet{}
	for _, s := range asked {
		g, ok := w.Guest(s.Name)
		if !ok {
			continue
		}
		for _, r := range g.Placement.Reservations {
			promised[r.Node] += r.Memory
		}
		if own := g.Placement.Exclusive(); own.Intersects(exclusive) {
			t.Errorf("guest %s: CPUs %s are exclusive to two guests", s.Name, own.Intersect(exclusive))
		} else {
			exclusive = exclusive.Union(own)
		}
	}
	for _, n := range w.Nodes().Nodes {
		if promised[n.ID] > n.Memory {
			t.Errorf("node %d: %v promised, it has %v", n.ID, promised[n.ID], n.Memory)
		}
	}
	w.CheckSettled(t)
}

func TestCreate_ConcurrentGuestsOfOneName(t *testing.T) {
	w := newWorld(t, square, folderOf(t))
	asked := make([]guest.Spec, 8)
	for i := range asked {
		asked[i] = spec(t, specs["small"])
	}
	made := 0
	for _, err := range together(w, asked) {
		switch {
		case err == nil:
			made++
		case !errors.Is(err, operate.ErrExists):
			t.Errorf("error %v, want ErrExists", err)
		}
	}
	if made != 1 {
		t.Errorf("made %d times", made)
	}
	w.CheckInPlace(t, "new")
	w.CheckSettled(t)
}

// Free pages of a pool that are promised to another guest do not count as free
// for this one, although they are still free when it starts.
func TestCreate_ConcurrentGuestsGrowPools(t *testing.T) {
	w := newWorld(t, "nodes:1 cores:4 memory:4G huge:2M=64", folderOf(t))
	var asked []guest.Spec
	for i := range 3 {
		asked = append(asked,
			spec(t, guest.Spec{Name: fmt.Sprintf("g%d", i), VCPUs: 1, Memory: 256 * mib, PageSize: 2 * mib}))
	}
	for i, err := range together(w, asked) {
		if err != nil {
			t.Errorf("guest %d: %v", i, err)
		}
	}
	if pages := w.Pools()[0]; pages != 3*128 {
		t.Errorf("the pool has %d pages; three guests need 128 each", pages)
	}
	for _, s := range asked {
		if err := w.Joined.Delete(context.Background(), operate.DeleteRequest{Name: s.Name}); err != nil {
			t.Error(err)
		}
	}
	if pages := w.Pools()[0]; pages != 64 {
		t.Errorf("the pool has %d pages after all are deleted, 64 before", pages)
	}
	w.CheckSettled(t)
}

// Two concurrent binds of one guest would undo each other, and the first to end
// would release the claim of the other.
func TestBind_OneAtATime(t *testing.T) {
	w := misplaced(t, kinds[0], folderOf(t))
	var second error
	w.Inject(fake.Fault{Before: fake.NthOf("Record", 1, func() error {
		_, second = w.Joined.Bind(context.Background(), operate.BindRequest{Name: "g", Change: limitTo("3")})
		return nil
	})})
	b, err := elsewhere(context.Background(), w)
	if err != nil || len(b.Truth.Differences) > 0 {
		t.Errorf("the first: %v, falls short: %v", err, b.Shortfalls())
	}
	if !errors.Is(second, operate.ErrBusy) {
		t.Errorf("the second: %v, want ErrBusy", second)
	}
	w.CheckInPlace(t, "g")
	w.CheckSettled(t)
}

// partial is a hypervisor that lists its guests with incomplete facts.
type partial struct{ *fake.Host }

func (p partial) Guests(ctx context.Context) ([]inventory.Guest, error) {
	guests, err := p.Host.Guests(ctx)
	return guests, errors.Join(err, errLost)
}

// Nothing is placed while other guests are unknown; a recorded placement can
// still be repaired.
func TestBind_NoNewPlacementWithHiddenGuests(t *testing.T) {
	w := newWorld(t, square, folderOf(t))
	if _, err := w.Create(spec(t, specs["small"])); err != nil {
		t.Fatal(err)
	}
	if err := w.Smear("new", nodes("0-3")); err != nil {
		t.Fatal(err)
	}
	w.Joined.Sources.Hypervisors = []observe.Hypervisor{partial{w.Host}}
	before := w.MustGuest(t, "new")
	if _, err := w.Joined.Bind(context.Background(), operate.BindRequest{Name: "new", Recompute: true}); err == nil ||
		!strings.Contains(err.Error(), "so the free resources are unknown") {
		t.Errorf("error %v", err)
	}
	w.CheckUnchanged(t, before)
	if _, err := w.Create(spec(t, guest.Spec{Name: "other", VCPUs: 1, Memory: 64 * mib})); err == nil ||
		!strings.Contains(err.Error(), "so the free resources are unknown") {
		t.Errorf("create: error %v", err)
	}
	if b, err := w.Bind("new"); err != nil || !b.Complete() {
		t.Errorf("repair: %v, falls short: %v", err, b.Shortfalls())
	}
	w.CheckSettled(t)
}
