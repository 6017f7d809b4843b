package apply_test

import (
	"context"
	"errors"
	"slices"
	"testing"
	"time"

	"golang.org/x/sys/unix"
	"pgregory.net/rapid"

	"github.com/numavisor/numavisor/internal/host/apply"
	"github.com/numavisor/numavisor/internal/host/fake"
	"github.com/numavisor/numavisor/internal/plan"
	"github.com/numavisor/numavisor/internal/topology"
)

// slicing counts slices, all of one size.
type slicing struct {
	size   topology.Bytes
	slices int
	copied topology.Bytes
	stopAt int
}

func (s *slicing) Next(context.Context) (topology.Bytes, error) {
	if s.slices++; s.slices == s.stopAt {
		return 0, context.Canceled
	}
	return s.size, nil
}

func (s *slicing) Copied(bytes topology.Bytes, _ time.Duration) { s.copied += bytes }

// looked is a kernel that records the requested addresses.
type looked struct {
	*fake.Host
	slices []plan.Part
	fail   func(plan.Step) (plan.Moved, error)
}

func (l *looked) Move(
	ctx context.Context, pid int, s plan.Step, progress func(done, total topology.Bytes),
) (plan.Moved, error) {
	l.slices = append(l.slices, plan.Part{Address: s.Address, Size: s.Size, PageSize: s.PageSize})
	if l.fail != nil {
		if moved, err := l.fail(s); err != nil || moved.Failed > 0 {
			return moved, err
		}
	}
	return plan.Moved{Moved: s.Size}, nil
}

// Slices are disjoint, of whole pages, and cover a mapping to its last byte.
func TestSlicesCoverAMappingOnce(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		page := rapid.SampledFrom([]topology.Bytes{4 * topology.KiB, 2 * mib, topology.GiB}).Draw(t, "page")
		size := page * topology.Bytes(rapid.IntRange(1, 700).Draw(t, "pages"))
		slice := topology.Bytes(rapid.IntRange(1, 300<<20).Draw(t, "slice"))
		k := &looked{Host: fake.MustNew("nodes:1 cores:1")}
		turn := apply.NewTurn(plan.Steps{},
			[]plan.Step{{Kind: plan.MoveRange, Address: 0x1000, Size: size, PageSize: page, Bytes: size}})
		x := apply.Executor{Kernel: k, Clock: time.Now}
		if err := x.Turns(context.Background(), []*apply.Turn{turn}, &slicing{size: slice}, func(*apply.Turn) {}); err != nil ||
			turn.Err != nil {
			t.Fatal(err, turn.Err)
		}
		next := uint64(0x1000)
		for _, s := range k.slices {
			if s.Address != next || s.Size == 0 || s.Size%page != 0 || s.Size > max(slice, page) {
				t.Fatalf("slice %+v after %#x", s, next)
			}
			next += uint64(s.Size)
		}
		if next != 0x1000+uint64(size) {
			t.Errorf("%d bytes of %d were processed", next-0x1000, size)
		}
		turn.Finish()
		if done, total := turn.Done(); done != size || total != size || turn.Outcomes[0].Status != apply.Done ||
			turn.Outcomes[0].Moved.Moved != size {
			t.Errorf("%v of %v, %+v", done, total, turn.Outcomes)
		}
	})
}

func oneRange(address uint64, size topology.Bytes) []plan.Step {
	return []plan.Step{{Kind: plan.MoveRange, Address: address, Size: size, PageSize: 4 * topology.KiB, Bytes: size}}
}

