package observe_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/numavisor/numavisor/internal/guest"
	"github.com/numavisor/numavisor/internal/host/fake"
	"github.com/numavisor/numavisor/internal/host/observe"
	"github.com/numavisor/numavisor/internal/inventory"
	"github.com/numavisor/numavisor/internal/topology"
)

var errLost = errors.New("lost")

// sources is a host with guests a and b.
func sources(t *testing.T) (*fake.Host, observe.Sources) {
	t.Helper()
	h := fake.MustNew("nodes:2 cores:2 memory:1G")
	for _, name := range []string{"b", "a"} {
		if err := h.Add(fake.Definition{Name: name, Config: inventory.Config{VCPUs: 1, Memory: 128 * topology.MiB,
			Source: "anonymous"}}); err != nil {
			t.Fatal(err)
		}
	}
	return h, observe.Sources{Kernel: h, Hypervisors: []observe.Hypervisor{h},
		Now: func() time.Time { return time.Unix(1, 0) }, HostName: func() (string, error) { return "box", nil }}
}

func names(h inventory.Host) string {
	var all []string
	for _, g := range h.Guests {
		all = append(all, g.Name)
	}
	return strings.Join(all, " ")
}

func TestHost_Complete(t *testing.T) {
	_, s := sources(t)
	s.Housekeeping = topology.MustParseSet[topology.CPUID]("0")
	h, err := observe.Host(context.Background(), s, "b")
	if err != nil || len(h.Gaps) > 0 {
		t.Fatalf("%v, gaps %v", err, h.Gaps)
	}
	if h.Name != "box" || h.Version != inventory.Version || !h.Taken.Equal(time.Unix(1, 0)) || names(h) != "a b" ||
		h.Topology.Housekeeping.String() != "0" {
		t.Errorf("host %q version %d of %v, guests %q, housekeeping %s", h.Name, h.Version, h.Taken, names(h),
			h.Topology.Housekeeping)
	}
	a, b := h.Guests[0].Seen, h.Guests[1].Seen
	if len(a.Threads) != 2 || len(a.MemoryByNode) == 0 || a.CgroupPath == "" || a.MemorySource == "" ||
		a.ThreadSource == "" {
		t.Errorf("some facts are missing: %+v", a)
	}
	if a.Ranges != nil || len(b.Ranges) == 0 ||
		!slices.ContainsFunc(b.Ranges, func(r inventory.MemoryRange) bool { return r.Cell != nil }) {
		t.Errorf("only b's mappings should be read; cells assigned: a %v, b %v", a.Ranges, b.Ranges)
	}
}

// What a source cannot read is a gap with the object and the reason; the rest
// is complete.
func TestHost_UnreadableFactsAreGaps(t *testing.T) {
	for _, c := range []struct{ method, gap, guests string }{
		{"Guests", "host: VMs of qemu: lost", ""},
		{"Threads", "guest a: its threads: lost", "a b"},
		{"Cgroup", "guest a: its cgroup: lost", "a b"},
		{"Memory", "guest a: its memory by node: lost", "a b"},
		{"Ranges", "guest a: its mappings: lost", "a b"},
	} {
		h, s := sources(t)
		h.Inject(fake.Fault{Before: fake.NthOf(c.method, 1, func() error { return errLost })})
		seen, err := observe.Host(context.Background(), s, "a")
		if err != nil || len(seen.Gaps) != 1 || names(seen) != c.guests {
			t.Errorf("%s: %v, guests %q, gaps %v", c.method, err, names(seen), seen.Gaps)
			continue
		}
		if g := seen.Gaps[0]; g.Object.String()+": "+g.What+": "+g.Why != c.gap {
			t.Errorf("%s: gap %+v, want %s", c.method, g, c.gap)
		}
	}
}

