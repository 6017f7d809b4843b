package inventory

import (
	"strings"
	"testing"

	"github.com/numavisor/numavisor/internal/guest"
	"github.com/numavisor/numavisor/internal/topology"
)

func TestValidateNamesTheGuestAndTheField(t *testing.T) {
	g := func(change func(*Guest)) Guest {
		g := Guest{
			Name:   "db",
			Config: Config{VCPUs: 2, Memory: 1 << 30},
			Seen:   Seen{Load: &GuestLoad{CPU: 1, Remote: &Remote{Share: 1}}},
		}
		change(&g)
		return g
	}
	if err := (&Host{Guests: []Guest{g(func(*Guest) {}), {Name: "shut-off"}}}).Validate(); err != nil {
		t.Error(err)
	}
	for want, wrong := range map[string]func(*Guest){
		"guests[1]: has no name":                          func(g *Guest) { g.Name = "" },
		"VM web: occurs twice":                            func(g *Guest) { g.Name = "web" },
		"VM db: config.vcpus -4: allowed are 0 to 16384":  func(g *Guest) { g.Config.VCPUs = -4 },
		"VM db: config.vcpus 1099511627776":               func(g *Guest) { g.Config.VCPUs = 1 << 40 },
		"VM db: config.memory_bytes 18446744073709551615": func(g *Guest) { g.Config.Memory = 1<<64 - 1 },
		"VM db: seen.memory_by_node.1 " +
			"9223372036854775808": func(g *Guest) { g.Seen.MemoryByNode = topology.MemoryByNode{1: 1 << 63} },
		"VM db: seen.load.cpu -3: allowed are 0 to 1e+06 CPUs":  func(g *Guest) { g.Seen.Load.CPU = -3 },
		"VM db: seen.load.wait 1e+300":                          func(g *Guest) { g.Seen.Load.Wait = 1e300 },
		"VM db: seen.load.remote.share 1.5: allowed are 0 to 1": func(g *Guest) { g.Seen.Load.Remote.Share = 1.5 },
	} {
		h := Host{Guests: []Guest{{Name: "web"}, g(wrong)}}
		if err := h.Validate(); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("want an error with %q, got %v", want, err)
		}
	}
}

// Used memory is the total less the free memory: with more free memory than the
// total, it would exceed any host. No kernel shows that.
func TestValidateRefusesMoreFreeMemoryThanThereIs(t *testing.T) {
	two, err := topology.Synthetic("nodes:2 cores:2 memory:4G")
	if err != nil {
		t.Fatal(err)
	}
	h := Host{Topology: two}
	n := &h.Topology.Nodes[1]
	for _, free := range []topology.Bytes{0, n.Memory} {
		if n.Free = free; h.Validate() != nil {
			t.Errorf("%v free of %v: %v", n.Free, n.Memory, h.Validate())
		}
	}
	n.Free = n.Memory + 1
	want := "node 1: free_bytes 4294967297: allowed are up to its memory_bytes 4294967296"
	if err := h.Validate(); err == nil || err.Error() != want {
		t.Errorf("got %v, want %s", err, want)
	}
}

// Decisions add and subtract amounts as signed numbers. An amount beyond 2^63
// would make a full node count as an empty one.
func TestValidate_RefusesAmountsThatWrapAround(t *testing.T) {
	const wraps = 1 << 63
	pool := func(h *Host, p topology.HugePagePool) {
		h.Topology.Nodes[1].HugePages = []topology.HugePagePool{p}
	}
	claim := func(h *Host, r guest.Reservation) {
		h.Claims = []Claim{{Name: "db", Placement: guest.Placement{Reservations: []guest.Reservation{r}}}}
	}
	for want, change := range map[string]func(*Host){
		"node 1: memory_bytes 9223372036854775808": func(h *Host) { h.Topology.Nodes[1].Memory = wraps },
		"node 1: reclaimable_bytes 9223372036854775808": func(h *Host) {
			h.Topology.Nodes[1].Reclaimable = wraps
		},
		"node 1: huge_pages[0].size_bytes 0": func(h *Host) { pool(h, topology.HugePagePool{Total: 1}) },
		"node 1: huge_pages[0].size_bytes 9223372036854775808": func(h *Host) {
			pool(h, topology.HugePagePool{Size: wraps, Total: 1})
		},
		"node 1: huge_pages[0].total 1099511627776: allowed are pages for up to 1024 TiB": func(h *Host) {
			pool(h, topology.HugePagePool{Size: topology.GiB, Total: 1 << 40})
		},
		"claim db: placement.reservations[0].memory_bytes 9223372036854775808": func(h *Host) {
			claim(h, guest.Reservation{Memory: wraps})
		},
		"claim db: placement.reservations[0].page_size 9223372036854775808": func(h *Host) {
			claim(h, guest.Reservation{Memory: topology.GiB, PageSize: wraps})
		},
		"VM db: config.page_size 9223372036854775808": func(h *Host) {
			h.Guests = []Guest{{Name: "db", Config: Config{PageSize: wraps}}}
		},
	} {
		two, err := topology.Synthetic("nodes:2 cores:2 memory:4G huge:1G=1")
		if err != nil {
			t.Fatal(err)
		}
		h := Host{Topology: two}
		if err := h.Validate(); err != nil {
			t.Fatal(err)
		}
		change(&h)
		if err := h.Validate(); err == nil || !strings.HasPrefix(err.Error(), want) {
			t.Errorf("got %v, want an error with %q", err, want)
		}
	}
}