// Pages in use are tried again when the rest is done; the remaining ones
// are reported once.
func TestTurns_RetryPagesInUseOnce(t *testing.T) {
	for _, frees := range []bool{true, false} {
		tries := 0
		k := &looked{Host: fake.MustNew("nodes:1 cores:1")}
		k.fail = func(s plan.Step) (plan.Moved, error) {
			if s.Address != 0 {
				return plan.Moved{}, nil
			}
			if tries++; frees && tries == 2 {
				return plan.Moved{}, nil
			}
			return plan.Moved{
				Moved:  64*mib - 4*topology.KiB,
				Failed: 4 * topology.KiB,
				Why:    map[string]uint64{"EBUSY": 1},
			}, nil
		}
		turn := apply.NewTurn(plan.Steps{}, oneRange(0, 256*mib))
		x := apply.Executor{Kernel: k, Clock: time.Now}
		if err := x.Turns(context.Background(), []*apply.Turn{turn}, &slicing{size: 64 * mib}, func(*apply.Turn) {}); err != nil {
			t.Fatal(err)
		}
		turn.Finish()
		o := turn.Outcomes[0]
		if tries != 2 || len(k.slices) != 5 || k.slices[4].Address != 0 {
			t.Errorf("tried %d times; slices %v", tries, k.slices)
		}
		if frees && o.Status != apply.Done ||
			!frees && (o.Status != apply.Partial || o.Moved.Failed != 4*topology.KiB || o.Moved.Why["EBUSY"] != 1) {
			t.Errorf("the pages are free again: %v, %s %s", frees, o.Status, o.Detail)
		}
	}
}

// One failing turn does not stop the others; one without room on its target ends when
// no other turn makes room.
func TestTurns_ContinueWithoutAFailingOne(t *testing.T) {
	for name, c := range map[string]struct {
		err   error
		first apply.Status
	}{
		"no room":       {unix.ENOMEM, apply.Failed},
		"not permitted": {unix.EPERM, apply.Failed},
	} {
		k := &looked{Host: fake.MustNew("nodes:1 cores:1")}
		k.fail = func(s plan.Step) (plan.Moved, error) {
			if s.Address < 0x10000000 {
				return plan.Moved{}, c.err
			}
			return plan.Moved{}, nil
		}
		turns := []*apply.Turn{apply.NewTurn(plan.Steps{}, oneRange(0, 128*mib)),
			apply.NewTurn(plan.Steps{}, oneRange(0x10000000, 256*mib))}
		x := apply.Executor{Kernel: k, Clock: time.Now}
		if err := x.Turns(context.Background(), turns, &slicing{size: 64 * mib}, func(*apply.Turn) {}); err != nil {
			t.Fatal(err)
		}
		for _, turn := range turns {
			turn.Finish()
		}
		if o := turns[0].Outcomes[0]; o.Status != c.first || !errors.Is(turns[0].Err, c.err) {
			t.Errorf("%s: %+v, %v", name, o, turns[0].Err)
		}
		if o := turns[1].Outcomes[0]; o.Status != apply.Done || turns[1].Err != nil {
			t.Errorf("%s: the other: %+v, %v", name, o, turns[1].Err)
		}
		if len(k.slices) > 12 {
			t.Errorf("%s: tried %d times", name, len(k.slices))
		}
	}
}

// A step with a full target does not delay steps with other targets.
func TestTurns_FullTargetDoesNotDelayOthers(t *testing.T) {
	k := &looked{Host: fake.MustNew("nodes:1 cores:1")}
	k.fail = func(s plan.Step) (plan.Moved, error) {
		if s.Nodes.Contains(1) {
			return plan.Moved{}, unix.ENOMEM
		}
		return plan.Moved{}, nil
	}
	steps := append(oneRange(0, 256*mib), oneRange(0x40000000, 256*mib)...)
	steps[0].Nodes, steps[1].Nodes = nodes("1"), nodes("2")
	turn := apply.NewTurn(plan.Steps{}, steps)
	x := apply.Executor{Kernel: k, Clock: time.Now}
	if err := x.Turns(context.Background(), []*apply.Turn{turn}, &slicing{size: 64 * mib}, func(*apply.Turn) {}); err != nil {
		t.Fatal(err)
	}
	turn.Finish()
	if turn.Outcomes[0].Status != apply.Failed || turn.Outcomes[1].Status != apply.Done ||
		!errors.Is(turn.Err, unix.ENOMEM) {
		t.Errorf("%v: %+v", turn.Err, turn.Outcomes)
	}
}