// A hypervisor that is not installed is reported, and hides no guests; one that
// does not answer hides guests.
func TestHost_OnlyAnInstalledHypervisorHidesGuests(t *testing.T) {
	for _, c := range []struct {
		err   error
		gap   string
		hides bool
	}{
		{errLost, "VMs of qemu: lost", true},
		{fmt.Errorf("%w: %w", observe.ErrNotInstalled, errLost), "the hypervisor qemu: not on this host: lost", false},
	} {
		h, s := sources(t)
		h.Inject(fake.Fault{Before: fake.NthOf("Guests", 1, func() error { return c.err })})
		seen, err := observe.Host(context.Background(), s)
		if err != nil || len(seen.Gaps) != 1 || seen.Gaps[0].What+": "+seen.Gaps[0].Why != c.gap ||
			(len(seen.HiddenBy()) > 0) != c.hides {
			t.Errorf("%v: %v, gaps %v, hiding guests %v", c.err, err, seen.Gaps, seen.HiddenBy())
		}
	}
}

func TestWithoutTopologyOrTimeThereIsNoInventory(t *testing.T) {
	h, s := sources(t)
	h.Inject(fake.Fault{Before: fake.NthOf("Topology", 1, func() error { return errLost })})
	if _, err := observe.Host(context.Background(), s); !errors.Is(err, errLost) {
		t.Errorf("error %v", err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	if _, err := observe.Host(ctx, s); !errors.Is(err, context.Canceled) {
		t.Errorf("error %v", err)
	}
}

// Listing needs no reservations, so a damaged one is a gap, and the others are
// listed. Decisions about room use RoomHiddenBy.
func TestHost_DamagedClaimIsAGapThatHidesRoom(t *testing.T) {
	_, s := sources(t)
	good := inventory.Claim{Name: "c", Placement: guest.Placement{Guest: "c"}}
	s.Claims = func() ([]inventory.Claim, error) {
		return []inventory.Claim{good}, errors.Join(errLost, errors.New("also lost"))
	}
	seen, err := observe.Host(t.Context(), s)
	if err != nil {
		t.Fatalf("a damaged reservation hides the host: %v", err)
	}
	want := []inventory.Gap{inventory.ClaimsGap("lost; also lost")}
	if diff := cmp.Diff(want, seen.RoomHiddenBy()); diff != "" {
		t.Errorf("gaps that hide room (-want +got):\n%s", diff)
	}
	if len(seen.HiddenBy()) > 0 || len(seen.Claims) != 1 || names(seen) != "a b" {
		t.Errorf("hidden guests %v, claims %v, guests %q", seen.HiddenBy(), seen.Claims, names(seen))
	}
}

// An operator's setting for CPUs or nodes that the host does not have was meant
// for another host, or is a mistake: no decision is made with it.
func TestHost_RefusesFiguresOfAnotherHost(t *testing.T) {
	_, s := sources(t)
	s.Housekeeping = topology.MustParseSet[topology.CPUID]("0,99")
	if _, err := observe.Host(context.Background(), s); !errors.Is(err, topology.ErrNotHere) ||
		!strings.Contains(err.Error(), "99") {
		t.Errorf("housekeeping CPU 99: error %v", err)
	}
	_, s = sources(t)
	s.Measured = &topology.Measured{Nodes: []topology.NodeID{0, 5}, LatencyNanos: [][]float64{{85, 140}, {140, 85}}}
	if _, err := observe.Host(context.Background(), s); !errors.Is(err, topology.ErrNotHere) ||
		!strings.Contains(err.Error(), "nodes 5") {
		t.Errorf("figures of node 5: error %v", err)
	}
}

func TestHost_OmitsAGuestThatEnds(t *testing.T) {
	h, s := sources(t)
	h.Inject(fake.Fault{Before: fake.NthOf("Threads", 1, func() error { h.Vanish("a"); return nil })})
	seen, err := observe.Host(context.Background(), s)
	if err != nil || names(seen) != "b" || len(seen.Gaps) != 1 ||
		!strings.Contains(seen.Gaps[0].Why, "ended during the observation") {
		t.Errorf("%v, guests %q, gaps %v", err, names(seen), seen.Gaps)
	}
}

// plain lists processes of libvirt's guests a second time, and one of its own.
type plain struct{ guests []inventory.Guest }

func (plain) Name() guest.Hypervisor                              { return guest.PlainQEMU }
func (p plain) Guests(context.Context) ([]inventory.Guest, error) { return p.guests, nil }
func claims(c ...inventory.Claim) func() ([]inventory.Claim, error) {
	return func() ([]inventory.Claim, error) { return c, nil }
}

func TestHost_ProcessOfTwoSources(t *testing.T) {
	h, s := sources(t)
	a, _ := h.Guest("a")
	pid := h.AddProgram(1, topology.MiB, 0)
	s.Hypervisors = append(s.Hypervisors,
		plain{[]inventory.Guest{{Name: "a-again", PID: a.PID}, {Name: "own", PID: pid}, {Name: "off"}, {Name: "off2"}}})
	seen, err := observe.Host(context.Background(), s)
	if err != nil || names(seen) != "a b off off2 own" {
		t.Errorf("%v, guests %q", err, names(seen))
	}
}

// A claim stays as long as its holder has it, even if the guest shows the
// same placement already: the guest is being bound.
func TestHost_Claims(t *testing.T) {
	h, s := sources(t)
	placed := guest.Placement{Guest: "a", Nodes: topology.SetOf[topology.NodeID](0)}
	if err := h.Record(context.Background(), "a", guest.Intent{Placement: placed}); err != nil {
		t.Fatal(err)
	}
	want := []inventory.Claim{
		{Name: "a", Holder: 812, By: "alice", Since: time.Unix(1700000000, 0).UTC(), Placement: placed},
		{Name: "c", Holder: 812, Placement: placed},
		{Name: "p", PID: 7, Holder: 7, Placement: placed},
	}
	s.Claims = claims(want...)
	seen, err := observe.Host(context.Background(), s)
	if diff := cmp.Diff(want, seen.Claims); err != nil || diff != "" {
		t.Errorf("%v (-want +got):\n%s", err, diff)
	}
	for name, want := range map[string]bool{"a": true, "b": false, "c": true, "p": false} {
		if _, ok := seen.Claim(name); ok != want {
			t.Errorf("guest %s is claimed: %v, want %v", name, ok, want)
		}
	}
}

func TestProcess(t *testing.T) {
	h, _ := sources(t)
	pid := h.AddProgram(3, 10*topology.MiB, 1)
	g, err := observe.Process(context.Background(), h, pid)
	if err != nil {
		t.Fatal(err)
	}
	if g.PID != pid || g.Hypervisor != "process" || len(g.Seen.Threads) != 3 || g.Config.Memory != 10*topology.MiB ||
		g.Seen.MemoryByNode[1] != 10*topology.MiB ||
		g.Config.VCPUs != 0 {
		t.Errorf("process seen as %+v", g)
	}
	for _, method := range []string{"Threads", "Ranges"} {
		h.Inject(fake.Fault{Before: fake.NthOf(method, 1, func() error { return errLost })})
		if _, err := observe.Process(context.Background(), h, pid); !errors.Is(err, errLost) {
			t.Errorf("%s: error %v", method, err)
		}
	}
}

// With a hypervisor that hangs, each further call would wait for its deadline.
func TestHost_WithoutPoolsAsksForNothingElse(t *testing.T) {
	h, s := sources(t)
	s.Pools = func(context.Context) ([]inventory.Pool, error) { return nil, errLost }
	asked := false
	h.Inject(fake.Fault{Before: fake.NthOf("Guests", 1, func() error { asked = true; return nil })})
	if _, err := observe.Host(context.Background(), s); !errors.Is(err, errLost) || asked {
		t.Errorf("%v, asked for VMs: %v", err, asked)
	}
}