// When the context ends, copied memory stays counted, and no further slice
// begins.
func TestTurnsStopBetweenSlices(t *testing.T) {
	k := &looked{Host: fake.MustNew("nodes:1 cores:1")}
	turn := apply.NewTurn(plan.Steps{}, oneRange(0, 256*mib))
	x := apply.Executor{Kernel: k, Clock: time.Now}
	pace := &slicing{size: 64 * mib, stopAt: 3}
	if err := x.Turns(context.Background(), []*apply.Turn{turn}, pace, func(*apply.Turn) {}); !errors.Is(err, context.Canceled) {
		t.Errorf("error %v", err)
	}
	turn.Finish()
	done, total := turn.Done()
	if done != 128*mib || total != 256*mib || pace.copied != done || len(k.slices) != 2 ||
		turn.Outcomes[0].Status == apply.Done || turn.Outcomes[0].Arrived() != done {
		t.Errorf("%v of %v in %d slices: %+v", done, total, len(k.slices), turn.Outcomes)
	}
}

// Guests are copied one after the other. Only guests that make room for each
// other take turns: a guest whose target is full continues after each slice that
// another one copies, since that may have made room.
func TestTurns_OneAfterTheOther(t *testing.T) {
	for name, c := range map[string]struct {
		free int // slices that the first guest's target has room for
		want []int
	}{
		"room for all":             {4, []int{1, 1, 1, 2, 2, 2}},
		"they exchange their room": {1, []int{1, 2, 1, 2, 1, 2}},
	} {
		free := c.free
		var order []int
		k := &looked{Host: fake.MustNew("nodes:1 cores:1")}
		k.fail = func(s plan.Step) (plan.Moved, error) {
			if s.Address >= 0x40000000 {
				order, free = append(order, 2), free+1
				return plan.Moved{}, nil
			}
			if free == 0 {
				return plan.Moved{}, unix.ENOMEM
			}
			order, free = append(order, 1), free-1
			return plan.Moved{}, nil
		}
		turns := []*apply.Turn{apply.NewTurn(plan.Steps{}, oneRange(0, 192*mib)),
			apply.NewTurn(plan.Steps{}, oneRange(0x40000000, 192*mib))}
		x := apply.Executor{Kernel: k, Clock: time.Now}
		if err := x.Turns(context.Background(), turns, &slicing{size: 64 * mib}, func(*apply.Turn) {}); err != nil {
			t.Fatal(err)
		}
		if !slices.Equal(order, c.want) || turns[0].Err != nil || turns[1].Err != nil {
			t.Errorf("%s: copied in the order %v, want %v; %v, %v", name, order, c.want, turns[0].Err, turns[1].Err)
		}
	}
}

// Pages that were in use, and the memory of the processes themselves, come after
// the guest memory of all guests, and only those are tried again page by page.
func TestTurns_LeavesTheRestToTheEnd(t *testing.T) {
	k := &looked{Host: fake.MustNew("nodes:1 cores:1")}
	busy := map[uint64]bool{0x40000000: true}
	var quick []bool
	k.fail = func(s plan.Step) (plan.Moved, error) {
		quick = append(quick, s.Quick)
		if busy[s.Address] {
			busy[s.Address] = false
			return plan.Moved{Moved: s.Size - 4096, Failed: 4096}, nil
		}
		return plan.Moved{}, nil
	}
	own := func(address uint64) plan.Step {
		part := plan.Part{Address: address, Size: mib, PageSize: 4096}
		return plan.Step{Kind: plan.MoveOwn, Bytes: mib, Parts: []plan.Part{part}}
	}
	turns := []*apply.Turn{
		apply.NewTurn(plan.Steps{}, append(oneRange(0x40000000, 64*mib), own(1<<40))),
		apply.NewTurn(plan.Steps{}, append([]plan.Step{own(1 << 41)}, oneRange(0x80000000, 64*mib)...)),
	}
	x := apply.Executor{Kernel: k, Clock: time.Now}
	if err := x.Turns(context.Background(), turns, &slicing{size: 64 * mib}, func(*apply.Turn) {}); err != nil {
		t.Fatal(err)
	}
	var order []uint64
	for _, s := range k.slices {
		order = append(order, s.Address)
	}
	want := []uint64{0x40000000, 0x80000000, 0x40000000, 1 << 40, 1 << 41}
	if !slices.Equal(order, want) || !slices.Equal(quick, []bool{true, true, false, true, true}) {
		t.Errorf("copied %#x, quick %v", order, quick)
	}
}
